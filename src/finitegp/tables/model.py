"""``TableRegressor``: exact Gaussian-process regression on tables as people have them."""

from __future__ import annotations

import copy
import numbers
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..arguments import check_arguments
from ..data.naming import listed, locator_of, row_label
from ..data.scaling import check_magnitude
from ..errors import DataError
from ..estimator import GPRegressor
from ..metrics import Scores, score
from ..sites import SiteStatistics, merge_sites, site_statistics
from .arrow_values import record_batches
from .columns import NumberColumn
from .encoder import ColumnSummary, TableEncoder, TransformReport
from .model_files import load_table_model, save_table_model
from .predictive import EncodedRows, TablePredictor
from .reader import TableReader
from .rows import RowsWithTarget, TableRows, check_columns, is_file, note_on_copies
from .scoring import COVERAGES, SCORED_COVERAGES, ScoredRows
from .target_scale import SCALES, TargetScale, atom, choose_scale
from .targets import check_varies, fit_target, read_target

if TYPE_CHECKING:
    from ..report import Evaluation, ReportContents

Array = npt.NDArray[np.float64]
_FEWEST_ROWS = 2


class PredictedChunk(NamedTuple):
    """Some rows of a table, and what is predicted for them."""

    rows: Any
    mean: Array
    std: Array
    lower: Array
    upper: Array


