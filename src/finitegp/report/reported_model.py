"""The model that a report is about: a fitted GP, the outcome of ``fit_auto`` or an estimator, with one interface."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ..data import ArraySource
from ..error_shape import GAUSSIAN, ErrorShape
from ..errors import NumericalError
from ..likelihood import negative_log_marginal_likelihood
from ..linalg import symmetric_eigen
from ..model import FittedGP

Array = npt.NDArray[np.float64]


class Predicted(NamedTuple):
    """Mean, standard deviation and, where it is known, noise variance of new observations, in the target's units."""

    mean: Array
    std: Array
    noise_variance: Array | None = None


@dataclass(frozen=True, eq=False)
class ReportedModel:
    """A model under report.

    Attributes:
        predict: From ``(rows, columns)`` to what is predicted.
        fitted: The exact posterior behind it, if there is one for this target.
        scale_inputs: From the table's inputs to those of ``fitted``.
        target_mean: Of the training rows; None if the model's prior mean is zero.
        target_scale: What the target was divided by; the standard deviation of the training rows if there is a mean.
        record: Of the fit: what was chosen, and why.
        kind: What it is, for the reader.
        error_shape: Of its predictive distributions.
    """

    predict: Callable[[Array], Predicted]
    fitted: FittedGP | None
    scale_inputs: Callable[[Array], Array]
    target_mean: float | None
    target_scale: float
    record: dict[str, Any] = field(default_factory=dict)
    kind: str = "FittedGP"
    error_shape: ErrorShape = GAUSSIAN

    def predict_mean(self, inputs: Array) -> Array:
        """Only the mean, without the cost of the variance where that can be had."""
        if self.fitted is None:
            return self.predict(inputs).mean
        weights = self.fitted.posterior.weight_mean
        parts = []
        with torch.no_grad():
            scaled = self.scale_inputs(inputs)
            for rows in ArraySource(scaled, chunk_size=self.fitted.chunk_size):
                features, _ = self.fitted.model.checked_forward(rows)
                parts.append((features.to(weights) @ weights)[:, 0])
        mean: Array = torch.cat(parts).cpu().numpy() * self.target_scale + (self.target_mean or 0.0)
        return mean

    def leave_one_out(self, inputs: Array, targets: Array) -> tuple[Array, Array]:
        """Mean and standard deviation for training rows, each from the posterior without it.

        Raises:
            NumericalError: If a row is not among the training rows, or a leverage rounds to one.
        """
        assert self.fitted is not None
        center = self.target_mean or 0.0
        left_out = self.fitted.leave_one_out((self.scale_inputs(inputs), (targets - center) / self.target_scale))
        return (
            left_out.mean.cpu().numpy() * self.target_scale + center,
            left_out.std.cpu().numpy() * self.target_scale,
        )


def as_reported_model(model: Any, target_index: int = 0) -> ReportedModel:
    """See a :class:`~finitegp.FittedGP`, an ``AutoFit`` or an estimator as a :class:`ReportedModel`.

    An estimator has ``predict(inputs, return_std=True)`` and, where its predictions come from ``fit_auto``, a list
    ``fits_`` with one outcome per target.
    """
    if isinstance(model, FittedGP):
        return ReportedModel(_plain_prediction(model), model, lambda rows: rows, None, 1.0)
    if _is_automatic(model):
        return _automatic(model, "fit_auto")
    if hasattr(model, "predict") and (hasattr(model, "fits_") or hasattr(model, "n_features_in_")):
        fits = getattr(model, "fits_", None)
        kind = type(model).__name__
        summary = getattr(model, "training_summary_", None)
        extra = dict(summary) if isinstance(summary, dict) else {}
        if isinstance(fits, list | tuple) and len(fits) > target_index and _is_automatic(fits[target_index]):
            chosen = fits[target_index]  # asked directly: an estimator would miss the names of the columns
            return _automatic(chosen, kind, extra)
        return ReportedModel(
            _estimator_prediction(model, target_index), None, lambda rows: rows, None, 1.0, extra, kind
        )
    raise TypeError(
        "model must be a FittedGP, the outcome of fit_auto, or a fitted estimator with predict(X, return_std=True), "
        f"but is a {type(model).__name__}."
    )


