"""Rows with noise that differs, and settings of quick fits, for the tests of fits of rows on disk."""

import numpy as np

QUICK = {
    "epochs": 2,
    "min_steps": 60,
    "max_epochs": 3,
    "max_steps": 80,
    "weight_decays": (0.01,),
    "hidden": (16, 16),
    "num_frequencies": 8,
    "embedding_width": 4,
    "noise_epochs": 2,
    "noise_min_steps": 60,
    "noise_hidden": 16,
    "noise_learning_rate": 0.02,
}


def make_rows(rows=2000, columns=3, seed=0):
    """Targets with noise that grows with the first column."""
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(rows, columns)) * 10.0 + 50.0
    scaled = (inputs - 50.0) / 10.0
    noise = 2.0 * np.exp(0.8 * scaled[:, 0]) * random.normal(size=rows)
    return inputs, 1000.0 + 20.0 * np.sin(scaled[:, 0]) + 5.0 * scaled[:, 1] + noise
