"""Messy tables into numbers: `TableEncoder`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike

from ..arguments import check_arguments
from ..data.naming import Locator, check_columns, listed, locator_of, row_label
from ..errors import DataError
from ..lite.tables import MEAN
from .arrow_values import plain
from .categories import CategoryColumn, fold_of
from .columns import Cells, FittedColumn, LeftOutColumn, MisfitError, column_from_dict
from .rows import TableLike, record_batches
from .sketches import Gaps
from .summaries import ColumnSummary, EncodingOptions, TransformReport, notes_on, refuse_gaps, settle_columns

Array = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
_FORMAT = "finitegp table encoder"
_VERSION = 2
_READABLE = (1, 2)
_MAX_COLUMNS = 100_000


@check_arguments
class TableEncoder:
    """Turns tables with numbers, text, dates and gaps into arrays of float64, always in the same way.

    `fit` passes once over the rows, in memory that does not grow with their number, and finds for each column

    - numbers, also where they are written as text with separators (41,100), a decimal comma, a currency or a unit
      (17.0 kg), and a few other words in between ("n/a", "-", …), which then count as missing; decimals, durations (in
      seconds), booleans and yes or no (one for true);
    - dates and times, also as 20200112, 10.11.2021, Apr 14, 2020, 2020 Oct or 2020Q3: days since 1970, and sine and
      cosine of day of the year, weekday and time of day, each where it varies; times with a zone are taken in UTC. For
      01/02/2020 some row must show whether the day comes first, or ``day_first`` must be given;
    - categories: up to ``max_one_hot`` of them one-hot; more by their shrunk mean target, the logarithm of their
      frequency and, where half of the rows are of frequent ones, a place (see `CategoryColumn`), or by rank where no
      targets are given. Whole numbers in a column that is called a code or key are categories;
    - columns that are left out: constant ones, empty ones, row numbers and keys that differ in every row, identifiers
      (more than ``max_one_hot`` different texts that are different in at least nine rows of ten, or more than 100 000
      different ones), free text, and types such as lists.

    `transform` finds columns by name; their order does not matter, and their types may differ as long as the values can
    be understood (integers for floats, text that stands for numbers).

    Missing values are null, NaN and empty text; infinities count as missing too. With ``missing="error"`` they are an
    error that lists them all. With ``"impute"`` the median, or the most frequent value, is put in, and each column that
    had missing values in the fit gets an output column that is one where they were. Medians of columns with more than
    16 384 values are those of a random sample of that size: approximate, but the same in every run.

    Attributes:
        columns: The encoding of each column that the fit saw, in the order of the table.
        missing: ``"error"`` or ``"impute"``.
        excluded: Columns that the fit was to leave alone, such as the target.
        notes: Decisions on the way that a user should know of, one sentence each.

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
        self.notes: list[str] = []
        self._used = [column for column in self.columns if column.outputs]
        if not self._used:
            found = "; ".join(f"{column.name!r}: {column.note}" for column in self.columns) or (
                f"{listed(excluded)}: target, weight or left out as asked" if excluded else "there are no columns"
            )
            raise DataError(f"The table has no column that carries information ({found}).")
        self.feature_names_out = _different([name for column in self._used for name in column.outputs])
        ends = np.cumsum([0, *(len(column.outputs) for column in self._used)]).tolist()
        self._places = {column.name: slice(*ends[number : number + 2]) for number, column in enumerate(self._used)}

    @classmethod
    def fit(
        cls,
        data: TableLike,
        *,
        targets: npt.NDArray[np.float64] | None = None,
        max_one_hot: int = 16,
        missing: str = "error",
        exclude: str | Iterable[str] = (),
        categorical: str | Iterable[str] = (),
        numeric: str | Iterable[str] = (),
        date: str | Iterable[str] = (),
        day_first: bool | None = None,
        decimal: str | None = None,
    ) -> TableEncoder:
        """Pass once over a table and settle the encoding of each column.

        Args:
            data: A pandas or polars data frame, an Arrow table or record batch, a mapping of names to columns, a NumPy
                array, or an iterable of these, such as `TableReader`. How the rows are cut into chunks makes no
                difference.
            targets: One number per row, from which the effects of many categories are learned.
            max_one_hot: Most categories of a column that are encoded one-hot.
            missing: ``"error"`` or ``"impute"``.
            exclude: Columns to leave alone, such as the target.
            categorical: Columns that hold categories, whatever they look like.
            numeric: Columns that hold numbers.
            date: Columns that hold dates.
            day_first: Whether 01/02/2020 is 1 February (True) or 2 January (False); by default some row must show it.
            decimal: ``"."`` or ``","`` before the decimals of numbers in text; by default it is found.
        """
        told = {"exclude": exclude, "categorical": categorical, "numeric": numeric, "date": date}
        columns: dict[str, Any] = {
            name: (each,) if isinstance(each, str) else tuple(each) for name, each in told.items()
        }
        options = EncodingOptions(max_one_hot, missing, day_first=day_first, decimal=decimal, **columns)
        checked = None if targets is None else _one_per_row("targets", targets, np.float64)
        return cls.fit_chunks(_with_targets(data, checked), options, source=locator_of(data))

    @classmethod
    def fit_chunks(
        cls,
        chunks: Iterable[tuple[TableLike, npt.NDArray[np.float64] | None]],
        options: EncodingOptions,
        *,
        source: Locator | None = None,
        numbers: npt.NDArray[np.int64] | None = None,
    ) -> TableEncoder:
        """`fit` for record batches, each with the targets of its rows, that come one by one.

        Args:
            chunks: The batches.
            options: What is known about columns.
            source: What finds a row in its file, for error messages.
            numbers: ``(rows,)`` those by which rows are put into folds; None for their own. Copies of a row in other
                folds would show it its own target.
        """
        verdicts = settle_columns(chunks, options, numbers)
        if options.missing == "error":
            refuse_gaps({verdict.column.name: verdict.gaps for verdict in verdicts}, source, "missing_values")
        encoder = cls([verdict.column for verdict in verdicts], missing=options.missing, excluded=options.exclude)
        encoder.notes = [note for verdict in verdicts for note in notes_on(verdict, source)]
        return encoder

    @property
    def required_columns(self) -> list[str]:
        """The columns that `transform` needs: those that are not left out."""
        return [column.name for column in self._used]

    def summary(self) -> list[ColumnSummary]:
        """The summary of each column, in the order of the table."""
        names = iter(self.feature_names_out)
        return [
            ColumnSummary(
                column.name,
                column.kind,
                column.encoding,
                tuple(next(names) for _ in column.outputs),
                column.note,
                column.gaps,
                column.distinct,
            )
            for column in self.columns
        ]

    def extra_columns(self, names: Iterable[str]) -> list[str]:
        """The columns among these that the fit did not see, and `transform` ignores.

        Example:
            >>> TableEncoder.fit({"size": [1, 2]}).extra_columns(["colour", "size"])
            ['colour']
        """
        known = {column.name for column in self.columns} | set(self.excluded)
        # Files of pandas hold its index, which was none of the columns.
        return [name for name in names if name not in known and not name.startswith("__index_level_")]

    def transform(self, data: TableLike, report: TransformReport | None = None) -> npt.NDArray[np.float64]:
        """The numbers of a chunk or a whole table, ``(rows, len(feature_names_out))``.

        Args:
            data: As in `fit`.
            report: Counts what is unusual. Pass the same one for all chunks of a table, and errors count their rows
                over all of them.
        """
        return self._transform(data, report, None)

    def transform_training(
        self,
        data: TableLike,
        report: TransformReport | None = None,
        first_row: int = 0,
        *,
        numbers: Integers | None = None,
    ) -> Array:
        """The numbers of the rows that the encoder was fitted to, for training.

        They differ from those of `transform` in the mean targets of categories, which do not contain the row's own
        target: they are taken over the nine tenths of the rows that are in other folds.

        Args:
            data: As in `fit`, the same rows in the same order, or a chunk of them.
            report: As in `transform`.
            first_row: Number of the first row of the chunk in the table of the fit.
            numbers: Number of each row there, if they are not neighbours.
        """
        first = operator.index(first_row)
        known = None if numbers is None else _one_per_row("numbers", numbers, np.int64)

        def numbers_of(rows: Integers) -> Integers:
            if known is None:
                return rows + first
            if len(known) <= rows.max(initial=-1):
                raise DataError(f"numbers must be one per row, but there are {len(known)} for more rows.")
            return np.asarray(known[rows])

        return self._transform(data, report, numbers_of)

    def _transform(
        self, data: TableLike, report: TransformReport | None, numbers_of: Callable[[Integers], Integers] | None
    ) -> Array:
        """``numbers_of`` gives the numbers that put training rows into folds."""
        report = TransformReport.on(data, report)
        blocks, unknown = [np.empty((0, len(self.feature_names_out)))], [np.empty((0, len(self._used)), dtype=bool)]
        row = 0
        for batch in record_batches(data):
            own = np.arange(row, row + batch.num_rows)
            new, block = self._transform_batch(batch, report, None if numbers_of is None else fold_of(numbers_of(own)))
            blocks.append(block)
            unknown.append(new)
            row += batch.num_rows
        anything = numbers_of is None and any(each.any() for each in unknown)
        report.unknown = np.concatenate(unknown) if anything else None
        return blocks[1] if len(blocks) == 2 else np.concatenate(blocks)

    def _transform_batch(
        self, batch: pa.RecordBatch, report: TransformReport, folds: Integers | None
    ) -> tuple[npt.NDArray[np.bool_], Array]:
        """What in a chunk the fit has not seen, by row and column; and its numbers."""
        names = batch.schema.names
        check_columns(self.required_columns, names)
        report.extra_columns += [name for name in self.extra_columns(names) if name not in report.extra_columns]
        read = {column.name: self._read(column, batch, report) for column in self._used}
        gaps = {name: Gaps.of(cells.missing, cells.infinite, report.rows) for name, cells in read.items()}
        if self.missing == "error":
            refuse_gaps(gaps, report.source, "missing_values_in_new_rows")
        result = np.empty((batch.num_rows, len(self.feature_names_out)))
        unknown = np.stack([column.is_unknown(read[column.name]) for column in self._used], axis=1)
        # Files of earlier versions have no counts of values, and predict as they did.
        unknown &= np.array([column.distinct > 0 for column in self._used])
        for column, place in zip(self._used, self.places().values(), strict=True):
            cells = read[column.name]
            cells.folds = folds
            report.count_gaps(column.name, gaps[column.name])
            if gaps[column.name].total:
                column.fill(cells)
            if folds is None:
                report.count_outside(column.name, column.outside(cells))
            if cells.unseen:
                report.count_unseen(column.name, cells.unseen)
            own = result[:, place]
            own[:, : own.shape[1] - column.indicator] = column.encode(cells)
            if column.indicator:
                own[:, -1] = cells.gaps
        report.rows += batch.num_rows
        return unknown, result

    @property
    def learns_effects(self) -> bool:
        """Whether some column is encoded by mean targets."""
        return any(isinstance(column, CategoryColumn) and column.learns_effects for column in self._used)

    def with_one_hot(self, most: int, most_in_all: int) -> TableEncoder:
        """The encoder with one-hot columns instead of mean targets, those of the fewest categories first.

        Columns of frequent categories, which have a place as well, stay: their means are those of many rows.

        Args:
            most: Categories of a column.
            most_in_all: Categories of all columns that change.

        Example:
            >>> towns = [f"town {number % 20}" for number in range(60)]
            >>> encoder = TableEncoder.fit({"town": towns}, targets=range(60))
            >>> encoder.summary()[0].encoding, len(encoder.with_one_hot(30, 100).feature_names_out)
            ('target mean', 20)
        """
        changed: dict[str, FittedColumn] = {}
        learned = [column for column in self.columns if isinstance(column, CategoryColumn) and column.encoding == MEAN]
        for column in sorted(learned, key=lambda each: len(each.categories)):
            if len(column.categories) <= min(most, most_in_all):
                most_in_all -= len(column.categories)
                changed[column.name] = replace(column, encoding="one-hot", means=(), out_of_fold=None)
        columns = [changed.get(column.name, column) for column in self.columns]
        found = TableEncoder(columns, missing=self.missing, excluded=self.excluded)
        found.notes = self.notes
        return found

    def places(self) -> dict[str, slice]:
        """For each column that is used, its place in the output."""
        return self._places

    def representatives(self) -> list[tuple[slice, npt.NDArray[np.float64]]]:
        """For each column that is used, its place in the output and encodings of values that the fit saw."""
        places = self.places().values()
        return [(place, column.representatives()) for place, column in zip(places, self._used, strict=True)]

    def _read(self, column: FittedColumn, batch: pa.RecordBatch, report: TransformReport) -> Cells:
        array = batch.column(column.name)
        try:
            return column.read(array)
        except DataError as error:
            raise DataError(f"Column {column.name!r}, in the chunk from row {report.rows} on: {error}.") from None
        except MisfitError as misfit:
            place = "" if misfit.row is None else f", {row_label(report.rows + misfit.row, report.source)}"
            if report.forgiving and misfit.rows is not None:
                report.count_misfits(column.name, len(misfit.rows), f"{place} {misfit}")
                readable = np.ones(batch.num_rows, dtype=bool)
                readable[misfit.rows] = False
                return column.read(pc.if_else(pa.array(readable), plain(array), None))
            raise DataError(
                f"Column {column.name!r}{place} {misfit}. Correct the table, or fit anew with tables of this kind."
            ) from None

    def to_dict(self) -> dict[str, object]:
        """Everything, in types that JSON has; `from_dict` gives an encoder that transforms identically.

        Example:
            >>> import json
            >>> encoder = TableEncoder.fit({"size": [0.1, 2.0]})
            >>> again = TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
            >>> again.transform({"size": [0.3]}).tolist()
            [[0.3]]
        """
        newer = any(column.gaps or column.distinct for column in self.columns)
        return {
            "format": _FORMAT,
            "version": _VERSION if newer else 1,
            "missing": self.missing,
            "excluded": list(self.excluded),
            "columns": [column.to_dict() for column in self.columns],
        }

    @classmethod
    def from_dict(cls, stored: object) -> TableEncoder:
        """The encoder that `to_dict` described; what does not fit the description is an error."""
        if not isinstance(stored, dict) or stored.get("format") != _FORMAT:
            raise DataError("This is not a stored table encoder.")
        if stored.get("version") not in _READABLE:
            raise DataError(
                f"The table encoder was stored in version {stored.get('version')!r} of the format, but this release of "
                f"finitegp reads versions {_READABLE[0]} to {_VERSION}: use the release that stored it, or fit anew."
            )
        if stored.get("missing") not in ("error", "impute"):
            raise DataError(f"The stored table encoder has no valid 'missing': {stored.get('missing')!r}.")
        for key in ("columns", "excluded"):
            if not isinstance(stored.get(key), list) or len(stored[key]) > _MAX_COLUMNS:
                raise DataError(f"The {key!r} of the stored table encoder must be a list of at most {_MAX_COLUMNS}.")
        if not all(isinstance(name, str) for name in stored["excluded"]):
            raise DataError("The 'excluded' of the stored table encoder must be names.")
        made: list[FittedColumn] = []
        for number, entry in enumerate(stored["columns"]):
            try:
                made.append(column_from_dict(entry))
            except DataError as error:
                raise DataError(f"Column {number} of the stored table encoder: {error}.") from None
        if len({column.name for column in made}) < len(made):
            raise DataError("The stored table encoder has two columns of one name.")
        return cls(made, missing=stored["missing"], excluded=stored["excluded"])

    def __repr__(self) -> str:
        left_out = sum(isinstance(column, LeftOutColumn) for column in self.columns)
        return (
            f"TableEncoder({len(self.columns)} columns, {left_out} left out, "
            f"{len(self.feature_names_out)} outputs, missing={self.missing!r})"
        )


def _one_per_row(name: str, values: ArrayLike, kind: type[np.generic]) -> npt.NDArray[Any]:
    try:
        found = np.asarray(values).astype(kind, casting="same_kind")
    except (TypeError, ValueError):
        raise DataError(f"{name} must be one number per row, but hold something else.") from None
    if found.ndim != 1:
        raise DataError(f"{name} must be one number per row, but have shape {found.shape}.")
    return found


def _with_targets(
    data: TableLike, targets: npt.NDArray[np.float64] | None
) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.float64] | None]]:
    for batch in record_batches(data):
        own, targets = (None, None) if targets is None else (targets[: batch.num_rows], targets[batch.num_rows :])
        if own is not None and len(own) < batch.num_rows:
            raise DataError("targets must be one number per row, but there are fewer than rows.")
        yield batch, own


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
