"""Scores of predictive distributions that are known by their quantiles and densities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from ..arguments import check_arguments
from ..lite.target_scale import COVERAGES, NODE_WEIGHTS
from ..metrics import Scores, score_rows
from .arrow_values import TableLike

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


def _method(model: BaseEstimator, name: str) -> Any:
    if not hasattr(model, name):
        raise TypeError(f"model must be a TableRegressor or a GPRegressor, but is a {type(model).__name__}.")
    return getattr(model, name)
