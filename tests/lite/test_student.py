"""Student's t of ``finitegp.lite`` against SciPy."""

import numpy as np
import pytest
from export_models import OLD_SCIPY
from scipy import special, stats

from finitegp.lite.student import Mixture, tail
from finitegp.predictive import StudentMixture

FREEDOMS = np.array([2.01, 2.3, 3.0, 5.0, 10.0, 50.0, 300.0, 1000.0, 1001.0, 1e4, 1e6, 1e9, 1e15, np.inf])


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_tail(freedom, seed):
    values = np.concatenate([[0.0, 1e-5, 8.0, 12.0], np.abs(np.random.default_rng(seed).normal(size=50)) * 3])
    expected = stats.norm.sf(values) if np.isinf(freedom) else special.stdtr(freedom, -values)
    np.testing.assert_allclose(tail(values, np.array(freedom)), expected, rtol=1e-11)


@OLD_SCIPY
@pytest.mark.parametrize("probability", [1e-12, 1e-3, 0.05, 0.3, 0.5, 0.9, 0.975, 1 - 1e-9])
def test_quantile(probability):
    one, column = np.ones(1), FREEDOMS[:, None]
    found = Mixture(one, np.zeros_like(column), np.ones_like(column), column).quantile(probability)
    finite = special.stdtrit(FREEDOMS[:-1], probability)
    np.testing.assert_allclose(found, [*finite, special.ndtri(probability)], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("probability", [1e-6, 0.025, 0.4, 0.5, 0.999])
def test_quantile_and_density_of_a_mixture(probability, seed):
    random = np.random.default_rng(seed)
    weights = random.dirichlet(np.ones(3))
    means, scales = random.normal(size=(20, 3)) * 4, random.uniform(0.1, 3.0, size=(20, 3))
    freedoms = np.stack([np.full(20, np.inf), random.uniform(2.1, 9.0, 20), random.uniform(5.0, 5e3, 20)], axis=1)
    mine = Mixture(weights, means, scales, freedoms)
    theirs = StudentMixture(weights, means.T, scales.T, freedoms.T)
    np.testing.assert_allclose(mine.quantile(probability), theirs.quantile(probability), rtol=1e-11, atol=1e-11)
    values = random.normal(size=20)
    np.testing.assert_allclose(mine.log_density(values), theirs.log_density(values), rtol=1e-10)
