"""Summaries of columns in a fit, and of what is unusual about rows that come later."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..data.naming import Locator, listed, locator_of, row_label
from .sketches import Gaps

_SHOWN_UNSEEN = 5


@dataclass(frozen=True)
class ColumnSummary:
    """The summary of one column of the table.

    Attributes:
        column: Its name.
        kind: ``number``, ``boolean``, ``category``, ``date``, ``time``; or, for columns that are left out,
            ``constant``, ``identifier``, ``free text``, ``empty``, ``other``.
        encoding: ``number``, ``one-hot``, ``target mean``, ``target mean and place``, ``rank``, ``date parts``,
            ``missing or not``, ``left out``.
        outputs: The columns of numbers it gives.
        note: What is worth knowing: range, categories, missing values, why it is left out.
        gaps: Missing or infinite values.
        distinct: Different values, or those in a sample of 16 384; 0 if it is left out.
        relevance: Its total effect on predictions, from 0 to 1, where a fit has measured it.
    """

    column: str
    kind: str
    encoding: str
    outputs: tuple[str, ...]
    note: str
    gaps: int = 0
    distinct: int = 0
    relevance: float | None = None


class OutsideValues(NamedTuple):
    """Values of a column that lie clearly outside of what the fit saw.

    Attributes:
        number: How many.
        beyond: How far the farthest lies beyond the range of the fit, as a share of that range.
        farthest: It, as text.
        seen: The range, as text.
    """

    number: int
    beyond: float
    farthest: str
    seen: str


@dataclass
class TransformReport:
    """A count of all that was unusual in one or several calls of `TableEncoder.transform`.

    Attributes:
        source: Where the rows come from, if it can ``locate`` a row in a file, such as `TableReader`.
        rows: Rows transformed so far; rows in errors are counted from the first of them.
        imputed: Values that were missing or infinite and were put in, by column.
        unseen: Values in categories that the fit did not see, by column.
        examples: A few of these categories, by column.
        extra_columns: Columns that the fit did not see, and that were ignored.
        outside: Values that lie clearly outside of what the fit saw, by column.
        first_infinite: The first row with an infinite value, by column.
        unknown: For each row of the last call, and each column that is used: whether the fit saw nothing like its
            value, a new category or a gap where there was none. None if there is no such row.
        forgiving: Whether values that cannot be read as those of the fit count as missing, instead of being an error.
        misfits: How many there were, and what was wrong with the first one, by column.
    """

    source: Locator | None = None
    rows: int = 0
    imputed: dict[str, int] = field(default_factory=dict)
    unseen: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    extra_columns: list[str] = field(default_factory=list)
    outside: dict[str, OutsideValues] = field(default_factory=dict)
    first_infinite: dict[str, int] = field(default_factory=dict)
    unknown: npt.NDArray[np.bool_] | None = field(default=None, compare=False)
    forgiving: bool = False
    misfits: dict[str, tuple[int, str]] = field(default_factory=dict)

    @classmethod
    def on(cls, table: object, report: TransformReport | None = None) -> TransformReport:
        """A report, by default a new one, that names rows as the table does if it is not about another."""
        report = cls() if report is None else report
        report.source = locator_of(table) if report.source is None else report.source
        return report

    def count_gaps(self, name: str, gaps: Gaps) -> None:
        """Values of a column that are missing or infinite."""
        if gaps.infinite:
            self.first_infinite.setdefault(name, gaps.first_infinite)
        if gaps.total:
            self.imputed[name] = self.imputed.get(name, 0) + gaps.total

    def count_unseen(self, name: str, unseen: dict[str, int]) -> None:
        """Categories of a column that the fit did not see, with their counts."""
        self.unseen[name] = self.unseen.get(name, 0) + sum(unseen.values())
        examples = self.examples.setdefault(name, [])
        examples += [text for text in unseen if text not in examples][: _SHOWN_UNSEEN - len(examples)]

    def count_misfits(self, name: str, rows: int, what: str) -> None:
        """Values of a column that cannot be read as those of the fit."""
        count, first = self.misfits.get(name, (0, what))
        self.misfits[name] = (count + rows, first)

    def count_outside(self, name: str, found: OutsideValues | None) -> None:
        """Values of a chunk outside of what the fit saw, if there are any."""
        if found is not None:
            known = self.outside.get(name, found._replace(number=0))
            self.outside[name] = max(known, found, key=lambda each: each.beyond)._replace(
                number=known.number + found.number
            )

    def lines(self) -> list[str]:
        """One sentence for each thing that a user should know; none if all went as in the fit.

        Example:
            >>> TransformReport(rows=9, imputed={"size": 2}).lines()
            ["Column 'size': 2 of 9 values were missing or infinite, and the usual value was put in."]
        """
        lines = [
            f"Column {name!r}: {count} of {self.rows} values were missing or infinite, and the usual value was put in."
            for name, count in self.imputed.items()
        ]
        lines += [
            f"Column {name!r}: {count} of {self.rows} values count as missing; the first{what}."
            for name, (count, what) in self.misfits.items()
        ]
        lines += [
            f"Column {name!r}: {count} of {self.rows} values are categories that the fit did not see, such as "
            f"{', '.join(map(repr, self.examples[name]))}."
            for name, count in self.unseen.items()
        ]
        lines += [
            f"Column {name!r}: {row_label(row, self.source)} holds an infinite value."
            for name, row in self.first_infinite.items()
        ]
        lines += [
            f"Column {name!r}: {found.number} of {self.rows} values lie outside of what the fit saw, {found.seen}, the "
            f"farthest, {found.farthest}, by {100 * found.beyond:.0f} % of that range: predictions there are "
            "extrapolations."
            for name, found in self.outside.items()
        ]
        if self.extra_columns:
            lines.append(f"Columns that the fit did not see are ignored: {listed(self.extra_columns)}.")
        return lines
