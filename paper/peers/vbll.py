"""``vbll``: a network with a variational Bayesian last layer (Harrison et al., 2024), through the package vbll."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..outcome import DatasetSplit, Outcome
from .contract import ScaledSplit, Stopwatch, hold_out, merge_settings, require, seeded
from .steps import StepPlan, as_tensors, count_steps, make_network, train_with_validation

#: ``initial_noise`` is the noise deviation at the start, in deviations of the target; its logarithm has a learning rate
#: of its own, since it may have a long way to go.
DEFAULTS: dict[str, Any] = {
    "hidden": (128, 128),
    "parameterization": "dense",
    "prior_scale": 1.0,
    "wishart_scale": 0.01,
    "initial_noise": 1.0,
    "learning_rate": 2e-3,
    "noise_learning_rate": 1e-2,
    "weight_decay": 1e-4,
    "batch_size": 256,
    "epochs": 50,
    "min_steps": 3000,
    "patience": 20,
    "clip_norm": 1.0,
    "validation_fraction": 0.1,
    "max_seconds": 240.0,
}


def fit_and_predict(split: DatasetSplit, *, seed: int, settings: Mapping[str, Any]) -> Outcome:
    """Two ReLU layers of 128 and the package's ``Regression`` head, stopped early on validation rows."""
    used = merge_settings("vbll", DEFAULTS, settings)
    package = require("vbll", "vbll")
    scaled = ScaledSplit.of(split)
    stopwatch = Stopwatch()
    kept, held_out = hold_out(len(scaled.targets), used["validation_fraction"], seed)
    data, validation = (as_tensors(scaled.inputs, scaled.targets, index) for index in (kept, held_out))
    with seeded(seed):
        network = make_network(scaled.inputs.shape[1], used["hidden"], outputs=0)
        head = package.Regression(
            used["hidden"][-1],
            1,
            regularization_weight=1.0 / len(kept),
            parameterization=used["parameterization"],
            prior_scale=used["prior_scale"],
            wishart_scale=used["wishart_scale"],
        )
    with torch.no_grad():
        # The package draws the noise at random, over orders of magnitude, and the weights with a deviation of one,
        # so that the first outputs are far larger than the targets.
        head.noise_logdiag.fill_(math.log(used["initial_noise"]))
        head.W_mean.div_(math.sqrt(used["hidden"][-1]))
    model = nn.Sequential(network, head)
    weights = [value for value in head.parameters() if value.requires_grad and value is not head.noise_logdiag]
    optimizer = torch.optim.AdamW(
        [
            {"params": network.parameters(), "weight_decay": used["weight_decay"]},
            # The head has its prior.
            {"params": weights, "weight_decay": 0.0},
            {"params": [head.noise_logdiag], "weight_decay": 0.0, "lr": used["noise_learning_rate"]},
        ],
        lr=used["learning_rate"],
        fused=True,
    )

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        value: Tensor = model(inputs).train_loss_fn(targets)
        return value.sum()  # of one element

    def validation_loss() -> float:
        parts = zip(*(torch.split(rows, 1024) for rows in validation), strict=True)
        total = sum(float(model(inputs).val_loss_fn(targets)) * len(inputs) for inputs, targets in parts)
        return total / len(held_out)

    steps = count_steps(len(kept), used["batch_size"], used["epochs"], used["min_steps"])
    record = train_with_validation(
        model,
        optimizer,
        loss=loss,
        validation_loss=validation_loss,
        data=data,
        plan=StepPlan(steps, used["max_seconds"], stopwatch),
        batch_size=used["batch_size"],
        seed=seed,
        clip_norm=used["clip_norm"],
        patience=used["patience"],
    )
    elapsed = stopwatch.elapsed
    with torch.no_grad():
        predictions = [
            model(part).predictive for part in torch.split(torch.tensor(scaled.test_inputs, dtype=torch.float32), 1024)
        ]
    mean = torch.cat([prediction.mean for prediction in predictions])
    std = torch.cat([prediction.scale for prediction in predictions])
    return scaled.outcome(mean, std, elapsed, {"settings": used, **record})
