"""The model that a report is about, seen through one interface, and its scores beside the baselines it has to beat."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..component import Component
from ..data.scaling import Standardizer
from ..errors import NumericalError
from ..linalg import symmetric_eigenvalues
from ..metrics import Scores, score
from ..model import FittedGP
from ..predictive import Prediction, StudentMixture
from ..processes import one_thread
from ..scaled import ScaledGP

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

Array = npt.NDArray[np.float64]
# Normal scores of targets that a model holds impossible.
_FARTHEST = 38.0
_MOST_LINEAR_ROWS = 50_000


def thin(rows: int, most: int, *, seed: int) -> npt.NDArray[np.int64]:
    """At most ``most`` row numbers, in order, the same for the same seed.

    Example:
        >>> thin(3, 10, seed=0).tolist(), len(thin(1000, 10, seed=0))
        ([0, 1, 2], 10)
    """
    return np.sort(np.random.default_rng(seed).permutation(rows)[:most])


class TargetUnits(Protocol):
    """A rising function of the target that was modelled instead of it, such as its logarithm."""

    def forward(self, targets: Array) -> Array:
        """Targets on the scale of the model."""

    def inverse(self, values: Array) -> Array:
        """Targets."""


class Predicted(NamedTuple):
    """Mean, standard deviation and, where they are known, noise variance and distribution of new observations.

    Where a function of the target was modelled, ``modelled`` is what was predicted for it, and that function.
    """

    mean: Array
    std: Array
    noise_variance: Array | None = None
    mixture: StudentMixture | None = None
    modelled: tuple[Predicted, TargetUnits] | None = None

    def normal_scores(self, targets: Array) -> Array:
        """Errors on the scale of a standard normal; see :meth:`~finitegp.Prediction.normal_scores`."""
        if self.modelled is not None:
            inner, units = self.modelled
            # A target that the model holds impossible is as far out as can be.
            return np.nan_to_num(inner.normal_scores(units.forward(targets)), nan=-_FARTHEST, neginf=-_FARTHEST)
        return (targets - self.mean) / self.std if self.mixture is None else self.mixture.normal_scores(targets)

    def interval(self, coverage: float) -> tuple[Array, Array]:
        """Lower and upper end of the central interval."""
        if self.modelled is not None:
            inner, units = self.modelled
            lower, upper = inner.interval(coverage)
            return units.inverse(lower), units.inverse(upper)
        if self.mixture is not None:
            return self.mixture.quantile(0.5 - 0.5 * coverage), self.mixture.quantile(0.5 + 0.5 * coverage)
        deviations = NormalDist().inv_cdf(0.5 + 0.5 * coverage)
        return self.mean - deviations * self.std, self.mean + deviations * self.std

    def in_units(self, units: TargetUnits) -> Predicted:
        """The same on the scale of the target: its median, and half the width of its 68 % interval."""
        lower, upper = (units.inverse(end) for end in self.interval(0.6827))
        return Predicted(units.inverse(self.interval(1e-9)[0]), 0.5 * (upper - lower), modelled=(self, units))

    @classmethod
    def of(cls, prediction: Prediction) -> Predicted:
        """A prediction as arrays."""
        mean, std, noise = (part.cpu().numpy() for part in (prediction.mean, prediction.std, prediction.noise_variance))
        return cls(mean, std, noise, prediction.mixture)


@dataclass(frozen=True, eq=False)
class ReportedModel:
    """A model under report.

    Attributes:
        predict: From ``(rows, columns)`` to what is predicted.
        gp: The exact posterior behind it in the target's units, if there is one for this target.
        target_mean: Of the training rows; None if the model's prior mean is zero.
        target_scale: What the target was divided by; the standard deviation of the training rows if there is a mean.
        record: Of the fit: what was chosen, and why.
        kind: What it is, for the reader.
        units: Of the target, where ``gp`` models a function of it.
        log_derivative: Of this function, the mean over training rows, which densities differ by; None if not known.
    """

    predict: Callable[[Array], Predicted]
    gp: ScaledGP | None
    target_mean: float | None
    target_scale: float
    record: dict[str, Any] = field(default_factory=dict)
    kind: str = "FittedGP"
    units: TargetUnits | None = None
    log_derivative: float | None = 0.0

    @property
    def fitted(self) -> FittedGP | None:
        """The GP of features, or the one of several that weighs most."""
        return None if self.gp is None else self.gp.fitted

    def predict_mean(self, inputs: Array) -> Array:
        """Only the mean, without the cost of the variance where that can be had."""
        if self.gp is None:
            return self.predict(inputs).mean
        mean = np.asarray(self.gp.predict_mean(inputs).cpu().numpy())
        return mean if self.units is None else self.units.inverse(mean)

    def leave_one_out(self, inputs: Array, targets: Array) -> Predicted:
        """Predictions for training rows, each from the posterior without it.

        Raises:
            NumericalError: If a row is not among the training rows, or a leverage rounds to one.
        """
        assert self.gp is not None
        if self.units is None:
            return Predicted.of(self.gp.leave_one_out(inputs, targets))
        return Predicted.of(self.gp.leave_one_out(inputs, self.units.forward(targets))).in_units(self.units)


def as_reported_model(model: object, target_index: int = 0) -> ReportedModel:
    """See a :class:`~finitegp.FittedGP`, a :class:`~finitegp.ScaledGP` or an estimator as a :class:`ReportedModel`.

    An estimator has ``predict(inputs, return_std=True)`` and, where its predictions come from ``fit_auto``, a list
    ``fits_`` with one outcome per target.
    """
    if isinstance(model, ReportedModel):
        return model
    if isinstance(model, FittedGP):
        unscaled = Standardizer(np.zeros(()), np.ones(()))
        return _gp(ScaledGP((Component(model),), unscaled, unscaled), "FittedGP")
    if isinstance(model, ScaledGP):
        return _gp(model, "fit_auto")
    if hasattr(model, "predict") and (hasattr(model, "fits_") or hasattr(model, "n_features_in_")):
        fits = getattr(model, "fits_", None)
        kind = type(model).__name__
        summary = getattr(model, "training_summary_", None)
        extra = dict(summary) if isinstance(summary, dict) else {}
        if isinstance(fits, list | tuple) and len(fits) > target_index and isinstance(fits[target_index], ScaledGP):
            # Asked directly: an estimator would miss the names of the columns.
            return _gp(fits[target_index], kind, extra)
        return ReportedModel(_estimator_prediction(model, target_index), None, None, 1.0, extra, kind)
    raise TypeError(
        "model must be a FittedGP, the outcome of fit_auto, or a fitted estimator with predict(X, return_std=True), "
        f"but is a {type(model).__name__}."
    )


def _gp(model: ScaledGP, kind: str, extra: dict[str, Any] | None = None) -> ReportedModel:
    mean, scale = (float(np.ravel(part)[0]) for part in (model.target_scaler.mean, model.target_scaler.scale))
    # More than one target shares a posterior only if the estimator shares it; the report then does without it.
    gp = model if model.fitted.posterior.statistics.num_targets == 1 else None
    record = (extra or {}) | model.record
    return ReportedModel(lambda inputs: Predicted.of(model.predict(inputs)), gp, mean or None, scale, record, kind)


def _estimator_prediction(model: BaseEstimator, target_index: int) -> Callable[[Array], Predicted]:
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
    """From the eigenvalues of the Gram matrix; None if there is no posterior to look at."""
    if model.gp is None:
        return None
    posterior = model.gp.fitted.posterior
    statistics, noise = posterior.statistics, posterior.noise_variance
    with one_thread():
        eigenvalues = symmetric_eigenvalues(statistics.gram).clamp_min(0.0)
    diagonal = statistics.gram.diagonal()
    value = None
    if model.log_derivative is not None:
        with suppress(NumericalError):
            value = -model.gp.evidence() / model.gp.num_data - model.log_derivative
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


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Predictions of a model for held-out rows, and how good they are.

    Attributes:
        predicted: For each row.
        scores: The model's first, then the baselines'.
        seconds: To predict.
    """

    predicted: Predicted
    scores: list[Scores]
    seconds: float


