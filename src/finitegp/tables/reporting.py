"""Reports on models of tables: in the target's own units, by the columns of the table."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..metrics import Scores
from ..report.contents import ColumnFacts, ReportContents
from ..report.evaluation import Evaluation, baselines
from ..report.measure import encoded_columns, gather_contents
from ..report.page import write_report
from ..report.reported_model import Predicted, ReportedModel
from .predictions import TablePredictions
from .predictor import JudgedRows, TablePredictor
from .summaries import ColumnSummary

Array = npt.NDArray[np.float64]


class KnownRows(NamedTuple):
    """Training rows, or a sample of them: what the encoder made of them, their targets, and their numbers."""

    inputs: Array
    targets: Array
    numbers: npt.NDArray[np.int64]


def all_scores(judged: JudgedRows, known: KnownRows, seed: int) -> list[Scores]:
    """Scores of the model, and of the baselines."""
    targets = judged.scored.targets
    return [judged.scored.scores(), *(each.score(targets) for each in baselines(known[:2], judged.inputs, seed=seed))]


def report_on(
    model: TablePredictions,
    judged: JudgedRows,
    known: KnownRows | None,
    path: str | os.PathLike[str] | None,
    *,
    scores: Sequence[Scores] | None = None,
    other_scores: Mapping[str, Sequence[Scores]] | None = None,
    remark: str = "",
    seed: int = 0,
    force: bool = True,
    shell: bool = False,
) -> ReportContents:
    """Everything that a report on a `TableRegressor` shows, and the page.

    Args:
        model: The model.
        judged: Rows that it has not seen.
        known: Rows that it was trained on.
        path: Of the page; None writes none.
        scores: The model's and those of baselines, if they are known.
        other_scores: Those of rows that were held out in another way.
        remark: On these.
        seed: Of samples of rows.
        force: Whether to replace a page that is there.
        shell: Whether advice is to name options of the command line.
    """
    predictor = model.predictor_
    targets = judged.scored.targets
    if scores is None and known is not None:
        scores = all_scores(judged, known, seed)
    elif scores is None:
        constant = model.baseline(targets)
        scores = [judged.scored.scores(), *([] if constant is None else [constant])]
    contents = gather_contents(
        _reported(model, predictor, known),
        judged.inputs,
        targets,
        training_inputs=None if known is None else known.inputs,
        training_targets=None if known is None else known.targets,
        training_row_numbers=None if known is None else [int(number) for number in known.numbers],
        **encoded_columns(model.encoder_),
        target_name=model.target_ or "target",
        seed=seed,
        evaluation=Evaluation(_predicted(predictor, judged), list(scores), judged.seconds),
        columns=[_column_facts(line) for line in model.columns_],
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


def _column_facts(line: ColumnSummary) -> ColumnFacts:
    return ColumnFacts(line.column, line.kind, line.encoding, line.gaps, line.distinct, line.relevance, line.note)


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
