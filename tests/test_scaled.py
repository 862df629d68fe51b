"""``ScaledGP``: every verb of a stack of kernels against dense textbook formulas, refits, or simulation."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import gammaln, logsumexp
from sklearn.gaussian_process.kernels import RBF, Matern

from finitegp import DataError, FeatureGP
from finitegp.automatic import fit_auto
from finitegp.combination import widened
from finitegp.component import Component, student_component
from finitegp.data import ArraySource
from finitegp.data.scaling import Standardizer
from finitegp.error_shape import ErrorShape, TailedShape
from finitegp.features import FourierFeatures, LandmarkFeatures
from finitegp.persistence import load_fit, save_fit
from finitegp.persistence.container import read_container
from finitegp.predictive import StudentMixture
from finitegp.scaled import ScaledGP

WILD = 7


def make_rows(count=120, seed=0):
    """Noise that depends on the first column, and one wild target."""
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(count, 2))
    deviation = 0.05 + 0.5 * (inputs[:, 0] > 0)
    targets = 10.0 + 3.0 * (np.sin(2.0 * inputs[:, 1]) + deviation * random.normal(size=count))
    if seed == 0:
        targets[WILD] = 200.0
    return inputs, targets


COUNTS = 1.0 + np.arange(120) % 3


@pytest.fixture(scope="module")
def stack():
    """Several kernels with a model of the spread, a variance outside, an outlier, and counts."""
    fit = fit_auto(*make_rows(), counts=COUNTS, effort="low", may_be_copies=False)
    assert len(fit.components) > 1
    assert fit.spread is not None
    assert fit.excess is not None
    assert len(fit.outliers) == 1
    return fit


@pytest.fixture(scope="module")
def gaussian():
    """One GP of given features."""
    inputs, targets = make_rows(seed=1)
    scalers = Standardizer.fit(inputs), Standardizer.fit(targets)
    model = FeatureGP(FourierFeatures(2, 30, seed=0), noise_variance=0.2)
    fitted = model.condition((scalers[0].transform(inputs), scalers[1].transform(targets)))
    return ScaledGP((Component(fitted),), *scalers)


def same(one, other, **tolerance):
    """Whether two predictions are the same distribution."""
    for name in ("mean", "epistemic_variance", "noise_variance"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), **tolerance)
    for probability in (0.02, 0.7):
        torch.testing.assert_close(one.quantile(probability), other.quantile(probability), **tolerance)


def dense_covariance(component, one, other):
    """The kernel of a component from its hyperparameters, by scikit-learn."""
    constant, linear, *rest = component.fitted.model.feature_map.maps
    found = float(constant(torch.zeros(1, 2).double())[0, 0]) ** 2 + float(linear.magnitude) * one @ other.T
    for landmarks in rest:
        lengths = landmarks.log_length_scales.exp().numpy()
        kinds = {"rbf": RBF(lengths), "matern32": Matern(lengths, nu=1.5), "matern52": Matern(lengths, nu=2.5)}
        found = found + float(landmarks.log_variance.exp()) * kinds[landmarks.kernel](one, other)
    return found


def dense_rows(fit):
    """Scaled rows, repeated by their counts, and the diagonal of the noise: one where rows are trusted."""
    inputs, targets = make_rows()
    times = COUNTS.astype(int)
    scales = np.where(np.arange(120) == WILD, next(iter(fit.outliers.values())), 1.0)
    scaled = fit.inputs_scaler.transform(inputs), fit.target_scaler.transform(targets), scales
    return tuple(np.repeat(each, times, axis=0) for each in scaled)


def test_a_stack_is_the_mixture_of_textbook_gps(stack):
    new = make_rows(40, seed=2)[0]
    found = replace(stack, trees=None, spread=None, excess=None).predict(new, return_covariance=True)
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


@pytest.mark.parametrize("name", ["stack", "gaussian", "without rows"])
def test_leaving_a_row_out_is_forgetting_it(name, request):
    inputs, targets = make_rows(seed=1 if name == "gaussian" else 0)
    if name == "without rows":
        fit = fit_auto(inputs, targets, effort="low", keep_rows=False)
    else:
        fit = request.getfixturevalue(name)
    rows = [0, 1, 2, WILD, 50]
    left_out = fit.leave_one_out(inputs[rows], targets[rows])
    for place, row in enumerate(rows):
        one = slice(row, row + 1)
        again = fit.forget(inputs[one], targets[one]).predict(inputs[one])
        mean, std = (float(part[place]) for part in (left_out.mean, left_out.std))
        assert mean == pytest.approx(float(again.mean), rel=1e-6), row
        assert std == pytest.approx(float(again.std), rel=1e-6), row
        assert float(left_out.quantile(0.9)[place]) == pytest.approx(float(again.quantile(0.9)), rel=1e-6)


def test_updates_are_the_posterior_of_all_rows(stack):
    more = make_rows(30, seed=3)
    counts = np.full(30, 2.0)
    updated = stack.update(*more, counts)
    assert updated.num_data == stack.num_data + 60
    (inputs, targets, scales), (new, values) = dense_rows(stack), more
    inputs = np.vstack([inputs, np.repeat(stack.inputs_scaler.transform(new), 2, axis=0)])
    targets = np.concatenate([targets, np.repeat(stack.target_scaler.transform(values), 2)])
    weights = np.concatenate([1.0 / scales, np.ones(60)])
    points = stack.inputs_scaler.transform(make_rows(20, seed=2)[0])
    for before, after in zip(stack.components, updated.components, strict=True):
        direct = before.fitted.model.condition(ArraySource(inputs, targets, weights)).predict(points)
        same(after.fitted.predict(points), direct, rtol=1e-6, atol=1e-8)
    back = updated.forget(*more, counts)
    same(back.predict(more[0]), stack.predict(more[0]), rtol=1e-6, atol=1e-6)


def test_merging_forks_of_one_fit(stack, gaussian):
    one, two = make_rows(30, seed=3), make_rows(20, seed=4)
    empty = stack.forget(*make_rows(), COUNTS)
    merged = stack.update(*one).merge(empty.update(*two))
    both = stack.update(*(np.concatenate(parts) for parts in zip(one, two, strict=True)))
    same(merged.predict(one[0]), both.predict(one[0]), rtol=1e-5, atol=1e-5)
    with pytest.raises(DataError, match="Only fits that stem from one fit"):
        stack.merge(gaussian)
    other = fit_auto(*make_rows(seed=5), effort="low", settings={"input_noise": False})
    with pytest.raises(DataError, match="Only fits that stem from one fit"):
        stack.merge(other)
    foreign = replace(stack, components=tuple(reversed(stack.components)))
    with pytest.raises(DataError, match="Only posteriors of the same model"):
        stack.merge(foreign)


def test_copies_count_once_when_they_are_forgotten_too():
    inputs, targets = make_rows(40, seed=1)
    twice = np.repeat(inputs, 2, axis=0), np.repeat(targets, 2)
    fit = fit_auto(*twice, effort="low")
    once = fit_auto(inputs, targets, effort="low")
    assert fit.counts_copies_once
    assert fit.record["copies"] == 40
    assert not once.counts_copies_once
    assert fit.num_data == once.num_data == 40
    same(fit.predict(inputs), once.predict(inputs), rtol=1e-9, atol=1e-9)
    same(fit.forget(twice[0][:6], twice[1][:6]).predict(inputs), once.forget(inputs[:3], targets[:3]).predict(inputs))
    more = make_rows(5, seed=2)
    again = fit.update(np.repeat(more[0], 2, axis=0), np.repeat(more[1], 2))
    assert again.num_data == 45
    assert fit.update(*more, np.full(5, 2.0)).num_data == 50
    assert fit.evidence(*twice) == pytest.approx(fit.evidence(), abs=1e-4)


@pytest.mark.parametrize("changed", [False, True])
def test_everything_comes_back_from_a_file(stack, changed, tmp_path):
    fit = stack.update(*make_rows(30, seed=3)) if changed else stack
    save_fit(fit, tmp_path / "stack.finitegp")
    tensors = read_container(tmp_path / "stack.finitegp").tensors
    # Row sums follow from landmarks and their weights, until there are other rows in them.
    assert ("fits.0.components.1.statistics.gram" in tensors) == changed
    assert ("fits.0.components.1.landmark_weights" in tensors) != changed
    again = load_fit(tmp_path / "stack.finitegp")
    new = make_rows(30, seed=2)[0]
    # Sums of counted and doubted rows round differently; see the next test.
    same(again.predict(new), fit.predict(new), rtol=1e-7, atol=1e-7)
    # Rows of high leverage multiply rounding.
    same(again.leave_one_out(*make_rows()), fit.leave_one_out(*make_rows()), rtol=1e-4, atol=1e-4)
    for method in ("predictive", "gaussian", "conformal"):
        torch.testing.assert_close(again.interval(new, 0.8, method=method), fit.interval(new, 0.8, method=method))
    assert again.evidence() == pytest.approx(fit.evidence(), rel=1e-7)
    assert torch.equal(torch.from_numpy(again.outside(3 * new)), torch.from_numpy(fit.outside(3 * new)))
    assert (again.outliers, again.keeps_rows) == (fit.outliers, True)
    more = make_rows(5, seed=6)
    same(again.update(*more).predict(new), fit.update(*more).predict(new), rtol=1e-7, atol=1e-7)
    same(
        again.forget(*(part[:9] for part in make_rows())).predict(new),
        fit.forget(*(part[:9] for part in make_rows())).predict(new),
        rtol=1e-6,
        atol=1e-6,
    )


def test_plain_rows_come_back_to_the_last_bit(tmp_path):
    inputs, targets = make_rows(60, seed=1)
    fit = fit_auto(inputs, targets, effort="low")
    save_fit(fit, tmp_path / "stack.finitegp")
    again = load_fit(tmp_path / "stack.finitegp")
    same(again.predict(inputs), fit.predict(inputs), rtol=0, atol=0)
    assert again.evidence() == fit.evidence()


def test_no_prediction_depends_on_the_record(stack, tmp_path):
    save_fit(replace(stack, record={}), tmp_path / "bare.finitegp")
    bare = load_fit(tmp_path / "bare.finitegp")
    new = make_rows(30, seed=2)[0]
    assert bare.record == {}
    same(bare.predict(new), stack.predict(new), rtol=1e-7, atol=1e-7)
    assert bare.evidence() == pytest.approx(stack.evidence(), rel=1e-7)
    torch.testing.assert_close(bare.interval(new, method="conformal"), stack.interval(new, method="conformal"))


def test_student_errors_keep_the_standard_deviation(gaussian):
    fitted = gaussian.fitted
    shaped = replace(gaussian, components=(student_component(fitted, ErrorShape(3.0)),))
    new = make_rows(10, seed=2)[0]
    plain, found = gaussian.predict(new), shaped.predict(new)
    torch.testing.assert_close(found.std, plain.std)
    expected = stats.t(3.0, found.mean, found.std / np.sqrt(3.0))
    np.testing.assert_allclose(found.quantile(0.9), expected.ppf(0.9), rtol=1e-9)
    np.testing.assert_allclose(found.log_density(plain.mean), expected.logpdf(plain.mean), rtol=1e-9)
    assert student_component(fitted).degrees_of_freedom == np.inf
    assert shaped.distribution == "Student's t with 3 degrees of freedom"
    assert gaussian.distribution == "a normal distribution"


class TestLargerErrors:
    """A share of errors that are larger than the others."""

    SHAPE = TailedShape(ErrorShape(8.0), ErrorShape(), share=0.2, ratio=6.0)

    @pytest.fixture
    def tailed(self, gaussian):
        return replace(gaussian, components=(student_component(gaussian.fitted, self.SHAPE),))

    def test_the_distribution_is_that_of_both(self, tailed, gaussian):
        new = make_rows(10, seed=2)[0]
        plain, found = gaussian.predict(new), tailed.predict(new)
        torch.testing.assert_close(found.std, plain.std)
        torch.testing.assert_close(found.noise_variance, plain.noise_variance)
        one, other = (unit * plain.std.numpy() for unit in self.SHAPE.units)
        values = plain.mean.numpy() + 0.7 * plain.std.numpy()
        main, tail = stats.t(8.0, plain.mean, one * np.sqrt(6.0 / 8.0)), stats.norm(plain.mean, other)
        expected = np.log(0.8 * main.pdf(values) + 0.2 * tail.pdf(values))
        np.testing.assert_allclose(found.log_density(torch.from_numpy(values)), expected, rtol=1e-9)
        ends = found.quantile(0.95).numpy()
        np.testing.assert_allclose(0.8 * main.cdf(ends) + 0.2 * tail.cdf(ends), 0.95, rtol=1e-7)
        assert tailed.distribution == "a mixture of Student's t"

    def test_draws_are_larger_row_by_row(self, tailed):
        new = make_rows(4, seed=2)[0]
        draws = tailed.sample(new, 4000, seed=0).numpy()
        found = tailed.predict(new)
        inside = np.abs(draws - found.mean.numpy()) < (found.quantile(0.75) - found.mean).numpy()
        np.testing.assert_allclose(inside.mean(axis=0), 0.5, atol=0.03)
        np.testing.assert_allclose(draws.std(axis=0), found.std, rtol=0.08)

    def test_a_file_keeps_it(self, tailed, tmp_path):
        save_fit(tailed, tmp_path / "tailed.finitegp")
        new = make_rows(10, seed=2)[0]
        loaded = load_fit(tmp_path / "tailed.finitegp")
        assert loaded.components[0].tail == tailed.components[0].tail
        torch.testing.assert_close(loaded.predict(new).quantile(0.99), tailed.predict(new).quantile(0.99))


def test_widened_adds_the_variance_and_thins_the_tails():
    freedom = np.array([[5.0], [np.inf]])
    mixture = StudentMixture(np.array([0.6, 0.4]), np.array([[0.0] * 3, [1.0] * 3]), np.full((2, 3), 0.5), freedom)
    added = np.array([0.0, 0.4, 40.0])
    found = widened(mixture, added)
    np.testing.assert_allclose(found.mean, mixture.mean)
    np.testing.assert_allclose(found.variance, mixture.variance + added)
    np.testing.assert_allclose(found.degrees_of_freedom[:, 0], [5.0, np.inf])
    assert np.all(np.diff(found.degrees_of_freedom[0]) > 0)
    assert np.isinf(found.degrees_of_freedom[1]).all()
    assert widened(mixture, np.zeros(3)) is mixture
    # What it stands for: the sum of a draw of the mixture and a Gaussian.
    random = np.random.default_rng(0)
    which = random.random(400_000) < 0.6
    drawn = np.where(which, 0.5 * random.standard_t(5.0, 400_000), 1.0 + 0.5 * random.normal(size=400_000))
    for row in (1, 2):
        total = drawn + np.sqrt(added[row]) * random.normal(size=400_000)
        quantiles = [found.quantile(level)[row] for level in (0.005, 0.05, 0.5, 0.95, 0.995)]
        np.testing.assert_allclose(
            quantiles, np.quantile(total, [0.005, 0.05, 0.5, 0.95, 0.995]), atol=0.03 * total.std()
        )


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
