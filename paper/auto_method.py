"""The method ``auto`` of the harness: our default on a split, test rows unseen; and its networks without the GP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from finitegp.automatic import fit_auto
from finitegp.data import ArraySource
from finitegp.errors import DataError
from finitegp.features import ConcatenatedFeatures, ConstantFeatures, MLPFeatures
from finitegp.model import FeatureGP
from finitegp.scaled import ScaledGP

from .outcome import Array, DatasetSplit, Outcome
from .peers.contract import Stopwatch


def run_auto(split: DatasetSplit, *, seed: int, settings: Mapping[str, Any]) -> Outcome:
    """Fit the default; ``settings`` are an ``effort`` and changes of its settings, which ablations use.

    One more, ``gp=False``, puts the mean of the networks in the place of the mean of the GP on all their features;
    error bars and Student's t stay those of the default.
    """
    changes = dict(settings)
    effort, gp = changes.pop("effort", "medium"), changes.pop("gp", True)
    stopwatch = Stopwatch()
    fit = fit_auto(split.inputs, split.targets, effort=effort, settings=changes, seed=seed, threads=1)
    elapsed = stopwatch.elapsed
    prediction = fit.predict(split.test_inputs)
    mean, mixture = prediction.mean.numpy(), prediction.mixture
    if not gp:
        mean = mean_of_networks(fit, split)
        mixture = None if mixture is None else replace(mixture, means=mean[None])
    left_out = ("seconds", "rows", "seed", "history", "effects", "stages")
    record = {f"auto_{name}": value for name, value in fit.record.items() if name not in left_out}
    return Outcome(
        mean,
        prediction.std.numpy(),
        elapsed.processor,
        wall_seconds=elapsed.wall,
        mixture=mixture,
        conformal=conformal_intervals(fit, split.test_inputs),
        details=record,
    )


def conformal_intervals(fit: ScaledGP, inputs: Array) -> dict[float, tuple[Array, Array]]:
    """Lower and upper ends of conformal intervals by coverage; empty where no rows were left out."""
    if fit.conformal is None:
        return {}
    found = {level: fit.interval(inputs, level, method="conformal") for level in (0.5, 0.9)}
    return {level: (lower.numpy(), upper.numpy()) for level, (lower, upper) in found.items()}


def mean_of_networks(fit: ScaledGP, split: DatasetSplit) -> Array:
    """The test rows by each network of a fit alone, with its last layer solved on the training rows; their mean.

    Raises:
        DataError: If the fit has no networks side by side, as on small tables.
    """
    joined = fit.fitted.model.feature_map
    networks = [part for part in getattr(joined, "maps", []) if any(isinstance(m, MLPFeatures) for m in part.modules())]
    if fit.record.get("path") != "networks" or not networks:
        raise DataError(f"The default has no networks to average on {split.name}: gp=False is for larger tables.")
    data = ArraySource(fit.inputs_scaler.transform(split.inputs), fit.target_scaler.transform(split.targets))
    rows = fit.inputs_scaler.transform(split.test_inputs)
    models = [FeatureGP(ConcatenatedFeatures(network, ConstantFeatures()), noise_variance=0.1) for network in networks]
    means = [model.condition(data, optimize_noise=True).predict(rows).mean.numpy() for model in models]
    return np.asarray(fit.target_scaler.inverse(np.mean(means, axis=0)))
