"""Scorers for scikit-learn's ``cross_val_score`` and ``GridSearchCV``: density, CRPS and coverage, higher is better."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from ..arguments import check_arguments
from ..lite.target_scale import COVERAGES
from .arrow_values import TableLike
from .scored_rows import quantile_crps


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
