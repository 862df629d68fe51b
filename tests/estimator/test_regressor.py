"""GPRegressor: predictions, likelihood, small and strange tables, several targets."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from estimator_rows import make_rows, quick, quick_network
from scipy.special import gammaln, logsumexp
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import DotProduct, WhiteKernel
from torch import nn

from finitegp.errors import DataError, NumericalError

# Predictions


def test_interval_covers_and_std_includes_the_noise(fitted):
    inputs, targets = make_rows(2000, seed=1)
    mean, std = fitted.predict(inputs, return_std=True)
    assert np.sqrt(np.mean((mean - targets) ** 2)) < 1.3  # of noise 1, in a target of deviation 8
    # A kernel of little weight and large errors makes the deviation larger than most errors are, not the intervals.
    assert 0.8 < std.min() < 1.5
    lower, upper = fitted.predict_interval(inputs, coverage=0.6827)
    assert 0.8 < 0.5 * (upper - lower).min() < 1.3
    for coverage in (0.5, 0.9):
        lower, upper = fitted.predict_interval(inputs, coverage=coverage)
        assert np.mean((lower < targets) & (targets < upper)) == pytest.approx(coverage, abs=0.06)
    assert np.all((lower < mean) & (mean < upper))


def test_gaps_point_to_the_regressor_for_tables(fitted, rows):
    inputs, targets = rows
    gaps = inputs.copy()
    gaps[5, 1] = np.nan
    remedy = r"row 5, column 1, but GPRegressor does not take missing values: use TableRegressor\(missing='impute'\)"
    for attempt in (lambda: quick().fit(gaps, targets), lambda: fitted.predict(gaps)):
        with pytest.raises(DataError, match=remedy):
            attempt()
    with pytest.raises(DataError, match="column 1 \\('b'\\)"):
        quick().fit(pd.DataFrame(gaps[:, :2], columns=["a", "b"]), targets)


def test_what_is_outside_is_known(fitted, rows):
    inputs, _ = rows
    assert not fitted.outside(inputs).any()
    far = inputs[:3].copy()
    far[1, 0] = inputs[:, 0].max() + 4.0 * inputs[:, 0].std()
    found = fitted.outside(far)
    assert found.shape == far.shape
    assert found[1, 0] == pytest.approx(4.0, rel=0.05)
    assert np.count_nonzero(found) == 1
    with pytest.raises(DataError, match="without a feature_map"):
        quick_network(epochs=1).fit(*rows).outside(inputs)


def test_conformal_intervals_cover(fitted, rows):
    inputs, targets = make_rows(2000, seed=1)
    for coverage in (0.5, 0.9):
        lower, upper = fitted.predict_interval(inputs, coverage, method="conformal")
        assert np.mean((lower < targets) & (targets < upper)) == pytest.approx(coverage, abs=0.08)
    with pytest.raises(ValueError, match="need a fit that left rows out"):
        quick_network(epochs=1).fit(*rows).predict_interval(inputs, method="conformal")


def test_several_coverages_come_from_one_prediction(fitted, rows, monkeypatch):
    inputs = rows[0][:7]
    levels, single = [0.5, 0.9], {}
    for method in ("predictive", "gaussian", "conformal"):
        single[method] = [fitted.predict_interval(inputs, level, method) for level in levels]
    calls = []
    original = type(fitted.fits_[0]).predict
    monkeypatch.setattr(type(fitted.fits_[0]), "predict", lambda *args, **kw: calls.append(1) or original(*args, **kw))
    for method, expected in single.items():
        for ends, column in zip(fitted.predict_interval(inputs, levels, method), (0, 1), strict=True):
            assert ends.shape == (7, 2)
            assert np.array_equal(ends, np.stack([each[column] for each in expected], axis=1))
    assert len(calls) == 3
    two = quick_network(epochs=1).fit(rows[0], np.stack([rows[1], -rows[1]], axis=1))
    assert two.predict_interval(inputs, np.array(levels))[0].shape == (7, 2, 2)
    assert np.array_equal(two.predict_interval(inputs, levels)[1][..., 1], two.predict_interval(inputs, 0.9)[1])
    for wrong in ([0.5, 1.0], 90, []):
        with pytest.raises(ValueError, match="coverage must"):
            fitted.predict_interval(inputs, wrong)


def test_cov_is_that_of_observations(fitted, rows):
    inputs = rows[0][:7]
    mean, std = fitted.predict(inputs, return_std=True)
    same_mean, covariance = fitted.predict(inputs, return_cov=True)
    np.testing.assert_allclose(same_mean, mean, rtol=1e-12)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=1e-9)
    assert np.linalg.eigvalsh(covariance).min() > 0.5
    with pytest.raises(RuntimeError, match="At most one of return_std or return_cov"):
        fitted.predict(inputs, return_std=True, return_cov=True)


def test_quantiles_are_the_ends_of_intervals(fitted, rows):
    inputs = rows[0][:5]
    lower, upper = fitted.predict_interval(inputs, coverage=0.8)
    found = fitted.quantile(inputs, [0.1, 0.9])
    assert found.shape == (5, 2)
    np.testing.assert_allclose(found, np.column_stack([lower, upper]), rtol=1e-12)
    np.testing.assert_array_equal(fitted.quantile(inputs, 0.1), found[:, 0])
    for wrong in (0.0, [0.5, 1.0], []):
        with pytest.raises(ValueError, match="level must be a number between 0 and 1"):
            fitted.quantile(inputs, wrong)
    two = quick_network().fit(rows[0], np.column_stack([rows[1], -rows[1]]))
    lower, _ = two.predict_interval(inputs, coverage=0.8)
    assert two.quantile(inputs, [0.1, 0.5, 0.9]).shape == (5, 2, 3)
    np.testing.assert_allclose(two.quantile(inputs, 0.1), lower, rtol=1e-6)


def test_samples_have_the_predicted_intervals(fitted, rows):
    """Quantiles, since the moments of heavy tails are not to be seen in samples; see ``test_scaled.py`` for those."""
    inputs = rows[0][:5]
    samples = fitted.sample_y(inputs, n_samples=20_000, random_state=3)
    assert samples.shape == (5, 20_000)
    for coverage in (0.5, 0.95):
        lower, upper = fitted.predict_interval(inputs, coverage)
        inside = (lower[:, None] < samples) & (samples < upper[:, None])
        np.testing.assert_allclose(inside.mean(axis=1), coverage, atol=0.015)
    assert np.array_equal(samples, fitted.sample_y(inputs, n_samples=20_000, random_state=3))
    with pytest.raises(ValueError, match="n_samples must be at least 1, but is -1"):
        fitted.sample_y(inputs, n_samples=-1)


def test_linear_features_agree_with_scikit_learns_process():
    inputs, targets = make_rows(40)
    inputs = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    targets = (targets - targets.mean()) / targets.std()

    class Inputs(nn.Module):
        def forward(self, inputs):
            return inputs

    gp = quick(feature_map=Inputs(), algorithm="exact").fit(inputs, targets)
    noise = gp.fits_[0].fitted.posterior.noise_variance
    kernel = DotProduct(sigma_0=0.0, sigma_0_bounds="fixed") + WhiteKernel(noise, noise_level_bounds="fixed")
    reference = GaussianProcessRegressor(kernel, optimizer=None).fit(inputs, targets)
    new = make_rows(10, seed=4)[0] * [1, 1e-4]
    for options in ({"return_std": True}, {"return_cov": True}):
        for found, expected in zip(gp.predict(new, **options), reference.predict(new, **options), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
    assert gp.log_marginal_likelihood() == pytest.approx(reference.log_marginal_likelihood(), rel=1e-6)
    assert gp.log_marginal_likelihood_value_ == gp.log_marginal_likelihood()


def test_likelihood_is_in_the_targets_units(rows):
    inputs, targets = rows
    gp, scaled = quick().fit(inputs, targets), quick().fit(inputs, 1000 * targets)
    expected = gp.log_marginal_likelihood() - len(targets) * np.log(1000)
    assert scaled.log_marginal_likelihood() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("deviation", [1e-1, 1e-3, 1e-4])
def test_likelihood_equals_the_dense_formula(deviation):
    inputs = np.linspace(-2, 2, 40)[:, None]
    targets = np.sin(inputs[:, 0]) + deviation * np.random.default_rng(0).normal(size=40)
    gp = quick().fit(inputs, targets)
    fit = gp.fits_[0]
    scaled, values = torch.from_numpy(fit.inputs_scaler.transform(inputs)), fit.target_scaler.transform(targets)
    parts = []
    for component in fit.components:
        # Its own kernel rather than the features, which have a jitter.
        constant, linear, *landmarks = component.fitted.model.feature_map.maps
        covariance = constant(scaled) @ constant(scaled).T + linear(scaled) @ linear(scaled).T
        for part in landmarks:
            covariance = covariance + part.covariance(scaled, scaled)
        shape = covariance.numpy() + component.fitted.posterior.noise_variance * np.eye(40)
        freedom = component.scale_degrees
        squares = values @ np.linalg.solve(shape, values)
        constant = gammaln((freedom + 40) / 2) - gammaln(freedom / 2) - 20 * np.log(np.pi * freedom)
        density = constant - 0.5 * np.linalg.slogdet(shape)[1] - 0.5 * (freedom + 40) * np.log1p(squares / freedom)
        parts.append(np.log(component.weight) + density)
    expected = logsumexp(parts) - 40 * np.log(fit.target_scaler.scale)
    assert gp.log_marginal_likelihood() == pytest.approx(expected, rel=1e-4)


def test_targets_without_noise_are_fitted():
    inputs = np.linspace(-2, 2, 40)[:, None]
    gp = quick().fit(inputs, np.sin(inputs[:, 0]))
    np.testing.assert_allclose(gp.predict(inputs + 0.01), np.sin(inputs[:, 0] + 0.01), atol=1e-3)
    assert np.isfinite(gp.log_marginal_likelihood())


def test_a_likelihood_that_cannot_be_trusted_is_refused():
    inputs = np.linspace(-2, 2, 40)[:, None]
    gp = quick(feature_map="fourier", algorithm="exact").fit(inputs, np.sin(inputs[:, 0]))
    with pytest.raises(NumericalError, match="cannot be trusted"):
        gp.log_marginal_likelihood()


# Small and strange tables


@pytest.mark.parametrize("count", [20, 35, 50])
@pytest.mark.parametrize("options", [{}, {"noise": "input"}, {"normalize_y": False}])
def test_few_rows_beat_the_mean(count, options):
    inputs, targets = make_rows(count, seed=count)
    test_inputs, test_targets = make_rows(300, seed=99)
    gp = quick(**options).fit(inputs, targets)
    assert gp.score(test_inputs, test_targets) > 0.5
    lower, upper = gp.predict_interval(test_inputs)
    assert 0.75 < np.mean((lower < test_targets) & (test_targets < upper)) <= 1.0


def test_constant_targets_are_predicted_with_a_warning():
    inputs, _ = make_rows(12)
    with pytest.warns(UserWarning, match=r"All targets are 3\.5"):
        gp = quick().fit(inputs, np.full(12, 3.5))
    np.testing.assert_allclose(gp.predict(inputs), 3.5, rtol=1e-12)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_very_few_rows_have_wide_intervals(count):
    """They cannot say how far targets vary: 90 % intervals hold 0.75 to 0.84 on average."""
    new, observed = make_rows(500, seed=99)
    held = []
    for seed in range(8):
        gp = quick().fit(*make_rows(count, seed=seed))
        assert gp.training_summary_["fits"][0]["path"] == "kernel"
        lower, upper = gp.predict_interval(new, 0.9)
        held.append(np.mean((lower < observed) & (observed < upper)))
    assert np.mean(held) > 0.65


def test_one_row_and_no_weight_are_refused(rows):
    inputs, targets = rows
    with pytest.raises(ValueError, match="minimum of 2 is required"):
        quick().fit(inputs[:1], targets[:1])
    with pytest.raises(ValueError, match="sample_weight is zero in all but 1 rows"):
        quick().fit(inputs[:5], targets[:5], sample_weight=[0, 0, 1, 0, 0])
    with pytest.raises(ValueError, match="Negative values in data passed to `sample_weight`"):
        quick().fit(inputs[:5], targets[:5], sample_weight=[1, 1, 1, 1, -1])


def test_one_column_and_constant_columns(rows):
    inputs, targets = rows
    one = quick().fit(inputs[:, :1], targets)
    with_constant = quick().fit(np.column_stack([inputs[:, :1], np.full(len(inputs), 7.0)]), targets)
    assert one.score(inputs[:, :1], targets) > 0.7  # the other column explains the rest
    assert with_constant.score(np.column_stack([inputs[:, :1], np.full(len(inputs), 7.0)]), targets) > 0.7


# Several targets


def test_each_target_is_fitted_as_alone():
    inputs, targets = make_rows(50, targets=3)
    gp = quick().fit(inputs, targets)
    mean, std = gp.predict(inputs[:4], return_std=True)
    _, covariance = gp.predict(inputs[:4], return_cov=True)
    assert (mean.shape, std.shape, covariance.shape) == ((4, 3), (4, 3), (4, 4, 3))
    assert gp.sample_y(inputs[:4], n_samples=6).shape == (4, 3, 6)
    assert gp.leave_one_out(inputs, targets)[1].shape == (50, 3)
    alone = quick().fit(inputs, targets[:, 1])
    np.testing.assert_array_equal(mean[:, 1], alone.predict(inputs[:4], return_std=True)[0])
    np.testing.assert_allclose(covariance[:, :, 1], alone.predict(inputs[:4], return_cov=True)[1], rtol=1e-12)
    gp.partial_fit(inputs[:5], targets[:5])
    with pytest.raises(ValueError, match="y has 1 target columns, but the fit has 3"):
        gp.partial_fit(inputs[:5], targets[:5, 0])


def test_importing_the_package_does_not_import_scikit_learn():
    subprocess.run([sys.executable, "-c", "import sys, finitegp; assert 'sklearn' not in sys.modules"], check=True)
