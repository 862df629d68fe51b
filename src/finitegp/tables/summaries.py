"""From the rows of a table to the encoding of each of its columns, in one pass; summaries of it, and of later rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..data.naming import Locator, check_columns, listed, locator_of, row_label
from ..errors import DataError
from .arrow_values import family, plain
from .profiles import ColumnOptions, ColumnProfile, Verdict
from .sketches import Gaps, OutsideValues
from .text_values import DecimalEvidence, DistinctTexts, only_sign

_SHOWN_UNSEEN = 5
#: The most categories of a column that has one column for each, if nobody says otherwise.
MAX_ONE_HOT = 16


@dataclass(frozen=True)
class EncodingOptions:
    """Options of the encoding of a table; see `TableEncoder.fit`.

    With None for ``max_one_hot``, a fit to few rows may choose columns for more than `MAX_ONE_HOT` categories.
    """

    max_one_hot: int | None = None
    missing: str = "error"
    exclude: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    date: tuple[str, ...] = ()
    day_first: bool | None = None
    decimal: str | None = None

    def __post_init__(self) -> None:
        """Wrong values are errors."""
        if self.missing not in ("error", "impute"):
            raise ValueError(f"missing must be 'error' or 'impute', but is {self.missing!r}.")
        if self.max_one_hot is not None and self.max_one_hot < 1:
            raise ValueError(f"max_one_hot must be at least 1, but is {self.max_one_hot}.")
        if self.decimal not in (None, ".", ","):
            raise ValueError(f"decimal must be '.' or ',', but is {self.decimal!r}.")

    def profiles(self, names: list[str]) -> dict[str, ColumnProfile]:
        """The empty profile of each column that is to be learned from."""
        given = (("category", self.categorical), ("number", self.numeric), ("date", self.date))
        kinds = {name: kind for kind, columns in given for name in columns}
        check_columns((*self.exclude, *kinds), names)
        for kind, columns in given:
            if twice := [name for name in columns if kinds[name] != kind]:
                raise DataError(f"Column {twice[0]!r} cannot hold both a {kind} and a {kinds[twice[0]]}: name it once.")
        return {
            name: ColumnProfile(name, ColumnOptions(kinds.get(name), self.decimal, self.day_first))
            for name in names
            if name not in self.exclude
        }


def settle_columns(
    chunks: Iterable[tuple[pa.RecordBatch, npt.NDArray[np.float64] | None]],
    options: EncodingOptions,
    numbers: npt.NDArray[np.int64] | None = None,
) -> list[Verdict]:
    """The encoding of each column of record batches, which come with the targets of their rows.

    ``numbers``, ``(rows,)``, are those by which rows are put into folds; None for their own.
    """
    profiles: dict[str, ColumnProfile] = {}
    # Columns that are not learned from, such as the target, show the decimal sign of the table too.
    others = {name: DecimalEvidence() for name in options.exclude if options.decimal is None}
    names: list[str] = []
    rows = 0
    for batch, targets in chunks:
        if not names:
            names = list(batch.schema.names)
            profiles = options.profiles(names)
        elif set(names) != set(batch.schema.names):
            different = sorted(set(names) ^ set(batch.schema.names))
            raise DataError(f"The chunk from row {rows} on has other columns than those before: {listed(different)}.")
        for name, profile in profiles.items():
            try:
                folded_by = None if numbers is None else numbers[rows : rows + batch.num_rows]
                profile.add(batch.column(name), rows, targets, folded_by)
            except DataError as error:
                raise DataError(f"Column {name!r}, in the chunk from row {rows} on: {error}.") from None
        for name, found in others.items():
            if not found.is_hopeless and family((array := plain(batch.column(name))).type) == "text":
                found.add(DistinctTexts(array))
        rows += batch.num_rows
    if rows == 0:
        raise DataError("The table has no rows.")
    evidence = [*others.values(), *(profile.evidence for profile in profiles.values())]
    sign = options.decimal or only_sign(each.shown for each in evidence)
    most = MAX_ONE_HOT if options.max_one_hot is None else options.max_one_hot
    verdicts = [profile.verdict(most, decimal=sign) for profile in profiles.values()]
    if any(verdict.column.outputs for verdict in verdicts):
        return verdicts
    # Where there is nothing else, the number of a row may stand for time.
    return [profile.verdict(most, row_numbers=True, decimal=sign) for profile in profiles.values()]


def notes_on(verdict: Verdict, source: Locator | None) -> list[str]:
    """Notes on a column for the user."""
    notes, name = list(verdict.notes), verdict.column.name
    if verdict.absurd_row is not None:
        place = row_label(verdict.absurd_row, source)
        notes.append(f"Column {name!r}: {place} holds a value that is absurdly far from all others: correct it.")
    if verdict.gaps.infinite:
        place = row_label(verdict.gaps.first_infinite, source)
        notes.append(f"Column {name!r}: {verdict.gaps.infinite} infinite values count as missing, first in {place}.")
    return notes


def refuse_gaps(gaps: dict[str, Gaps], source: Locator | None, code: str) -> None:
    """An error that lists all gaps, if there are any."""
    found = []
    for name, each in gaps.items():
        for count, word, row in each.kinds():
            noun = "value" if count == 1 else "values"
            found.append(f"column {name!r} has {count} {word} {noun} (first: {row_label(row, source)})")
    if found:
        raise DataError(
            f"Some values are missing or infinite: {'; '.join(found)}.",
            "Remove these rows or columns, or pass missing='impute' to put in the median or the most frequent value.",
            code=code,
        )


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
