"""Predictive distributions that are combined."""

import numpy as np

from finitegp.combination import widened
from finitegp.predictive import StudentMixture


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
