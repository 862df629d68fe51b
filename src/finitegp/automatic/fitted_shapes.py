"""The scale and the shape with the best density of standardised errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from ..error_shape import GAUSSIAN, ErrorShape, Shape, TailedShape
from ..predictive import StudentMixture
from .skewed_errors import fit_skew
from .table import Array, Table

# Shapes to choose from: one for all errors, or a second one for a share of them.
_FINE_SHAPES = tuple(ErrorShape(nu) for nu in (2.3, 2.6, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 11.0, 16.0, 25.0, 50.0))
_TAILED = tuple((ErrorShape(nu), ErrorShape(mu)) for nu in (None, 8.0, 4.0) for mu in (None, 8.0, 4.0, 2.6))
_FEWEST_FOR_TAILS, _TAIL_ITERATIONS = 200, 50
# Of the two kinds of skewed errors, and rows of each sample that they are learned from.
_SKEWED, _SKEW_ROWS = (ErrorShape(), ErrorShape(8.0), ErrorShape(4.0), ErrorShape(2.6)), 5000
_FARTHEST = 27.0  # of logarithms of factors


def fit_scale(samples: Sequence[tuple[Array, Table]], shape: Shape, *, iterations: int = 30) -> float:
    """The factor on variances with the best density of standardised errors, each sample counting the same.

    By expectation maximisation: where tails are heavy, rows far off count less. Of skewed errors by a search.
    """
    if is_skewed(shape):
        return search_factor(lambda factor: _loss(samples, shape, factor))
    factor = 1.0
    for _ in range(iterations):
        means = [rows.mean(shape.pull(np.square(errors) / factor)) for errors, rows in samples]
        step = sum(means) / len(means)
        factor = max(factor * step, 1e-12)
        if abs(step - 1.0) < 1e-6:
            break
    return factor


def choose_shape(samples: Sequence[tuple[Array, Table]], *, skewed: bool = True) -> Shape:
    """The shape with the best density, also a ``skewed`` one if it may be; a simpler one if hardly worse."""
    rows = samples[0][1].total

    def loss(shape: Shape) -> float:
        return _loss(samples, shape, fit_scale(samples, shape))

    # A parameter has to gain more than half the logarithm of the rows, in nats in all.
    price = 0.5 * math.log(max(rows, 2.0)) / rows * len(samples)
    best: Shape = min(_FINE_SHAPES, key=loss)
    best = best if loss(best) < loss(GAUSSIAN) - price else GAUSSIAN
    if len(samples[0][0]) < _FEWEST_FOR_TAILS:
        return best
    tailed = min((_fit_tail(samples, main, tail) for main, tail in _TAILED), key=loss)
    best = tailed if loss(tailed) < loss(best) - 3.0 * price else best
    if not skewed:
        return best
    aside = min((_fit_skewed(samples, shape) for shape in _SKEWED), key=loss)
    return aside if loss(aside) < loss(best) - (1.0 if best is tailed else 4.0) * price else best


def is_skewed(shape: Shape) -> bool:
    """Whether errors of this shape are larger to one side."""
    return isinstance(shape, TailedShape) and shape.offset != 0.0


def search_factor(loss: Callable[[float], float]) -> float:
    """The factor on variances with the smallest loss, by Brent's search of its logarithm."""
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(lambda place: loss(math.exp(min(max(place, -_FARTHEST), _FARTHEST))), (-0.2, 0.2), tol=1e-5)
    return math.exp(min(max(float(found.x), -_FARTHEST), _FARTHEST))


def _loss(samples: Sequence[tuple[Array, Table]], shape: Shape, factor: float) -> float:
    return sum((mean_nlpd(rows, errors, np.full(len(errors), factor), shape) for errors, rows in samples), 0.0)


def _fit_skewed(samples: Sequence[tuple[Array, Table]], shape: ErrorShape) -> TailedShape:
    """Two kinds of errors of this shape, with different centres."""
    some = [(errors[:_SKEW_ROWS], rows.shares()[:_SKEW_ROWS]) for errors, rows in samples]
    errors = np.concatenate([part for part, _ in some])
    # As if each row counted the same, and each sample.
    weights = np.concatenate([shares / shares.sum() for _, shares in some]) * (len(errors) / len(some))
    scales, freedom = np.full((1, len(errors)), shape.shrink), shape.degrees_of_freedom or math.inf
    one = StudentMixture(np.ones(1), np.zeros(scales.shape), scales, np.full((1, 1), freedom))
    _, found = fit_skew(one, errors, weights)
    return TailedShape(shape, shape, found.share, found.far / found.near, shape.shrink * found.offset / found.near)


def _fit_tail(samples: Sequence[tuple[Array, Table]], main: ErrorShape, tail: ErrorShape) -> TailedShape:
    """The share of larger errors, and how much larger they are, with the best density: expectation maximisation."""
    squares = np.square(np.concatenate([part for part, _ in samples]))
    weights = np.concatenate([rows.shares() for _, rows in samples]) / len(samples)
    small = max(float(np.median(squares)) / 0.455, 1e-12)  # the median of a squared standard normal
    share, variances = 0.2, [small, max(float(weights @ squares), 4.0 * small)]
    for _ in range(_TAIL_ITERATIONS):
        logs = [
            kind.log_density(torch.from_numpy(np.sqrt(squares / variance))).numpy() - 0.5 * math.log(variance)
            for kind, variance in zip((main, tail), variances, strict=True)
        ]
        belongs = 1.0 / (1.0 + np.exp(np.clip(logs[0] - logs[1] + math.log((1.0 - share) / share), -500.0, 500.0)))
        for number, (kind, mine) in enumerate(((main, 1.0 - belongs), (tail, belongs))):
            pulled = float((weights * mine) @ kind.pull(squares / variances[number]))
            variances[number] = max(variances[number] * pulled / max(float(weights @ mine), 1e-12), 1e-12)
        share = min(max(float(weights @ belongs), 0.005), 0.5)
        variances[1] = max(variances[1], variances[0])
    return TailedShape(main, tail, share, math.sqrt(variances[1] / variances[0]))


def mean_nlpd(rows: Table, errors: Array, variance: Array, shape: Shape) -> float:
    """The mean negative log density."""
    standardized = torch.from_numpy(errors / np.sqrt(variance))
    return rows.mean(0.5 * np.log(variance) - shape.log_density(standardized).numpy())
