"""Rows, and regressors that fit them quickly, for the tests of the estimator."""

import numpy as np

from finitegp import GPRegressor


def make_rows(count, seed=0, targets=1):
    generator = np.random.default_rng(seed)
    inputs = generator.uniform(-2, 2, size=(count, 2)) * [1.0, 1e4]
    mean = np.sin(2 * inputs[:, 0]) + 0.3e-4 * inputs[:, 1]
    values = 50 + 10 * np.stack([mean + 0.1 * k for k in range(targets)], axis=1)
    values = values + generator.normal(size=values.shape)
    return inputs, values[:, 0] if targets == 1 else values


def quick(**changes):
    return GPRegressor(**({"effort": "low", "random_state": 0} | changes))


def quick_network(**changes):
    return quick(**({"feature_map": "mlp", "algorithm": "lagged", "epochs": 15} | changes))
