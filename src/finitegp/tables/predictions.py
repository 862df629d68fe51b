"""``TablePredictions``: what a fitted model of tables predicts, how good that is, and what it depends on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..arguments import check_arguments, check_at_least_one
from ..errors import DataError, warn_caller
from ..estimator.parameters import RandomState, checked_levels
from ..metrics import Scores, score
from ..persistence.fits import Regressor
from ..report.contents import ColumnFacts, ReportContents
from ..report.evaluation import Evaluation, Predicted, ReportedModel, baselines
from ..report.measure import encoded_columns, gather_contents
from ..report.page import write_report
from .parameters import TableParameters
from .rows import TableLike, TableRows, record_batches
from .scored_rows import EncodedRows, JudgedRows, ScoredRows, TablePredictor
from .summaries import ColumnSummary, TransformReport
from .targets import TargetScale

Array = npt.NDArray[np.float64]


class PredictedChunk(NamedTuple):
    """Some rows of a table, and what is predicted for them."""

    rows: pa.RecordBatch
    mean: Array
    std: Array
    lower: Array
    upper: Array
    outside: list[str] | None = None


@check_arguments
class TablePredictions(TableParameters):
    """The predictions of a fitted :class:`TableRegressor`, how good they are, and what they depend on."""

    regressor_: Regressor
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

    def quantile(self, X: TableLike, level: float | Sequence[float]) -> Array:
        """The targets that new observations do not exceed with probability ``level``.

        The ends of :meth:`predict_interval` at coverage ``c`` are those at ``(1 - c) / 2`` and ``(1 + c) / 2``.

        Args:
            X: The table.
            level: Between 0 and 1: one gives ``(rows,)``, several give ``(rows, levels)``, from one prediction.
        """
        levels = checked_levels(level)
        predictor = self.predictor_
        found = np.concatenate([predictor.quantiles(predictor.predict(rows), levels) for rows in self._encoded(X)])
        return found if np.ndim(level) else found[:, 0]

    def sample_y(self, X: TableLike, n_samples: int = 1, random_state: RandomState = 0) -> Array:
        """Draw joint new observations in the target's units, noise included: ``(rows, n_samples)``.

        Each row by itself is distributed as its intervals say; rows are correlated, so all of them are in memory. Of
        those that hold something new, as those are that have known values in its place.
        """
        check_at_least_one(n_samples=n_samples)
        predictor, rows = self.predictor_, self.read(X)
        report = TransformReport.on(rows, None)
        encoded = self.encode(rows, report)
        self._warn(report)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        return predictor.sample(encoded, n_samples, seed=seed)

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
        outside: bool = False,
    ) -> Iterator[PredictedChunk]:
        """Rows and their predictions chunk by chunk, for tables of any length.

        Args:
            table: The table.
            coverage: Of the interval.
            method: Of the interval, as in :meth:`predict_interval`.
            report: Counts what is unusual.
            outside: Whether each row gets a text that names its columns outside of the fit, the farthest first, and how
                far: ``"size: 2.3; city: new"``; empty if there are none.
        """
        report = TransformReport.on(table, report)
        predictor = self.predictor_
        for rows in record_batches(self._readable(table)):
            encoded = self.encode(rows, report)
            prediction = predictor.predict(encoded)
            lower, upper = predictor.intervals(prediction, [coverage], method)
            named = _named_distances(self.encoder_.required_columns, predictor.outside(encoded)) if outside else None
            yield PredictedChunk(rows, *predictor.moments(prediction), lower[:, 0], upper[:, 0], named)

    def outside(self, X: TableLike) -> Array:
        """How far each value lies outside of what the fit saw, ``(rows, columns)``, in deviations of its column.

        One column for each of ``feature_names_in_``. Zero inside, and where a column is not used; infinite for a
        category that the fit did not see and for a gap where it had none. Error bars there are wider.

        Raises:
            DataError: After a fit of a given feature map, which does not learn what was seen.
        """
        predictor = self.predictor_
        used = np.concatenate([predictor.outside(rows) for rows in self._encoded(X)])
        places = dict(zip(self.encoder_.required_columns, used.T, strict=True))
        nothing = np.zeros(len(used))
        return np.stack([places.get(str(name), nothing) for name in self.feature_names_in_], axis=1)

    def _encoded(self, X: TableLike) -> list[EncodedRows]:
        table = self._readable(X)
        report = TransformReport.on(table, None)
        encoded = [self.encode(rows, report) for rows in record_batches(table)]
        if not encoded:
            raise DataError("The table has no rows.")
        self._warn(report)
        return encoded

    def notes_on_known(self, judged: JudgedRows) -> list[str]:
        """A sentence if rows are equal to training rows and predicted by these: scores are less of new rows then."""
        repeated = self.predictor_.fit.repeated
        known = 0 if repeated is None else int((repeated.look_up(judged.inputs).chances > 0.0).sum())
        told = (
            f"{known} of {len(judged.inputs)} rows are equal to training rows and predicted by what these had: scores, "
            "NLPD above all, say less of rows that are new."
        )
        return [told] if known else []

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

    def scores_of(self, judged: JudgedRows) -> list[Scores]:
        """Scores of the model, and of the mean and spread of the training rows, if the model knows them."""
        values, own = judged.scored.targets, judged.scored.scores()
        mean, std = self.summary_.get("target_mean"), self.summary_.get("target_std")
        if (mean is None or std is None) and self.scale_.name == "identity":
            scaler = self.regressor_.fits_[0].target_scaler
            mean, std = float(scaler.mean), float(scaler.scale)
        if mean is None or not std or std <= 0.0:
            return [own]
        return [own, score(np.full_like(values, mean), np.full_like(values, std), values, name="training mean")]

    def report(
        self,
        X: TableLike,
        path: str | os.PathLike[str] | None = None,
        y: ArrayLike | None = None,
        *,
        training: tuple[TableLike, ArrayLike] | None = None,
        seed: int = 0,
        force: bool = True,
        shell: bool = False,
    ) -> ReportContents:
        """Measure everything that a report shows on rows that the model has not seen, and write it as an HTML page.

        Args:
            X: The table.
            path: The page; None writes none.
            y: The targets, if they are not a column of the table.
            training: The rows of the fit and their targets, for baselines and some checks.
            seed: Of samples of rows.
            force: Whether to replace a page that is there.
            shell: Whether advice is to name options of the command line.
        """
        found = TransformReport()
        judged = self.judge(*self.rows_to_judge(X, y), found)
        self._warn(found)
        for line in self.notes_on_known(judged):
            warn_caller(line)
        known = None
        if training is not None:
            rows = self.read(training[0])
            inputs = self.encoder_.transform_training(rows, numbers=rows.copies())
            known = KnownRows(inputs, np.asarray(training[1], dtype=np.float64), rows)
        return report_on(self, judged, known, path, seed=seed, force=force, shell=shell)

    @property
    def columns_(self) -> list[ColumnSummary]:
        """The summary of each column, with how much it matters."""
        check_is_fitted(self, "encoder_")
        effects = self.summary_.get("total_effects") or {}
        return [replace(line, relevance=effects.get(line.column)) for line in self.encoder_.summary()]

    @property
    def feature_importances_(self) -> Array:
        """For each of ``feature_names_in_`` its total effect: what part of the variance of predictions it makes.

        As fitted, on training rows and on the scale of the model; zero for columns that are left out. See
        :func:`~finitegp.tables.learning.total_effects`.
        """
        check_is_fitted(self)
        effects = self.summary_.get("total_effects")
        if not effects:
            raise AttributeError("The fit of this model measured no effects of columns: fit it anew to have them.")
        return np.array([effects.get(str(name), 0.0) for name in self.feature_names_in_])


def _named_distances(names: Sequence[str], distances: Array) -> list[str]:
    """The names of columns that are outside in each row, the farthest first, with their distances."""
    found = [""] * len(distances)
    for row in np.flatnonzero(distances.any(axis=1)):
        order = [place for place in np.argsort(-distances[row], kind="stable") if distances[row, place] > 0.0]
        texts = ["new" if np.isinf(distances[row, place]) else f"{distances[row, place]:.2g}" for place in order]
        found[row] = "; ".join(f"{names[place]}: {text}" for place, text in zip(order, texts, strict=True))
    return found


class KnownRows(NamedTuple):
    """Training rows, or a sample of them: what the encoder made of them, their targets, and the rows themselves."""

    inputs: Array
    targets: Array
    rows: TableRows


def all_scores(judged: JudgedRows, known: KnownRows, seed: int) -> list[Scores]:
    """Scores of the model, and of the baselines."""
    targets = judged.scored.targets
    return [judged.scored.scores(), *(each.score(targets) for each in baselines(known[:2], judged.inputs, seed=seed))]


def report_on(
    model: TablePredictions,
    judged: JudgedRows,
    known: KnownRows | None,
    path: str | os.PathLike[str] | None,
    scores: Sequence[Scores] | None = None,
    other_scores: Mapping[str, Sequence[Scores]] | None = None,
    remark: str = "",
    *,
    seed: int,
    force: bool,
    shell: bool,
) -> ReportContents:
    """Everything that a report on a model shows, of rows that it has not seen and of those it was trained on; the page.

    ``scores`` are the model's and those of baselines, if they are known; ``other_scores``, with a remark, those of rows
    that were held out in another way.
    """
    predictor = model.predictor_
    targets = judged.scored.targets
    if scores is None:
        scores = model.scores_of(judged) if known is None else all_scores(judged, known, seed)
    rows = 0 if known is None else len(known.targets)

    def label_row(place: int) -> str:
        return known.rows.label(place) if known and place < rows else judged.rows.label(place - rows)

    training: dict[str, Any] = {}
    if known is not None:
        training = {"training_inputs": known.inputs, "training_targets": known.targets}
        training["training_row_numbers"] = known.rows.numbers.tolist()
    contents = gather_contents(
        _reported(model, predictor, known),
        judged.inputs,
        targets,
        **training,
        label_row=label_row,
        **encoded_columns(model.encoder_),
        target_name=model.target_ or "target",
        seed=seed,
        evaluation=Evaluation(_predicted(predictor, judged), list(scores), judged.seconds),
        columns=[
            ColumnFacts(line.column, line.kind, line.encoding, line.gaps, line.distinct, line.relevance, line.note)
            for line in model.columns_
        ],
        other_scores=other_scores,
    )
    if remark:
        contents.remarks["other scores"] = remark
    if predictor.scale.name != "identity":
        contents.facts["Scale of the target"] = (
            f"{predictor.scale.name}; all figures are in the target's own units, and the errors of shuffled inputs are "
            "those of the predicted median"
        )
    if shell:
        contents = replace(contents, checkup=contents.checkup.in_shell())
    if path is not None:
        write_report(contents, path, force=force)
    return contents


def _predicted(predictor: TablePredictor, judged: JudgedRows) -> Predicted:
    """The prediction of rows, with mean and standard deviation in the target's units."""
    inner = Predicted.of(judged.prediction)
    noise = inner.noise_variance if predictor.scale.name == "identity" else None
    return Predicted(judged.scored.mean, judged.scored.std, noise, modelled=(inner, predictor.scale))


def _reported(model: TablePredictions, predictor: TablePredictor, known: KnownRows | None) -> ReportedModel:
    """The model in the target's units."""
    fit, scale = predictor.fit, predictor.scale
    summary = model.regressor_.training_summary_
    record = (dict(summary) if isinstance(summary, dict) else {}) | fit.record
    center, spread = (float(np.ravel(each)[0]) for each in (fit.target_scaler.mean, fit.target_scaler.scale))
    shift: float | None = 0.0
    if scale.name != "identity":
        record.pop("out_of_fold_rmse", None)  # on the scale of the model
        center, spread = (float(model.summary_.get(name) or 0.0) for name in ("target_mean", "target_std"))
        shift = None if known is None else float(np.mean(scale.log_derivative(known.targets)))

    def predict(inputs: Array) -> Predicted:
        return Predicted.of(fit.predict(inputs)).in_units(scale)

    return ReportedModel(predict, fit, center or None, spread or 1.0, record, "TableRegressor", scale, shift)
