"""Mixtures of Student's t: moments, quantiles, density and draws agree with each other."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm, t

from finitegp.predictive import Prediction, StudentMixture, log_student

WEIGHTS = np.array([0.5, 0.3, 0.2])


@pytest.fixture
def mixture():
    random = np.random.default_rng(0)
    freedom = np.array([[3.5], [8.0], [40.0]])
    return StudentMixture(WEIGHTS, random.normal(size=(3, 4)), 0.3 + random.random((3, 4)), freedom)


def test_density_integrates_to_the_moments(mixture):
    for row in range(4):

        def density(value, row=row):
            return float(np.exp(mixture.log_density(np.full(4, value)))[row])

        assert quad(density, -200, 200, limit=500, points=[-3, 0, 3])[0] == pytest.approx(1.0, abs=1e-4)
        mean = quad(lambda v: v * density(v), -200, 200, limit=500, points=[-3, 0, 3])[0]
        assert mean == pytest.approx(mixture.mean[row], abs=1e-3)
        below = quad(density, -200, 0.7, limit=500, points=[-3, 0])[0]
        assert below == pytest.approx(mixture.cumulative(np.full(4, 0.7))[row], abs=1e-4)


@pytest.mark.parametrize("probability", [0.01, 0.5, 0.95])
def test_quantiles_are_the_inverse(mixture, probability):
    np.testing.assert_allclose(mixture.cumulative(mixture.quantile(probability)), probability, rtol=1e-9)


def test_one_component_is_student_t():
    one = StudentMixture(np.ones(1), np.array([[2.0]]), np.array([[3.0]]), np.array([[4.0]]))
    assert float(one.quantile(0.9)[0]) == pytest.approx(t.ppf(0.9, 4.0, 2.0, 3.0))
    assert float(one.variance[0]) == pytest.approx(t.var(4.0, 2.0, 3.0))


def test_draws_have_these_intervals(mixture):
    random = np.random.default_rng(1)
    low, high = mixture.quantile(0.05), mixture.quantile(0.95)
    draws = np.array([mixture.draw(random.normal(size=4), random.choice(3, size=4, p=WEIGHTS)) for _ in range(20_000)])
    inside = ((draws > low) & (draws < high)).mean(axis=0)
    np.testing.assert_allclose(inside, 0.9, atol=0.01)
    np.testing.assert_allclose(draws.mean(axis=0), mixture.mean, atol=0.05)


@pytest.mark.parametrize("value", [-40.0, -1.0, 0.3, 7.0])
def test_crps_is_the_integral(mixture, value):
    found = mixture.crps(np.full(4, value))
    for row in range(4):

        def squared(x, row=row):
            return (mixture.cumulative(np.full(4, x))[row] - float(x >= value)) ** 2

        points = [-3.0, 0.0, 3.0, value]
        expected = quad(squared, -400, 400, limit=1000, points=sorted(points))[0]
        assert found[row] == pytest.approx(expected, rel=1e-4)


def test_crps_of_a_gaussian_is_that_of_a_mixture_of_one(mixture):
    mean, std, targets = (torch.from_numpy(np.random.default_rng(0).random(6)) for _ in range(3))
    plain = Prediction(mean, std.square(), torch.zeros(6, dtype=torch.float64))
    one = StudentMixture(np.ones(1), mean.numpy()[None], std.numpy()[None], np.full((1, 1), np.inf))
    same = replace(plain, mixture=one)
    for name in ("crps", "log_density", "cumulative", "normal_scores"):
        torch.testing.assert_close(getattr(plain, name)(targets), getattr(same, name)(targets), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(plain.interval(0.7), same.interval(0.7))


def test_normal_scores_are_symmetric_far_out():
    one = StudentMixture(np.ones(1), np.zeros((1, 2)), np.ones((1, 2)), np.full((1, 1), np.inf))
    np.testing.assert_allclose(one.normal_scores(np.array([-20.0, 20.0])), [-20.0, 20.0], rtol=1e-9)


def test_units(mixture):
    moved = mixture.in_units(10.0, 2.0)
    np.testing.assert_allclose(moved.mean, 10.0 + 2.0 * mixture.mean)
    np.testing.assert_allclose(moved.quantile(0.9), 10.0 + 2.0 * mixture.quantile(0.9))
    with pytest.raises(ValueError, match="probability must lie between 0 and 1"):
        mixture.quantile(1.0)


@pytest.fixture
def per_row():
    """Degrees of freedom that differ by row, infinite ones among them."""
    random = np.random.default_rng(3)
    freedom = np.array([[3.5, np.inf, 6.0, np.inf], [np.inf, np.inf, 2.5, 9.0]])
    return StudentMixture(np.array([0.7, 0.3]), random.normal(size=(2, 4)), 0.3 + random.random((2, 4)), freedom)


def by_scipy(mixture, row):
    parts = zip(mixture.weights, mixture.means, mixture.scales, mixture.degrees_of_freedom, strict=True)
    found = []
    for weight, mean, scale, freedom in parts:
        kind = norm(mean[row], scale[row]) if np.isinf(freedom[row]) else t(freedom[row], mean[row], scale[row])
        found.append((weight, kind))
    return found


def test_infinite_degrees_of_freedom_are_the_gaussian_row_by_row(per_row):
    values = np.array([-2.0, 0.5, 4.0, 1.0])
    quantiles = per_row.quantile(0.9)
    for row in range(4):
        parts = by_scipy(per_row, row)
        density = sum(weight * kind.pdf(values[row]) for weight, kind in parts)
        assert per_row.log_density(values)[row] == pytest.approx(np.log(density), rel=1e-9)
        below = sum(weight * kind.cdf(values[row]) for weight, kind in parts)
        assert per_row.cumulative(values)[row] == pytest.approx(below, rel=1e-9)
        assert sum(weight * kind.cdf(quantiles[row]) for weight, kind in parts) == pytest.approx(0.9)
        mean = sum(weight * kind.mean() for weight, kind in parts)
        variance = sum(weight * (kind.var() + (kind.mean() - mean) ** 2) for weight, kind in parts)
        assert per_row.mean[row] == pytest.approx(mean)
        assert per_row.variance[row] == pytest.approx(variance)

        def squared(x, row=row, parts=parts):
            return (sum(weight * kind.cdf(x) for weight, kind in parts) - float(x >= values[row])) ** 2

        crps = quad(squared, -300, 300, limit=2000, points=[-3.0, 0.0, 3.0, values[row]])[0]
        assert per_row.crps(values)[row] == pytest.approx(crps, rel=1e-3)


def test_parts_of_the_rows_and_more_components(per_row, mixture):
    values = np.array([-2.0, 0.5, 4.0, 1.0])
    for whole in (per_row, mixture):
        taken = whole.take(np.array([2, 0]))
        np.testing.assert_allclose(taken.log_density(values[[2, 0]]), whole.log_density(values)[[2, 0]])
        joined = StudentMixture.concatenate([whole.take(slice(0, 1)), whole.take(slice(1, 4))])
        np.testing.assert_allclose(joined.log_density(values), whole.log_density(values))
        more = whole.with_component(0.25, np.zeros(4), np.ones(4), 5.0)
        expected = np.logaddexp(np.log(0.75) + whole.log_density(values), np.log(0.25) + t(5.0).logpdf(values))
        np.testing.assert_allclose(more.log_density(values), expected)
        assert more.weights.sum() == pytest.approx(1.0)


def test_draws_per_row(per_row):
    random = np.random.default_rng(1)
    chosen = random.choice(2, size=20_000, p=per_row.weights)
    draws = np.array([per_row.draw(random.normal(size=4), np.full(4, component)) for component in chosen])
    for probability in (0.05, 0.5, 0.95):
        below = (draws <= per_row.quantile(probability)).mean(axis=0)
        np.testing.assert_allclose(below, probability, atol=0.012)


def test_crps_of_components_of_very_different_scales():
    """A narrow component beside one a thousand times as wide, and a target in the middle of the narrow one."""
    means, freedom = np.zeros((2, 1)), np.full((2, 1), np.inf)
    mixture = StudentMixture(np.array([0.99, 0.01]), means, np.array([[1.0], [1000.0]]), freedom)
    # Of two Gaussians around zero, E|X - X'| is the mean of sqrt(2 / pi) times the root of the sum of variances.
    pairs = {(0, 0): 0.99**2, (0, 1): 2 * 0.99 * 0.01, (1, 1): 0.01**2}
    scales = (1.0, 1000.0)
    apart = sum(w * np.sqrt(2 / np.pi * (scales[a] ** 2 + scales[b] ** 2)) for (a, b), w in pairs.items())
    away = np.sqrt(2 / np.pi) * (0.99 * 1.0 + 0.01 * 1000.0)
    assert float(mixture.crps(np.zeros(1))[0]) == pytest.approx(away - 0.5 * apart, rel=1e-4)


@pytest.mark.parametrize("freedom", [9.9e3, 1.01e4, 1e8, 1e13, 1e16, 1e300])
def test_students_with_many_degrees_of_freedom_are_normal(freedom):
    """A variance outside that dwarfs all others leaves that many: the density must not be lost in their size."""
    values = np.array([0.0, 0.7, -3.0])
    expected = norm.logpdf(values) + (values**4 - 2 * values**2 - 1) / (4 * freedom)  # its series
    np.testing.assert_allclose(log_student(values, np.array(freedom)), expected, atol=500.0 / freedom / freedom + 1e-10)
    mixture = StudentMixture(np.ones(1), np.zeros((1, 3)), np.ones((1, 3)), np.full((1, 1), freedom))
    normal = StudentMixture(np.ones(1), np.zeros((1, 3)), np.ones((1, 3)), np.full((1, 1), np.inf))
    np.testing.assert_allclose(mixture.crps(values), normal.crps(values), rtol=1e-3)