class Baseline(NamedTuple):
    """Predictions of a baseline: means and standard deviations of Gaussians."""

    name: str
    mean: Array
    std: Array

    def score(self, targets: Array) -> Scores:
        """Its scores."""
        return score(self.mean, self.std, targets, name=self.name)


def baselines(training: tuple[Array, Array], inputs: Array, *, seed: int) -> list[Baseline]:
    """A Bayesian ridge regression, and the mean and spread of the training rows if these differ."""
    linear = Baseline("linear", *predict_linear(*training, inputs, seed=seed))
    return [linear, *_constant(len(inputs), float(training[1].mean()), float(training[1].std()))]


def _constant(rows: int, mean: float | None, std: float) -> list[Baseline]:
    known = mean is not None and std > 0.0
    return [Baseline("mean", np.full(rows, mean), np.full(rows, std))] if known else []


def evaluate(
    model: object,
    inputs: Array,
    targets: Array,
    *,
    training: tuple[Array, Array] | None = None,
    target_index: int = 0,
    seed: int = 0,
) -> Evaluation:
    """Predict held-out rows once, and score the predictions and those of the baselines.

    The baselines are a Bayesian ridge regression and the mean and spread of the training rows; without these, the
    latter where the model knows them.

    Args:
        model: As for :func:`.gather_contents`, which takes the result as ``evaluation``.
        inputs: ``(rows, columns)`` that the model was not trained on.
        targets: ``(rows,)``.
        training: Inputs and targets of the rows it was trained on, or of a sample of them.
        target_index: Which target, if the estimator has several.
        seed: Of the sample of training rows for the linear baseline.

    Example:
        >>> from finitegp import FeatureGP
        >>> from finitegp.features import LinearFeatures
        >>> inputs = np.random.default_rng(0).normal(size=(80, 2))
        >>> targets = inputs[:, 0] + 0.1 * np.random.default_rng(1).normal(size=80)
        >>> training = inputs[:60], targets[:60]
        >>> fitted = FeatureGP(LinearFeatures(2), 0.01).condition(training)
        >>> found = evaluate(fitted, inputs[60:], targets[60:], training=training)
        >>> [scores.name for scores in found.scores], found.scores[0].rmse < 0.2
        (['this model', 'linear', 'mean'], True)
    """
    reported = as_reported_model(model, target_index)
    started = time.perf_counter()
    predicted = reported.predict(inputs)
    seconds = time.perf_counter() - started
    scores = [score(predicted.mean, predicted.std, targets, mixture=predicted.mixture)]
    if training is not None:
        others = baselines(training, inputs, seed=seed)
    else:
        others = _constant(len(inputs), reported.target_mean, reported.target_scale)
    return Evaluation(predicted, scores + [each.score(targets) for each in others], seconds)


def predict_linear(inputs: Array, targets: Array, held_out_inputs: Array, *, seed: int) -> tuple[Array, Array]:
    """Mean and standard deviation of a Bayesian ridge regression, on at most 50,000 of the training rows.

    Of very many columns, on as many rows as a few seconds allow: its cost is ``rows * columns^2``.
    """
    from sklearn.linear_model import BayesianRidge
    from sklearn.preprocessing import StandardScaler

    columns = inputs.shape[1]
    most = min(_MOST_LINEAR_ROWS, max(5 * columns, int(2e10 / columns**2)))
    kept = thin(len(inputs), most, seed=seed)
    scaler = StandardScaler().fit(inputs[kept])
    # The target is standardised too: the priors of the ridge are made for numbers of order one.
    center, scale = float(targets[kept].mean()), float(targets[kept].std()) or 1.0
    model = BayesianRidge().fit(scaler.transform(inputs[kept]), (targets[kept] - center) / scale)
    mean, std = model.predict(scaler.transform(held_out_inputs), return_std=True)
    return mean * scale + center, np.maximum(std * scale, 1e-12 * scale)
