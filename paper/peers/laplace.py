"""``laplace``: the network of ``mlp`` with a Laplace approximation of its last layer, through laplace-torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from ..outcome import DatasetSplit, Outcome
from .contract import ScaledSplit, Stopwatch, merge_settings, require
from .mlp import DEFAULTS as MLP_DEFAULTS
from .mlp import fit_network

DEFAULTS: dict[str, Any] = {
    **MLP_DEFAULTS,
    "marginal_likelihood_steps": 300,
    "marginal_likelihood_learning_rate": 0.1,
}


def fit_and_predict(split: DatasetSplit, *, seed: int, settings: Mapping[str, Any]) -> Outcome:
    """Last layer, full Hessian; noise and prior precision maximise the Laplace marginal likelihood of all rows."""
    used = merge_settings("laplace", DEFAULTS, settings)
    package = require("laplace", "laplace")
    scaled = ScaledSplit.of(split)
    stopwatch = Stopwatch()
    network, noise, record = fit_network(scaled, used, seed, stopwatch)
    network.double()  # the Hessian of many rows under a small noise is ill-conditioned in float32
    rows = TensorDataset(torch.from_numpy(scaled.inputs), torch.from_numpy(scaled.targets)[:, None])
    posterior = package.Laplace(network, "regression", subset_of_weights="last_layer", hessian_structure="full")
    posterior.fit(DataLoader(rows, batch_size=1024))
    # In logarithms, from the noise on the validation rows and a unit prior.
    log_noise = torch.tensor(math.log(noise), dtype=torch.float64, requires_grad=True)
    log_prior_precision = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([log_noise, log_prior_precision], lr=used["marginal_likelihood_learning_rate"])
    for _ in range(used["marginal_likelihood_steps"]):
        optimizer.zero_grad()
        loss = -posterior.log_marginal_likelihood(log_prior_precision.exp(), log_noise.exp())
        loss.backward()
        optimizer.step()
    posterior.prior_precision = log_prior_precision.detach().exp()
    posterior.sigma_noise = log_noise.detach().exp()
    elapsed = stopwatch.elapsed
    mean, variance = [], []
    for part in torch.split(torch.from_numpy(scaled.test_inputs), 4096):
        part_mean, part_variance = posterior(part)
        mean.append(part_mean.detach().numpy().reshape(-1))
        variance.append(part_variance.detach().numpy().reshape(-1))
    noise_variance = float(posterior.sigma_noise.square())
    details = {
        "settings": used,
        **record,
        "noise_std_validation": noise,
        "noise_std": math.sqrt(noise_variance),
        "prior_precision": float(posterior.prior_precision),
    }
    return scaled.outcome(np.concatenate(mean), np.sqrt(np.concatenate(variance) + noise_variance), elapsed, details)