@check_arguments
class TableRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Exact Gaussian-process regression on a table with text, dates and gaps, with honest error bars.

    Tables are pandas or polars data frames, Arrow tables, mappings of names to columns, arrays, or files (CSV, Parquet,
    Feather, Excel). Columns are found by name and turned into numbers as :class:`TableEncoder` says; rows without a
    target are left out and counted; a skewed target is modelled on another scale, while predictions, intervals and
    densities are in its own units. A scikit-learn estimator: it works in ``cross_val_score``, ``GridSearchCV``,
    ``Pipeline`` and ``permutation_importance``.

    Args:
        target_scale: ``"identity"``, ``"log"``, ``"square root"``, ``"yeo-johnson"``, or ``"auto"``: the one on which
            left-out rows have the highest density.
        categorical: Columns that hold categories, whatever they look like.
        numeric: Columns that hold numbers.
        date: Columns that hold dates.
        drop: Columns to leave out.
        only: The only columns to use; all by default.
        weight: A column that says of how many equal rows each row is.
        day_first: Whether 01/02/2020 is 1 February (True) or 2 January (False); by default some row must show it.
        decimal: ``"."`` or ``","`` before the decimals of numbers in text; by default it is found.
        missing: ``"impute"`` puts the usual value into gaps of the inputs and tells the model where; ``"error"``
            refuses them.
        rows_without_target: ``"drop"`` leaves them out; ``"error"`` refuses them.
        max_one_hot: The most categories of a column that becomes one column for each.
        effort: ``"low"``, ``"medium"`` or ``"high"``: how much time to spend.
        random_state: A number makes the fit reproducible.
        verbose: Draw a progress bar.
        memory_budget: Such as ``"64MB"``, for the fit of the encoded rows; see :class:`GPRegressor`.
        keep_rows: Whether the fit of a small table may hold its rows; see :class:`GPRegressor`.
        regressor: A :class:`GPRegressor` with other settings; ``effort``, ``random_state``, ``verbose``,
            ``memory_budget`` and ``keep_rows`` are then its own.

    Attributes:
        regressor_: The fitted :class:`GPRegressor`; it takes what ``encoder_`` makes of a table.
        encoder_: The encoding of the columns.
        scale_: The :class:`TargetScale`.
        target_: The name of the target; None if it has none.
        columns_: What became of each column.
        notes_: What was decided on the way, one sentence each.
        summary_: Rows, scores, densities of scales and more of the fit; everything in it is JSON.
        feature_names_in_: The names of the columns.
        n_features_in_: Their number.

    Example:
        >>> table = {"size": [1.0, 2, 3, 4, 5, 6], "cut": ["a", "b", "a", "b", "a", "b"], "price": [2, 5, 4, 7, 6, 9]}
        >>> model = TableRegressor(effort="low", random_state=0).fit(table, target="price")
        >>> mean, std = model.predict({"cut": ["b"], "size": [3]}, return_std=True)
        >>> bool(abs(mean[0] - 6) < 1)
        True
        >>> lower, upper = model.predict_interval({"cut": ["b"], "size": [3]}, coverage=[0.5, 0.9])
        >>> lower.shape
        (1, 2)
    """

    regressor_: GPRegressor
    encoder_: TableEncoder
    scale_: TargetScale
    target_: str | None
    summary_: dict[str, Any]
    notes_: list[str]

    def __init__(
        self,
        *,
        target_scale: str = "auto",
        categorical: Sequence[str] = (),
        numeric: Sequence[str] = (),
        date: Sequence[str] = (),
        drop: Sequence[str] = (),
        only: Sequence[str] | None = None,
        weight: str | None = None,
        day_first: bool | None = None,
        decimal: str | None = None,
        missing: str = "impute",
        rows_without_target: str = "drop",
        max_one_hot: int = 16,
        effort: str = "medium",
        random_state: Any = None,
        verbose: bool | int = False,
        memory_budget: str | int | None = None,
        keep_rows: bool = True,
        regressor: GPRegressor | None = None,
    ) -> None:
        self.target_scale = target_scale
        self.categorical = categorical
        self.numeric = numeric
        self.date = date
        self.drop = drop
        self.only = only
        self.weight = weight
        self.day_first = day_first
        self.decimal = decimal
        self.missing = missing
        self.rows_without_target = rows_without_target
        self.max_one_hot = max_one_hot
        self.effort = effort
        self.random_state = random_state
        self.verbose = verbose
        self.memory_budget = memory_budget
        self.keep_rows = keep_rows
        self.regressor = regressor

    # Fitting

    def fit(self, X: Any, y: Any = None, *, target: str | None = None, sample_weight: Any = None) -> TableRegressor:
        """Fit to a table.

        Args:
            X: The table, or the name of its file.
            y: The targets, one number per row; a column of ``X`` of the same name is not used as an input.
            target: The column of ``X`` to predict, instead of ``y``.
            sample_weight: ``(rows,)``: a row of weight ``k`` stands for ``k`` equal rows.
        """
        self._check_parameters()
        rows, values = self.training_rows(X, y, target=target)
        weights = self._weights(rows, sample_weight, len(values))
        kept = np.isfinite(values)
        notes = self.notes_on_targets(rows, values, kept)
        rows, values = rows.take(kept), values[kept]
        if len(values) < _FEWEST_ROWS:
            raise DataError(
                f"The table has {len(values)} row{'s' * (len(values) != 1)} with a target, but at least {_FEWEST_ROWS} "
                "are needed to learn from."
            )
        check_varies(values, self.target_)
        started = time.perf_counter()
        seed = self._seed()
        notes += note_on_copies(rows, rows.copies())
        self._fit_encoded(rows, values, None if weights is None else weights[kept], seed)
        self.feature_names_in_ = np.array([name for name in rows.column_names if name != self.target_], dtype=object)
        self.n_features_in_ = len(self.feature_names_in_)
        if self.scale_.name != "identity":
            notes.append(f"The target is modelled on the scale {self.scale_.name!r}.")
        self.notes_ = notes + self.encoder_.notes + _note_on_gaps(self.columns_)
        self.summary_ = {
            "rows": len(values),
            "rows_without_target": int((~kept).sum()),
            "target_mean": float(values.mean()),
            "target_std": float(values.std()),
            "seconds": time.perf_counter() - started,
        } | self.summary_
        return self

    def training_rows(self, X: Any, y: Any = None, *, target: str | None = None) -> tuple[TableRows, Array]:
        """The rows of a table in memory and their targets, NaN where missing; remembers how targets are written.

        The first step of :meth:`fit`, for those who split rows themselves.
        """
        rows = self.read(X)
        if target is not None:
            if y is not None:
                raise ValueError("Give either y or target, not both.")
            column = rows.column(target)
            self.target_ = target
            self._target_column = fit_target(column, target, decimal=self.decimal, source=rows)
            return rows, read_target(self._target_column, column, source=rows)
        if y is None:
            raise DataError("There are no targets:", "pass y, or target='NAME' of a column.", code="no_target")
        name = getattr(y, "name", None)
        self.target_ = name if isinstance(name, str) else None
        self._target_column = NumberColumn(self.target_ or "y", "number", "number", False, "the target", 0.0, ())
        return rows, self._given_targets(y, rows)

    def read(self, data: Any) -> TableRows:
        """The rows of a table or a file in memory, read as the parameters say."""
        if is_file(data):
            return TableRows.read(TableReader(data, **self.reading_options))
        return TableRows.read(data)

    @property
    def reading_options(self) -> dict[str, Any]:
        """How to read the model's tables from files: arguments of `TableReader`."""
        return {"text": list(self.categorical), "decimal": self.decimal or "."}

    @staticmethod
    def _given_targets(y: Any, rows: TableRows) -> Array:
        try:
            values = np.array(y.to_numpy() if hasattr(y, "to_numpy") else y, dtype=np.float64)
        except (TypeError, ValueError):
            raise DataError("y must be one number per row, but holds something else.") from None
        values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
        if values.shape != (rows.num_rows,):
            raise ValueError(f"y must have one number for each of {rows.num_rows} rows, but has shape {values.shape}.")
        if np.isinf(values).any():
            raise DataError(f"y is infinite in {rows.label(int(np.flatnonzero(np.isinf(values))[0]))}.")
        return values

    def _weights(self, rows: TableRows, sample_weight: Any, count: int) -> Array | None:
        if self.weight is not None:
            column = fit_target(rows.column(self.weight), self.weight, decimal=self.decimal, source=rows)
            weights = read_target(column, rows.column(self.weight), source=rows)
            if not bool((weights >= 0.0).all()):
                first = int(np.flatnonzero(~(weights >= 0.0))[0])
                raise DataError(f"The weight {self.weight!r} is missing or negative in {rows.label(first)}.")
            return weights
        return None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64).reshape(count)

    def notes_on_targets(self, rows: TableRows, values: Array, kept: npt.NDArray[np.bool_]) -> list[str]:
        """What a user should hear of the reading of a table and of its targets: missing ones, atoms."""
        notes = list(getattr(rows.source, "notes", ()))
        name = self.target_ or "y"
        missing = np.flatnonzero(~kept)
        if len(missing):
            problem = f"The target {name!r} is missing in {len(missing)} of {len(values)} rows, first in "
            problem += rows.label(int(missing[0]))
            if self.rows_without_target == "error":
                raise DataError(
                    f"{problem}:", "remove them, or pass rows_without_target='drop'.", code="rows_without_target"
                )
            notes.append(f"{problem}: these rows are left out.")
        if kept.sum() >= _FEWEST_ROWS:
            found = atom(values[kept])
            if found is not None:
                notes.append(
                    f"The target {name!r} is exactly {found[0]:g} in {100 * found[1]:.0f} % of the rows, which no "
                    "density describes: NLPD on such rows rewards narrow predictions, so judge by CRPS and coverage."
                )
        return notes

    def _excluded(self, names: Sequence[str]) -> list[str]:
        check_columns([*self.drop, *(() if self.only is None else self.only)], names)
        left_out = {self.target_, self.weight, *self.drop}
        if self.only is not None:
            left_out |= set(names) - set(self.only)
        return [name for name in names if name in left_out]

    def check_gaps(self, rows: TableRows) -> None:
        """An error that lists the gaps in the columns that would be used."""
        TableEncoder.fit(rows, **self._encoder_options(rows) | {"missing": "error"})

    def _encoder_options(self, rows: TableRows) -> dict[str, Any]:
        return {
            "missing": self.missing,
            "exclude": self._excluded(rows.column_names),
            "categorical": self.categorical,
            "numeric": self.numeric,
            "date": self.date,
            "day_first": self.day_first,
            "decimal": self.decimal,
            "max_one_hot": self.max_one_hot,
        }

    def _fit_encoded(self, rows: TableRows, values: Array, weights: Array | None, seed: int) -> None:
        options = self._encoder_options(rows)
        check_magnitude(values.min(), values.max(), f"The target {self.target_ or 'y'!r}")
        densities: dict[str, float] = {}
        encoder = None
        if self.target_scale == "auto":
            encoder = _with_magnitudes(TableEncoder.fit(rows, targets=values, **options))
            scale, densities = choose_scale(encoder.transform_training(rows), values, seed=seed)
        else:
            scale = TargetScale.fitted(self.target_scale, values)
        scaled = scale.forward(values)
        if encoder is None or scale.name != "identity":
            encoder = _with_magnitudes(TableEncoder.fit(rows, targets=scaled, **options))
        regressor = self._regressor(seed)
        regressor.fit(encoder.transform_training(rows), scaled, weights)
        regressor.verbose = False
        self.regressor_, self.encoder_, self.scale_ = regressor, encoder, scale
        self.summary_ = {"target_scale": scale.to_dict(), "left_out_density_by_scale": densities}

    def _regressor(self, seed: int) -> GPRegressor:
        if self.regressor is not None:
            made: GPRegressor = clone(self.regressor)
            return made
        return GPRegressor(
            effort=self.effort,
            random_state=seed,
            verbose=self.verbose,
            memory_budget=self.memory_budget,
            keep_rows=self.keep_rows,
        )

    def _seed(self) -> int:
        if isinstance(self.random_state, numbers.Integral):
            if self.random_state < 0:
                raise ValueError(f"random_state must not be negative, but is {self.random_state}.")
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _check_parameters(self) -> None:
        if self.target_scale not in ("auto", *SCALES):
            raise ValueError(f"target_scale must be 'auto' or one of {SCALES}, but is {self.target_scale!r}.")
        if self.rows_without_target not in ("drop", "error"):
            raise ValueError(f"rows_without_target must be 'drop' or 'error', but is {self.rows_without_target!r}.")
        for name in ("categorical", "numeric", "date", "drop", "only"):
            if isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be a list of columns, but is {getattr(self, name)!r}: write [{name!r}].")

    @classmethod
    def from_parts(
        cls,
        regressor: GPRegressor,
        encoder: TableEncoder,
        target: str | None = None,
        summary: Mapping[str, Any] | None = None,
        scale: TargetScale | None = None,
    ) -> TableRegressor:
        """A fitted model around a regressor that was fitted elsewhere to what an encoder made of a table."""
        model = cls(
            missing=encoder.missing,
            effort=regressor.effort,
            random_state=regressor.random_state,
            memory_budget=regressor.memory_budget,
        )
        model.regressor_, model.encoder_, model.target_ = regressor, encoder, target
        model.scale_, model.notes_ = scale or TargetScale(), []
        model.summary_ = dict(summary or {})
        model._target_column = NumberColumn(target or "y", "number", "number", False, "the target", 0.0, ())
        model.feature_names_in_ = np.array([column.name for column in encoder.columns], dtype=object)
        model.n_features_in_ = len(model.feature_names_in_)
        return model

    @property
    def columns_(self) -> list[ColumnSummary]:
        """What became of each column."""
        check_is_fitted(self, "encoder_")
        return self.encoder_.summary()

    def __sklearn_is_fitted__(self) -> bool:
        """Whether there is a fit."""
        return hasattr(self, "regressor_")

    # Predicting

    @property
    def predictor_(self) -> TablePredictor:
        """Predicts encoded rows."""
        check_is_fitted(self)
        return TablePredictor(self.regressor_, self.encoder_, self.scale_)

    def encode(self, rows: Any, report: TransformReport) -> EncodedRows:
        """The inputs of the regressor for a chunk, and what in it is new."""
        return EncodedRows(self.encoder_.transform(rows, report), report.unknown)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of a new observation, ``(rows,)``, and with ``return_std`` its standard deviation with noise."""
        predictor = self.predictor_
        parts = [predictor.moments(rows) for rows in self._encoded(X)]
        mean, std = (np.concatenate(each) for each in zip(*parts, strict=True))
        return (mean, std) if return_std else mean

    def predict_interval(
        self, X: Any, coverage: float | Sequence[float] = 0.9, method: str = "predictive"
    ) -> tuple[Array, Array]:
        """Lower and upper ends of central intervals that hold a new observation with probability ``coverage``.

        Args:
            X: The table.
            coverage: Between 0 and 1; several give ends of shape ``(rows, coverages)``.
            method: As in :meth:`GPRegressor.predict_interval`.
        """
        predictor = self.predictor_
        single = np.ndim(coverage) == 0
        levels = np.atleast_1d(np.asarray(coverage, dtype=np.float64)).tolist()
        if not levels:
            raise ValueError("coverage must be a number between 0 and 1, or several, but is empty.")
        parts = [predictor.intervals(rows, levels, method) for rows in self._encoded(X)]
        lower, upper = (np.concatenate(each) for each in zip(*parts, strict=True))
        return (lower[:, 0], upper[:, 0]) if single else (lower, upper)

    def log_density(self, X: Any, y: Any = None) -> Array:
        """The log predictive density of observed targets, ``(rows,)``; rows without a target have NaN."""
        rows, values = self.scored_rows(X, y)
        known = np.isfinite(values)
        result = np.full(len(values), np.nan)
        if known.any():
            encoded = self.encode(rows.take(known), TransformReport())
            result[known] = self.predictor_.log_density(encoded, values[known])
        return result

    def predict_chunks(
        self, table: Any, coverage: float = 0.9, method: str = "predictive", report: TransformReport | None = None
    ) -> Iterator[PredictedChunk]:
        """Rows and their predictions chunk by chunk, for tables of any length; ``report`` counts what is unusual."""
        report = _report_on(table, report)
        predictor = self.predictor_
        for rows in record_batches(TableReader(table) if is_file(table) else table):
            encoded = self.encode(rows, report)
            yield PredictedChunk(rows, *predictor.moments(encoded), *predictor.interval(encoded, coverage, method))

    def _encoded(self, X: Any) -> list[EncodedRows]:
        table = TableReader(X) if is_file(X) else X
        report = _report_on(table, None)
        encoded = [self.encode(rows, report) for rows in record_batches(table)]
        if not encoded:
            raise DataError("The table has no rows.")
        self._warn(report)
        return encoded

    def _warn(self, report: TransformReport) -> None:
        """One warning for all that is unusual about rows."""
        # Gaps in columns that had gaps in the fit are nothing to speak of.
        usual = {column.name for column in self.encoder_.columns if column.indicator}
        report.imputed = {name: count for name, count in report.imputed.items() if name not in usual}
        report.extra_columns = []
        if lines := report.lines():
            warnings.warn(" ".join(lines), stacklevel=4)

    def scored_rows(self, X: Any, y: Any = None) -> tuple[TableRows, Array]:
        """Rows in memory and their targets, NaN where missing, for a model that is fitted."""
        check_is_fitted(self)
        rows = self.read(X)
        if y is not None:
            return rows, self._given_targets(y, rows)
        if self.target_ is None:
            raise DataError(
                "The model does not know the name of its target:", "say which column it is.", code="unknown_target"
            )
        return rows, read_target(self._target_column, rows.column(self.target_), source=rows)

    def with_target(self, target: str | None) -> TableRegressor:
        """The same model with another name for its target; None leaves it as it is."""
        if target is None:
            return self
        other = copy.copy(self)
        other.target_ = target
        other._target_column = NumberColumn(target, "number", "number", False, "the target", 0.0, ())
        return other

    # Judging

    def evaluate(self, X: Any, y: Any = None) -> Scores:
        """Scores on a table that has the truth, in the target's units; rows without a target are left out."""
        return self.predict_scored(X, y).scores()

    def predict_scored(self, X: Any, y: Any = None, report: TransformReport | None = None) -> ScoredRows:
        """Predictions for rows whose targets are known, with all that scores need."""
        rows, values = self._with_target_only(X, y)
        encoded = self.encode(rows, _report_on(rows, report))
        predictor = self.predictor_
        lower, upper = predictor.intervals(encoded, (*COVERAGES, *SCORED_COVERAGES))
        if self.scale_.name == "identity":
            mean, std = predictor.moments(encoded)
        else:
            mean, std = predictor.quantile_moments(lower[:, : len(COVERAGES)], upper[:, : len(COVERAGES)])
        return ScoredRows(mean, std, predictor.log_density(encoded, values), lower, upper, values)

    def baseline(self, values: Array) -> Scores | None:
        """Scores of the mean and spread of the training rows, if the model knows them."""
        mean, std = self.summary_.get("target_mean"), self.summary_.get("target_std")
        if mean is None or std is None:
            scaler = self.regressor_.fits_[0].target_scaler
            if self.scale_.name != "identity":
                return None
            mean, std = float(scaler.mean), float(scaler.scale)
        if std <= 0.0:
            return None
        constant = np.full_like(values, mean), np.full_like(values, std)
        return score(*constant, values, name="mean of its training rows")

    def report(
        self,
        X: Any,
        path: str | os.PathLike[str] | None = None,
        y: Any = None,
        *,
        training: tuple[Any, Any] | None = None,
        seed: int = 0,
        force: bool = True,
    ) -> ReportContents:
        """Measure everything that a report shows on rows that the model has not seen, and write it as an HTML page.

        Where the target is modelled on another scale, the report is on that scale.

        Args:
            X: The table.
            path: The page; None writes none.
            y: The targets, if they are not a column of the table.
            training: The rows of the fit and their targets, for baselines and some checks.
            seed: Of samples of rows.
            force: Whether to replace a page that is there.
        """
        rows, values = self._with_target_only(X, y)
        found = TransformReport(source=rows)
        inputs = self.encode(rows, found).inputs
        self._warn(found)
        known = None
        if training is not None:
            known_rows, known_values = training
            known_rows = self.read(known_rows)
            known = self.encoder_.transform_training(known_rows), np.asarray(known_values), known_rows.numbers
        return self.report_encoded(inputs, values, path, training=known, seed=seed, force=force)

    def report_encoded(
        self,
        inputs: Array,
        values: Array,
        path: str | os.PathLike[str] | None,
        *,
        training: tuple[Array, Array, npt.NDArray[np.int64]] | None = None,
        evaluation: Evaluation | None = None,
        seed: int = 0,
        force: bool = True,
    ) -> ReportContents:
        """The report on rows that are encoded already."""
        from ..report import encoded_columns, gather_contents, write_report

        name = self.target_ or "target"
        known = None if training is None else training[0]
        contents = gather_contents(
            self.regressor_,
            inputs,
            self.scale_.forward(values),
            training_inputs=known,
            training_targets=None if training is None else self.scale_.forward(training[1]),
            training_row_numbers=None if training is None else [int(number) for number in training[2]],
            **encoded_columns(self.encoder_),
            target_name=name if self.scale_.name == "identity" else f"{name} ({self.scale_.name} scale)",
            seed=seed,
            evaluation=evaluation,
        )
        if path is not None:
            write_report(contents, path, force=force)
        return contents

    def _with_target_only(self, X: Any, y: Any) -> tuple[TableRows, Array]:
        rows, values = self.scored_rows(X, y)
        known = np.isfinite(values)
        if not known.any():
            raise DataError(f"The target {self.target_ or 'y'!r} is missing in all {len(values)} rows.")
        if not known.all():
            first = rows.label(int(np.flatnonzero(~known)[0]))
            problem = f"The target {self.target_ or 'y'!r} is missing in {int((~known).sum())} of {len(values)} rows"
            if self.rows_without_target == "error":
                raise DataError(
                    f"{problem}, first in {first}:",
                    "remove them, or set rows_without_target='drop'.",
                    code="rows_without_target",
                )
            warnings.warn(f"{problem}, first in {first}: these rows are left out.", stacklevel=3)
        return rows.take(known), values[known]

    # Rows that come later

    def update(self, X: Any, y: Any = None, report: TransformReport | None = None) -> TableRegressor:
        """Take up more rows: the exact posterior of all rows, with features, noise, scaling and encoding kept."""
        if y is not None:
            rows, values = self._with_target_only(X, y)
            inputs = self.encoder_.transform(rows, _report_on(rows, report))
            self.regressor_.partial_fit(inputs, self._scaled(values))
            return self
        streamed = self._streamed(X)
        report = _report_on(streamed, report)
        for batch in streamed:
            self.regressor_.partial_fit(self.encoder_.transform(batch, report), self._scaled(streamed.targets))
        self._check_streamed(streamed)
        return self

    def _scaled(self, values: Array) -> Array:
        """Targets on the scale of the model."""
        scaled = self.scale_.forward(values)
        if not np.isfinite(scaled).all():
            wrong = values[~np.isfinite(scaled)][0]
            raise DataError(f"A target of {wrong:g} is impossible on the scale {self.scale_.name!r}: correct the row.")
        return scaled

    def _streamed(self, X: Any) -> RowsWithTarget:
        check_is_fitted(self)
        if self.target_ is None:
            raise DataError(
                "The model does not know the name of its target:", "say which column it is.", code="unknown_target"
            )
        table = TableReader(X, **self.reading_options) if is_file(X) else X
        source = locator_of(table)

        def read(array: Any, first_row: int) -> Array:
            return read_target(self._target_column, array, source=source, first_row=first_row)

        return RowsWithTarget(table, self.target_, read)

    def _check_streamed(self, rows: RowsWithTarget) -> None:
        """After a pass: an error if there were no targets, a warning if some were missing."""
        missing = len(rows.dropped)
        if rows.rows and missing == rows.rows:
            raise DataError(f"The target {rows.name!r} is missing in all {rows.rows} rows.")
        if missing:
            first = row_label(rows.dropped[0], rows.source)
            warnings.warn(
                f"The target {rows.name!r} is missing in {missing} of {rows.rows} rows, first in {first}: these rows "
                "are left out.",
                stacklevel=3,
            )

    def statistics(self, X: Any, report: TransformReport | None = None) -> SiteStatistics:
        """The sums of a table's rows for this model's features: what a site can give away that may not share rows.

        The table is read once, chunk by chunk, in memory that does not depend on the number of rows. Rows that the
        model has seen are not in the sums, unless they are in the table. With fewer rows than features there is a
        warning, because rows may then be computed from the sums.

        Example:
            >>> from finitegp.features import LinearFeatures
            >>> def make_table(rows, seed):
            ...     size = np.random.default_rng(seed).uniform(1, 5, size=rows)
            ...     return {"size": size, "price": 2 * size + 1}
            >>> regressor = GPRegressor(LinearFeatures(1), algorithm="exact", random_state=0)
            >>> model = TableRegressor(regressor=regressor).fit(make_table(20, seed=0), target="price")
            >>> sites = [model.statistics(make_table(rows, seed=rows)) for rows in (10, 30)]
            >>> model.merge(*sites).rows_
            60.0
        """
        streamed = self._streamed(X)

        def targets(batch: Any, report: TransformReport, first_row: int) -> Array:
            return self._scaled(streamed.targets)

        def rows() -> Iterator[Any]:
            yield from streamed
            self._check_streamed(streamed)

        return site_statistics(
            self.regressor_.fits_[0], self.encoder_, self.target_, targets, rows(), _report_on(streamed, report)
        )

    def merge(
        self,
        *sites: SiteStatistics,
        keep_model_rows: bool = True,
        refit_noise: bool = False,
        allow_repeats: bool = False,
    ) -> TableRegressor:
        """A model with the exact posterior of the rows of all sites together; this one stays as it is.

        It is the posterior that one would have after :meth:`update` with all tables, to rounding.

        Args:
            sites: What :meth:`statistics` of this model, or of a copy of its file, gave for each table.
            keep_model_rows: Whether the rows that this model has seen stay in. If a site has these rows too, they
                count twice.
            refit_noise: Whether to set the noise variance to the optimum of the marginal likelihood of all rows
                together, for the features as they are. This replaces the calibration of an automatic fit, so intervals
                by counting (``"conformal"``) are no longer possible. Without it, the noise is that of this model.
            allow_repeats: Whether sums that are in already, or are given twice, may count again.

        Raises:
            DataError: If statistics were made for another model, or are given twice.
        """
        check_is_fitted(self)
        merged = copy.copy(self)
        merged.regressor_, merged.summary_ = merge_sites(
            self.regressor_,
            self.encoder_,
            self.summary_,
            sites,
            keep_model_rows=keep_model_rows,
            refit_noise=refit_noise,
            allow_repeats=allow_repeats,
        )
        return merged

    @property
    def rows_(self) -> float:
        """Rows in the posterior, weights counted."""
        check_is_fitted(self)
        return float(self.regressor_.fits_[0].fitted.posterior.statistics.num_data)

    # Files

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
        """Write everything into one file, without pickle; training rows are in it only as ``keep_rows`` says.

        Args:
            path: The file.
            overwrite: Whether to replace a file that is there; if not, that is a FileExistsError.
        """
        check_is_fitted(self)
        parameters = self.get_params(deep=False)
        parameters.pop("regressor")
        column = self._target_column
        save_table_model(
            path,
            self.regressor_,
            self.encoder_,
            {
                "target": self.target_,
                "summary": self.summary_,
                "target_scale": self.scale_.to_dict(),
                "target_style": {"decimal": column.decimal, "unit": column.unit},
                "parameters": parameters,
            },
            overwrite=overwrite,
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, feature_map: Any = None) -> TableRegressor:
        """Read a file that :meth:`save` or :meth:`GPRegressor.save` wrote.

        A regressor saved by itself takes tables whose columns of numbers have the names it was fitted with.

        Raises:
            ModelFileError: If the file is damaged, truncated, of a newer version or something else altogether.
        """
        parts = load_table_model(Path(path), feature_map=feature_map)
        model = cls.from_parts(parts.regressor, parts.encoder, parts.target, parts.summary, parts.scale)
        known = {name: value for name, value in parts.parameters.items() if name in model.get_params(deep=False)}
        model.set_params(**known)
        model._target_column = NumberColumn(
            parts.target or "y",
            "number",
            "number",
            False,
            "the target",
            0.0,
            (),
            decimal=parts.decimal,
            unit=parts.unit,
        )
        return model

    def __sklearn_tags__(self) -> Any:
        """Tables have text and gaps."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        return tags


def _with_magnitudes(encoder: TableEncoder) -> TableEncoder:
    """The encoder, if no column of numbers is too large or too small to compute with."""
    for column in encoder.columns:
        if isinstance(column, NumberColumn) and len(column.span) == 2:
            check_magnitude(*column.span, f"Column {column.name!r}")
    return encoder


def _report_on(table: Any, report: TransformReport | None) -> TransformReport:
    report = TransformReport() if report is None else report
    report.source = locator_of(table) if report.source is None else report.source
    return report


def _note_on_gaps(columns: Sequence[ColumnSummary]) -> list[str]:
    gaps = [f"{line.column} ({line.gaps})" for line in columns if line.gaps and line.outputs]
    if not gaps:
        return []
    return [f"Gaps were filled with the usual value, and the model is told where: {listed(gaps)}."]