def _is_automatic(model: Any) -> bool:
    names = ("fitted", "inputs_scaler", "target_scaler", "record")
    return all(hasattr(model, name) for name in names) and isinstance(model.fitted, FittedGP)


def _automatic(model: Any, kind: str, extra: dict[str, Any] | None = None) -> ReportedModel:
    mean, scale = (float(np.ravel(part)[0]) for part in (model.target_scaler.mean, model.target_scaler.scale))
    # More than one target shares a posterior only if the estimator says so; the report then does without it.
    fitted = model.fitted if model.fitted.posterior.statistics.num_targets == 1 else None
    record = (extra or {}) | model.record
    return ReportedModel(
        _plain_prediction(model),
        fitted,
        model.inputs_scaler.transform,
        mean or None,
        scale,
        record,
        kind,
        model.error_shape,
    )


def _plain_prediction(model: Any) -> Callable[[Array], Predicted]:
    def predict(inputs: Array) -> Predicted:
        found = model.predict(inputs)
        return Predicted(*(part.cpu().numpy() for part in (found.mean, found.std, found.noise_variance)))

    return predict


def _estimator_prediction(model: Any, target_index: int) -> Callable[[Array], Predicted]:
    def predict(inputs: Array) -> Predicted:
        mean, std = (np.asarray(part, dtype=np.float64) for part in model.predict(inputs, return_std=True))
        return Predicted(_column(mean, target_index), _column(std, target_index))

    return predict


def _column(values: Array, index: int) -> Array:
    """One target's column; the standard deviation may be the same for all targets."""
    return values if values.ndim == 1 else values[:, min(index, values.shape[1] - 1)]


@dataclass(frozen=True)
class ModelFacts:
    """Facts about the model from the posterior's matrices.

    Attributes:
        num_features: The number of features ``d``.
        dead_features: Those that are zero, or as good as, on every training row.
        effective_dimension: ``tr(Z'Z F^-1)``: how many directions the data determine.
        condition_number: Of ``F = Z'Z + s I``.
        jitter: What had to be added to ``F`` to factorise it.
        noise_variance: The common factor ``s`` of the noise, of the target as the model sees it.
        target_mean_square: Of the target as the model sees it.
        rows: Training rows.
        nlml: The negative log marginal likelihood per row in the target's own units; None if it cannot be trusted.
    """

    num_features: int
    dead_features: int
    effective_dimension: float
    condition_number: float
    jitter: float
    noise_variance: float
    target_mean_square: float
    rows: int
    nlml: float | None


def measure_model(model: ReportedModel) -> ModelFacts | None:
    """One eigendecomposition of the Gram matrix; None if there is no posterior to look at."""
    if model.fitted is None:
        return None
    posterior = model.fitted.posterior
    statistics, noise = posterior.statistics, posterior.noise_variance
    eigenvalues = symmetric_eigen(statistics.gram)[0].clamp_min(0.0)
    diagonal = statistics.gram.diagonal()
    try:
        value = negative_log_marginal_likelihood(statistics, noise).nlml + math.log(model.target_scale)
    except NumericalError:
        value = None
    return ModelFacts(
        num_features=statistics.num_features,
        dead_features=int((diagonal <= 1e-12 * diagonal.max()).sum()),
        effective_dimension=float((eigenvalues / (eigenvalues + noise)).sum()),
        condition_number=float((eigenvalues[-1] + noise) / (eigenvalues[0] + noise)),
        jitter=posterior.factor.jitter,
        noise_variance=noise,
        target_mean_square=float(statistics.target_sum_of_squares.sum() / statistics.num_data),
        rows=round(statistics.num_data),
        nlml=value,
    )
