"""``ScaledGP``: predictions, evidence and draws of a stack of kernels against dense textbook formulas or simulation."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scaled_fits import COUNTS, dense_covariance, dense_rows, make_rows, same
from scipy import stats
from scipy.special import gammaln, logsumexp

from finitegp import DataError, FeatureGP
from finitegp.automatic import fit_auto
from finitegp.component import Component
from finitegp.features import LandmarkFeatures
from finitegp.predictive import Prediction
from finitegp.scaled import FEW_ROWS
from finitegp.single_precision import TOLERANCE


def test_a_stack_is_the_mixture_of_textbook_gps(stack):
    new = make_rows(40, seed=2)[0]
    components = tuple(replace(component, tail=None) for component in stack.components)
    plain = replace(stack, components=components, trees=None, spread=None, excess=None)
    found = plain.predict(new, return_covariance=True)
    inputs, targets, scales = dense_rows(stack)
    points = stack.inputs_scaler.transform(new)
    unit, shift = float(stack.target_scaler.scale), float(stack.target_scaler.mean)
    parts = []
    for number, component in enumerate(stack.components):
        noise = component.fitted.posterior.noise_variance
        solved = np.linalg.inv(dense_covariance(component, inputs, inputs) + noise * np.diag(scales))
        cross = dense_covariance(component, points, inputs)
        mean = cross @ solved @ targets
        prior = component.scale_degrees
        factor = component.factor**2 * (prior + targets @ solved @ targets) / (prior + len(targets))
        variance = factor * (dense_covariance(component, points, points) - cross @ solved @ cross.T)
        scale = np.sqrt(variance.diagonal() + factor * noise)
        np.testing.assert_allclose(found.mixture.means[number], shift + unit * mean, atol=1e-4 * unit)
        np.testing.assert_allclose(found.mixture.scales[number], unit * scale, rtol=1e-4)
        parts.append(component.weight * stats.t(component.degrees_of_freedom, mean, scale).pdf(0.3))
    expected = np.log(np.sum(parts, axis=0)) - np.log(unit)
    observed = np.full(40, shift + unit * 0.3)
    np.testing.assert_allclose(found.log_density(torch.from_numpy(observed)), expected, atol=1e-4)


def log_multivariate_student(values, shape, freedom):
    """By the definition; that of SciPy takes the covariance of rows with outliers for singular."""
    rows = len(values)
    squares = values @ np.linalg.solve(shape, values)
    constant = gammaln(0.5 * (freedom + rows)) - gammaln(0.5 * freedom) - 0.5 * rows * np.log(np.pi * freedom)
    return constant - 0.5 * np.linalg.slogdet(shape)[1] - 0.5 * (freedom + rows) * np.log1p(squares / freedom)


def test_evidence_is_the_textbook_student_density(stack):
    ones, shape = np.array([0.3, -1.0, 2.0]), np.diag([1.0, 2.0, 3.0]) + 0.5
    known = stats.multivariate_t(np.zeros(3), shape, df=2.0).logpdf(ones)
    assert log_multivariate_student(ones, shape, 2.0) == pytest.approx(known)
    inputs, targets, scales = dense_rows(stack)
    parts = []
    for component in stack.components:
        noise = component.fitted.posterior.noise_variance
        shape = dense_covariance(component, inputs, inputs) + noise * np.diag(scales)
        parts.append(np.log(component.weight) + log_multivariate_student(targets, shape, component.scale_degrees))
    expected = logsumexp(parts) - len(targets) * np.log(float(stack.target_scaler.scale))
    assert stack.num_data == len(targets) == 240
    assert stack.evidence() == pytest.approx(expected, abs=1e-3)
    assert stack.evidence(*make_rows(), COUNTS) == pytest.approx(expected, abs=1e-3)


def test_evidence_of_a_gaussian_is_the_textbook_density(gaussian):
    inputs, targets = make_rows(seed=1)
    features = gaussian.fitted.features(gaussian.inputs_scaler.transform(inputs))[0].numpy()
    unit = float(gaussian.target_scaler.scale)
    covariance = unit**2 * (features @ features.T + 0.2 * np.eye(120))
    expected = stats.multivariate_normal(np.full(120, float(gaussian.target_scaler.mean)), covariance).logpdf(targets)
    assert gaussian.evidence() == pytest.approx(expected, rel=1e-9)
    assert gaussian.evidence(inputs, targets) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", ["stack", "gaussian"])
def test_one_meaning_of_mean_variance_and_distribution(name, request):
    fit = request.getfixturevalue(name)
    new = np.vstack([make_rows(30, seed=2)[0], [[9.0, 0.0]]])  # the last one far outside
    found = fit.predict(new, return_covariance=True)
    torch.testing.assert_close(fit.predict_mean(new), found.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.covariance.diagonal(), found.epistemic_variance)
    assert float(torch.linalg.eigvalsh(found.covariance).min()) > -1e-9
    if found.mixture is not None:
        np.testing.assert_allclose(found.mixture.mean, found.mean)
        np.testing.assert_allclose(found.mixture.variance, found.variance)
    targets = torch.linspace(0.0, 20.0, 31, dtype=torch.float64)
    torch.testing.assert_close(fit.log_density(new, targets), found.log_density(targets))
    # In pieces it is the same.
    fit.fitted.chunk_size, before = 7, fit.fitted.chunk_size
    try:
        same(fit.predict(new), found, rtol=1e-9, atol=1e-9)
    finally:
        fit.fitted.chunk_size = before


def test_intervals_of_all_methods(stack):
    new = make_rows(30, seed=2)[0]
    found = stack.predict(new)
    lower, upper = stack.interval(new, 0.8)
    torch.testing.assert_close(found.cumulative(lower), torch.full_like(lower, 0.1))
    torch.testing.assert_close(found.cumulative(upper), torch.full_like(lower, 0.9))
    lower, upper = stack.interval(new, 0.8, method="gaussian")
    torch.testing.assert_close(lower, found.mean - stats.norm.ppf(0.9) * found.std)
    torch.testing.assert_close(upper, found.mean + stats.norm.ppf(0.9) * found.std)
    lower, upper = stack.interval(new, 0.8, method="conformal")
    score = np.sort(stack.conformal.scores)[int(np.ceil(0.8 * (len(stack.conformal.scores) + 1))) - 1]
    np.testing.assert_allclose(found.normal_scores(lower), -score, rtol=1e-6)
    np.testing.assert_allclose(found.normal_scores(upper), score, rtol=1e-6)
    in_deviations = replace(stack, conformal=replace(stack.conformal, in_deviations=True))
    lower, upper = in_deviations.interval(new, 0.8, method="conformal")
    torch.testing.assert_close(upper - lower, 2.0 * score * found.std)
    with pytest.raises(ValueError, match="method must be one of"):
        stack.interval(new, method="exact")
    with pytest.raises(ValueError, match="need a fit that left rows out"):
        replace(stack, conformal=None).interval(new, method="conformal")
    with pytest.raises(ValueError, match="coverage must lie between 0 and 1"):
        stack.interval(new, 1.0)


def test_draws_have_the_quantiles_of_the_prediction(stack):
    new = np.vstack([make_rows(5, seed=2)[0], [[4.0, 0.0]]])
    found, draws = stack.predict(new), stack.sample(new, 20_000, seed=3)
    for probability in (0.05, 0.5, 0.9):
        below = (draws <= found.quantile(probability)).double().mean(dim=0)
        np.testing.assert_allclose(below, probability, atol=0.012)  # four deviations of a share of 20,000
    assert torch.equal(stack.sample(new, 3, seed=1), stack.sample(new, 3, seed=1))


@pytest.mark.parametrize("landmarks", [False, True])
def test_draws_of_a_gaussian_have_its_covariance(gaussian, landmarks):
    fit = gaussian
    new = 2.5 + 0.2 * make_rows(6, seed=2)[0]  # where little is known, so that rows are correlated
    if landmarks:  # others than the rows, so that a part of the kernel is not in the features
        inputs, targets = make_rows(seed=1)
        features = LandmarkFeatures.at(
            1.5 * make_rows(10, seed=4)[0], kernel="matern32", length_scales=[0.5, 0.5], variance=1.0
        )
        scaled = gaussian.inputs_scaler.transform(inputs), gaussian.target_scaler.transform(targets)
        fitted = FeatureGP(features, noise_variance=0.2).condition(scaled)
        fit = replace(gaussian, components=(Component(fitted),))
    found = fit.predict(new, return_covariance=True)
    expected = (found.covariance + torch.diag(found.noise_variance)).numpy()
    draws = fit.sample(new, 40_000, seed=0).numpy()
    deviations = np.sqrt(np.outer(expected.diagonal(), expected.diagonal()))
    np.testing.assert_allclose(np.cov(draws.T) / deviations, expected / deviations, atol=0.03)
    np.testing.assert_allclose(draws.mean(axis=0), found.mean, atol=0.03 * float(found.std.max()))
    correlations = (expected / deviations)[np.triu_indices(6, 1)]
    assert np.abs(correlations).max() > 0.1  # otherwise independent draws would pass


def test_draws_at_training_rows_are_finite(stack):
    inputs, _ = make_rows()
    draws = stack.sample(inputs, 2000, seed=0)
    assert bool(torch.isfinite(draws).all())
    # Not their deviation: with four degrees of freedom that of 2000 draws is far from its expectation.
    found = stack.predict(inputs)
    inner = ((draws > found.quantile(0.25)) & (draws < found.quantile(0.75))).double().mean(dim=0)
    np.testing.assert_allclose(inner, 0.5, atol=0.045)  # four deviations of a share of 2000


def test_rows_far_outside_have_numbers_and_absurd_targets_are_refused():
    random = np.random.default_rng(0)
    inputs = random.normal(size=(40, 2))
    targets = np.sin(inputs[:, 0]) + 0.1 * random.normal(size=40)
    fit = fit_auto(inputs, targets, effort="low")
    far = fit.predict(np.full((2, 2), 1e300))
    assert bool(torch.isfinite(far.mean).all())
    assert float(far.std.min()) > float(fit.predict(inputs).std.max())
    for size in (1e290, 1e-290):
        with np.errstate(all="ignore"), pytest.raises(DataError, match="divide them by a power of ten"):
            fit_auto(inputs, size * targets, effort="low")


@pytest.mark.parametrize("verb", ["predict", "predict_mean"])
def test_errors_count_rows_over_chunks(stack, verb):
    inputs = np.zeros((9, 2))
    inputs[6, 1] = np.nan
    with pytest.raises(DataError, match="row 6, column 1 is nan"):
        getattr(stack.with_chunks(4), verb)(inputs)
    with pytest.raises(DataError, match="inputs have no rows"):
        getattr(stack, verb)(np.empty((0, 2)))


def test_threads_do_not_change_predictions(gaussian):
    new = make_rows(5000, seed=2)[0]
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append((gaussian.predict(new), gaussian.predict_mean(new)))
    finally:
        torch.set_num_threads(before)
    (one, mean), (other, same_mean) = found
    assert len(one.mean) == 5000
    assert torch.equal(one.mean, other.mean)
    assert torch.equal(one.variance, other.variance)
    assert torch.equal(mean, same_mean)


def test_many_rows_are_predicted_in_float32_and_few_in_float64(gaussian):
    new = make_rows(FEW_ROWS + 1, seed=2)[0]
    many, mean = gaussian.predict(new), gaussian.predict_mean(new)
    few = Prediction.concatenate([gaussian.predict(part) for part in (new[:FEW_ROWS], new[FEW_ROWS:])])
    deviation = float(few.noise_variance.sqrt().min())
    for found in (many.mean, mean):
        assert not torch.equal(found, few.mean)
        assert float((found - few.mean).abs().max()) < TOLERANCE * deviation
    assert not torch.equal(many.epistemic_variance, few.epistemic_variance)
    assert float((many.std / few.std - 1.0).abs().max()) < TOLERANCE
    chunks = gaussian.with_chunks(1000)  # how many there are decides, not how many pass at once
    same(many, Prediction.concatenate(list(chunks.predict_chunks(new))), rtol=1e-5, atol=1e-5)
    assert not torch.equal(chunks.predict(new).mean, few.mean)
