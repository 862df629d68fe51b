"""The method ``auto`` of the harness: our default on a split, test rows unseen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finitegp.automatic import fit_auto

from .outcome import DatasetSplit, Outcome
from .peers.contract import Stopwatch


def run_auto(split: DatasetSplit, *, seed: int, settings: Mapping[str, Any]) -> Outcome:
    """Fit the default; ``settings`` are an ``effort`` and changes of its settings, which ablations use."""
    changes = dict(settings)
    effort = changes.pop("effort", "medium")
    stopwatch = Stopwatch()
    fit = fit_auto(split.inputs, split.targets, effort=effort, settings=changes, seed=seed, processes=1)
    seconds = stopwatch.seconds
    prediction = fit.predict(split.test_inputs)
    left_out = ("seconds", "rows", "seed", "history", "conformal")
    record = {f"auto_{name}": value for name, value in fit.record.items() if name not in left_out}
    return Outcome(
        prediction.mean.numpy(), prediction.std.numpy(), seconds, error_shape=prediction.error_shape, details=record
    )
