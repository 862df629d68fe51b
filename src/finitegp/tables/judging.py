"""``fit_and_judge``: a fit with scores on rows that it did not see, beside baselines, and a report."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sklearn.base import clone

from ..errors import DataError
from ..metrics import Scores, score
from .encoder import TransformReport
from .model import TableRegressor
from .rows import TableRows
from .scoring import ScoredRows
from .splits import Split, make_folds, split_groups, split_last

if TYPE_CHECKING:
    from ..report import ReportContents

Array = npt.NDArray[np.float64]
# With fewer rows, a fifth of them says too little: all rows are judged, by cross-validation.
FEWEST_TO_HOLD_OUT = 50
_FEWEST_TO_JUDGE = 5
_FOLDS = 5


@dataclass(frozen=True)
class Judging:
    """Which rows judge a fit.

    Attributes:
        test_fraction: The share that is held out; 0 for none.
        split_by: A column: the rows with its highest values, such as the latest dates, are held out.
        group: A column: rows with the same value stay together.
        folds: The number of folds of a cross-validation that judges all rows; 0 for a single split.
    """

    test_fraction: float = 0.2
    split_by: str | None = None
    group: str | None = None
    folds: int = 0


@dataclass(frozen=True, eq=False)
class JudgedFit:
    """A fitted model and how good it is.

    Attributes:
        model: It has taken in the held-out rows.
        scores: The model's first, then those of the baselines; empty if no rows were held out.
        rows: Rows with a target.
        held_out_rows: Rows that judged.
        takes_in_held_out_rows: Whether the model has them too.
        how: How they were chosen, in words.
        width: The median width of 90 % intervals on them.
        contents: What the report shows; None if there is none.
        notes: What a user should hear of.
        seconds: To train.
    """

    model: TableRegressor
    scores: list[Scores]
    rows: int
    held_out_rows: int
    takes_in_held_out_rows: bool
    how: str
    width: float | None
    contents: ReportContents | None
    notes: list[str]
    seconds: float

    def summary(self) -> dict[str, Any]:
        """What a model file says of the fit, in types that JSON has."""
        findings = [] if self.contents is None else self.contents.checkup.findings
        return {
            "rows": self.rows,
            "held_out_rows": self.held_out_rows,
            "takes_in_held_out_rows": self.takes_in_held_out_rows,
            "judged_by": self.how,
            "scores": [each.to_dict() for each in self.scores],
            "interval_width": self.width,
            "findings": [
                {"severity": each.severity, "title": each.title, "evidence": each.evidence, "fix": each.fix}
                for each in findings
            ],
            "seconds": self.seconds,
        }


def fit_and_judge(
    model: TableRegressor,
    data: Any,
    target: str,
    judging: Judging | None = None,
    *,
    test: Any = None,
    seed: int = 0,
    report: str | os.PathLike[str] | None = None,
    force: bool = True,
) -> JudgedFit:
    """Fit a model to some rows of a table, score it on the others, and let it take these in, exactly.

    Rows that are exact copies of one another are on one side of a split, so that no row judges that was trained on.

    Args:
        model: Not fitted; it is fitted in place.
        data: The table, or the name of its file.
        target: The column to predict.
        judging: Which rows judge.
        test: Another table that judges instead; the model does not take it in.
        seed: Of the split.
        report: The page to write.
        force: Whether to replace a page that is there.

    Example:
        >>> table = {"size": np.arange(60.0), "price": 3.0 * np.arange(60.0) + np.sin(np.arange(60.0))}
        >>> fit = fit_and_judge(TableRegressor(effort="low", random_state=0), table, "price")
        >>> fit.held_out_rows, fit.scores[0].r_squared > 0.9, [each.name for each in fit.scores]
        (12, True, ['this model', 'linear', 'mean'])
    """
    judging = judging or Judging()
    rows, values = model.training_rows(data, target=target)
    kept = np.isfinite(values)
    notes = model.notes_on_targets(rows, values, kept)
    rows, values = rows.take(kept), values[kept]
    if model.missing == "error":
        model.check_gaps(rows)  # also of rows that are held out, and before anything is fitted
    notes += _time_note(rows, target, judging)
    if test is not None:
        return _judge_with(model, rows, values, model.read(test), "another table", notes, False, report, seed, force)
    if judging.folds or (len(values) < FEWEST_TO_HOLD_OUT and judging == Judging()):
        folds = judging.folds or min(_FOLDS, len(values))
        if len(values) >= _FEWEST_TO_JUDGE:
            return _cross_validate(model, rows, values, judging, folds, notes, report, seed, force)
    if judging.test_fraction == 0.0 or len(values) < _FEWEST_TO_JUDGE:
        why = (
            "No rows are held out" if judging.test_fraction == 0.0 else f"{len(values)} rows are too few to judge with"
        )
        notes.append(f"{why}, so there are no scores and no report.")
        return _fit_alone(model, rows, values, notes)
    split = _split(rows, judging, seed)
    if np.ptp(values[split.training]) == 0.0:
        raise DataError("The target is the same in all rows that are left for training: add rows, or hold fewer out.")
    held_out = rows.take(split.held_out)
    how = "the rows with the highest " + repr(judging.split_by) if judging.split_by else "random rows"
    if judging.group:
        how = f"whole groups of {judging.group!r}"
    training = rows.take(split.training)
    return _judge_with(model, training, values[split.training], held_out, how, notes, True, report, seed, force)


def _judge_with(
    model: TableRegressor,
    training: TableRows,
    values: Array,
    held_out: TableRows,
    how: str,
    notes: list[str],
    take_in: bool,
    report: str | os.PathLike[str] | None,
    seed: int,
    force: bool,
) -> JudgedFit:
    started = time.perf_counter()
    target = str(model.target_)
    model.fit(training, target=target)
    seconds = time.perf_counter() - started
    found = TransformReport(source=held_out)
    predicted = model.predict_scored(held_out, report=found)
    known = model.encoder_.transform_training(training), values, training.numbers
    inputs = model.encoder_.transform(held_out)
    own = predicted.scores()
    evaluation = None
    if model.scale_.name == "identity":
        # What is printed is what the report shows, measured once.
        from ..report.evaluation import evaluate

        found_once = evaluate(model.regressor_, inputs, predicted.targets, training=known[:2], seed=seed)
        scores = [own, *found_once.scores[1:]]
        claimed = found_once.predicted._replace(mean=predicted.mean, std=predicted.std)
        evaluation = replace(found_once, predicted=claimed, scores=scores)
    else:
        scores = [own, *_baselines(known[0], values, inputs, predicted.targets, seed)]
    contents = None
    if report is not None:
        contents = model.report_encoded(
            inputs, predicted.targets, report, training=known, evaluation=evaluation, seed=seed, force=force
        )
    if take_in:
        model.update(held_out)
    total = len(values) + (len(predicted.targets) if take_in else 0)
    return JudgedFit(
        model,
        scores,
        total,
        len(predicted.targets),
        take_in,
        how,
        predicted.width,
        contents,
        _different([*notes, *model.notes_, *found.lines()]),
        seconds,
    )


def _fit_alone(model: TableRegressor, rows: TableRows, values: Array, notes: list[str]) -> JudgedFit:
    started = time.perf_counter()
    model.fit(rows, target=str(model.target_))
    seconds = time.perf_counter() - started
    return JudgedFit(model, [], len(values), 0, False, "none", None, None, _different([*notes, *model.notes_]), seconds)


def _cross_validate(
    model: TableRegressor,
    rows: TableRows,
    values: Array,
    judging: Judging,
    folds: int,
    notes: list[str],
    report: str | os.PathLike[str] | None,
    seed: int,
    force: bool,
) -> JudgedFit:
    """All rows judged by models that were fitted without them; the model itself is fitted to all rows."""
    target = str(model.target_)
    started = time.perf_counter()
    parts: list[ScoredRows] = []
    baselines: dict[str, list[Scores]] = {}
    splits = make_folds(_groups(rows, judging), folds, seed=seed)
    for split in splits:
        each = clone(model)
        training = rows.take(split.training)
        each.fit(training, target=target)
        held_out = rows.take(split.held_out)
        parts.append(each.predict_scored(held_out))
        known, inputs = each.encoder_.transform_training(training), each.encoder_.transform(held_out)
        for scores in _baselines(known, values[split.training], inputs, parts[-1].targets, seed):
            baselines.setdefault(scores.name, []).append(scores)
    model.fit(rows, target=target)
    together = ScoredRows.joined(parts)
    sizes = np.array([len(part.targets) for part in parts], dtype=np.float64)
    pooled = [_pooled(each, sizes, together.targets) for each in baselines.values()]
    contents = None
    if report is not None:
        notes.append("The report is on all rows, which the saved model has seen; the scores are those of the folds.")
        inputs = model.encoder_.transform(rows)
        contents = model.report_encoded(inputs, values, report, seed=seed, force=force)
    return JudgedFit(
        model,
        [together.scores(), *pooled],
        len(values),
        len(values),
        True,
        f"{folds}-fold cross-validation",
        together.width,
        contents,
        _different([*notes, *model.notes_]),
        time.perf_counter() - started,
    )


def _pooled(parts: list[Scores], sizes: Array, targets: Array) -> Scores:
    """Scores of a baseline over all folds."""
    weights = sizes / sizes.sum()

    def mean(name: str) -> float:
        return float(weights @ np.array([getattr(part, name) for part in parts]))

    square = float(weights @ np.array([part.rmse**2 for part in parts]))
    variance = float(targets.var())
    coverage = {
        level: float(weights @ np.array([part.coverage[level] for part in parts])) for level in parts[0].coverage
    }
    errors = {
        name: float(np.sqrt(weights**2 @ np.array([getattr(part, name) ** 2 for part in parts])))
        for name in ("rmse_error", "mae_error", "nlpd_error")
    }
    return Scores(
        name=parts[0].name,
        rmse=square**0.5,
        mae=mean("mae"),
        r_squared=1.0 - square / variance if variance > 0.0 else None,
        nlpd=mean("nlpd"),
        crps=mean("crps"),
        coverage=coverage,
        largest_standardized_residual=max(part.largest_standardized_residual for part in parts),
        **errors,
    )


def _baselines(inputs: Array, values: Array, held_out_inputs: Array, targets: Array, seed: int) -> list[Scores]:
    """A linear model on the same numbers, and the mean and spread of the training rows."""
    from ..report.evaluation import predict_linear

    linear = score(*predict_linear(inputs, values, held_out_inputs, seed=seed), targets, name="linear")
    constant = np.full_like(targets, values.mean()), np.full_like(targets, values.std())
    return [linear, score(*constant, targets, name="mean")]


def _split(rows: TableRows, judging: Judging, seed: int) -> Split:
    if judging.split_by is None:
        return split_groups(_groups(rows, judging), judging.test_fraction, seed=seed)
    return split_last(_order(rows, judging.split_by), judging.test_fraction)


def _groups(rows: TableRows, judging: Judging) -> npt.NDArray[np.int64]:
    """Rows that belong together: of one value in a column, or copies of one another."""
    if judging.group is None:
        return rows.copies()
    array = rows.column(judging.group).combine_chunks()
    encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode(null_encoding="encode")
    codes: npt.NDArray[np.int64] = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _order(rows: TableRows, name: str) -> Array:
    """The values of a column that orders the rows: numbers or dates, however they are written."""
    from .arrow_values import number_values
    from .columns import Cells, DateColumn, NumberColumn
    from .profiles import ColumnProfile

    array = rows.column(name).combine_chunks()
    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        values = number_values(array)
    else:
        profile = ColumnProfile(name)
        profile.add(array, 0)
        column = profile.verdict(max_one_hot=1).column
        if not isinstance(column, NumberColumn | DateColumn):
            raise DataError(f"Column {name!r} holds neither numbers nor dates, so rows have no order by it.")
        cells: Cells = column.read(array)
        values = np.where(cells.gaps, np.nan, cells.values.astype(np.float64))
    if np.isnan(values).any():
        first = rows.label(int(np.flatnonzero(np.isnan(values))[0]))
        raise DataError(f"Column {name!r}, by which to split, has no value in {first}: correct it, or split otherwise.")
    return values


def _time_note(rows: TableRows, target: str, judging: Judging) -> list[str]:
    """A sentence if there is a column of dates, but the split does not show how later rows are predicted."""
    from .columns import DateColumn
    from .profiles import ColumnProfile

    if judging.split_by is not None or judging.test_fraction == 0.0:
        return []
    head = rows.take(np.arange(min(1000, rows.num_rows)))
    for name in rows.column_names:
        if name == target:
            continue
        profile = ColumnProfile(name)
        try:
            profile.add(head.column(name).combine_chunks(), 0)
            column = profile.verdict(max_one_hot=16).column
        except DataError:
            continue
        if isinstance(column, DateColumn) and "days" in column.parts:
            return [
                f"Column {name!r} holds dates, and random rows do not show how well later ones are predicted: split by "
                "it to see that."
            ]
    return []


def _different(notes: list[str]) -> list[str]:
    """Each note once, in order."""
    return list(dict.fromkeys(notes))


def stored_summary(fit: JudgedFit, more: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of the model with that of its judging and more."""
    return {**fit.model.summary_, **fit.summary(), **more}
