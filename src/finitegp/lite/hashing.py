"""Hashes of words and of rows, the same wherever they are computed, and rows that come again, found by them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from .program import LiteError

Array = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]
Places = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

# The step between the states of splitmix64.
SPLITMIX64_STEP = 0x9E3779B97F4A7C15

#: What a file holds of them, one number each for every different pair of inputs and target.
REPEATED_ARRAYS = ("codes", "targets", "counts")
#: Targets that differ by less than this part of their standard deviation are the same.
SAME = 1e-6
# Pairs that are kept: later ones are not recognised.
_MOST_PAIRS = 2**17
# A code is a whole number that a float64 holds exactly, as all arrays in a file can be read.
_DROPPED_BITS = 11
# How many others that agree make a difference.
_OTHERS = 3


def splitmix64(words: Words) -> Words:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014): a bijection of 64-bit words that looks random.

    Example:
        >>> int(splitmix64(np.array([SPLITMIX64_STEP], dtype=np.uint64))[0])  # the first output for the seed 0
        16294208416658607535
    """
    # Arithmetic modulo 2^64 is meant.
    mixed: Words = words ^ (words >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def row_codes(columns: Iterable[npt.NDArray[np.float64]]) -> Words:
    """``(rows,)`` a number of 64 bits that equal rows share, and others but by an accident that never happens.

    Example:
        >>> first, second = row_codes([np.array([0.0, -0.0]), np.array([1.5, 1.5])])
        >>> bool(first == second)
        True
    """
    codes: Words | None = None
    for column in columns:
        words = (np.ascontiguousarray(column) + 0.0).view(np.uint64)  # zero and minus zero are equal
        codes = np.zeros(len(words), dtype=np.uint64) if codes is None else codes
        codes = splitmix64((codes + np.uint64(SPLITMIX64_STEP)) ^ words)
    assert codes is not None
    return codes


def row_hashes(inputs: ArrayLike, targets: ArrayLike) -> list[str]:
    """A name for each row and its target, in the user's units: to recognise a row by, not to read it from.

    Example:
        >>> row_hashes([[1.0, 2.0], [1.0, 2.0]], [0.0, -0.0]) == 2 * row_hashes([[1, 2]], [0])
        True
    """
    rows = np.column_stack([np.asarray(inputs, np.float64), np.asarray(targets, np.float64)]) + 0.0  # no minus zero
    return [hashlib.sha256(row.astype("<f8").tobytes()).hexdigest()[:32] for row in rows]


class SeenValues(NamedTuple):
    """Targets of equal rows, for new rows.

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
        codes: ``(pairs,)`` hashes of inputs, ascending.
        targets: ``(pairs,)``, ascending where codes are equal: rows with these inputs disagreed.
        counts: ``(pairs,)`` how many rows had these inputs and this target.
        agreement: ``(3,)`` the probability that one more row has the same target as one, two, or three and more that
            agree.
        tolerance: Targets that differ by less are the same.

    Example:
        >>> rows = np.array([[1.0, 2.0]])
        >>> seen = RepeatedRows(input_codes(rows), np.array([5.0]), np.ones(1), np.array([0.9, 0.95, 0.99]), 1e-6)
        >>> seen.look_up(np.array([[1.0, 2.0], [1.0, 3.0]])).chances.tolist()
        [0.9, 0.0]
        >>> seen.added(rows, np.array([5.0])).look_up(rows).chances.tolist()
        [0.95]
        >>> seen.added(rows, np.array([6.0])).look_up(rows).chances.tolist()
        [0.0]
    """

    codes: Array
    targets: Array
    counts: Array
    agreement: Array
    tolerance: float

    def look_up(self, inputs: Array, without: Array | None = None) -> SeenValues:
        """Targets of equal rows; ``without`` are those of these rows themselves, each of which is then left out."""
        codes = input_codes(inputs)
        first, end = (np.searchsorted(self.codes, codes, side) for side in ("left", "right"))
        different, other = end - first, np.minimum(first, max(len(self.codes) - 1, 0))
        if not len(self.codes):
            return SeenValues(np.zeros(len(codes)), np.zeros(len(codes)))
        counts = self.counts[other]
        if without is not None:
            own, found = self._find(codes, without)
            left = np.where(found, self.counts[own] - 1.0, self.counts[own])
            gone = found & (left <= 0.0)
            # Of two targets, one of which is gone, the other is left.
            other = np.where(gone & (own == first), np.minimum(first + 1, len(self.codes) - 1), other)
            counts = np.where(found & ~gone & (own == other), left, self.counts[other])
            different = different - gone
        known = np.where(different == 1, np.minimum(counts, _OTHERS), 0.0).astype(np.int64)
        chances = np.append(0.0, self.agreement)[known]
        return SeenValues(np.where(chances > 0.0, self.targets[other], 0.0), chances)

    def added(self, inputs: Array, targets: Array, counts: Array | None = None) -> RepeatedRows:
        """With these rows, too."""
        return self._joined(input_codes(inputs), targets, np.ones(len(targets)) if counts is None else counts)

    def merged(self, other: RepeatedRows) -> RepeatedRows:
        """With the rows of both."""
        return self._joined(other.codes, other.targets, other.counts)

    def without(self, inputs: Array, targets: Array, counts: Array | None = None) -> RepeatedRows:
        """Without these rows, as if they had never been there."""
        places, found = self._find(input_codes(inputs), targets)
        left = self.counts.copy()
        np.subtract.at(left, places[found], 1.0 if counts is None else counts[found])
        kept = left > 0.0
        return replace(self, codes=self.codes[kept], targets=self.targets[kept], counts=left[kept])

    def stored(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Header entry and arrays of a file, for :func:`read_repeated`."""
        header = {"agreement": self.agreement.tolist(), "tolerance": self.tolerance}
        return header, {name: getattr(self, name) for name in REPEATED_ARRAYS}

    def described(self) -> dict[str, Any]:
        """The entry in the record of a fit."""
        return {"agreement": self.agreement.tolist(), "rows": len(self.codes)}

    def has(self, inputs: Array, targets: Array) -> Mask:
        """``(rows,)`` whether there are rows with these inputs and this target."""
        return self._find(input_codes(inputs), targets)[1]

    def _find(self, codes: Array, targets: Array) -> tuple[Places, Mask]:
        """``(rows,)`` places of pairs, and whether they are there."""
        if not len(self.codes):
            return np.zeros(len(codes), np.intp), np.zeros(len(codes), bool)
        # Few targets belong to a code: they are passed one by one.
        place = np.searchsorted(self.codes, codes)
        last = len(self.codes) - 1
        while True:
            here = np.minimum(place, last)
            short = (place <= last) & (self.codes[here] == codes) & (self.targets[here] < targets - self.tolerance)
            if not short.any():
                break
            place = place + short
        found = (place <= last) & (self.codes[here] == codes) & (np.abs(self.targets[here] - targets) <= self.tolerance)
        return here, found

    def _joined(self, codes: Array, targets: Array, counts: Array) -> RepeatedRows:
        known = np.isin(codes, self.codes)
        room = max(_MOST_PAIRS - len(self.codes), 0)
        taken = known | np.isin(codes, np.unique(codes[~known])[:room])
        mine, theirs = (self.codes, self.targets, self.counts), (codes[taken], targets[taken], counts[taken])
        together = Pairs(*(np.concatenate(both) for both in zip(mine, theirs, strict=True)))
        return replace(self, **different_pairs(together, self.tolerance)._asdict())


class Pairs(NamedTuple):
    """Codes, targets and counts of :class:`RepeatedRows`."""

    codes: Array
    targets: Array
    counts: Array


def different_pairs(pairs: Pairs, tolerance: float) -> Pairs:
    """Each pair of code and target once, in order, with how many there are."""
    order = np.lexsort((pairs.targets, pairs.codes))
    codes, targets, counts = (each[order] for each in pairs)
    first = np.append(True, (np.diff(codes) != 0.0) | (np.diff(targets) > tolerance))[: len(codes)]
    starts = np.flatnonzero(first)
    summed = np.add.reduceat(counts, starts) if len(starts) else counts
    return Pairs(codes[starts], targets[starts], summed)


def input_codes(inputs: Array) -> Array:
    """``(rows,)`` whole numbers of 53 bits that rows with equal inputs share; inputs in 32 bits are those in 64."""
    # Half of what a float32 does not hold is added, then the rest is cut off: both are then the same number.
    rounded = ((inputs + 0.0).view(np.uint64) + np.uint64(1 << 28)) & ~np.uint64((1 << 29) - 1)
    return np.asarray(row_codes(rounded.view(np.float64).T) >> np.uint64(_DROPPED_BITS), dtype=np.float64)


def read_repeated(header: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[np.generic]]) -> RepeatedRows:
    """Repeated rows as a file has them, every number checked."""
    codes, targets, counts = (np.asarray(arrays[name], np.float64) for name in REPEATED_ARRAYS)
    agreement, tolerance = np.asarray(header["agreement"], np.float64), float(header["tolerance"])
    makes_sense = (
        codes.ndim == 1
        and 0 < len(codes) == len(targets) == len(counts)
        and bool(np.all((codes[1:] > codes[:-1]) | ((codes[1:] == codes[:-1]) & (targets[1:] > targets[:-1]))))
        and bool(np.all(np.isfinite(targets)) and np.all((counts > 0.0) & np.isfinite(counts)))
        and agreement.shape == (_OTHERS,)
        and bool(np.all((agreement > 0.0) & (agreement < 1.0)))
        and tolerance > 0.0
        and math.isfinite(tolerance)
    )
    if not makes_sense:
        raise LiteError("what it holds of rows that repeat makes no sense")
    return RepeatedRows(codes, targets, counts, agreement, tolerance)


class Change(NamedTuple):
    """Rows that change posteriors, and what is known of repeated rows then.

    Attributes:
        rows: ``(rows,)`` which of the given ones.
        repeated: Afterwards.
    """

    rows: Mask
    repeated: RepeatedRows


def change_rows(
    repeated: RepeatedRows, inputs: Array, targets: Array, counts: Array | None, *, forget: bool, copies_once: bool
) -> Change:
    """Rows that come or go: all; or where copies count once, those of which there are none before, or none after."""
    after = (repeated.without if forget else repeated.added)(inputs, targets, counts)
    if counts is not None or not copies_once:
        return Change(np.ones(len(targets), bool), after)
    chosen = np.zeros(len(targets), bool)
    chosen[np.unique(np.column_stack([inputs, targets]), axis=0, return_index=True)[1]] = True
    return Change(chosen & ~(after if forget else repeated).has(inputs, targets), after)


def merge_repeated(one: RepeatedRows | None, other: RepeatedRows | None) -> RepeatedRows | None:
    """Of two fits with their rows together."""
    return one or other if one is None or other is None else one.merged(other)
