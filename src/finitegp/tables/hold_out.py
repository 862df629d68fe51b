"""``HoldOut``: which rows of a table judge a fit, and how many of them a memory budget lets us keep.

Rows are chosen at random, by whole groups, as the last in some order, or in folds; a pass over one column, or two,
finds groups and order.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..arguments import check_arguments
from ..errors import DataError
from ..memory import format_bytes, parse_bytes
from .arrow_values import family, number_values, plain
from .columns import OrderedColumn
from .parameters import TableParameters, usual_decimal
from .profiles import ColumnOptions, ColumnProfile
from .summaries import MAX_ONE_HOT
from .training_rows import TrainingRows, random_positions

Positions = npt.NDArray[np.int64]
# Of rows on disk: training rows that the report and the linear baseline see, and the share of the memory budget that
# these and held-out rows take at most, twice while they are put together.
_SAMPLE_ROWS, _SHARE_OF_ROWS = 5000, 0.1
# Bytes for each row of a table on disk that it takes to decide by a column which of them are held out, and for each row
# that is.
_DECIDING_BYTES, _HELD_OUT_BYTES = 64, 32
# Numbers that scores need of a row, and outputs that a column has at most, by what it holds.
_SCORED_NUMBERS, _MOST_OUTPUTS = 80, {"date": 8, "time": 8, "number": 2, "boolean": 2}


@check_arguments
@dataclass(frozen=True)
class Judging:
    """Which rows judge a fit: random ones, the last ones, whole groups, or all in folds, which may be of groups.

    Attributes:
        test_fraction: The share that is held out; 0 for none.
        split_by: A column: the rows with its highest values, such as the latest dates, are held out.
        group: A column: rows with the same value stay together.
        folds: The number of folds of a cross-validation that judges all rows; 0 for a single split.
    """

    test_fraction: float = 0.2
    split_by: str | None = None
    group: str | None = None
    folds: int = 0

    def __post_init__(self) -> None:
        """Combinations that exclude each other are refused here, not after the fit."""
        if not 0.0 <= self.test_fraction < 1.0:
            raise ValueError(f"test_fraction must be at least 0 and less than 1, but is {self.test_fraction}.")
        if not isinstance(self.folds, Integral) or self.folds < 0 or self.folds == 1:
            raise ValueError(f"folds must be a whole number of 2 or more, or 0 for none, but is {self.folds}.")
        for name, value in (("group", self.group), ("folds", self.folds)):
            if self.split_by is not None and value:
                raise ValueError(f"split_by cannot be used together with {name}: choose one.")

    @property
    def how(self) -> str:
        """In words."""
        if self.folds:
            return f"{self.folds}-fold cross-validation"
        if self.split_by is not None:
            return f"the rows with the highest {self.split_by!r}"
        return "random rows" if self.group is None else f"whole groups of {self.group!r}"


class Split(NamedTuple):
    """Positions of the rows to train on, and of those to judge with."""

    training: Positions
    held_out: Positions


@dataclass(frozen=True, eq=False)
class HoldOut:
    """The choice of rows that judge, of a table in memory or on disk."""

    model: TableParameters
    training: TrainingRows
    judging: Judging
    seed: int

    def split(self) -> Split:
        """Which rows train, and which judge."""
        judging = self.judging
        if judging.split_by is not None:
            self._check_room_to_decide("split_by")
            known = ColumnOptions(None, self.model.decimal, self.model.day_first)
            order = order_by(self.training, judging.split_by, known, usual_decimal(self.training.table))
            return split_last(order, judging.test_fraction)
        return split_groups(self.groups(), judging.test_fraction, seed=self.seed)

    def groups(self) -> Positions:
        """A number for each row, equal for rows that stay together: those of a group, or copies in memory."""
        if self.judging.group is not None:
            self._check_room_to_decide("group")
            return groups_of(self.training, self.judging.group)
        if self.training.on_disk:
            self._check_room_to_decide("folds")
            return np.arange(self.training.num_rows)
        return self.training.all_rows().rows.copies()

    def _check_room_to_decide(self, option: str) -> None:
        """An error if a memory budget has no room for what decides which rows of a table on disk are held out."""
        needed = _DECIDING_BYTES * self.training.num_rows
        if self.training.on_disk and needed > self._budget():
            raise DataError(
                f"To decide which rows are held out takes {format_bytes(needed)}, more than the memory budget:",
                f"raise it, leave out {option}, or give the rows to judge with as another table (test).",
                code="no_room_to_decide",
                option=option,
                needed=needed,
            )

    def drawn(self, rows: int, most: int) -> Positions:
        """Positions of some random rows, in order: all, if there are no more."""
        return random_positions(rows, most, self.seed + 1)

    def rest(self, held_out: Positions, judges: int) -> tuple[TrainingRows, Positions]:
        """The training rows without those that are held out, and which of them baselines and report see.

        Of rows on disk, these and those that judge are on the bill of the fit.
        """
        sample = self.sample(self.training.num_rows - len(held_out), judges)
        if not self.training.on_disk:
            return self.training.without(held_out), sample
        kept_bytes = self._row_bytes * (judges + len(sample)) + _HELD_OUT_BYTES * len(held_out)
        return self.training.without(held_out, kept_bytes=kept_bytes), sample

    def sample(self, rows: int, judges: int) -> Positions:
        """Positions of the training rows that baselines and report see: all in memory, of rows on disk some."""
        if not self.training.on_disk:
            return np.arange(rows)
        return self.drawn(rows, max(0, min(_SAMPLE_ROWS, self.room() - judges)))

    def room(self) -> int:
        """How many rows a memory budget lets us keep."""
        return int(_SHARE_OF_ROWS * self._budget()) // self._row_bytes

    def _budget(self) -> int:
        budget = (self.model.regressor or self.model).memory_budget
        return 0 if budget is None else parse_bytes(budget)

    @cached_property
    def _row_bytes(self) -> int:
        """About what a row that is kept takes: as it is, encoded twice, and with its predictions."""
        first = next(iter(self.training.table.rows(0, min(self.training.table.num_rows, 1000))))
        one_hot = self.model.max_one_hot or MAX_ONE_HOT
        most = [_MOST_OUTPUTS.get(family(each.type), one_hot + 1) for each in first.schema]
        return int(first.nbytes / first.num_rows) + 8 * (2 * sum(most) + _SCORED_NUMBERS)


def split_groups(groups: Positions, fraction: float, *, seed: int) -> Split:
    """A random split in which rows of one group, such as copies of one row, are on one side.

    ``groups`` are numbers of rows, equal for those that belong together.

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


