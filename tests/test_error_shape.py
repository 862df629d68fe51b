"""Student's t around the same standard deviations: its formulas, when it is chosen, and that every face shows it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from finitegp import GPRegressor
from finitegp.automatic import fit_auto
from finitegp.error_shape import GAUSSIAN, ErrorShape
from finitegp.metrics import score
from finitegp.predictive import Prediction, StudentMixture
from finitegp.report.evaluation import Predicted, as_reported_model
from finitegp.report.held_out import measure_calibration
from finitegp.report.prediction_checks import check_heavy_tails

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


def test_scores_and_intervals_of_a_prediction_agree_with_its_shape():
    shape = ErrorShape(3.0)
    std = torch.full((4000,), 2.0, dtype=torch.float64)
    targets = 1.0 + 2.0 * torch.from_numpy(shape.draw(np.random.RandomState(1), 4000))
    student = StudentMixture(np.ones(1), np.ones((1, 4000)), std.numpy()[None] / math.sqrt(3.0), np.full((1, 1), 3.0))
    prediction = Prediction(torch.ones_like(std), 0.5 * std.square(), 0.5 * std.square(), mixture=student)
    np.testing.assert_allclose(
        prediction.log_density(targets), stats.t(3.0, 1.0, 2.0 / math.sqrt(3.0)).logpdf(targets), rtol=1e-12
    )
    found = score(prediction.mean, std, targets, mixture=student)
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
    return (inputs[:400], targets[:400]), (inputs[400:], targets[400:])


@pytest.fixture(scope="module")
def fitted(heavy):
    return GPRegressor(effort="low", random_state=0).fit(*heavy[0])


@pytest.mark.slow
def test_a_fit_to_heavy_tails_has_calibrated_intervals_in_the_middle_too(heavy, fitted):
    inputs, targets = heavy[1]
    heaviest = max(fitted.fits_[0].components, key=lambda component: component.weight)
    assert 2.0 < heaviest.degrees_of_freedom < 4.5
    for coverage in (0.5, 0.9):
        lower, upper = fitted.predict_interval(inputs, coverage)
        assert abs(np.mean((lower <= targets) & (targets <= upper)) - coverage) < 0.05
    lower, upper = fitted.predict_interval(inputs, 0.5, method="gaussian")
    assert np.mean((lower <= targets) & (targets <= upper)) > 0.6
    std = fitted.predict(inputs, return_std=True)[1]
    as_gaussian = stats.norm(fitted.predict(inputs), std).logpdf(targets)
    assert fitted.log_density(inputs, targets).mean() > as_gaussian.mean() + 0.1


def test_large_tables_choose_the_shape_from_rows_set_aside(heavy):
    inputs, targets = (np.concatenate(parts) for parts in zip(*heavy, strict=True))
    settings = {
        "small_rows": 500,
        "most_rows_for_both": 0,
        "steps": 300,
        "hidden": [32, 32],
        "fourier_features": 32,
        "noise_steps": 60,
    }
    fit = fit_auto(inputs[:2000], targets[:2000], effort="low", settings=settings)
    assert fit.record["path"] == "networks"
    assert 2.0 < fit.components[0].degrees_of_freedom < 6.0
    found = fit.predict(inputs[2000:])
    observed = torch.from_numpy(targets[2000:])
    shaped = score(found.mean, found.std, observed, mixture=found.mixture)
    assert abs(shaped.coverage[0.5] - 0.5) < 0.06
    assert shaped.nlpd < score(found.mean, found.std, observed).nlpd
    without = fit_auto(inputs[:2000], targets[:2000], effort="low", settings=settings | {"heavy_tails": False})
    assert math.isinf(without.components[0].degrees_of_freedom)


def test_the_shape_is_saved_and_survives_more_rows(heavy, fitted, tmp_path):
    fitted.save(tmp_path / "model.finitegp")
    again = GPRegressor.load(tmp_path / "model.finitegp")
    inputs, targets = heavy[1]
    np.testing.assert_allclose(again.log_density(inputs, targets), fitted.log_density(inputs, targets), rtol=1e-6)
    again.partial_fit(inputs, targets)
    shapes = [[each.degrees_of_freedom for each in gp.fits_[0].components] for gp in (again, fitted)]
    assert shapes[0] == shapes[1]


def test_samples_have_heavy_tails(heavy, fitted):
    draws = fitted.sample_y(heavy[1][0][:1], n_samples=4000, random_state=0)[0]
    standardized = (draws - np.median(draws)) / fitted.predict(heavy[1][0][:1], return_std=True)[1]
    assert np.mean(np.abs(standardized) < GAUSSIAN.deviations(0.5)) > 0.58


def test_a_report_judges_by_the_shape(heavy, fitted):
    inputs, targets = heavy[1]
    predicted = as_reported_model(fitted).predict(inputs)
    found = measure_calibration(predicted, targets)
    inside = (found.nominal_low <= found.observed) & (found.observed <= found.nominal_high)
    gaussian = Predicted(predicted.mean, predicted.std)
    as_gaussian = measure_calibration(gaussian, targets)
    missed = (as_gaussian.observed < as_gaussian.nominal_low) | (as_gaussian.observed > as_gaussian.nominal_high)
    assert inside.sum() > 10 > (~missed).sum()
    assert check_heavy_tails(predicted.normal_scores(targets)) is None
    assert check_heavy_tails(gaussian.normal_scores(targets)) is not None
