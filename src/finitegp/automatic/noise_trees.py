"""Boosted trees added to what noise networks predict: noise that changes in steps, which networks do not follow."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
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

#: How many trees are tried ...
COUNTS = (10, 25, 50, 100, 150)
# ... and what part of what they predict; without which share of the rows they are grown to predict it.
_STRENGTHS, _FOLDS = (0.5, 1.0), 3
# In nats, of all left-out rows: what trees in the noise must be worth.
_GAIN = 3.0
# Of the target's variance, the least that left-out errors have for trees to be tried. Smaller ones are misfit, and rows
# that count by it are learned worse.
_LEAST_NOISE = 0.05**2
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
    """Noise networks with boosted trees added to their output, if left-out errors gain by them, and what was chosen.

    Trees on the logarithms of squared errors, in units of the networks' noise, are grown without each third of the
    rows; what they predict for it decides how many of them are added, and with what strength. Where errors are small
    beside the targets' deviation, nothing is tried.

    Args:
        found: What networks found for the same rows.
        rows: The rows, with their counts.
        errors: ``(rows,)`` of means that had not seen them.
        clip: Bounds the inputs of networks, and so those of trees.
        chunk_size: Rows at once.
        seed: Determines everything.
        one_thread: Whether other threads have the other cores: the trees are the same.
    """
    if rows.mean(np.square(errors)) < _LEAST_NOISE:
        return found, {"trees": 0}
    squares = np.square(errors) * np.exp(-found.log_variance)
    logs = np.clip(np.log(np.maximum(squares, _SMALLEST)) + _LOG_CHI, -_FARTHEST, _FARTHEST)
    table = Table(clip_rows(clip, rows.inputs).double().numpy(), logs, rows.counts)
    order = np.random.default_rng(seed).permutation(len(rows))
    judges = order < _CHOOSING
    with threadpool_limits(1 if one_thread else None, user_api="openmp"):
        more = _out_of_fold(table, order % _FOLDS, seed)
        chosen_by = rows.take(np.flatnonzero(judges))
        best, strength, gain = _choose(chosen_by, errors[judges], found.log_variance[judges], more[:, judges])
        trees = None
        if gain * rows.total >= _GAIN:
            model = grow_trees(table, COUNTS[best], seed, NOISE_TREES)
            trees = complete_trees(model, COUNTS[best], table.inputs, model.predict(table.inputs), NOISE_TREES)
    if trees is None:
        return found, {"trees": 0, "gain": gain * rows.total}
    trees = replace(trees, leaves=strength * trees.leaves)
    networks, floor = found.noise.module, math.log(found.floor)
    assert isinstance(networks, nn.Sequential)  # bounded inputs, networks, a floor
    module = nn.Sequential(networks[0], trees.added_to(networks[1:]), SmoothFloor(floor))
    noise = InputNoise(module.requires_grad_(False), reads="inputs", variance=found.noise.variance)
    scales = log_noise_scale(noise, rows.inputs, chunk_size)
    noise.bounds = float(scales.min()), float(scales.max())
    unit = math.log(found.noise.variance)
    log_variance = np.logaddexp(found.log_variance - unit + strength * more[best], floor) + unit
    record: dict[str, object] = {"trees": COUNTS[best], "strength": strength, "gain": gain * rows.total}
    return replace(found, noise=noise, log_variance=log_variance), record


def _out_of_fold(rows: Table, folds: npt.NDArray[np.intp], seed: int) -> Array:
    """``(counts, rows)`` what each number of trees predicts for a fold that they have not seen."""
    found = np.empty((len(COUNTS), len(rows)))
    for fold in range(_FOLDS):
        out = folds == fold
        model = grow_trees(rows.take(np.flatnonzero(~out)), COUNTS[-1], seed, NOISE_TREES)
        for count, predicted in enumerate(model.staged_predict(rows.inputs[out]), 1):
            if count in COUNTS:
                found[COUNTS.index(count), out] = predicted
    return found


def _choose(rows: Table, errors: Array, log_variance: Array, more: Array) -> tuple[int, float, float]:
    """The best number of trees, by its place, their strength, and what is gained in nats per row."""

    def loss(added: Array | float) -> float:
        variance = np.exp(log_variance + added)
        relative = [(errors / np.sqrt(variance), rows)]
        return min(mean_nlpd(rows, errors, fit_scale(relative, shape) * variance, shape) for shape in _SHAPES)

    losses = {
        (place, strength): loss(strength * predicted) for place, predicted in enumerate(more) for strength in _STRENGTHS
    }
    (place, strength), lowest = min(losses.items(), key=lambda each: each[1])
    return place, strength, loss(0.0) - lowest
