"""``TableParameters``: the parameters of a model of tables, and which rows and targets of a table they make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from ..arguments import check_arguments
from ..automatic.misleading_rows import atom
from ..data.naming import Locator, check_columns, locator_of, row_label, shortened
from ..errors import DataError, warn_caller
from ..estimator.parameters import RandomState, check_labels
from ..lite.target_scale import SCALES
from .columns import NumberColumn
from .encoder import TableEncoder
from .reader import ON_DISK, ROWS_IN_MEMORY, ReadingOptions, TableReader
from .rows import ReadNumbers, RowsWithTarget, TableLike, TableRows, is_file
from .summaries import EncodingOptions
from .targets import TargetScale, fit_target, plain_target, read_target
from .text_values import decimal_of_columns
from .training_rows import TrainingRows

Array = npt.NDArray[np.float64]

# Rows that show how other columns write decimals, where the target leaves it open.
_LOOKED_AT = 1000


@check_arguments
@dataclass(eq=False, repr=False, kw_only=True)
class TableParameters(BaseEstimator):  # type: ignore[misc]
    """The part of :class:`TableRegressor` that needs no fit; its parameters are described there."""

    target_scale: str = "auto"
    categorical: Sequence[str] = ()
    numeric: Sequence[str] = ()
    date: Sequence[str] = ()
    drop: Sequence[str] = ()
    only: Sequence[str] | None = None
    weight: str | None = None
    day_first: bool | None = None
    decimal: str | None = None
    missing: str = "impute"
    rows_without_target: str = "drop"
    max_one_hot: int | None = None
    effort: str = "medium"
    random_state: RandomState = None
    verbose: bool | int = False
    memory_budget: str | int | None = None
    time_budget: str | float | None = None
    keep_rows: bool = True
    repeated_rows: bool = True
    device: str | torch.device = "cpu"
    regressor: BaseEstimator | None = None

    # Known after a fit.
    target_: str | None = field(init=False)
    encoder_: TableEncoder = field(init=False)
    _target_column: NumberColumn = field(init=False)

    def _check_parameters(self) -> None:
        if self.target_scale not in ("auto", *SCALES):
            raise ValueError(f"target_scale must be 'auto' or one of {SCALES}, but is {self.target_scale!r}.")
        if self.rows_without_target not in ("drop", "error"):
            raise ValueError(f"rows_without_target must be 'drop' or 'error', but is {self.rows_without_target!r}.")
        for name in ("categorical", "numeric", "date", "drop", "only"):
            if isinstance(getattr(self, name), str):
                given = getattr(self, name)
                raise ValueError(f"{name} must be a list of columns, but is {given!r}: write [{given!r}].")

    def encoding_options(self, names: Sequence[str]) -> EncodingOptions:
        """Options of the encoding of a table with these columns."""
        left_out = {self.target_, self.weight, *self.drop}
        if self.only is not None:
            left_out |= set(names) - set(self.only)
        exclude = tuple(name for name in names if name in left_out)
        kinds = tuple(self.categorical), tuple(self.numeric), tuple(self.date)
        return EncodingOptions(self.max_one_hot, self.missing, exclude, *kinds, self.day_first, self.decimal)

    @property
    def first_reading(self) -> ReadingOptions:
        """How to read a table from files to fit a model to it."""
        return {"text": list(self.categorical), "decimal": self.decimal}

    @property
    def reading_options(self) -> ReadingOptions:
        """How to read tables from files for the model that was fitted: as the table of the fit."""
        return {"text": [*self.categorical, *self._with_commas], "decimal": self.decimal or "."}

    @property
    def _with_commas(self) -> list[str]:
        """Columns of the fit that have decimal commas, and the weight where there are such columns."""
        columns = [*self.encoder_.columns, self._target_column] if hasattr(self, "encoder_") else []
        found = [each.name for each in columns if isinstance(each, NumberColumn) and each.decimal == ","]
        return [*found, *([self.weight] if found and self.weight is not None else [])]

    def open(self, data: TableLike, like: TableReader | None = None) -> TableRows | TableReader:
        """A table or a file by the parameters, or as another: in memory, or on disk where there is a memory budget."""
        budget = (self.regressor or self).memory_budget
        if is_file(data):
            options = self.first_reading if like is None else like.alike
            data = TableReader(data, **(options if budget is None else options | ON_DISK))
        if budget is not None and isinstance(data, TableReader) and data.num_rows > ROWS_IN_MEMORY:
            return data
        return TableRows.read(data)

    def read(self, data: TableLike) -> TableRows:
        """The rows of a table or a file in memory, read by the parameters."""
        return TableRows.read(self._readable(data))

    def _readable(self, data: TableLike) -> TableLike:
        """A table as it is, or a reader of its file by the parameters."""
        return TableReader(data, **self.reading_options) if is_file(data) else data

    def training_rows(
        self,
        X: TableLike,
        y: ArrayLike | None = None,
        *,
        target: str | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> TrainingRows:
        """The rows of a table that can be learned from; remembers how targets are written.

        The first step of :meth:`fit`, for those who split rows themselves.
        """
        self._check_parameters()
        table = self.open(X)
        if target is not None and y is not None:
            raise ValueError("Give either y or target, not both.")
        if target is not None:
            if target == self.weight:
                problem = f"The column {target!r} is both the target and the weight of the rows:"
                raise DataError(problem, "name another one as weight.", code="weight_column")
            self.target_ = target
            self._target_column = self._number_column(table, target)
            read = _read_by(self._target_column, table)
        elif y is not None:
            check_labels(X, y)
            name = getattr(y, "name", None)
            self.target_ = name if isinstance(name, str) else None
            self._target_column = plain_target(self.target_)
            read = _given(self._given_targets(y, table))
        else:
            raise DataError("There are no targets:", "pass y, or target='NAME' of a column.", code="no_target")
        check_columns([*self.drop, *(() if self.only is None else self.only)], table.column_names)
        training = TrainingRows.survey(table, read, self._weights(table, sample_weight))
        if training.facts.missing:
            first = training.label(training.facts.first_missing)
            self.missing_targets(training.facts.missing, table.num_rows, first)
        return training

    def _number_column(self, table: TableRows | TableReader, name: str, *, weights: bool = False) -> NumberColumn:
        """How the numbers of a column are written."""
        check_columns([name], table.column_names)
        arrays = (batch.column(name) for batch in table.rows(0, table.num_rows))
        return fit_target(
            arrays, name, decimal=self.decimal, usual=lambda: usual_decimal(table), source=table, weights=weights
        )

    @staticmethod
    def _given_targets(y: ArrayLike, rows: TableRows | TableReader) -> Array:
        values = _numbers(y, "y", "pass the table with this column and target='NAME', which reads numbers in text.")
        values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
        if values.shape != (rows.num_rows,):
            raise ValueError(f"y must have one number for each of {rows.num_rows} rows, but has shape {values.shape}.")
        if np.isinf(values).any():
            raise DataError(f"y is infinite in {row_label(int(np.flatnonzero(np.isinf(values))[0]), rows)}.")
        return values

    def _weights(self, table: TableRows | TableReader, sample_weight: ArrayLike | None) -> ReadNumbers | None:
        if sample_weight is not None:
            if self.weight is not None:
                raise ValueError(f"Give either sample_weight or the column {self.weight!r} as weight, not both.")
            values = _numbers(sample_weight, "sample_weight", "a weight is a number.")
            if values.size != table.num_rows:
                shape = f"but has shape {values.shape}."
                raise ValueError(f"sample_weight must have one number for each of {table.num_rows} rows, {shape}")
            values = values.reshape(table.num_rows)
            wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0.0)))
            if len(wrong):
                place = row_label(int(wrong[0]), table)
                raise DataError(f"sample_weight must be finite and not negative, but is {values[wrong[0]]} in {place}.")
            if not values.any():
                raise DataError("sample_weight is zero in every row: there is nothing to learn from.")
            return _given(values)
        if self.weight is None:
            return None
        return _read_weights(self._number_column(table, self.weight, weights=True), table)

    def check_gaps(self, training: TrainingRows) -> None:
        """An error that lists the gaps in the columns that would be used."""
        options = self.encoding_options(training.table.column_names)
        training.encoder(replace(options, missing="error"), TargetScale())

    def notes_on(self, training: TrainingRows) -> list[str]:
        """Notes for the user on the reading of a table and on its targets: missing ones, atoms."""
        table, facts = training.table, training.facts
        source = table.source if isinstance(table, TableRows) else table
        notes = list(getattr(source, "notes", ()))
        if facts.missing:
            notes.append(self.missing_targets(facts.missing, table.num_rows, training.label(facts.first_missing)))
        if self._target_column.decimal:
            sign = "comma" if self._target_column.decimal == "," else "point"
            low, high = np.quantile(facts.sample, [0.0, 1.0])
            notes.append(
                f"The target {self.target_ or 'y'!r} is read as numbers written as text with a decimal {sign}, from "
                f"{low:.6g} to {high:.6g}."
            )
        notes += [self._target_column.note] if self._target_column.note else []
        found = atom(facts.sample)
        if found is not None:
            notes.append(
                f"The target {self.target_ or 'y'!r} is exactly {found[0]:g} in {100 * found[1]:.0f} % of the rows, "
                "which no density describes: NLPD on such rows rewards narrow predictions, so judge by CRPS and "
                "coverage."
            )
        return notes

    def missing_targets(self, missing: int, rows: int, first: str) -> str:
        """A sentence on rows without a target, or an error if they are refused."""
        problem = f"The target {self.target_ or 'y'!r} is missing in {missing} of {rows} rows, first in {first}:"
        if self.rows_without_target == "error":
            raise DataError(problem, "remove them, or set rows_without_target='drop'.", code="rows_without_target")
        return f"{problem} these rows are left out."

    def scored_rows(self, X: TableLike, y: ArrayLike | None = None) -> tuple[TableRows, Array]:
        """Rows in memory and their targets, NaN where missing, for a model that is fitted."""
        check_is_fitted(self)
        rows = self.read(X)
        if y is not None:
            return rows, self._given_targets(y, rows)
        return rows, self.target_values(rows)

    def target_values(self, rows: TableRows) -> Array:
        """The targets of rows in memory, written as in the fit; NaN where missing."""
        return read_target(self._target_column, rows.column(self._target_name()), source=rows)

    def _target_name(self) -> str:
        if self.target_ is None:
            raise DataError(
                "The model does not know the name of its target:", "name the column.", code="unknown_target"
            )
        return self.target_

    def rows_to_judge(self, X: TableLike, y: ArrayLike | None = None) -> tuple[TableRows, Array]:
        """Rows in memory that have a target, and these; the others are counted in a warning."""
        rows, values = self.scored_rows(X, y)
        known = np.isfinite(values)
        if not known.any():
            raise DataError(f"The target {self.target_ or 'y'!r} is missing in all {len(values)} rows.")
        if not known.all():
            first = rows.label(int(np.flatnonzero(~known)[0]))
            warn_caller(self.missing_targets(int((~known).sum()), len(values), first))
        return rows.take(known), values[known]

    def streamed(self, X: TableLike) -> RowsWithTarget:
        """The rows of a table that have a target, chunk by chunk."""
        check_is_fitted(self)
        table = self._readable(X)
        source, read_weights = locator_of(table), None
        if self.weight is not None:
            read_weights = _read_weights(
                plain_target(self.weight, decimal=self.decimal or "," * bool(self._with_commas)), source
            )
        return RowsWithTarget(table, self._target_name(), _read_by(self._target_column, source), read_weights)

    def check_streamed(self, rows: RowsWithTarget) -> None:
        """After a pass: an error if there were no targets, a warning if some were missing."""
        missing = len(rows.dropped)
        if rows.rows and missing == rows.rows:
            raise DataError(f"The target {rows.name!r} is missing in all {rows.rows} rows.")
        if missing:
            first = row_label(rows.dropped[0], rows.source)
            warn_caller(self.missing_targets(missing, rows.rows, first))


def usual_decimal(table: TableRows | TableReader) -> str | None:
    """The decimal sign of most columns of a table that show one, by its first rows."""
    first = next(iter(table.rows(0, min(table.num_rows, _LOOKED_AT))), None)
    return None if first is None else decimal_of_columns(first.columns)


def _numbers(values: ArrayLike, name: str, advice: str) -> Array:
    """What a user passes as one number per row, as float64; dates and complex numbers would be changed silently."""
    found = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    if found.dtype.kind in "Mmc":
        raise DataError(f"{name} must be one number per row, but holds {found.dtype}: make numbers of it first.")
    try:
        return np.array(found, dtype=np.float64)
    except (TypeError, ValueError):
        for row, value in enumerate(found.ravel().tolist()):
            try:
                np.float64(value)
            except (TypeError, ValueError):
                raise DataError(
                    f"{name} must be one number per row, but is {shortened(value)} in row {row}: {advice}"
                ) from None
        raise DataError(f"{name} must be one number per row, but holds something else.") from None


def _given(values: Array) -> ReadNumbers:
    return lambda batch, row: values[row : row + batch.num_rows]


def _read_by(column: NumberColumn, source: Locator | None, *, weights: bool = False) -> ReadNumbers:
    """The reader of a column whose way of writing numbers is known."""

    def read(batch: pa.RecordBatch, row: int) -> Array:
        return read_target(column, batch.column(column.name), source=source, first_row=row, weights=weights)

    return read


def _read_weights(column: NumberColumn, source: Locator | None) -> ReadNumbers:
    name, read = column.name, _read_by(column, source, weights=True)

    def weights(batch: pa.RecordBatch, row: int) -> Array:
        if name not in batch.schema.names:
            raise DataError(
                f"The rows have no column {name!r}, which held the weights of the rows of the fit: add it, with 1 for "
                "rows that count once."
            )
        found = read(batch, row)
        if not bool((found >= 0.0).all()):
            place = row_label(row + int(np.flatnonzero(~(found >= 0.0))[0]), source)
            raise DataError(f"The weight {name!r} is missing or negative in {place}.")
        return found

    return weights
