"""The method ``auto`` of the harness: our default on a split, test rows unseen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..automatic import fit_auto
from .outcome import DatasetSplit, Outcome


def run_auto(split: DatasetSplit, *, seed: int, settings: Mapping[str, Any]) -> Outcome:
    """Fit the default; ``settings`` are an ``effort`` and changes of its settings, which ablations use."""
    changes = dict(settings)
    effort = changes.pop("effort", "medium")
    fit = fit_auto(split.inputs, split.targets, effort=effort, settings=changes, seed=seed, processes=1)
    prediction = fit.predict(split.test_inputs)
    left_out = ("seconds", "rows", "seed", "history", "conformal")
    record = {f"auto_{name}": value for name, value in fit.record.items() if name not in left_out}
    return Outcome(prediction.mean.numpy(), prediction.std.numpy(), fit.record["seconds"], details=record)
