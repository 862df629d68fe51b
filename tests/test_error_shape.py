"""Student's t around the same standard deviations: its formulas, when it is chosen, and that every face shows it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from finitegp import GPRegressor
from finitegp.automatic import fit_auto
from finitegp.automatic.tails import choose_error_shape, error_shape_of
from finitegp.error_shape import GAUSSIAN, ErrorShape
from finitegp.errors import ModelFileError
from finitegp.metrics import score
from finitegp.posterior import Prediction
from finitegp.report.calibration import measure_calibration
from finitegp.report.prediction_checks import check_heavy_tails
from finitegp.report.reported_model import as_reported_model

POINTS = torch.linspace(-6.0, 6.0, 25, dtype=torch.float64)


def reference(degrees: float | None):
    """The same distribution by SciPy."""
    return stats.norm() if degrees is None else stats.t(degrees, scale=math.sqrt((degrees - 2) / degrees))


@pytest.mark.parametrize("degrees", [None, 2.1, 3.0, 30.0])
def test_density_and_quantiles_are_those_of_scipy(degrees):
    shape, expected = ErrorShape(degrees), reference(degrees)
    np.testing.assert_allclose(shape.log_density(POINTS), expected.logpdf(POINTS), rtol=1e-12)
    # Torch computes the far tail of the Gaussian as a difference: its error is absolute.
    np.testing.assert_allclose(shape.cumulative(POINTS), expected.cdf(POINTS), rtol=1e-12, atol=1e-15)
    probabilities = np.array([0.01, 0.5, 0.9])
    np.testing.assert_allclose(shape.quantiles(probabilities), expected.ppf(probabilities), rtol=1e-12, atol=1e-12)
    assert shape.deviations(0.9) == pytest.approx(expected.ppf(0.95), rel=1e-12)
    assert shape.beyond(3.0) == pytest.approx(2 * expected.sf(3.0), rel=1e-12)


@pytest.mark.parametrize("degrees", [None, 2.2, 5.0])
@pytest.mark.parametrize("error", [0.0, 1.3, -4.0])
def test_crps_is_the_integral_it_stands_for(degrees, error):
    expected = reference(degrees)
    below = integrate.quad(lambda value: expected.cdf(value) ** 2, -np.inf, error)[0]
    above = integrate.quad(lambda value: expected.sf(value) ** 2, error, np.inf)[0]
    found = ErrorShape(degrees).crps(torch.tensor(error, dtype=torch.float64))
    assert float(found) == pytest.approx(below + above, rel=1e-8)


def test_draws_have_the_shape():
    shape = ErrorShape(4.0)
    drawn = shape.draw(np.random.RandomState(0), 20_000)
    assert stats.kstest(drawn, reference(4.0).cdf).pvalue > 0.01
    assert stats.kstest(drawn, stats.norm.cdf).pvalue < 1e-6


@pytest.mark.parametrize("degrees", [2.0, 1.0, float("nan"), float("inf")])
def test_degrees_without_a_variance_are_refused(degrees):
    with pytest.raises(ValueError, match="degrees_of_freedom must be above 2"):
        ErrorShape(degrees)
    with pytest.raises(ModelFileError, match="makes no sense"):
        error_shape_of({"degrees_of_freedom": degrees})


def mean(values):
    return float(values.mean())


def test_the_gaussian_stays_where_errors_are_gaussian():
    for seed in range(20):
        errors = np.random.default_rng(seed).normal(size=300)
        shape = choose_error_shape([(errors, mean)], 300)
        # Chance may look like a slightly heavy tail, never like a heavy one.
        assert shape.is_gaussian or shape.degrees_of_freedom > 10


def test_the_degrees_of_heavy_tails_are_found():
    errors = np.random.default_rng(0).standard_t(2.5, size=50_000) * math.sqrt(0.5 / 2.5)
    shape = choose_error_shape([(errors, mean), (errors, mean)], 50_000)
    assert shape.degrees_of_freedom == pytest.approx(2.5, abs=0.1)


def test_scores_and_intervals_of_a_prediction_agree_with_its_shape():
    shape = ErrorShape(3.0)
    std = torch.full((4000,), 2.0, dtype=torch.float64)
    targets = 1.0 + 2.0 * torch.from_numpy(shape.draw(np.random.RandomState(1), 4000))
    prediction = Prediction(torch.ones_like(std), 0.5 * std.square(), 0.5 * std.square(), error_shape=shape)
    np.testing.assert_allclose(
        prediction.log_density(targets), stats.t(3.0, 1.0, 2.0 / math.sqrt(3.0)).logpdf(targets), rtol=1e-12
    )
    found = score(prediction.mean, std, targets, error_shape=shape)
    assert found.nlpd == pytest.approx(-float(prediction.log_density(targets).mean()), rel=1e-12)
    lower, upper = prediction.interval(0.5)
    assert found.coverage[0.5] == float(((lower <= targets) & (targets <= upper)).double().mean())
    assert abs(found.coverage[0.5] - 0.5) < 0.03
    as_gaussian = score(prediction.mean, std, targets)
    assert as_gaussian.rmse == found.rmse
    assert as_gaussian.nlpd > found.nlpd + 0.1
    assert as_gaussian.coverage[0.5] > 0.6


@pytest.fixture(scope="module")
def heavy():
    """A smooth function with errors of Student's t: training rows, and rows that no fit has seen."""
    generator = np.random.default_rng(0)
    inputs = generator.uniform(-2, 2, size=(3000, 1))
    targets = np.sin(2 * inputs[:, 0]) + 0.1 * generator.standard_t(2.3, size=3000)
    return (inputs[:600], targets[:600]), (inputs[600:], targets[600:])


