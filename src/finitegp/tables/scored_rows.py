"""Rows predicted in the target's own units, wider where a row holds something new; and the scores of predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from ..arguments import check_arguments
from ..errors import DataError, ModelFileError
from ..lite.tables import fill_unknown
from ..lite.target_scale import COVERAGES, NODE_WEIGHTS
from ..metrics import Scores, score_rows
from ..predictive import Prediction
from ..scaled import ScaledGP
from .encoder import TableEncoder
from .rows import TableLike, TableRows
from .targets import TargetScale

Array = npt.NDArray[np.float64]
SCORED_COVERAGES = (0.5, 0.9, 0.95)


def quantile_crps(lower: Array, upper: Array, targets: Array) -> Array:
    """The continuous ranked probability score of each row: twice the mean pinball loss over all quantiles."""
    levels, weights = 0.5 + 0.5 * np.array(COVERAGES), np.array(NODE_WEIGHTS)
    above, below = targets[:, None] - upper, targets[:, None] - lower
    losses = np.maximum(levels * above, (levels - 1.0) * above) + np.maximum((1.0 - levels) * below, -levels * below)
    result: Array = 2.0 * losses @ weights
    return result


class ScoredRows(NamedTuple):
    """Predictions for rows whose targets are known.

    Attributes:
        mean: ``(rows,)``.
        std: Standard deviations.
        log_density: Of the observed targets.
        lower: Ends of intervals at ``(*COVERAGES, *SCORED_COVERAGES)``, ``(rows, coverages)``.
        upper: The other ends.
        targets: What was observed.
    """

    mean: Array
    std: Array
    log_density: Array
    lower: Array
    upper: Array
    targets: Array

    @classmethod
    def joined(cls, parts: Sequence[ScoredRows]) -> ScoredRows:
        """The rows of several, such as those of folds, one after the other."""
        return cls(*(np.concatenate(each) for each in zip(*parts, strict=True)))

    @property
    def width(self) -> float:
        """The median width of the 90 % intervals."""
        place = len(COVERAGES) + SCORED_COVERAGES.index(0.9)
        return float(np.median(self.upper[:, place] - self.lower[:, place]))

    def scores(self, name: str = "this model") -> Scores:
        """The scores."""
        count = len(COVERAGES)
        inside = (self.lower <= self.targets[:, None]) & (self.targets[:, None] <= self.upper)
        return score_rows(
            name,
            self.mean,
            self.std,
            self.targets,
            density=self.log_density,
            crps=quantile_crps(self.lower[:, :count], self.upper[:, :count], self.targets),
            inside=dict(zip(SCORED_COVERAGES, inside[:, count:].T, strict=True)),
        )


class EncodedRows(NamedTuple):
    """Inputs of the fit, and for each column of the table whether a row holds there what no fit has seen."""

    inputs: Array
    unknown: npt.NDArray[np.bool_] | None = None


class JudgedRows(NamedTuple):
    """Rows in memory, what the encoder made of them, what is predicted on the scale of the model, and its scores."""

    rows: TableRows
    inputs: Array
    prediction: Prediction
    scored: ScoredRows
    seconds: float


@dataclass(frozen=True, eq=False)
class TablePredictor:
    """Predictive distributions of rows: :meth:`predict` gives them, and the others read them.

    A row with a category that the fit did not see, or with a gap where it had none, is predicted with values that it
    did see put in: mean and variance are those of the mixture, and the standard deviation is never below that of any of
    its parts. So the row is nowhere claimed to be better known than one of which everything is known.

    Attributes:
        fit: Predicts the scaled target.
        encoder: Made its inputs.
        scale: Of the target.
    """

    fit: ScaledGP
    encoder: TableEncoder
    scale: TargetScale

    def predict(self, rows: EncodedRows) -> Prediction:
        """The predictive distribution of each row, on the scale of the model."""
        if rows.unknown is None:
            return _on_cpu(self.fit.predict(rows.inputs))
        new = np.asarray(rows.unknown.any(axis=1))
        prediction = _on_cpu(self.fit.predict(rows.inputs, new=new))
        which = np.flatnonzero(new)
        filled = fill_unknown(rows.inputs[which], rows.unknown[which], list(self.encoder.representatives()))
        parts = [_on_cpu(self.fit.predict(each, new=np.ones(len(which), bool))) for each in filled]
        means, stds = np.stack([part.mean for part in parts]), np.stack([part.std for part in parts])
        mean, std = prediction.mean.numpy().copy(), prediction.std.numpy().copy()
        together = np.sqrt(np.mean(np.square(stds), axis=0) + np.var(means, axis=0))
        mean[which] = means.mean(axis=0)
        std[which] = np.maximum.reduce([together, *stds, std[which]])
        return _moved(prediction, mean, std)

    def outside(self, rows: EncodedRows) -> Array:
        """``(rows, columns)`` how far outside of the fit each used column is: see :meth:`.TableRegressor.outside`."""
        found = self.fit.outside(rows.inputs)
        if found is None:
            raise DataError("What lies outside is known after automatic fits only, those without a feature_map.")
        result = np.stack([found[:, place].max(axis=1) for place in self.encoder.places().values()], axis=1)
        return result if rows.unknown is None else np.where(rows.unknown, np.inf, result)

    def intervals(
        self, prediction: Prediction, coverages: Sequence[float], method: str = "predictive"
    ) -> tuple[Array, Array]:
        """Lower and upper ends of central intervals in the target's units, ``(rows, coverages)`` each."""
        try:
            lower, upper = self.fit.interval_of(prediction, coverages, method=method)
        except ValueError as error:
            raise DataError(str(error)) from None
        except (KeyError, TypeError, AttributeError) as error:
            raise ModelFileError(f"What the model counted on rows kept aside makes no sense: {error}.") from None
        return self.scale.inverse(lower.numpy()), self.scale.inverse(upper.numpy())

    def quantiles(self, prediction: Prediction, levels: Sequence[float]) -> Array:
        """Targets that new observations do not exceed with these probabilities, ``(rows, levels)``."""
        return self.scale.inverse(np.stack([prediction.quantile(level).numpy() for level in levels], axis=1))

    def sample(self, rows: EncodedRows, num_samples: int, *, seed: int) -> Array:
        """Joint draws of new observations in the target's units, ``(rows, draws)``."""
        new = None if rows.unknown is None else np.asarray(rows.unknown.any(axis=1))
        draws = self.fit.sample(rows.inputs, num_samples, seed=seed, new=new).numpy().T
        if rows.unknown is not None and new is not None:
            # The same draws around the mean and with the deviation that such rows are predicted with.
            few, only = rows.inputs[new], np.ones(int(new.sum()), bool)
            known, moved = self.fit.predict(few, new=only), self.predict(EncodedRows(few, rows.unknown[new]))
            factor = (moved.std / known.std.cpu()).numpy()[:, None]
            draws[new] = moved.mean.numpy()[:, None] + factor * (draws[new] - known.mean.cpu().numpy()[:, None])
        return self.scale.inverse(draws)

    def moments(self, prediction: Prediction) -> tuple[Array, Array]:
        """Mean and standard deviation of a new observation, in the target's units."""
        if self.scale.name == "identity":
            return self.scale.inverse(prediction.mean.numpy()), prediction.std.numpy()
        return self.scale.moments(*self.intervals(prediction, COVERAGES))

    def log_density(self, prediction: Prediction, targets: Array) -> Array:
        """The log density of observed targets, by their own unit; minus infinity where a target is impossible."""
        values = self.scale.forward(targets)
        possible = np.isfinite(values)
        standard = np.where(possible, values, prediction.mean.numpy())
        density = prediction.log_density(torch.from_numpy(standard)).numpy()
        density = density + self.scale.log_derivative(np.where(possible, targets, 1.0))
        return np.where(possible, density, -np.inf)

    def score(self, prediction: Prediction, targets: Array) -> ScoredRows:
        """Predictions, densities and intervals of rows whose targets are known, for scores."""
        lower, upper = self.intervals(prediction, (*COVERAGES, *SCORED_COVERAGES))
        own = slice(0, len(COVERAGES))
        identity = self.scale.name == "identity"
        mean, std = self.moments(prediction) if identity else self.scale.moments(lower[:, own], upper[:, own])
        return ScoredRows(mean, std, self.log_density(prediction, targets), lower, upper, targets)


