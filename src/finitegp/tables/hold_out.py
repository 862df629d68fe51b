"""``HoldOut``: which rows of a table judge a fit, and how many of them a memory budget lets us keep."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..data.permutation import RandomPermutation
from ..errors import DataError
from ..memory import format_bytes, parse_bytes
from .arrow_values import family
from .model import TableRegressor
from .ordering import groups_of, order_by
from .profiles import ColumnOptions
from .splits import Split, split_groups, split_last
from .training_rows import TrainingRows

Positions = npt.NDArray[np.int64]
# Of rows on disk: training rows that the report and the linear baseline see, and the share of the memory budget that
# these and held-out rows take at most, twice while they are put together.
_SAMPLE_ROWS, _SHARE_OF_ROWS = 5000, 0.1
# Bytes for each row of a table on disk that it takes to decide by a column which of them are held out, and for each row
# that is.
_DECIDING_BYTES, _HELD_OUT_BYTES = 64, 32
# Numbers that scores need of a row, and outputs that a column has at most, by what it holds.
_SCORED_NUMBERS, _MOST_OUTPUTS = 80, {"date": 8, "time": 8, "number": 2, "boolean": 2}


@dataclass(frozen=True)
class Judging:
    """Which rows judge a fit.

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

    @property
    def how(self) -> str:
        """In words."""
        if self.folds:
            return f"{self.folds}-fold cross-validation"
        if self.split_by is not None:
            return f"the rows with the highest {self.split_by!r}"
        return "random rows" if self.group is None else f"whole groups of {self.group!r}"


@dataclass(frozen=True, eq=False)
class HoldOut:
    """The choice of rows that judge, of a table in memory or on disk."""

    model: TableRegressor
    training: TrainingRows
    judging: Judging
    seed: int

    def split(self) -> Split:
        """Which rows train, and which judge."""
        judging = self.judging
        if judging.split_by is not None:
            self._check_room_to_decide("split_by")
            known = ColumnOptions(None, self.model.decimal, self.model.day_first)
            return split_last(order_by(self.training, judging.split_by, known), judging.test_fraction)
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
        drawn: Positions = np.sort(RandomPermutation(rows, self.seed + 1)(np.arange(min(rows, most))))
        return drawn

    def rest(self, held_out: Positions, judges: int) -> tuple[TrainingRows, Positions]:
        """The training rows without those that are held out, and which of them baselines and report see.

        Of rows on disk, these and those that judge are on the bill of the fit.
        """
        sample = self.sample(self.training.num_rows - len(held_out), judges)
        if not self.training.on_disk:
            return self.training.without(held_out), sample
        kept_bytes = self._row_bytes() * (judges + len(sample)) + _HELD_OUT_BYTES * len(held_out)
        return self.training.without(held_out, kept_bytes=kept_bytes), sample

    def sample(self, rows: int, judges: int) -> Positions:
        """Positions of the training rows that baselines and report see: all in memory, of rows on disk some."""
        if not self.training.on_disk:
            return np.arange(rows)
        return self.drawn(rows, max(0, min(_SAMPLE_ROWS, self.room() - judges)))

    def room(self) -> int:
        """How many rows a memory budget lets us keep."""
        return int(_SHARE_OF_ROWS * self._budget()) // self._row_bytes()

    def _budget(self) -> int:
        budget = (self.model.regressor or self.model).memory_budget
        return 0 if budget is None else parse_bytes(budget)

    def _row_bytes(self) -> int:
        """About what a row that is kept takes: as it is, encoded twice, and with its predictions."""
        first = next(iter(self.training.table.rows(0, min(self.training.table.num_rows, 1000))))
        most = [_MOST_OUTPUTS.get(family(each.type), self.model.max_one_hot + 1) for each in first.schema]
        return int(first.nbytes / first.num_rows) + 8 * (2 * sum(most) + _SCORED_NUMBERS)
