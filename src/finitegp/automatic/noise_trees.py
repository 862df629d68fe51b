"""How noisy is a row beside what networks see? Boosted trees on left-out errors of the mean in which trees have a part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from threadpoolctl import threadpool_limits
from torch import nn

from ..error_shape import GAUSSIAN, ErrorShape
from ..features import SoftClip
from ..noise import InputNoise, SmoothFloor
from .boosting import NOISE_TREES, complete_trees, grow_trees
from .ensemble import clip_rows
from .fitted_shapes import fit_scale, mean_nlpd
from .noise_networks import ResidualNoise, log_noise_scale
from .table import Array, Table

# How many trees, and what part of what they say, are tried.
_COUNTS, _STRENGTHS = (10, 25, 50, 100, 150), (0.5, 1.0)
_FOLDS = 3
# In nats, of all left-out rows: what trees in the noise must be worth.
_GAIN = 3.0
# The mean of the logarithm of a squared standard normal, with the sign turned; and what logarithms are cut to, because
# those of errors near zero are far below all others.
_LOG_CHI, _SMALLEST, _FARTHEST = 1.2704, 1e-6, 6.0
_SHAPES = (GAUSSIAN, ErrorShape(4.0))
# Left-out rows that choose.
_CHOOSING = 20_000


def blended_errors(errors: Array, towards: Array, log_variance: Array) -> tuple[Array, float]:
    """``(rows,)`` errors of the mean in which trees have the best part, and this part.

    Args:
        errors: ``(rows,)`` of targets, by networks that did not see them.
        towards: ``(rows,)`` how far trees that did not see them either predict above the networks.
        log_variance: ``(rows,)`` of noise, which says how much each error counts.
    """
    trust = np.exp(log_variance.min() - log_variance) * towards
    part = float(trust @ errors) / max(float(trust @ towards), 1e-300)
    part = min(max(part, 0.0), 1.0)
    return errors - part * towards, part


def add_noise_trees(
    found: ResidualNoise,
    rows: Table,
    errors: Array,
    clip: SoftClip,
    chunk_size: int,
    *,
    seed: int,
    one_thread: bool = False,
) -> tuple[ResidualNoise, dict[str, object]]:
    """The noise with boosted trees added to what its networks say, if left-out errors gain by them, and what was chosen.

    Trees on the logarithms of squared errors in units of the networks' noise are grown without each third of the rows;
    these choose how many of them are added, and with what strength.

    Args:
        found: What networks found for the same rows.
        rows: The rows, with their counts.
        errors: ``(rows,)`` of means that had not seen them.
        clip: Bounds the inputs of networks, and so those of trees.
        chunk_size: Rows at once.
        seed: Determines everything.
        one_thread: Whether other threads have the other cores: the trees are the same.
    """
    inputs = clip_rows(clip, rows.inputs).double().numpy()
    squares = np.square(errors) * np.exp(-found.log_variance)
    logs = np.clip(np.log(np.maximum(squares, _SMALLEST)) + _LOG_CHI, -_FARTHEST, _FARTHEST)
    table = Table(inputs, logs, rows.counts)
    order = np.random.default_rng(seed).permutation(len(rows))
    folds, judges = order % _FOLDS, order < _CHOOSING
    stages = np.empty((len(_COUNTS), len(rows)))
    with threadpool_limits(1 if one_thread else None, user_api="openmp"):
        for fold in range(_FOLDS):
            out = folds == fold
            model = grow_trees(table.take(np.flatnonzero(~out)), _COUNTS[-1], seed, NOISE_TREES)
            for number, predicted in enumerate(model.staged_predict(inputs[out]), 1):
                if number in _COUNTS:
                    stages[_COUNTS.index(number), out] = predicted
        chosen = rows.take(np.flatnonzero(judges))
        best, strength, gain = _choose(chosen, errors[judges], found.log_variance[judges], stages[:, judges])
        gain *= rows.total
        if gain < _GAIN:
            return found, {"trees": 0, "gain": gain}
        model = grow_trees(table, _COUNTS[best], seed, NOISE_TREES)
    trees = complete_trees(model, _COUNTS[best], inputs, model.predict(inputs), NOISE_TREES)
    if trees is None:
        return found, {"trees": 0, "gain": gain}
    trees = replace(trees, leaves=strength * trees.leaves)
    parts: Sequence[nn.Module] = list(found.noise.module)  # type: ignore[arg-type]
    module = nn.Sequential(parts[0], trees.added_to(nn.Sequential(*parts[1:])), SmoothFloor(math.log(found.floor)))
    noise = InputNoise(module.requires_grad_(False), reads="inputs", variance=found.noise.variance)
    scales = log_noise_scale(noise, rows.inputs, chunk_size)
    noise.bounds = float(scales.min()), float(scales.max())
    unit = math.log(found.noise.variance)
    log_variance = np.logaddexp(found.log_variance - unit + strength * stages[best], math.log(found.floor)) + unit
    record = {"trees": _COUNTS[best], "strength": strength, "gain": gain}
    return replace(found, noise=noise, log_variance=log_variance), record


def _choose(rows: Table, errors: Array, log_variance: Array, stages: Array) -> tuple[int, float, float]:
    """The best number of trees, by its place, their strength, and what is gained in nats per row."""

    def loss(more: Array | float) -> float:
        variance = np.exp(log_variance + more)
        relative, found = [(errors / np.sqrt(variance), rows)], []
        for shape in _SHAPES:
            found.append(mean_nlpd(rows, errors, fit_scale(relative, shape) * variance, shape))
        return min(found)

    places: dict[tuple[int, float], float] = {
        (number, strength): loss(strength * stage) for number, stage in enumerate(stages) for strength in _STRENGTHS
    }
    (number, strength), lowest = min(places.items(), key=lambda place: place[1])
    return number, strength, loss(0.0) - lowest
