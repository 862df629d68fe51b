"""Rows that come again: what equal rows had as target, found by a hash of their inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .hashing import row_codes
from .program import LiteError

Array = npt.NDArray[np.float64]

#: What a file holds of them, one number a row each.
REPEATED_ARRAYS = ("codes", "targets", "counts")
#: Targets that differ by less than this part of their standard deviation are the same.
SAME = 1e-6
# Rows that are kept: later ones are not recognised.
_MOST_ROWS = 2**17
# A code is a whole number that a float64 holds exactly, as all arrays in a file can be read.
_DROPPED_BITS = 11
# How many others that agree make a difference.
_OTHERS = 3


class SeenValues(NamedTuple):
    """What is known of new rows from equal ones.

    Attributes:
        values: ``(rows,)`` the target that all equal rows had.
        chances: ``(rows,)`` how likely a new row has it too; zero where there are no equal rows, or they disagree.
    """

    values: Array
    chances: Array


@dataclass(frozen=True, eq=False)
class RepeatedRows:
    """Targets of rows by a hash of their inputs, in the user's units.

    A table in which rows repeat with the same target will repeat old rows in new ones, too. How often the target is the
    same again was counted on rows that were left out, so a new row has it with that probability, and is predicted as
    any other row otherwise.

    Attributes:
        codes: ``(rows,)`` hashes of different inputs, ascending.
        targets: ``(rows,)`` what all rows with these inputs had.
        counts: ``(rows,)`` how many there were; zero if they disagreed.
        agreement: ``(3,)`` the probability that one more row has the same target as one, two, or three and more that
            agree.
        tolerance: Targets that differ by less are the same.

    Example:
        >>> codes = input_codes(np.array([[1.0, 2.0]]))
        >>> seen = RepeatedRows(codes, np.array([5.0]), np.ones(1), np.array([0.9, 0.95, 0.99]), 1e-6)
        >>> seen.look_up(np.array([[1.0, 2.0], [1.0, 3.0]])).chances.tolist()
        [0.9, 0.0]
        >>> seen.added(np.array([[1.0, 2.0]]), np.array([5.0])).look_up(np.array([[1.0, 2.0]])).chances.tolist()
        [0.95]
    """

    codes: Array
    targets: Array
    counts: Array
    agreement: Array
    tolerance: float

    def look_up(self, inputs: Array, *, fewer: float = 0.0) -> SeenValues:
        """What equal rows say of these; ``fewer`` are left out of each count, as for rows that are in it themselves."""
        places, found = self._find(inputs)
        counts = np.where(found, np.maximum(self.counts[places] - fewer, 0.0), 0.0)
        chances = np.append(0.0, self.agreement)[np.minimum(counts, len(self.agreement)).astype(np.int64)]
        return SeenValues(np.where(chances > 0.0, self.targets[places], 0.0), chances)

    def added(self, inputs: Array, targets: Array, counts: Array | None = None) -> RepeatedRows:
        """With these rows, too."""
        return self._joined(input_codes(inputs), targets, np.ones(len(targets)) if counts is None else counts)

    def merged(self, other: RepeatedRows) -> RepeatedRows:
        """With the rows of both."""
        return self._joined(other.codes, other.targets, other.counts)

    def without(self, inputs: Array, targets: Array, counts: Array | None = None) -> RepeatedRows:
        """Without these rows; where equal ones disagreed, they are taken to do so still."""
        places, found = self._find(inputs)
        found &= np.abs(self.targets[places] - targets) <= self.tolerance
        left = self.counts.copy()
        np.subtract.at(left, places[found], 1.0 if counts is None else counts[found])
        kept = (left > 0.0) | (self.counts == 0.0)
        return replace(self, codes=self.codes[kept], targets=self.targets[kept], counts=np.maximum(left, 0.0)[kept])

    def _find(self, inputs: Array) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
        """``(rows,)`` places of equal inputs, and whether there are any."""
        codes = input_codes(inputs)
        places = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        return places, self.codes[places] == codes

    def _joined(self, codes: Array, targets: Array, counts: Array) -> RepeatedRows:
        known = np.isin(codes, self.codes)
        room = max(_MOST_ROWS - len(self.codes), 0)
        taken = known | np.isin(codes, np.unique(codes[~known])[:room])
        mine, theirs = (self.codes, self.targets, self.counts), (codes[taken], targets[taken], counts[taken])
        together = AgreeingRows(*(np.concatenate(pair) for pair in zip(mine, theirs, strict=True)))
        return replace(self, **agreeing_rows(together, self.tolerance)._asdict())


class AgreeingRows(NamedTuple):
    """Codes, targets and counts of :class:`RepeatedRows`."""

    codes: Array
    targets: Array
    counts: Array


def agreeing_rows(rows: AgreeingRows, tolerance: float) -> AgreeingRows:
    """Rows with equal codes as one, with how many there are; zero if they disagree, or did so before."""
    codes, targets, counts = rows
    different, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    low, high = np.full(len(different), np.inf), np.full(len(different), -np.inf)
    np.minimum.at(low, inverse, np.where(counts > 0.0, targets, -np.inf))
    np.maximum.at(high, inverse, targets)
    summed = np.bincount(inverse, counts, minlength=len(different))
    return AgreeingRows(different, targets[first], np.where(high - low <= tolerance, summed, 0.0))


def input_codes(inputs: Array) -> Array:
    """``(rows,)`` whole numbers of 53 bits that rows with equal inputs share."""
    return np.asarray(row_codes(inputs.T) >> np.uint64(_DROPPED_BITS), dtype=np.float64)


def read_repeated(header: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[np.generic]]) -> RepeatedRows:
    """Repeated rows as a file has them, every number checked."""
    codes, targets, counts = (np.asarray(arrays[name], np.float64) for name in REPEATED_ARRAYS)
    agreement, tolerance = np.asarray(header["agreement"], np.float64), float(header["tolerance"])
    makes_sense = (
        codes.ndim == 1
        and 0 < len(codes) == len(targets) == len(counts)
        and bool(np.all(codes[1:] > codes[:-1]))
        and bool(np.all(np.isfinite(targets)) and np.all((counts >= 0.0) & np.isfinite(counts)))
        and agreement.shape == (_OTHERS,)
        and bool(np.all((agreement > 0.0) & (agreement < 1.0)))
        and tolerance > 0.0
        and math.isfinite(tolerance)
    )
    if not makes_sense:
        raise LiteError("what it holds of rows that repeat makes no sense")
    return RepeatedRows(codes, targets, counts, agreement, tolerance)
