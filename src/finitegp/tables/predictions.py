"""``TablePredictions``: what a fitted model of tables predicts, how good that is, and what it depends on."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from ..arguments import check_arguments
from ..errors import DataError, warn_caller
from ..estimator import GPRegressor
from ..metrics import Scores, score
from .arrow_values import TableLike, record_batches
from .encoder import TableEncoder
from .parameters import TableParameters
from .predictor import EncodedRows, JudgedRows, TablePredictor
from .rows import TableRows
from .scored_rows import ScoredRows
from .summaries import ColumnSummary, TransformReport
from .target_scale import TargetScale

Array = npt.NDArray[np.float64]


class PredictedChunk(NamedTuple):
    """Some rows of a table, and what is predicted for them."""

    rows: pa.RecordBatch
    mean: Array
    std: Array
    lower: Array
    upper: Array


@check_arguments
class TablePredictions(TableParameters):
    """The predictions of a fitted :class:`TableRegressor`, how good they are, and what they depend on."""

    regressor_: GPRegressor
    encoder_: TableEncoder
    scale_: TargetScale
    summary_: dict[str, Any]

    @property
    def predictor_(self) -> TablePredictor:
        """Predicts encoded rows."""
        check_is_fitted(self)
        return TablePredictor(self.regressor_.fits_[0], self.encoder_, self.scale_)

    def encode(self, rows: TableLike, report: TransformReport) -> EncodedRows:
        """The inputs of the regressor for a chunk, and what in it is new."""
        return EncodedRows(self.encoder_.transform(rows, report), report.unknown)

    @overload
    def predict(self, X: TableLike) -> Array: ...
    @overload
    def predict(self, X: TableLike, return_std: Literal[True]) -> tuple[Array, Array]: ...
    @overload
    def predict(self, X: TableLike, return_std: bool) -> Array | tuple[Array, Array]: ...
    def predict(self, X: TableLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        """The mean of a new observation, ``(rows,)``, and with ``return_std`` its standard deviation with noise."""
        predictor = self.predictor_
        parts = [predictor.moments(predictor.predict(rows)) for rows in self._encoded(X)]
        mean, std = (np.concatenate(each) for each in zip(*parts, strict=True))
        return (mean, std) if return_std else mean

    def predict_interval(
        self, X: TableLike, coverage: float | Sequence[float] = 0.9, method: str = "predictive"
    ) -> tuple[Array, Array]:
        """Lower and upper ends of central intervals that hold a new observation with probability ``coverage``.

        Args:
            X: The table.
            coverage: Between 0 and 1; several give ends of shape ``(rows, coverages)``, from one prediction.
            method: ``"predictive"``, ``"gaussian"`` or ``"conformal"``, as in :meth:`GPRegressor.predict_interval`.
        """
        predictor = self.predictor_
        levels = np.ravel(coverage).tolist()
        if not levels:
            raise ValueError("coverage must be a number between 0 and 1, or several, but is empty.")
        parts = [predictor.intervals(predictor.predict(rows), levels, method) for rows in self._encoded(X)]
        lower, upper = (np.concatenate(each) for each in zip(*parts, strict=True))
        return (lower, upper) if np.ndim(coverage) else (lower[:, 0], upper[:, 0])

    def log_density(self, X: TableLike, y: ArrayLike | None = None) -> Array:
        """The log predictive density of observed targets, ``(rows,)``; rows without a target have NaN."""
        rows, values = self.scored_rows(X, y)
        known = np.isfinite(values)
        result = np.full(len(values), np.nan)
        if known.any():
            predictor = self.predictor_
            prediction = predictor.predict(self.encode(rows.take(known), TransformReport()))
            result[known] = predictor.log_density(prediction, values[known])
        return result

    def predict_chunks(
        self,
        table: TableLike,
        coverage: float = 0.9,
        method: str = "predictive",
        report: TransformReport | None = None,
    ) -> Iterator[PredictedChunk]:
        """Rows and their predictions chunk by chunk, for tables of any length; ``report`` counts what is unusual."""
        report = TransformReport.on(table, report)
        predictor = self.predictor_
        for rows in record_batches(self._readable(table)):
            prediction = predictor.predict(self.encode(rows, report))
            lower, upper = predictor.intervals(prediction, [coverage], method)
            yield PredictedChunk(rows, *predictor.moments(prediction), lower[:, 0], upper[:, 0])

    def _encoded(self, X: TableLike) -> list[EncodedRows]:
        table = self._readable(X)
        report = TransformReport.on(table, None)
        encoded = [self.encode(rows, report) for rows in record_batches(table)]
        if not encoded:
            raise DataError("The table has no rows.")
        self._warn(report)
        return encoded

    def _warn(self, report: TransformReport) -> None:
        """One warning for all that is unusual about rows."""
        report.extra_columns = []
        if lines := self.unusual(report):
            warn_caller(" ".join(lines))

    def unusual(self, report: TransformReport) -> list[str]:
        """One sentence for each thing about rows that is not as in the fit."""
        # Gaps in columns that had gaps in the fit are not unusual.
        usual = {column.name for column in self.encoder_.columns if column.indicator}
        imputed = {name: count for name, count in report.imputed.items() if name not in usual}
        return replace(report, imputed=imputed).lines()

    # Judging

    def evaluate(self, X: TableLike, y: ArrayLike | None = None) -> Scores:
        """Scores on a table that has the truth, in the target's units; rows without a target are left out."""
        return self.predict_scored(X, y).scores()

    def predict_scored(
        self, X: TableLike, y: ArrayLike | None = None, report: TransformReport | None = None
    ) -> ScoredRows:
        """Predictions for rows whose targets are known, with all that scores need."""
        return self.judge(*self.rows_to_judge(X, y), report).scored

    def judge(self, rows: TableRows, values: Array, report: TransformReport | None = None) -> JudgedRows:
        """The prediction for rows whose targets are known, made once, and all that follows from it."""
        started = time.perf_counter()
        predictor = self.predictor_
        encoded = self.encode(rows, TransformReport.on(rows, report))
        prediction = predictor.predict(encoded)
        seconds = time.perf_counter() - started
        return JudgedRows(rows, encoded.inputs, prediction, predictor.score(prediction, values), seconds)

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

    @property
    def columns_(self) -> list[ColumnSummary]:
        """The summary of each column, with how much it matters."""
        check_is_fitted(self, "encoder_")
        effects = self._effects
        return [replace(line, relevance=effects.get(line.column)) for line in self.encoder_.summary()]

    @property
    def feature_importances_(self) -> Array:
        """For each of ``feature_names_in_`` its total effect: what part of the variance of predictions it makes.

        As fitted, on training rows and on the scale of the model; zero for columns that are left out. See
        :func:`~finitegp.tables.learning.total_effects`.
        """
        check_is_fitted(self)
        if not self._effects:
            raise AttributeError("The fit of this model measured no effects of columns: fit it anew to have them.")
        return np.array([self._effects.get(str(name), 0.0) for name in self.feature_names_in_])

    @property
    def _effects(self) -> dict[str, float]:
        found = self.summary_.get("total_effects")
        return found if isinstance(found, dict) else {}
