"""Messy tables into numbers: `TableEncoder`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..data.naming import Locator, listed, locator_of, row_label, unknown_column
from ..errors import DataError
from .arrow_values import record_batches
from .columns import Cells, FittedColumn, LeftOutColumn, MisfitError, column_from_dict
from .profiles import ColumnProfile
from .sketches import Gaps

_FORMAT = "finitegp table encoder"
_VERSION = 1
_MAX_COLUMNS = 100_000
_SHOWN_UNSEEN = 5


@dataclass(frozen=True)
class ColumnSummary:
    """What became of one column of the table.

    Attributes:
        column: Its name.
        kind: ``number``, ``boolean``, ``category``, ``date``, ``time``; or, for columns that are left out,
            ``constant``, ``identifier``, ``empty``, ``other``.
        encoding: ``number``, ``one-hot``, ``rank``, ``date parts``, ``missing or not`` or ``left out``.
        outputs: The columns of numbers it gives.
        note: What is worth knowing: range, categories, missing values, why it is left out.
    """

    column: str
    kind: str
    encoding: str
    outputs: tuple[str, ...]
    note: str


@dataclass
class TransformReport:
    """What happened in one or several calls of `TableEncoder.transform`, added up.

    Attributes:
        source: Where the rows come from, if it can ``locate`` a row in a file, such as `TableReader`.
        rows: Rows transformed so far; rows in errors are counted from the first of them.
        imputed: Values that were missing or infinite and were put in, by column.
        unseen: Values in categories that the fit did not see, by column.
        examples: A few of these categories, by column.
        extra_columns: Columns that the fit did not see, and that were ignored.
    """

    source: Locator | None = None
    rows: int = 0
    imputed: dict[str, int] = field(default_factory=dict)
    unseen: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    extra_columns: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """One sentence for each thing that a user should hear of; none if all went as in the fit.

        Example:
            >>> TransformReport(rows=9, imputed={"size": 2}).lines()
            ["Column 'size': 2 of 9 values were missing or infinite, and the usual value was put in."]
        """
        lines = [
            f"Column {name!r}: {count} of {self.rows} values were missing or infinite, and the usual value was put in."
            for name, count in self.imputed.items()
        ]
        lines += [
            f"Column {name!r}: {count} of {self.rows} values are categories that the fit did not see, such as "
            f"{', '.join(map(repr, self.examples[name]))}."
            for name, count in self.unseen.items()
        ]
        if self.extra_columns:
            lines.append(f"Columns that the fit did not see are ignored: {listed(self.extra_columns)}.")
        return lines


class TableEncoder:
    """Turns tables with numbers, text, dates and gaps into arrays of float64, always in the same way.

    `fit` passes once over the rows, in memory that does not grow with their number, and finds for each column

    - numbers, also where they are written as text with a few other words in between ("n/a", "-", …), which then count
      as missing; decimals, durations (in seconds) and booleans (one for true);
    - dates and times, also ISO text: days since 1970, and sine and cosine of day of the year, weekday and time of day,
      each where it varies; times with a zone are taken in UTC;
    - categories: up to ``max_one_hot`` of them one-hot; more by their rank in frequency and its logarithm
      (`CategoryColumn` says why);
    - columns that are left out: constant ones, empty ones, identifiers (more than ``max_one_hot`` different texts that
      are different in at least nine rows of ten, or more than 100 000 different ones), and types such as lists.

    `transform` finds columns by name; their order does not matter, and their types may differ as long as the values can
    be understood (integers for floats, text that says numbers).

    Missing values are null, NaN and empty text; infinities count as missing too. With ``missing="error"`` they are an
    error that lists them all. With ``"impute"`` the median, or the most frequent value, is put in, and each column that
    had missing values in the fit gets an output column that is one where they were. Medians of columns with more than
    16 384 values are those of a random sample of that size: approximate, but the same in every run.

    Attributes:
        columns: The encoding of each column that the fit saw, in the order of the table.
        missing: ``"error"`` or ``"impute"``.
        excluded: Columns that the fit was told to leave alone, such as the target.

    Example:
        >>> table = {"size": [1.0, 2.0, 4.0], "cut": ["fair", "good", "good"], "shop": ["x", "x", "x"]}
        >>> encoder = TableEncoder.fit(table)
        >>> encoder.feature_names_out
        ['size', 'cut=good', 'cut=fair']
        >>> encoder.transform({"cut": ["ideal", "good"], "size": [3, 5]}).tolist()
        [[3.0, 0.0, 0.0], [5.0, 1.0, 0.0]]
        >>> [(line.column, line.encoding, line.note) for line in encoder.summary()][2]
        ('shop', 'left out', "every value is 'x'")
    """

    def __init__(
        self, columns: Sequence[FittedColumn], *, missing: str = "error", excluded: Sequence[str] = ()
    ) -> None:
        self.columns = tuple(columns)
        self.missing = missing
        self.excluded = tuple(excluded)
        self._used = [column for column in self.columns if column.outputs]
        if not self._used:
            found = "; ".join(f"{column.name!r}: {column.note}" for column in self.columns) or "there are no columns"
            raise DataError(f"The table has no column that carries information ({found}).")
        self.feature_names_out = _different([name for column in self._used for name in column.outputs])

    @classmethod
    def fit(
        cls, data: Any, *, max_one_hot: int = 16, missing: str = "error", exclude: str | Iterable[str] = ()
    ) -> TableEncoder:
        """Pass once over a table and settle the encoding of each column.

        Args:
            data: A pandas data frame, an Arrow table or record batch, a mapping of names to columns, a NumPy array, or
                an iterable of these, such as `TableReader`. How the rows are cut into chunks makes no difference.
            max_one_hot: Most categories of a column that are encoded one-hot.
            missing: ``"error"`` or ``"impute"``.
            exclude: Columns to leave alone, such as the target.
        """
        if missing not in ("error", "impute"):
            raise ValueError(f"missing must be 'error' or 'impute', but is {missing!r}.")
        if max_one_hot < 1:
            raise ValueError(f"max_one_hot must be at least 1, but is {max_one_hot}.")
        excluded = [exclude] if isinstance(exclude, str) else list(exclude)
        profiles: dict[str, ColumnProfile] = {}
        names: list[str] = []
        rows = 0
        for batch in record_batches(data):
            if not names:
                names = list(batch.schema.names)
                for name in excluded:
                    if name not in names:
                        raise DataError(unknown_column(name, names))
                profiles = {name: ColumnProfile(name) for name in names if name not in excluded}
            elif set(names) != set(batch.schema.names):
                different = sorted(set(names) ^ set(batch.schema.names))
                raise DataError(
                    f"The chunk from row {rows} on has other columns than those before: {listed(different)}."
                )
            for name, profile in profiles.items():
                try:
                    profile.add(batch.column(batch.schema.get_field_index(name)), rows)
                except DataError as error:
                    raise DataError(f"Column {name!r}, in the chunk from row {rows} on: {error}.") from None
            rows += batch.num_rows
        if rows == 0:
            raise DataError("The table has no rows.")
        verdicts = [profile.verdict(max_one_hot) for profile in profiles.values()]
        if missing == "error":
            _refuse_gaps(
                {verdict.column.name: verdict.gaps for verdict in verdicts}, locator_of(data), "missing_values"
            )
        return cls([verdict.column for verdict in verdicts], missing=missing, excluded=excluded)

    @property
    def required_columns(self) -> list[str]:
        """The columns that `transform` needs: those that are not left out."""
        return [column.name for column in self._used]

    def summary(self) -> list[ColumnSummary]:
        """What became of each column, in the order of the table."""
        names = iter(self.feature_names_out)
        return [
            ColumnSummary(
                column.name, column.kind, column.encoding, tuple(next(names) for _ in column.outputs), column.note
            )
            for column in self.columns
        ]

    def extra_columns(self, names: Iterable[str]) -> list[str]:
        """Those of some columns that the fit did not see, and `transform` ignores.

        Example:
            >>> TableEncoder.fit({"size": [1, 2]}).extra_columns(["colour", "size"])
            ['colour']
        """
        known = {column.name for column in self.columns} | set(self.excluded)
        return [name for name in names if name not in known]

    def transform(self, data: Any, report: TransformReport | None = None) -> npt.NDArray[np.float64]:
        """The numbers of a chunk or a whole table, ``(rows, len(feature_names_out))``.

        Args:
            data: As in `fit`.
            report: Counts what is unusual. Pass the same one for all chunks of a table, and errors count their rows
                over all of them.
        """
        report = TransformReport() if report is None else report
        report.source = locator_of(data) if report.source is None else report.source
        blocks = [self._transform_batch(batch, report) for batch in record_batches(data)]
        if len(blocks) == 1:
            return blocks[0]
        return np.concatenate(blocks) if blocks else np.empty((0, len(self.feature_names_out)))

    def _transform_batch(self, batch: Any, report: TransformReport) -> npt.NDArray[np.float64]:
        names = batch.schema.names
        absent = [column.name for column in self._used if column.name not in names]
        if absent:
            more = f" Also absent: {listed(absent[1:])}." if len(absent) > 1 else ""
            raise DataError(unknown_column(absent[0], names) + more)
        report.extra_columns += [name for name in self.extra_columns(names) if name not in report.extra_columns]
        read = {column.name: self._read(column, batch, report) for column in self._used}
        gaps = {name: Gaps() for name in read}
        for name, cells in read.items():
            gaps[name].add(cells.missing, cells.infinite, report.rows)
        if self.missing == "error":
            _refuse_gaps(gaps, report.source, "missing_values_in_new_rows")
        result = np.empty((batch.num_rows, len(self.feature_names_out)))
        start = 0
        for column in self._used:
            cells = read[column.name]
            if gaps[column.name].total:
                report.imputed[column.name] = report.imputed.get(column.name, 0) + gaps[column.name].total
                column.fill(cells)
            if cells.unseen:
                _count_unseen(report, column.name, cells.unseen)
            stop = start + len(column.value_names)
            result[:, start:stop] = column.encode(cells)
            if column.indicator:
                result[:, stop] = cells.gaps
            start = stop + column.indicator
        report.rows += batch.num_rows
        return result

    def _read(self, column: FittedColumn, batch: Any, report: TransformReport) -> Cells:
        try:
            return column.read(batch.column(batch.schema.get_field_index(column.name)))
        except DataError as error:
            raise DataError(f"Column {column.name!r}, in the chunk from row {report.rows} on: {error}.") from None
        except MisfitError as misfit:
            place = "" if misfit.row is None else f", {row_label(report.rows + misfit.row, report.source)}"
            raise DataError(
                f"Column {column.name!r}{place} {misfit}. Correct the table, or fit anew with tables of this kind."
            ) from None

    def to_dict(self) -> dict[str, Any]:
        """Everything, in types that JSON has; `from_dict` gives an encoder that transforms identically.

        Example:
            >>> import json
            >>> encoder = TableEncoder.fit({"size": [0.1, 2.0]})
            >>> again = TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
            >>> again.transform({"size": [0.3]}).tolist()
            [[0.3]]
        """
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "missing": self.missing,
            "excluded": list(self.excluded),
            "columns": [column.to_dict() for column in self.columns],
        }

    @classmethod
    def from_dict(cls, stored: Any) -> TableEncoder:
        """The encoder that `to_dict` described; what does not fit the description is an error."""
        if not isinstance(stored, dict) or stored.get("format") != _FORMAT:
            raise DataError("This is not a stored table encoder.")
        if stored.get("version") != _VERSION:
            raise DataError(
                f"The table encoder was stored in version {stored.get('version')!r} of the format, but this release of "
                f"finitegp reads version {_VERSION}: use the release that stored it, or fit anew."
            )
        columns, excluded = stored.get("columns"), stored.get("excluded")
        if stored.get("missing") not in ("error", "impute"):
            raise DataError(f"The stored table encoder has no valid 'missing': {stored.get('missing')!r}.")
        for key, values in (("columns", columns), ("excluded", excluded)):
            if not isinstance(values, list) or len(values) > _MAX_COLUMNS:
                raise DataError(f"The {key!r} of the stored table encoder must be a list of at most {_MAX_COLUMNS}.")
        assert isinstance(columns, list)
        assert isinstance(excluded, list)
        if not all(isinstance(name, str) for name in excluded):
            raise DataError("The 'excluded' of the stored table encoder must be names.")
        made: list[FittedColumn] = []
        for number, entry in enumerate(columns):
            try:
                made.append(column_from_dict(entry))
            except DataError as error:
                raise DataError(f"Column {number} of the stored table encoder: {error}.") from None
        if len({column.name for column in made}) < len(made):
            raise DataError("The stored table encoder has two columns of one name.")
        return cls(made, missing=stored["missing"], excluded=excluded)

    def __repr__(self) -> str:
        left_out = sum(isinstance(column, LeftOutColumn) for column in self.columns)
        return (
            f"TableEncoder({len(self.columns)} columns, {left_out} left out, "
            f"{len(self.feature_names_out)} outputs, missing={self.missing!r})"
        )


def _different(names: list[str]) -> list[str]:
    """Names with a number after those that occurred before, for columns such as ``a=b`` beside the categories of a."""
    seen: set[str] = set()
    result = []
    for name in names:
        number, unique = 2, name
        while unique in seen:
            unique = f"{name} ({number})"
            number += 1
        seen.add(unique)
        result.append(unique)
    return result


def _refuse_gaps(gaps: dict[str, Gaps], source: Locator | None, code: str) -> None:
    found = []
    for name, each in gaps.items():
        for count, word, row in (
            (each.missing, "missing", each.first_missing),
            (each.infinite, "infinite", each.first_infinite),
        ):
            if count:
                noun = "value" if count == 1 else "values"
                found.append(f"column {name!r} has {count} {word} {noun} (first: {row_label(row, source)})")
    if found:
        raise DataError(
            f"Some values are missing or infinite: {'; '.join(found)}.",
            "Remove these rows or columns, or pass missing='impute' to put in the median or the most frequent value.",
            code=code,
        )


def _count_unseen(report: TransformReport, name: str, unseen: dict[str, int]) -> None:
    report.unseen[name] = report.unseen.get(name, 0) + sum(unseen.values())
    examples = report.examples.setdefault(name, [])
    for text in unseen:
        if len(examples) < _SHOWN_UNSEEN and text not in examples:
            examples.append(text)
