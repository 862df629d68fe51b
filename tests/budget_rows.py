"""Rows with noise that differs, and settings of quick fits, for the tests of fits within a memory budget."""

import numpy as np

QUICK = {"steps": 60, "max_steps": 60, "noise_steps": 40, "hidden": (16, 16), "fourier_features": 16}


def make_rows(rows=2000, columns=3, seed=0):
    """Targets with noise that grows with the first column."""
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(rows, columns)) * 10.0 + 50.0
    scaled = (inputs - 50.0) / 10.0
    noise = 2.0 * np.exp(0.8 * scaled[:, 0]) * random.normal(size=rows)
    return inputs, 1000.0 + 20.0 * np.sin(scaled[:, 0]) + 5.0 * scaled[:, 1] + noise
