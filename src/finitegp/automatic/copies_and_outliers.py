"""Rows of small tables that are not what they seem: copies of one row, and targets that no smooth function explains."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ..kernel_gp import Array, KernelPosterior, KernelRows, fit_from_several_starts
from .kernels import FORMS, LEARNING_ROWS

Groups = npt.NDArray[np.intp]


def equal_rows(inputs: Array) -> Groups:
    """The number of the group of equal rows that each row belongs to."""
    return np.asarray(np.unique(inputs, axis=0, return_inverse=True)[1]).ravel()


def are_copies(rows: KernelRows, groups: Groups) -> bool:
    """Whether equal inputs are copies of rows rather than repeated measurements.

    Copies agree in their targets nearly always, and far more often than two targets agree by chance.
    """
    sizes = np.bincount(groups, rows.counts)
    repeated = sizes > 1.0
    if not repeated.any():
        return False
    targets = rows.targets
    centres = np.bincount(groups, targets * rows.counts) / sizes
    same = np.abs(targets - centres[groups]) <= 1e-9 * (np.abs(targets) + targets.std())
    agree = np.bincount(groups, ~same)[repeated] == 0
    shares = np.bincount(np.unique(targets, return_inverse=True)[1].ravel(), rows.counts) / rows.total
    chance = float(np.square(shares).sum())
    return bool(agree.mean() > 0.95 and int(repeated.sum()) * math.log(chance) < math.log(1e-6))


def gross_outliers(rows: KernelRows, seed: int) -> tuple[float, float, Array]:
    """Shift and unit of the targets, and factors on the noise of rows that no smooth function explains."""
    targets = rows.targets
    median = float(np.median(targets))
    distances = np.abs(targets - median)
    unit = 1.4826 * float(np.median(distances))
    nothing = 0.0, 1.0, rows.noise_scales
    if unit <= 0.0 or distances.max() <= 8.0 * unit or np.mean(distances > 8.0 * unit) >= 0.05:
        return nothing
    standardized = (targets - median) / unit
    scales = np.where(np.abs(standardized) < 6.0, 1.0, np.maximum(1.0, np.square(standardized) / 16.0))
    form = FORMS["matern52"]
    learning = np.arange(len(targets))
    if len(learning) > LEARNING_ROWS:
        # All that stand out, and some of the others.
        order = np.argsort(-np.abs(standardized))
        rest = np.random.default_rng(seed).permutation(order[LEARNING_ROWS // 4 :])
        learning = np.sort(np.concatenate([order[: LEARNING_ROWS // 4], rest[: LEARNING_ROWS * 3 // 4]]))
    for _ in range(3):
        part = KernelRows(rows.inputs, standardized, scales, rows.counts)
        parameters = fit_from_several_starts(form, part.take(learning), (1.0, 0.3), steps=30, seed=seed)
        posterior = KernelPosterior(form, parameters, part)
        mean, variance = posterior.leave_one_out()
        # Of one trusted observation: a row with a count is the mean of that many.
        trusted = np.maximum(variance - posterior.scale * posterior.noise * (scales / rows.counts - 1.0), 1e-12)
        found = (4.0 + np.square(standardized - mean) / trusted) / 5.0
        scales = np.where(found > 5.0, found, 1.0)
    return (median, unit, scales) if bool((scales > 1.0).any()) else nothing
