"""Targets with an atom: one value that a large share of the rows has, such as zero, and that no density describes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ..kernel_gp import Array, KernelPosterior, KernelRows, fit_from_several_starts
from .kernels import FORMS

# A value that this share of the targets has is an atom.
ATOM_SHARE = 0.05
# Fewer rows with it do not outweigh the others.
_FEWEST_IN_ATOM = 10
# Rows that are enough to learn the noise of the others from.
_NOISE_ROWS = 300


def atom(targets: Array, counts: Array | None = None) -> tuple[float, float] | None:
    """A value that at least a twentieth of the targets have, and their share, if it is no step of a coarse scale.

    Example:
        >>> atom(np.array([0.0, 0.0, 0.0, 1.2, 3.4, 2.2, 7.1]))
        (0.0, 0.42857142857142855)
    """
    values, places = np.unique(targets, return_inverse=True)
    totals = np.bincount(places, counts)
    first = int(totals.argmax())
    others = np.delete(totals, first)
    typical = float(np.sort(others)[-max(1, len(others) // 20)]) if len(others) else 0.0
    share = float(totals[first] / totals.sum())
    return (float(values[first]), share) if share >= ATOM_SHARE and totals[first] > 2.0 * typical else None


def dithered(rows: KernelRows, seed: int) -> KernelRows:
    """The rows, those in an atom with random errors of the deviation that the noise of all others has.

    Where inputs tell the atom, its rows have no error at all. Their density grows without bound as the noise goes to
    zero: they outweigh all other rows, for which such a kernel is useless. With the errors of the others, all rows
    speak for the same noise.
    """
    found = atom(rows.targets, rows.counts)
    inside = np.zeros(len(rows.targets), dtype=bool) if found is None else rows.targets == found[0]
    if inside.sum() < _FEWEST_IN_ATOM or inside.all():
        return rows
    form, random = FORMS["matern52"], np.random.default_rng(seed)
    some = rows.take(random.permutation(np.flatnonzero(~inside))[:_NOISE_ROWS])
    parameters = fit_from_several_starts(form, some, (1.0, 0.3), steps=30, seed=seed)
    posterior = KernelPosterior(form, parameters, some)
    deviations = math.sqrt(posterior.scale * posterior.noise) / np.sqrt(rows.counts)
    errors = deviations * random.normal(size=len(inside))
    return replace(rows, targets=rows.targets + np.where(inside, errors, 0.0))
