"""The scale and the shape with the best density of errors: of one kind, or of two, which makes them skewed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ..error_shape import GAUSSIAN, ErrorShape, ErrorTail, Shape, TailedShape, with_tails
from ..predictive import StudentMixture, log_student
from .table import Array, Table

# Shapes to choose from: one for all errors, or a second one for a share of them.
_FINE_SHAPES = tuple(ErrorShape(nu) for nu in (2.3, 2.6, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 11.0, 16.0, 25.0, 50.0))
_TAILED = tuple((ErrorShape(nu), ErrorShape(mu)) for nu in (None, 8.0, 4.0) for mu in (None, 8.0, 4.0, 2.6))
_FEWEST_FOR_TAILS, _TAIL_ITERATIONS = 200, 50
# Of the two kinds of skewed errors, and rows of each sample that they are learned from.
_SKEWED, _SKEW_ROWS = (ErrorShape(), ErrorShape(8.0), ErrorShape(4.0), ErrorShape(2.6)), 5000
_FARTHEST = 27.0  # of logarithms of factors
# Where the search for two kinds of errors begins: a share of errors, and how far to either side it lies.
_SHARE, _OFFSET, _NEAR, _FAR = 0.3, 1.0, 0.8, 1.2
# Neither kind of errors is narrower or wider than this, in scales of what the errors were: targets with an atom would
# have a kind of their own without any width. Neither has a share of less than a hundredth.
_NARROWEST, _WIDEST, _MOST_ODDS = 0.05, 20.0, math.log(99.0)
_FEWEST_FOR_SKEW = 40


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


class SkewedErrors(NamedTuple):
    """A share of errors with another centre and scale, in scales of a predictive distribution that knows one kind.

    Attributes:
        share: Of the second kind.
        offset: Its centre minus that of the first; the mean of both is zero.
        near: The factor on scales of the first kind.
        far: The factor on scales of the second kind.
    """

    share: float
    offset: float
    near: float
    far: float

    def tail(self, degrees_of_freedom: float, least_part: float = 0.0) -> ErrorTail:
        """Both kinds, as a component of a fit has them."""
        return ErrorTail(self.share, self.far, degrees_of_freedom, self.offset, self.near, least_part)

    def of(self, mixture: StudentMixture) -> StudentMixture:
        """The distribution with both kinds of errors in each component."""
        tails = [self.tail(freedom) for freedom in mixture.degrees_of_freedom[:, 0].tolist()]
        return with_tails(mixture, tails, np.ones((len(tails), 1)))


def choose_skew(mixture: StudentMixture, targets: Array, counts: Array) -> SkewedErrors | None:
    """Two kinds of errors around predictions of left-out rows, if these gain enough; otherwise None.

    Four parameters have to gain more than half the logarithm of the rows each, in nats in all (BIC).

    Example:
        >>> random = np.random.default_rng(0)
        >>> one = StudentMixture(np.ones(1), np.zeros((1, 300)), np.ones((1, 300)), np.array([[50.0]]))
        >>> choose_skew(one, random.normal(size=300), np.ones(300)) is None
        True
        >>> choose_skew(one, random.exponential(size=300) - 1.0, np.ones(300)).offset > 0.5
        True
    """
    rows = len(targets)
    if rows < _FEWEST_FOR_SKEW:
        return None
    counts = counts / counts.mean()  # several measurements of one row have one mean, whose error they share
    without = float(counts @ mixture.log_density(targets))
    density, found = fit_skew(mixture, targets, counts)
    return found if density - without > 2.0 * math.log(rows) else None


def fit_skew(mixture: StudentMixture, targets: Array, counts: Array) -> tuple[float, SkewedErrors]:
    """Two kinds of errors with the best density, the better one of those that lie below and above, and its log."""
    starts = (SkewedErrors(_SHARE, side * _OFFSET, _NEAR, _FAR) for side in (1.0, -1.0))
    return max((_climb(mixture, targets, counts, start) for start in starts), key=lambda both: both[0])


def _climb(mixture: StudentMixture, targets: Array, counts: Array, start: SkewedErrors) -> tuple[float, SkewedErrors]:
    from scipy.optimize import minimize

    errors = (targets - mixture.means) / mixture.scales
    freedoms = np.broadcast_to(mixture.degrees_of_freedom, errors.shape)
    constants = np.log(mixture.weights)[:, None] - np.log(mixture.scales)
    total = float(counts.sum())

    def loss(place: Array) -> tuple[float, Array]:
        """The negative mean log density, and its gradient."""
        share, offset, scales = 1.0 / (1.0 + math.exp(-place[0])), place[1], np.exp(place[2:])
        shares, centres = np.array([1.0 - share, share]), offset * np.array([-share, 1.0 - share])
        z = (errors - centres[:, None, None]) / scales[:, None, None]
        logs = constants + log_student(z, freedoms) + np.log(shares / scales)[:, None, None]
        highest = logs.max(axis=(0, 1))
        belongs = np.exp(logs - highest)
        together = belongs.sum(axis=(0, 1))
        belongs *= counts / together
        # Student's t is a Gaussian whose variance is not known: rows far off count less.
        with np.errstate(invalid="ignore"):
            trust = np.where(np.isinf(freedoms), 1.0, (freedoms + 1.0) / (freedoms + np.square(z)))
        pulls = belongs * trust * z
        kinds, by_centre = belongs.sum(axis=(1, 2)), pulls.sum(axis=(1, 2)) / scales
        by_share = kinds[1] - share * kinds.sum() - share * (1.0 - share) * offset * by_centre.sum()
        by_scale = (pulls * z).sum(axis=(1, 2)) - kinds
        gradient = np.array([by_share, (1.0 - share) * by_centre[1] - share * by_centre[0], *by_scale])
        return -float(counts @ (np.log(together) + highest)) / total, -gradient / total

    first = np.array([math.log(start.share / (1.0 - start.share)), start.offset, *np.log(start[2:])])
    limits = [(-_MOST_ODDS, _MOST_ODDS), (-_WIDEST, _WIDEST), *[(math.log(_NARROWEST), math.log(_WIDEST))] * 2]
    found = minimize(loss, first, jac=True, method="L-BFGS-B", bounds=limits)
    share, offset, near, far = (float(value) for value in found.x)
    skew = SkewedErrors(1.0 / (1.0 + math.exp(-share)), offset, math.exp(near), math.exp(far))
    return -float(found.fun) * total, skew