@pytest.fixture(scope="module")
def fitted(heavy):
    return GPRegressor(effort="low", random_state=0).fit(*heavy[0])


def test_a_fit_to_heavy_tails_has_calibrated_intervals_in_the_middle_too(heavy, fitted):
    inputs, targets = heavy[1]
    fit = fitted.fits_[0]
    assert 2.0 < fit.record["degrees_of_freedom"] < 4.0
    for coverage in (0.5, 0.9):
        lower, upper = fitted.predict_interval(inputs, coverage)
        assert abs(np.mean((lower <= targets) & (targets <= upper)) - coverage) < 0.05
    lower, upper = fitted.predict_interval(inputs, 0.5, method="gaussian")
    assert np.mean((lower <= targets) & (targets <= upper)) > 0.65
    std = fitted.predict(inputs, return_std=True)[1]
    as_gaussian = stats.norm(fitted.predict(inputs), std).logpdf(targets)
    assert fitted.log_density(inputs, targets).mean() > as_gaussian.mean() + 0.1
    without = fit_auto(*heavy[0], effort="low", settings={"heavy_tails": False})
    assert without.error_shape.is_gaussian
    np.testing.assert_allclose(without.predict(inputs).std, std)


def test_networks_choose_the_shape_from_rows_set_aside(heavy):
    inputs, targets = (np.concatenate(parts) for parts in zip(*heavy, strict=True))
    settings = {"small_rows": 500, "epochs": 4, "min_steps": 150, "noise_epochs": 2, "noise_min_steps": 50}
    fit = fit_auto(inputs[:2000], targets[:2000], effort="low", settings=settings)
    assert fit.record["path"] == "networks"
    assert 2.0 < fit.record["degrees_of_freedom"] < 6.0
    found = fit.predict(inputs[2000:])
    observed = torch.from_numpy(targets[2000:])
    shaped = score(found.mean, found.std, observed, error_shape=found.error_shape)
    assert abs(shaped.coverage[0.5] - 0.5) < 0.06
    assert shaped.nlpd < score(found.mean, found.std, observed).nlpd


def test_the_shape_is_saved_and_survives_more_rows(heavy, fitted, tmp_path):
    fitted.save(tmp_path / "model.finitegp")
    again = GPRegressor.load(tmp_path / "model.finitegp")
    inputs, targets = heavy[1]
    np.testing.assert_array_equal(again.log_density(inputs, targets), fitted.log_density(inputs, targets))
    again.partial_fit(inputs, targets)
    assert again.fits_[0].error_shape == fitted.fits_[0].error_shape


def test_samples_have_heavy_tails(heavy, fitted):
    draws = fitted.sample_y(heavy[1][0][:1], n_samples=4000, random_state=0)[0]
    standardized = (draws - draws.mean()) / fitted.predict(heavy[1][0][:1], return_std=True)[1]
    assert np.mean(np.abs(standardized) < GAUSSIAN.deviations(0.5)) > 0.62


def test_a_report_judges_by_the_shape(heavy, fitted):
    inputs, targets = heavy[1]
    reported = as_reported_model(fitted)
    mean_, std, _ = reported.predict(inputs)
    found = measure_calibration(mean_, std, targets, reported.error_shape)
    inside = (found.nominal_low <= found.observed) & (found.observed <= found.nominal_high)
    as_gaussian = measure_calibration(mean_, std, targets)
    missed = (as_gaussian.observed < as_gaussian.nominal_low) | (as_gaussian.observed > as_gaussian.nominal_high)
    assert inside.sum() > 10 > (~missed).sum()
    assert (found.spread_high / found.predicted_spread > as_gaussian.spread_high / found.predicted_spread).all()
    errors = (targets - mean_) / std
    assert check_heavy_tails(errors, reported.error_shape) is None
    assert check_heavy_tails(errors) is not None
