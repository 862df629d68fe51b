"""The doctor: runs every check that can be run, and lists what passed and what could not be looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..metrics import Scores
from . import data_checks, model_checks, prediction_checks
from .contents import SEVERITIES, Checkup, Finding, ImportanceTable, ResidualPanel
from .reported_model import ModelFacts, Predicted

Array = npt.NDArray[np.float64]
_MOST_ROWS = 5000


@dataclass(frozen=True, eq=False)
class Patient:
    """All that checks look at.

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
        importance: Of the inputs, or None.
        scale_is_chosen: Whether left-out rows have settled on which scale the target is modelled.
    """

    column_names: Sequence[str]
    groups: Mapping[str, list[int]]
    held_out: tuple[Array, Array]
    predicted: Predicted
    noise_variance: Array | None
    scores: Sequence[Scores]
    training: tuple[Array, Array] | None
    model: ModelFacts | None
    record: dict[str, Any]
    residual_panels: Sequence[ResidualPanel] = ()
    importance: ImportanceTable | None = None
    scale_is_chosen: bool = False


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
    names, groups, scores = patient.column_names, patient.groups, patient.scores
    residuals = patient.held_out[1] - patient.predicted.mean
    standardized = patient.predicted.normal_scores(patient.held_out[1])
    inputs, targets = _sample(patient, seed)
    columns = inputs.shape[1]
    return {
        "few rows": lambda: data_checks.check_few_rows(_count_rows(patient), columns, len(residuals)),
        "constant columns": lambda: data_checks.check_constant_columns(_rows(patient)[0], groups),
        "duplicate columns": lambda: data_checks.check_duplicate_columns(inputs, groups),
        "repeated target values": lambda: data_checks.check_repeated_targets(targets),
        "skewed target": lambda: data_checks.check_skewed_target(_without_scale(patient, targets)),
        "leakage: one telling column": lambda: data_checks.check_telling_columns(inputs, targets, names),
        "leakage: held-out error near zero": lambda: prediction_checks.check_perfect_predictions(scores[0].r_squared),
        "leakage: shared rows": lambda: data_checks.check_shared_rows(*_training(patient), *patient.held_out),
        "held-out rows outside of the trained range": lambda: prediction_checks.check_unknown_ground(
            _training(patient)[0], patient.held_out[0], names
        ),
        "baselines": lambda: prediction_checks.check_baselines(_with_baselines(scores)),
        "overfit gap": lambda: prediction_checks.check_overfit(_nlml(patient), scores[0]),
        "coverage of intervals": lambda: prediction_checks.check_coverage(
            scores[0].coverage, len(residuals), _atom(patient)
        ),
        "shape of predicted distributions": lambda: prediction_checks.check_distributions(
            _with_density(patient, standardized)
        ),
        "coverage by size of the prediction": lambda: prediction_checks.check_segments(
            standardized, patient.predicted.mean
        ),
        "share that is explained": lambda: prediction_checks.check_explained(scores[0].r_squared),
        "harmful inputs": lambda: prediction_checks.check_harmful_inputs(_importance(patient)),
        "heavy tails": lambda: prediction_checks.check_heavy_tails(standardized),
        "bias": lambda: prediction_checks.check_bias(residuals),
        "residuals by input": lambda: prediction_checks.check_structured_residuals(patient.residual_panels),
        "dead features": lambda: model_checks.check_dead_features(
            _network(patient).dead_features, _model(patient).num_features
        ),
        "collapsed features": lambda: model_checks.check_collapsed_features(
            _model(patient).effective_dimension, _model(patient).num_features
        ),
        "noise at its bound": lambda: model_checks.check_noise_bound(*_noise(patient), scores[0].r_squared),
        "conditioning": lambda: model_checks.check_conditioning(
            _model(patient).condition_number, _model(patient).jitter
        ),
    }


def _rows(patient: Patient) -> tuple[Array, Array]:
    """Training rows where there are any, held-out rows otherwise."""
    return patient.held_out if patient.training is None else patient.training


def _sample(patient: Patient, seed: int) -> tuple[Array, Array]:
    """Of these rows, at most a few thousand."""
    inputs, targets = _rows(patient)
    kept = np.sort(np.random.default_rng(seed).permutation(len(inputs))[:_MOST_ROWS])
    return inputs[kept], targets[kept]


def _training(patient: Patient) -> tuple[Array, Array]:
    if patient.training is None:
        raise _NotPossible("needs the training rows, which were not given")
    return patient.training


def _count_rows(patient: Patient) -> int:
    return _model(patient).rows if patient.training is None else len(patient.training[0])


def _model(patient: Patient) -> ModelFacts:
    if patient.model is None:
        raise _NotPossible("this estimator does not show its posterior")
    return patient.model


def _network(patient: Patient) -> ModelFacts:
    if patient.record.get("path") == "kernel":
        raise _NotPossible("kernels have no features that can die")
    return _model(patient)


def _without_scale(patient: Patient, targets: Array) -> Array:
    if patient.scale_is_chosen:
        raise _NotPossible("the scale of the target was chosen by left-out rows")
    return targets


def _atom(patient: Patient) -> float:
    """The share of the most common held-out target."""
    targets = patient.held_out[1]
    return float(np.unique(targets, return_counts=True)[1].max()) / len(targets)


def _with_density(patient: Patient, standardized: Array) -> Array:
    if _atom(patient) >= data_checks.COMMON:
        raise _NotPossible("one target value is so common that no density describes it")
    return standardized


def _importance(patient: Patient) -> ImportanceTable:
    if patient.importance is None:
        raise _NotPossible("the importance of inputs was not measured")
    return patient.importance


def _nlml(patient: Patient) -> float:
    if patient.training is not None and prediction_checks.check_unknown_ground(
        patient.training[0], patient.held_out[0], patient.column_names
    ):
        raise _NotPossible("held-out rows lie outside of the trained range: no model is as sure there")
    value = _model(patient).nlml
    if value is None:
        raise _NotPossible("the noise is so small that the marginal likelihood cannot be trusted")
    return value


def _noise(patient: Patient) -> tuple[float, float]:
    model = _model(patient)
    if patient.noise_variance is None:
        return model.noise_variance / model.target_mean_square, 0.0
    smallest = float(patient.noise_variance.min())
    # Rows at the bound of the noise network share the smallest value; with constant noise all rows do.
    at_bound = patient.noise_variance <= 1.01 * smallest
    spread = float(patient.noise_variance.max()) / smallest
    share = float(at_bound.mean()) if spread > 1e4 else 0.0
    return float(patient.noise_variance.mean()) / model.target_mean_square, share


def _with_baselines(scores: Sequence[Scores]) -> Sequence[Scores]:
    if len(scores) < 2:
        raise _NotPossible("needs the training rows, which were not given")
    return scores
