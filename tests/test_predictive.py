"""Mixtures of Student's t: moments, quantiles, density and draws agree with each other."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import t

from finitegp.mixture import StudentMixture


@pytest.fixture
def mixture():
    random = np.random.default_rng(0)
    weights = np.array([0.5, 0.3, 0.2])
    return StudentMixture(weights, random.normal(size=(3, 4)), 0.3 + random.random((3, 4)), np.array([3.5, 8.0, 40.0]))


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
    one = StudentMixture(np.ones(1), np.array([[2.0]]), np.array([[3.0]]), np.array([4.0]))
    assert float(one.quantile(0.9)[0]) == pytest.approx(t.ppf(0.9, 4.0, 2.0, 3.0))
    assert float(one.variance[0]) == pytest.approx(t.var(4.0, 2.0, 3.0))


def test_draws_have_these_intervals(mixture):
    draws = mixture.draw(np.random.default_rng(1), 20_000)
    low, high = mixture.quantile(0.05), mixture.quantile(0.95)
    inside = ((draws > low) & (draws < high)).mean(axis=0)
    np.testing.assert_allclose(inside, 0.9, atol=0.01)
    np.testing.assert_allclose(draws.mean(axis=0), mixture.mean, atol=0.05)


def test_units(mixture):
    moved = mixture.in_units(10.0, 2.0)
    np.testing.assert_allclose(moved.mean, 10.0 + 2.0 * mixture.mean)
    np.testing.assert_allclose(moved.quantile(0.9), 10.0 + 2.0 * mixture.quantile(0.9))
    with pytest.raises(ValueError, match="probability must lie between 0 and 1"):
        mixture.quantile(1.0)
