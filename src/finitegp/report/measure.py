"""``gather_contents``: from a fitted model and rows that it has not seen to everything that a report shows."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import ArrayLike

from .. import __version__
from ..arguments import check_arguments
from ..data import ArraySource
from ..errors import DataError, NumericalError
from ..formatting import shown
from ..metrics import Scores
from .contents import ColumnFacts, Curve, HeldOutPoints, Outliers, ReportContents
from .doctor import Patient, examine
from .evaluation import Evaluation, ModelFacts, ReportedModel, as_reported_model, evaluate, measure_model, thin
from .held_out import ExpectedRows, find_outliers, label_in, measure_calibration, measure_importance, residual_panel

if TYPE_CHECKING:
    from ..tables.encoder import TableEncoder

Array = npt.NDArray[np.float64]
_MOST_POINTS = 500
_MOST_LEFT_OUT = 20_000
_RESIDUAL_PANELS = 6
_NOT_GIVEN = "The training rows were not given"


@check_arguments
def gather_contents(
    model: object,
    held_out_inputs: ArrayLike,
    held_out_targets: ArrayLike,
    *,
    training_inputs: ArrayLike | None = None,
    training_targets: ArrayLike | None = None,
    column_names: Sequence[str] | None = None,
    column_groups: Mapping[str, Sequence[str]] | None = None,
    target_name: str = "target",
    target_index: int = 0,
    training_row_numbers: Sequence[int] | None = None,
    label_row: Callable[[int], str] | None = None,
    history: Sequence[Mapping[str, object]] | None = None,
    title: str | None = None,
    seed: int = 0,
    evaluation: Evaluation | None = None,
    columns: Sequence[ColumnFacts] = (),
    other_scores: Mapping[str, Sequence[Scores]] | None = None,
) -> ReportContents:
    """Measure everything that a report shows.

    Args:
        model: A :class:`~finitegp.FittedGP`, the outcome of :func:`~finitegp.automatic.fit_auto`, or an estimator.
        held_out_inputs: ``(rows, columns)`` that the model was not trained on, as it takes them.
        held_out_targets: ``(rows,)`` their targets, in the units in which the model predicts.
        training_inputs: The rows it was trained on, for leave-one-out, the linear baseline and some checks.
        training_targets: Their targets.
        column_names: Of the inputs; by default those that the model or the table knows, or else numbers.
        column_groups: Inputs that consist of several columns, such as one-hot encoded text: name of the input and
            names of its columns. Columns that are in no group stand for themselves.
        target_name: What is predicted.
        target_index: Which target, if the estimator has several.
        training_row_numbers: What to call each training row, for example its number in a file; by default from 0.
        label_row: What to call a row in a sentence, such as its line in a file, by its place among the training rows
            and, after them, the held-out rows.
        history: Measurements by epoch, as :func:`~finitegp.train` returns them, if the model has none on record.
        title: Heading of the page.
        seed: Of all samples of rows.
        evaluation: Of these held-out rows by :func:`.evaluate`, if they have been predicted already.
        columns: Of the table that was encoded.
        other_scores: Scores on rows that were held out in another way, by how.

    Example:
        >>> from finitegp import FeatureGP
        >>> from finitegp.features import LinearFeatures
        >>> inputs = np.random.default_rng(0).normal(size=(80, 2))
        >>> targets = inputs[:, 0] + 0.1 * np.random.default_rng(1).normal(size=80)
        >>> fitted = FeatureGP(LinearFeatures(2), 0.01).condition((inputs[:60], targets[:60]))
        >>> contents = gather_contents(fitted, inputs[60:], targets[60:], column_names=["dose", "age"])
        >>> contents.importance.entries[0].name, contents.scores[0].rmse < 0.2
        ('dose', True)
    """
    reported = as_reported_model(model, target_index)
    names = _column_names(model, held_out_inputs, column_names)
    inputs, targets = _checked(held_out_inputs, held_out_targets, "held_out", names, target_index)
    names = names or [f"column {number}" for number in range(inputs.shape[1])]
    training: tuple[Array, Array] | None = None
    if (training_inputs is None) != (training_targets is None):
        raise ValueError("Give training_inputs and training_targets both, or neither.")
    if training_inputs is not None and training_targets is not None:
        training = _checked(training_inputs, training_targets, "training", names, target_index)
        if training[0].shape[1] != inputs.shape[1]:
            raise DataError(
                f"training_inputs have {training[0].shape[1]} columns, but held_out_inputs have {inputs.shape[1]}."
            )
    groups = _groups(names, column_groups)
    remarks: dict[str, str] = {}
    if evaluation is None:
        evaluation = evaluate(model, inputs, targets, training=training, target_index=target_index, seed=seed)
    elif len(evaluation.predicted.mean) != len(targets):
        raise DataError(
            f"evaluation is of {len(evaluation.predicted.mean)} rows, but there are {len(targets)} held-out rows."
        )
    predicted, scores = evaluation.predicted, evaluation.scores
    mean, noise = predicted.mean, predicted.noise_variance
    if training is None:
        lacking = "are no baselines" if reported.target_mean is None else "is no linear baseline"
        remarks["scores"] = f"{_NOT_GIVEN}, so there {lacking}."
    facts = measure_model(reported)
    importance = measure_importance(reported.predict_mean, inputs, targets, groups, seed=seed)
    leading = [entry.name for entry in importance.entries]
    shown_inputs = [
        (name, groups[name], [label_in(names[column], name) for column in groups[name]]) for name in leading
    ]
    standardized = predicted.normal_scores(targets)
    low, high = predicted.interval(0.9)
    panels = [
        residual_panel(name, inputs[:, groups[name]], [names[c] for c in groups[name]], standardized, seed=seed)
        for name in leading[:_RESIDUAL_PANELS]
    ]
    drawn = thin(len(targets), _MOST_POINTS, seed=seed)
    curves, settings = _curves(reported.record, history), reported.record.get("settings")
    if not curves:
        remarks["curves"] = "No measurements by epoch are on record for this fit."
    return ReportContents(
        title=title or f"Predicting {target_name}",
        target_name=target_name,
        facts=_facts(reported, facts, inputs, training, groups, evaluation.seconds),
        settings=dict(settings) if isinstance(settings, Mapping) else {},
        scores=scores,
        points=HeldOutPoints(targets[drawn], mean[drawn], low[drawn], high[drawn], len(targets)),
        by_level=residual_panel(f"predicted {target_name}", mean[:, None], [target_name], standardized, seed=seed),
        calibration=measure_calibration(predicted, targets),
        curves=curves,
        outliers=_outliers(
            reported,
            ExpectedRows(inputs, targets, predicted, np.arange(len(targets))),
            training,
            shown_inputs[:3],
            training_row_numbers,
            remarks,
            seed,
        ),
        residual_panels=panels,
        importance=importance,
        checkup=examine(
            Patient(
                column_names=names,
                groups=groups,
                held_out=(inputs, targets),
                predicted=predicted,
                noise_variance=None if noise is None else noise / reported.target_scale**2,
                scores=scores,
                training=training,
                model=facts,
                record=reported.record,
                residual_panels=panels,
                importance=importance,
                scale_is_chosen=reported.units is not None,
                label_row=label_row or _row_labels(0 if training is None else len(training[0]), training_row_numbers),
            ),
            seed=seed,
        ),
        remarks=remarks,
        columns=list(columns),
        other_scores={how: list(scores) for how, scores in (other_scores or {}).items()},
    )


def _row_labels(training_rows: int, numbers: Sequence[int] | None) -> Callable[[int], str]:
    def label(place: int) -> str:
        if place >= training_rows:
            return f"held-out row {place - training_rows}"
        return f"training row {place if numbers is None else numbers[place]}"

    return label


class EncodedColumns(TypedDict):
    """Arguments of :func:`gather_contents`."""

    column_names: list[str]
    column_groups: dict[str, list[str]]


def encoded_columns(encoder: TableEncoder) -> EncodedColumns:
    """The arguments ``column_names`` and ``column_groups`` of :func:`gather_contents` for what an encoder makes.

    Example:
        >>> from finitegp.tables.encoder import TableEncoder
        >>> table = {"size": [1.0, 2.0, 3.5], "color": ["red", "blue", "red"]}
        >>> encoded_columns(TableEncoder.fit(table))["column_groups"]
        {'size': ['size'], 'color': ['color=red', 'color=blue']}
    """
    groups = {line.column: list(line.outputs) for line in encoder.summary() if line.outputs}
    return {"column_names": encoder.feature_names_out, "column_groups": groups}


def _column_names(model: object, inputs: ArrayLike, given: Sequence[str] | None) -> list[str] | None:
    if given is None:
        given = getattr(model, "feature_names_in_", None)
    if given is None:
        given = getattr(inputs, "columns", None)
    return None if given is None else [str(name) for name in given]


def _checked(
    inputs: ArrayLike, targets: ArrayLike, what: str, names: list[str] | None, target_index: int
) -> tuple[Array, Array]:
    source = ArraySource(inputs, targets)
    if source.num_data == 0:
        raise DataError(f"There are no {what} rows: give at least one.")
    rows = source.rows(0, source.num_data)
    values, observed = rows.inputs.double().cpu().numpy(), rows.observed.double().cpu().numpy()
    if names is not None and len(names) != values.shape[1]:
        raise DataError(f"column_names are {len(names)}, but {what}_inputs have {values.shape[1]} columns.")
    if names is not None and len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"column_names has {twice!r} twice: the report tells columns apart by their names.")
    if not 0 <= target_index < observed.shape[1]:
        raise DataError(f"target_index is {target_index}, but {what}_targets have {observed.shape[1]} columns.")
    return values, observed[:, target_index]


def _groups(names: list[str], given: Mapping[str, Sequence[str]] | None) -> dict[str, list[int]]:
    """The columns of each input, in the order of the columns."""
    where = {name: number for number, name in enumerate(names)}
    owner: dict[str, str] = {}
    for group, members in (given or {}).items():
        for member in members:
            if member not in where:
                raise DataError(f"column_groups names the column {member!r} in {group!r}, but there is no such column.")
            if member in owner:
                raise DataError(f"column_groups has the column {member!r} in both {owner[member]!r} and {group!r}.")
            owner[member] = group
    groups: dict[str, list[int]] = {}
    for name, number in where.items():
        groups.setdefault(owner.get(name, name), []).append(number)
    return groups


def _outliers(
    reported: ReportedModel,
    held_out: ExpectedRows,
    training: tuple[Array, Array] | None,
    shown_inputs: list[tuple[str, list[int], list[str]]],
    row_numbers: Sequence[int] | None,
    remarks: dict[str, str],
    seed: int,
) -> Outliers:
    """Outliers of the training rows, each left out, where that is possible; otherwise of the held-out rows."""
    source, judged, rows_of = "held-out", held_out, len(held_out.targets)
    distribution = "a normal distribution" if reported.gp is None else reported.gp.distribution
    if training is None:
        remarks["outliers"] = f"{_NOT_GIVEN}: these are the least expected held-out rows instead."
    elif reported.fitted is None:
        remarks["outliers"] = (
            "This model does not show its posterior: these are the least expected held-out rows instead."
        )
    else:
        inputs, targets = training
        if row_numbers is not None and len(row_numbers) != len(inputs):
            raise DataError(f"training_row_numbers are {len(row_numbers)}, but there are {len(inputs)} training rows.")
        kept = thin(len(inputs), _MOST_LEFT_OUT, seed=seed)
        numbers = kept if row_numbers is None else np.asarray(row_numbers, dtype=np.int64)[kept]
        try:
            left_out = reported.leave_one_out(inputs[kept], targets[kept])
            judged = ExpectedRows(inputs[kept], targets[kept], left_out, numbers)
            source, rows_of = "leave-one-out", len(inputs)
        except NumericalError as error:
            remarks["outliers"] = f"Leave-one-out is not possible ({error}). These are held-out rows instead."
    return find_outliers(source, judged, shown_inputs, rows_of=rows_of, distribution=distribution)


_CURVE_NAMES = {
    "nlml": "exact NLML per row",
    "validation_nlpd": "validation NLPD",
    "validation_rmse": "validation RMSE",
    "noise_variance": "noise variance",
    "loss": "loss of the last batch",
}


def _curves(record: Mapping[str, object], history: Sequence[Mapping[str, object]] | None) -> list[Curve]:
    """Measurements by epoch: of one run, or of several that stand in the record by name."""
    stored: Any = history if history is not None else record.get("history")
    if not stored:
        return []
    runs = stored if isinstance(stored, Mapping) else {"training": stored}
    curves = []
    for key, panel in _CURVE_NAMES.items():
        for name, rows in runs.items():
            pairs = [
                (float(row["epoch"]), float(row[key]))
                for row in rows
                if isinstance(row.get(key), int | float) and math.isfinite(row[key])
            ]
            if len(pairs) >= 2:
                epochs, values = zip(*pairs, strict=True)
                curves.append(Curve(panel, str(name), list(epochs), list(values)))
    # The loss of single batches means little where something better was measured.
    if any(curve.panel != _CURVE_NAMES["loss"] for curve in curves):
        curves = [curve for curve in curves if curve.panel != _CURVE_NAMES["loss"]]
    return curves


def _facts(
    reported: ReportedModel,
    facts: ModelFacts | None,
    inputs: Array,
    training: tuple[Array, Array] | None,
    groups: Mapping[str, list[int]],
    predict_seconds: float,
) -> dict[str, str]:
    record = reported.record
    out: dict[str, str] = {"Made with": reported.kind}
    rows = facts.rows if facts is not None else len(training[0]) if training is not None else record.get("rows")
    if rows is not None:
        out["Training rows"] = shown(int(rows))
    out["Held-out rows"] = shown(len(inputs))
    columns = inputs.shape[1]
    out["Inputs"] = shown(columns) if len(groups) == columns else f"{len(groups)} ({columns} columns once encoded)"
    if "effort" in record:
        out["Effort"] = str(record["effort"])
    paths = {"networks": "networks trained with Lagged", "kernel": "exact kernels, stacked"}
    if "feature_map" in record and "algorithm" in record:
        out["Features from"] = f"{record['feature_map']}, trained with {record['algorithm']}"
    elif "path" in record:
        why = f" ({record['why']})" if record.get("why") else ""
        out["Features from"] = f"{paths.get(record['path'], record['path'])}{why}"
    elif reported.fitted is not None:
        out["Features from"] = type(reported.fitted.model.feature_map).__name__
    if facts is not None and reported.gp is not None:
        out["Features"] = f"{shown(facts.num_features)} (the data determine {shown(facts.effective_dimension)})"
        out["Noise model"] = type(reported.gp.fitted.model.noise).__name__
        out["Predictive distribution"] = reported.gp.distribution
        out["NLML per training row"] = f"{shown(facts.nlml)} nats" if facts.nlml is not None else "cannot be trusted"
        out["Condition number"] = f"{facts.condition_number:.1e}"
    for key, label in (("out_of_fold_rmse", "Out-of-fold RMSE"), ("seconds", "Training time")):
        value = record.get(key)
        if isinstance(value, int | float):
            scaled = value * reported.target_scale if key == "out_of_fold_rmse" else value
            out[label] = f"{shown(float(scaled))} s" if key == "seconds" else shown(float(scaled))
    if record.get("stop_reason"):
        out["Stopped"] = str(record["stop_reason"])
    if "seed" in record:
        out["Seed"] = str(record["seed"])
    out["Time to predict"] = f"{shown(1e6 * predict_seconds / len(inputs))} µs per row"
    out["Versions"] = (
        f"finitegp {__version__}, torch {torch.__version__}, NumPy {np.__version__}, Python {platform.python_version()}"
    )
    return out
