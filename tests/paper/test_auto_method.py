"""The default in the harness, and its networks without the GP."""

import numpy as np
import pytest
import torch

from finitegp.automatic import fit_auto
from finitegp.errors import DataError
from finitegp.features import MLPFeatures
from paper.auto_method import mean_of_networks, run_auto
from paper.outcome import DatasetSplit

SMALL = {
    "small_rows": 50,
    "most_rows_for_both": 0,
    "members": 2,
    "hidden": [8],
    "steps": 60,
    "max_steps": 60,
    "noise_steps": 40,
}


def make_split(rows=300):
    inputs = np.random.default_rng(0).normal(size=(2 * rows, 2))
    targets = 5.0 + np.sin(inputs[:, 0]) + 0.1 * np.random.default_rng(1).normal(size=2 * rows)
    return DatasetSplit("wave", 0, inputs[:rows], targets[:rows], inputs[rows:], targets[rows:])


def test_without_the_gp_only_the_mean_changes():
    split = make_split()
    whole = run_auto(split, seed=0, settings={"effort": "low"} | SMALL)
    networks = run_auto(split, seed=0, settings={"effort": "low", "gp": False} | SMALL)
    np.testing.assert_array_equal(networks.std, whole.std)
    assert (networks.mixture is None) == (whole.mixture is None)
    if whole.mixture is not None:
        np.testing.assert_array_equal(networks.mixture.scales, whole.mixture.scales)
    assert np.abs(networks.mean - whole.mean).max() > 1e-4
    errors = [np.std(found.mean - split.test_targets) for found in (whole, networks)]
    assert max(errors) < 0.5 * np.std(split.test_targets)
    assert networks.wall_seconds > 0


def test_the_mean_is_that_of_ridge_regressions_on_each_network():
    split = make_split()
    fit = fit_auto(split.inputs, split.targets, effort="low", settings=SMALL, seed=0, threads=1)
    rows, tests = (torch.from_numpy(fit.inputs_scaler.transform(v)) for v in (split.inputs, split.test_inputs))
    targets = fit.target_scaler.transform(split.targets)
    means = []
    maps = list(fit.fitted.model.feature_map.maps)
    for network in [part for part in maps if any(isinstance(each, MLPFeatures) for each in part.modules())]:
        with torch.no_grad():
            made = [network.double()(values).numpy() for values in (rows, tests)]
        features, test_features = (np.column_stack([values, np.ones(len(values))]) for values in made)
        # The noise at the largest marginal likelihood, on a fine grid.
        gram, cross = features.T @ features, features.T @ targets
        eigenvalues, vectors = np.linalg.eigh(gram)
        grid = np.exp(np.linspace(-16, 2, 4001))
        outside = targets @ targets - np.sum((vectors.T @ cross) ** 2 / eigenvalues)
        nlml = [
            np.sum(np.log1p(eigenvalues / s)) / 2
            + len(targets) / 2 * np.log(s)
            + outside / s / 2
            + np.sum((vectors.T @ cross) ** 2 / eigenvalues / (s + eigenvalues)) / 2
            for s in grid
        ]
        noise = grid[int(np.argmin(nlml))]
        means.append(test_features @ np.linalg.solve(gram + noise * np.eye(len(gram)), cross))
    expected = fit.target_scaler.inverse(np.mean(means, axis=0))
    np.testing.assert_allclose(mean_of_networks(fit, split), expected, atol=2e-3)


def test_small_tables_have_no_networks():
    with pytest.raises(DataError, match="no networks to average on wave"):
        run_auto(make_split(rows=40), seed=0, settings={"effort": "low", "gp": False, "fourier_features": 16})
