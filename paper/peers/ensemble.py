"""``ensemble``: a deep ensemble of networks that predict a mean and a variance (Lakshminarayanan et al., 2017)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..outcome import DatasetSplit, Outcome
from .contract import ScaledSplit, Stopwatch, hold_out, merge_settings, seeded
from .steps import StepPlan, as_tensors, count_steps, make_network, train_with_validation

#: The log variance is that of the standardised target, softly bounded; ``max_seconds`` are shared by the members.
DEFAULTS: dict[str, Any] = {
    "members": 5,
    "hidden": (128, 128),
    "learning_rate": 5e-3,
    "weight_decay": 1e-4,
    "batch_size": 256,
    "epochs": 50,
    "min_steps": 1500,
    "clip_norm": 10.0,
    "min_log_variance": -10.0,
    "max_log_variance": 3.0,
    "validation_fraction": 0.1,
    "max_seconds": 240.0,
}


class _MeanAndVariance(nn.Module):
    """A network whose two outputs are a mean and a softly bounded log variance."""

    def __init__(self, columns: int, used: Mapping[str, Any]) -> None:
        super().__init__()
        self.network = make_network(columns, used["hidden"], outputs=2)
        self.low, self.high = used["min_log_variance"], used["max_log_variance"]

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.network(inputs).chunk(2, dim=1)
        log_variance = self.high - F.softplus(self.high - log_variance)
        return mean, self.low + F.softplus(log_variance - self.low)

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean negative log density, without its constant."""
        mean, log_variance = self(inputs)
        per_row: Tensor = log_variance + (targets - mean).square() * (-log_variance).exp()
        return 0.5 * per_row.mean()


def fit_and_predict(split: DatasetSplit, *, seed: int, settings: Mapping[str, Any]) -> Outcome:
    """Five networks with validation rows of their own; mean and deviation are those of the mixture.

    The log density is that of the mixture itself: test targets are read only here, after the fit.
    """
    used = merge_settings("ensemble", DEFAULTS, settings)
    scaled = ScaledSplit.of(split)
    stopwatch = Stopwatch()
    members, records = [], []
    for number in range(used["members"]):
        member, record = _fit_member(scaled, used, seed * used["members"] + number, stopwatch, number)
        members.append(member)
        records.append(record)
    elapsed = stopwatch.elapsed
    inputs = torch.tensor(scaled.test_inputs, dtype=torch.float32)
    with torch.no_grad():
        outputs = [member(inputs) for member in members]
    means = torch.cat([mean for mean, _ in outputs], dim=1).double()
    variances = torch.cat([log_variance for _, log_variance in outputs], dim=1).double().exp()
    mean = means.mean(dim=1)
    # The mean of (variance + mean^2) less mean^2, written so that nothing cancels.
    std = (variances + (means - mean[:, None]).square()).mean(dim=1).sqrt()
    targets = torch.from_numpy(scaled.target_scaler.transform(split.test_targets))[:, None]
    log_densities = -0.5 * ((targets - means).square() / variances + variances.log() + math.log(2.0 * math.pi))
    log_density = torch.logsumexp(log_densities, dim=1) - math.log(len(members)) - math.log(scaled.target_scaler.scale)
    details = {
        "settings": used,
        "steps": sum(record["steps"] for record in records),
        "epochs": [record["epochs"] for record in records],
        "best_epoch": [record["best_epoch"] for record in records],
        "shortened": any(record["shortened"] for record in records),
    }
    return scaled.outcome(mean, std, elapsed, details, log_density=log_density.numpy())


def _fit_member(
    scaled: ScaledSplit, used: Mapping[str, Any], seed: int, stopwatch: Stopwatch, number: int
) -> tuple[_MeanAndVariance, dict[str, Any]]:
    kept, held_out = hold_out(len(scaled.targets), used["validation_fraction"], seed)
    data, validation = (as_tensors(scaled.inputs, scaled.targets, index) for index in (kept, held_out))
    with seeded(seed):
        member = _MeanAndVariance(scaled.inputs.shape[1], used)
    steps = count_steps(len(kept), used["batch_size"], used["epochs"], used["min_steps"])
    # Each member may use what the ones before it left of their share.
    limit = used["max_seconds"]
    deadline = None if limit is None else limit * (number + 1) / used["members"]
    record = train_with_validation(
        member,
        torch.optim.AdamW(member.parameters(), lr=used["learning_rate"], weight_decay=used["weight_decay"], fused=True),
        loss=member.loss,
        validation_loss=lambda: float(member.loss(*validation)),
        data=data,
        plan=StepPlan(steps, deadline, stopwatch),
        batch_size=used["batch_size"],
        seed=seed,
        clip_norm=used["clip_norm"],
    )
    return member, record
