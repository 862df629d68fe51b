"""The scale and the shape of errors with the best density of standardised squares."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from ..error_shape import GAUSSIAN, ErrorShape, Shape, TailedShape
from .table import Array, Table

# Shapes to choose from: one for all errors, or a second one for a share of them.
_FINE_SHAPES = tuple(ErrorShape(nu) for nu in (2.3, 2.6, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 11.0, 16.0, 25.0, 50.0))
_TAILED = tuple((ErrorShape(nu), ErrorShape(mu)) for nu in (None, 8.0, 4.0) for mu in (None, 8.0, 4.0, 2.6))
_FEWEST_FOR_TAILS, _TAIL_ITERATIONS = 200, 50


def fit_scale(samples: Sequence[tuple[Array, Table]], shape: Shape, *, iterations: int = 30) -> float:
    """The factor on variances with the best density of squared standardised errors, each sample counting the same.

    By expectation maximisation: where tails are heavy, rows far off count less.
    """
    factor = 1.0
    for _ in range(iterations):
        means = [rows.mean(shape.pull(squares / factor)) for squares, rows in samples]
        step = sum(means) / len(means)
        factor = max(factor * step, 1e-12)
        if abs(step - 1.0) < 1e-6:
            break
    return factor


def choose_shape(samples: Sequence[tuple[Array, Table]]) -> Shape:
    """The shape with the best density; a simpler one if hardly worse."""
    rows = samples[0][1].total

    def loss(shape: Shape) -> float:
        factor = fit_scale(samples, shape)
        return sum((mean_nlpd(table, squares, np.full(len(squares), factor), shape) for squares, table in samples), 0.0)

    # A parameter has to gain more than half the logarithm of the rows, in nats in all.
    price = 0.5 * math.log(max(rows, 2.0)) / rows * len(samples)
    best: Shape = min(_FINE_SHAPES, key=loss)
    best = best if loss(best) < loss(GAUSSIAN) - price else GAUSSIAN
    if len(samples[0][0]) < _FEWEST_FOR_TAILS:
        return best
    tailed = min((_fit_tail(samples, main, tail) for main, tail in _TAILED), key=loss)
    return tailed if loss(tailed) < loss(best) - 3.0 * price else best


def _fit_tail(samples: Sequence[tuple[Array, Table]], main: ErrorShape, tail: ErrorShape) -> TailedShape:
    """The share of larger errors, and how much larger they are, with the best density: expectation maximisation."""
    squares = np.concatenate([part for part, _ in samples])
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


def mean_nlpd(rows: Table, squares: Array, variance: Array, shape: Shape) -> float:
    """The mean negative log density."""
    standardized = torch.from_numpy(np.sqrt(squares / variance))
    return rows.mean(0.5 * np.log(variance) - shape.log_density(standardized).numpy())