def make_folds(groups: Positions, folds: int, *, seed: int) -> list[Positions]:
    """Folds of about equal size for cross-validation: the rows of each. Those of one group are in one fold.

    Example:
        >>> [fold.tolist() for fold in make_folds(np.array([0, 0, 1, 1]), 2, seed=0)]
        [[0, 1], [2, 3]]
    """
    _, codes, counts = np.unique(groups, return_inverse=True, return_counts=True)
    if len(counts) < folds:
        raise DataError(
            f"There are {len(counts)} different rows or groups, too few for {folds} folds: use fewer folds."
        )
    sizes, fold_of = np.zeros(folds), np.empty(len(counts), dtype=np.int64)
    order = np.random.default_rng(seed).permutation(len(counts))
    # Large groups first, each into the smallest fold so far.
    for group in order[np.argsort(-counts[order], kind="stable")]:
        fold_of[group] = int(np.argmin(sizes))
        sizes[fold_of[group]] += counts[group]
    own = fold_of[codes]
    return [np.flatnonzero(own == fold) for fold in range(folds)]


def groups_of(training: TrainingRows, name: str) -> Positions:
    """A number for each row, equal for rows of one value in a column, in the order in which values come first."""
    # Eight bytes of a value stand for it: two of a million values share them with probability 3e-8.
    keys = []
    for array in training.column(name):
        encoded = plain(array).dictionary_encode(null_encoding="encode")
        texts = pc.cast(encoded.dictionary, pa.large_string()).to_pylist()
        digests = [
            bytes(8) if text is None else hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts
        ]
        keys.append(np.frombuffer(b"".join(digests), dtype="<u8")[np.asarray(encoded.indices)])
    return np.asarray(pa.array(np.concatenate(keys)).dictionary_encode().indices, dtype=np.int64)


def order_of(training: TrainingRows, column: OrderedColumn) -> npt.NDArray[np.float64]:
    """The values of a column whose encoding is settled: numbers, or microseconds since 1970; NaN where missing."""
    read = map(column.read, training.column(column.name))
    return np.concatenate([np.where(cells.gaps, np.nan, cells.values.astype(np.float64)) for cells in read])


def order_by(
    training: TrainingRows, name: str, options: ColumnOptions, decimal: str | None = None
) -> npt.NDArray[np.float64]:
    """The values of a column that orders all rows: numbers or dates, however they are written."""
    profile, first, parts = ColumnProfile(name, options), 0, []
    for array in training.column(name):
        if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
            parts.append(number_values(array))
        else:
            profile.add(array, first)
        first += len(array)
    if profile.rows:
        column = profile.verdict(max_one_hot=1, decimal=decimal).column
        if not isinstance(column, OrderedColumn):
            raise DataError(f"Column {name!r} holds neither numbers nor dates, so rows have no order by it.")
        parts = [order_of(training, column)]
    values = np.concatenate(parts)
    if np.isnan(values).any():
        place = training.label(training.number(int(np.flatnonzero(np.isnan(values))[0])))
        raise DataError(f"Column {name!r}, by which to split, has no value in {place}: correct it, or split otherwise.")
    return values