def _on_cpu(prediction: Prediction) -> Prediction:
    mean, epistemic, noise = (
        each.detach().cpu() for each in (prediction.mean, prediction.epistemic_variance, prediction.noise_variance)
    )
    return Prediction(mean, epistemic, noise, mixture=prediction.mixture)


def _moved(prediction: Prediction, mean: Array, std: Array) -> Prediction:
    """The prediction with another mean and standard deviation for each row, and the same shape around them."""
    old, factor = prediction.mean.numpy(), std / prediction.std.numpy()
    mixture = prediction.mixture
    if mixture is not None:
        means = mean + (mixture.means - old) * factor
        mixture = replace(mixture, means=means, scales=mixture.scales * factor)
    square = torch.from_numpy(np.square(factor))
    return Prediction(
        mean=torch.from_numpy(mean),
        epistemic_variance=prediction.epistemic_variance * square,
        noise_variance=prediction.noise_variance * square,
        mixture=mixture,
    )


# Scorers for scikit-learn's cross_val_score and GridSearchCV: higher is better


@check_arguments
def nlpd_scorer(model: BaseEstimator, X: TableLike, y: ArrayLike) -> float:
    """The mean log predictive density, minus the NLPD, of a fitted `TableRegressor` or `GPRegressor`.

    Example:
        >>> from sklearn.model_selection import cross_val_score
        >>> from finitegp import GPRegressor
        >>> X = np.random.default_rng(0).normal(size=(40, 1))
        >>> y = X[:, 0] + 0.1 * np.random.default_rng(1).normal(size=40)
        >>> scores = cross_val_score(GPRegressor(effort="low", random_state=0), X, y, scoring=nlpd_scorer, cv=2)
        >>> scores.shape
        (2,)
    """
    return float(np.mean(_method(model, "log_density")(X, y)))


@check_arguments
def crps_scorer(model: BaseEstimator, X: TableLike, y: ArrayLike) -> float:
    """Minus the mean continuous ranked probability score, in the target's units."""
    lower, upper = _method(model, "predict_interval")(X, coverage=COVERAGES)
    return -float(quantile_crps(lower, upper, np.asarray(y, dtype=np.float64)).mean())


@check_arguments
def coverage_scorer(model: BaseEstimator, X: TableLike, y: ArrayLike) -> float:
    """Minus the distance of the share of targets in 90 % intervals from 90 %."""
    lower, upper = _method(model, "predict_interval")(X, coverage=0.9)
    targets = np.asarray(y, dtype=np.float64)
    return -abs(float(((lower <= targets) & (targets <= upper)).mean()) - 0.9)


def _method(model: BaseEstimator, name: str) -> Callable[..., Any]:
    if not hasattr(model, name):
        raise TypeError(f"model must be a TableRegressor or a GPRegressor, but is a {type(model).__name__}.")
    found: Callable[..., Any] = getattr(model, name)
    return found
