"""Which rows train and which judge: random, whole groups, the last in some order, or folds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import DataError

Rows = npt.NDArray[np.int64]


class Split(NamedTuple):
    """Positions of the rows to train on, and of those to judge with."""

    training: Rows
    held_out: Rows


def split_groups(groups: Rows, fraction: float, *, seed: int) -> Split:
    """A random split in which rows of one group, such as copies of one row, are on one side.

    Args:
        groups: A number for each row, equal for rows that belong together.
        fraction: The share of rows to hold out, about.
        seed: Of the order of groups.

    Example:
        >>> split = split_groups(np.array([0, 0, 1, 2, 3]), 0.4, seed=0)
        >>> len(split.training) + len(split.held_out), len({0, 1} & set(split.held_out.tolist())) in (0, 2)
        (5, True)
    """
    _, codes, counts = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(counts))
    wanted = int(fraction * len(groups))
    before = np.cumsum(counts[order]) - counts[order]
    out = np.zeros(len(counts), dtype=bool)
    out[order[before < wanted]] = True
    if out.all():
        raise DataError("All rows belong to one group, so none can be held out: choose another column.")
    return Split(np.flatnonzero(~out[codes]), np.flatnonzero(out[codes]))


def split_last(order: npt.NDArray[np.float64], fraction: float) -> Split:
    """The rows with the highest values held out; rows of equal value stay on one side.

    Example:
        >>> [part.tolist() for part in split_last(np.array([3.0, 1.0, 2.0, 4.0]), 0.25)]
        [[0, 1, 2], [3]]
    """
    values = np.sort(order)
    first = values[min(len(values) - 1, len(values) - int(fraction * len(values)))]
    held_out = order >= first
    if held_out.all():
        raise DataError("The column to split by has one value in nearly all rows, so there is no later part.")
    return Split(np.flatnonzero(~held_out), np.flatnonzero(held_out))


def make_folds(groups: Rows, folds: int, *, seed: int) -> list[Rows]:
    """Folds of about equal size for cross-validation: the rows of each. Those of one group are in one fold.

    Example:
        >>> [fold.tolist() for fold in make_folds(np.array([0, 0, 1, 1]), 2, seed=0)]
        [[0, 1], [2, 3]]
    """
    _, codes, counts = np.unique(groups, return_inverse=True, return_counts=True)
    if len(counts) < folds:
        raise DataError(f"There are {len(counts)} groups of rows, too few for {folds} folds.")
    sizes, fold_of = np.zeros(folds), np.empty(len(counts), dtype=np.int64)
    order = np.random.default_rng(seed).permutation(len(counts))
    # Large groups first, each into the smallest fold so far.
    for group in order[np.argsort(-counts[order], kind="stable")]:
        fold_of[group] = int(np.argmin(sizes))
        sizes[fold_of[group]] += counts[group]
    own = fold_of[codes]
    return [np.flatnonzero(own == fold) for fold in range(folds)]
