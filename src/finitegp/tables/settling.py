"""From the rows of a table to the encoding of each of its columns, in one pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..data.naming import Locator, check_columns, listed, row_label
from ..errors import DataError
from .arrow_values import family, plain
from .profiles import ColumnOptions, ColumnProfile, Verdict
from .sketches import Gaps
from .text_values import DecimalEvidence, DistinctTexts, only_sign

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
