"""``mlp``: a plain network trained on squared error, with one noise for all rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..outcome import DatasetSplit, Outcome
from .contract import ScaledSplit, Stopwatch, constant_noise, hold_out, merge_settings, seeded
from .steps import StepPlan, as_tensors, count_steps, make_network, train_with_validation

#: ``min_steps`` lengthens training on small tables, where so many epochs are only a few hundred steps.
DEFAULTS: dict[str, Any] = {
    "hidden": (128, 128),
    "learning_rate": 2e-3,
    "weight_decay": 1e-4,
    "batch_size": 128,
    "epochs": 60,
    "min_steps": 4000,
    "validation_fraction": 0.1,
    "max_seconds": 240.0,
}


def fit_and_predict(split: DatasetSplit, *, seed: int, settings: Mapping[str, Any]) -> Outcome:
    """Two ReLU layers of 128, AdamW with cosine decay, the best epoch on validation rows, noise from those rows."""
    used = merge_settings("mlp", DEFAULTS, settings)
    scaled = ScaledSplit.of(split)
    stopwatch = Stopwatch()
    network, noise, record = fit_network(scaled, used, seed, stopwatch)
    elapsed = stopwatch.elapsed
    with torch.no_grad():
        mean = network(torch.tensor(scaled.test_inputs, dtype=torch.float32))
    return scaled.outcome(mean, noise, elapsed, {"settings": used, **record})


def fit_network(
    scaled: ScaledSplit, used: Mapping[str, Any], seed: int, stopwatch: Stopwatch
) -> tuple[nn.Sequential, float, dict[str, Any]]:
    """The trained network, the deviation of its errors on the validation rows, and what training took."""
    kept, held_out = hold_out(len(scaled.targets), used["validation_fraction"], seed)
    data, validation = (as_tensors(scaled.inputs, scaled.targets, index) for index in (kept, held_out))
    with seeded(seed):
        network = make_network(scaled.inputs.shape[1], used["hidden"], outputs=1)
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=used["learning_rate"], weight_decay=used["weight_decay"], fused=True
    )
    steps = count_steps(len(kept), used["batch_size"], used["epochs"], used["min_steps"])
    record = train_with_validation(
        network,
        optimizer,
        loss=lambda inputs, targets: F.mse_loss(network(inputs), targets),
        validation_loss=lambda: float(F.mse_loss(network(validation[0]), validation[1])),
        data=data,
        plan=StepPlan(steps, used["max_seconds"], stopwatch),
        batch_size=used["batch_size"],
        seed=seed,
    )
    with torch.no_grad():
        residuals = validation[1] - network(validation[0])
    return network, constant_noise(residuals), record
