"""The doctor: runs every check that can be run, and lists what passed and what could not be looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ..metrics import Scores
from . import fit_checks, prediction_checks
from .contents import SEVERITIES, Checkup, Finding, ImportanceTable, ResidualPanel
from .evaluation import ModelFacts, Predicted, thin

Array = npt.NDArray[np.float64]
T = TypeVar("T")
_MOST_ROWS = 5000
_FEWEST_SCORED = 10
_NO_TRAINING_ROWS = "needs the training rows, which were not given"


@dataclass(frozen=True, eq=False)
class Patient:
    """The rows, predictions and model that checks look at.

    Attributes:
        column_names: Names of the columns.
        groups: The columns of each input.
        held_out: Inputs and targets.
        predicted: For them.
        noise_variance: Predicted for them, of the target as the model sees it, or None.
        scores: The model's first, then the baselines'.
        training: Inputs and targets of the training rows, or None.
        model: Facts from the posterior's matrices, or None.
        record: Of the fit.
        residual_panels: Residuals by input.
        importance: Of the inputs.
        scale_is_chosen: Whether left-out rows have settled on which scale the target is modelled.
        label_row: What to call a row, by its place among the training rows and, after them, the held-out rows.
    """

    column_names: Sequence[str]
    groups: Mapping[str, list[int]]
    held_out: tuple[Array, Array]
    predicted: Predicted
    noise_variance: Array | None
    scores: Sequence[Scores]
    training: tuple[Array, Array] | None
    model: ModelFacts | None
    record: Mapping[str, object]
    residual_panels: Sequence[ResidualPanel]
    importance: ImportanceTable
    scale_is_chosen: bool
    label_row: Callable[[int], str]


class _NotPossible(Exception):  # noqa: N818  not an error: the reason is shown
    """Why a check cannot be made."""


def examine(patient: Patient, *, seed: int = 0) -> Checkup:
    """Run every check; rows of large tables are sampled by the seed."""
    findings: list[Finding] = []
    passed: list[str] = []
    skipped: dict[str, str] = {}
    for name, check in _checks(patient, seed).items():
        try:
            finding = check()
        except _NotPossible as reason:
            skipped[name] = str(reason)
            continue
        if finding is None:
            passed.append(name)
        else:
            findings.append(finding)
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return Checkup(findings, passed, skipped)


def _checks(patient: Patient, seed: int) -> dict[str, Callable[[], Finding | None]]:
    names, groups, scores, predicted = patient.column_names, patient.groups, patient.scores, patient.predicted
    held_out_inputs, held_out_targets = patient.held_out
    residuals, standardized = held_out_targets - predicted.mean, predicted.normal_scores(held_out_targets)
    rows = patient.held_out if patient.training is None else patient.training
    kept = thin(len(rows[0]), _MOST_ROWS, seed=seed)
    inputs, targets = rows[0][kept], rows[1][kept]
    atom = float(np.unique(held_out_targets, return_counts=True)[1].max()) / len(held_out_targets)

    def enough_scores() -> Sequence[Scores]:
        few = len(residuals) < _FEWEST_SCORED
        return _possible(None if few else scores, f"fewer than {_FEWEST_SCORED} held-out rows show no difference")

    def training() -> tuple[Array, Array]:
        return _possible(patient.training, _NO_TRAINING_ROWS)

    def model() -> ModelFacts:
        return _possible(patient.model, "this estimator does not show its posterior")

    def check_skewed_target() -> Finding | None:
        unscaled = None if patient.scale_is_chosen else targets
        return fit_checks.check_skewed_target(
            _possible(unscaled, "the scale of the target was chosen by left-out rows")
        )

    def check_distributions() -> Finding | None:
        continuous = None if atom >= fit_checks.COMMON else standardized
        return prediction_checks.check_distributions(
            _possible(continuous, "one target value is so common that no density describes it")
        )

    def check_overfit() -> Finding | None:
        if patient.training is not None and check_unknown_ground() is not None:
            raise _NotPossible("held-out rows lie outside of the trained range: no model is as sure there")
        nlml = _possible(model().nlml, "the noise is so small that the marginal likelihood cannot be trusted")
        return prediction_checks.check_overfit(nlml, enough_scores()[0])

    def check_unknown_ground() -> Finding | None:
        return prediction_checks.check_unknown_ground(training()[0], held_out_inputs, names)

    def check_dead_features() -> Finding | None:
        if patient.record.get("path") == "kernel":
            raise _NotPossible("kernels have no features that can die")
        return fit_checks.check_dead_features(model().dead_features, model().num_features)

    return {
        "few rows": lambda: fit_checks.check_few_rows(
            model().rows if patient.training is None else len(rows[0]), inputs.shape[1], len(residuals)
        ),
        "constant columns": lambda: fit_checks.check_constant_columns(rows[0], groups),
        "duplicate columns": lambda: fit_checks.check_duplicate_columns(inputs, groups),
        "repeated target values": lambda: fit_checks.check_repeated_targets(targets),
        "wild targets": lambda: fit_checks.check_wild_targets(
            np.concatenate([*([] if patient.training is None else [rows[1]]), held_out_targets]), patient.label_row
        ),
        "skewed target": check_skewed_target,
        "leakage: one telling column": lambda: fit_checks.check_telling_columns(inputs, targets, names),
        "leakage: held-out error near zero": lambda: prediction_checks.check_perfect_predictions(scores[0].r_squared),
        "leakage: shared rows": lambda: fit_checks.check_shared_rows(*training(), *patient.held_out),
        "held-out rows outside of the trained range": check_unknown_ground,
        "baselines": lambda: prediction_checks.check_baselines(
            _possible(enough_scores() if len(scores) > 1 else None, _NO_TRAINING_ROWS)
        ),
        "overfit gap": check_overfit,
        "coverage of intervals": lambda: prediction_checks.check_coverage(scores[0].coverage, len(residuals), atom),
        "shape of predicted distributions": check_distributions,
        "coverage by size of the prediction": lambda: prediction_checks.check_segments(standardized, predicted.mean),
        "share that is explained": lambda: prediction_checks.check_explained(enough_scores()[0].r_squared),
        "harmful inputs": lambda: prediction_checks.check_harmful_inputs(patient.importance),
        "heavy tails": lambda: prediction_checks.check_heavy_tails(standardized),
        "bias": lambda: prediction_checks.check_bias(residuals),
        "residuals by input": lambda: prediction_checks.check_structured_residuals(patient.residual_panels),
        "dead features": check_dead_features,
        "collapsed features": lambda: fit_checks.check_collapsed_features(
            model().effective_dimension, model().num_features
        ),
        "noise at its bound": lambda: fit_checks.check_noise_bound(
            *_noise(model(), patient.noise_variance), scores[0].r_squared
        ),
        "conditioning": lambda: fit_checks.check_conditioning(model().condition_number, model().jitter),
    }


def _possible(value: T | None, reason: str) -> T:
    """A value that a check needs; without it the check is not made, for this reason."""
    if value is None:
        raise _NotPossible(reason)
    return value


def _noise(model: ModelFacts, variances: Array | None) -> tuple[float, float]:
    """The mean noise variance as a share of the target's, and the share of rows at the bound of a noise network."""
    if variances is None:
        return model.noise_variance / model.target_mean_square, 0.0
    smallest, largest = float(variances.min()), float(variances.max())
    # Rows at the bound of the noise network share the smallest value; with constant noise all rows do.
    at_bound = float((variances <= 1.01 * smallest).mean()) if largest / smallest > 1e4 else 0.0
    return float(variances.mean()) / model.target_mean_square, at_bound
