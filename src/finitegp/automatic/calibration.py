"""``calibrate``: rows set aside choose priors, noise, the shape of errors and the part of boosted trees."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..error_shape import GAUSSIAN, ErrorShape, Shape, TailedShape
from ..posterior import WeightPosterior
from ..predictive import Prediction
from ..processes import in_parallel
from ..statistics import FeatureStatistics
from .fitted_shapes import choose_shape, fit_scale, is_skewed, mean_nlpd, search_factor
from .joined import Blocks, Prior, rescale
from .table import Array, Index, Table

# Prior variances are searched in decades and then in halves of these, within these exponents of ten.
_NETWORK_RANGE, _FOURIER_RANGE = (-7.0, 2.0), (-5.0, 1.0)
_START = (-3.0, -2.0)
# Rows that a search looks at; the end of it looks at all.
_SEARCH_ROWS = 2000
# The noise has settled when the logarithm of the factor on it is below the first, or after the second number of rounds.
_SETTLED, _SETTLING = 0.02, 3
_ITERATIONS = 20
# In nats, of all rows set aside: what a part of boosted trees in the mean must be worth.
_GAIN_OF_TREES = 3.0
# Factors on the variance of rows far from what was seen together, and what a larger one may cost in nats per row.
_NEARNESS = (0.0, *(10.0 ** (0.5 * power) for power in range(-8, 1)))
_PRICE_OF_NEARNESS = 0.003
# The intervals that have to hold what they promise, up to two standard errors; and the most that is done for it.
_COVERAGE, _END, _CLEAR_ERRORS, _MOST_WIDENED = 0.9, 1.6448536269514722, 2.0, 100.0
# Shapes of errors that the search tries.
_SHAPES = (GAUSSIAN, *(ErrorShape(nu) for nu in (8.0, 4.0, 2.6)))


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Rows that nothing was trained on, as the joined model sees them.

    Attributes:
        rows: The rows.
        features: ``(rows, features)`` under unit priors.
        log_scale: ``(rows,)`` of the noise, or None.
        excess: ``(rows,)`` variance from columns outside of what was seen.
        beyond: ``(rows,)`` how far rows are from what was seen together, in squared units of the target.
        trees: ``(rows,)`` what boosted trees predict, or None.
        chunk_size: Rows that are predicted at once.
    """

    rows: Table
    features: Tensor
    log_scale: Tensor | None
    excess: Array
    beyond: Array
    trees: Array | None = None
    chunk_size: int = 4096

    def with_nearness(self, factor: float) -> HeldOut:
        """With the variance of rows far from what was seen together."""
        return replace(self, excess=self.excess + factor * self.beyond)

    def first(self, count: int) -> HeldOut:
        """The first rows."""
        scale = None if self.log_scale is None else self.log_scale[:count]
        kept = np.arange(min(count, len(self.rows)))
        return HeldOut(
            self.rows.take(kept),
            self.features[:count],
            scale,
            self.excess[:count],
            self.beyond[:count],
            None if self.trees is None else self.trees[:count],
            self.chunk_size,
        )


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Many more rows, seen only by a single network without them: they show what is rare.

    Attributes:
        residuals: ``(rows,)`` of targets that the network which predicts them was trained without.
        log_variance: ``(rows,)`` their noise variances, by noise networks that did not see them either.
        held_out_residuals: ``(networks, held-out rows)`` of targets, of the same single networks.
        held_out_log_variance: ``(held-out rows,)`` noise variances.
        rows: The rows, for their counts.
    """

    residuals: Array
    log_variance: Array
    held_out_residuals: Array
    held_out_log_variance: Array
    rows: Table


class _Judged(NamedTuple):
    """A prior on rows set aside.

    Attributes:
        prior: The prior.
        residuals: ``(rows,)`` of the GP.
        towards: ``(rows,)`` how far trees are above the GP, or None.
        variance: ``(rows,)`` without the excess.
        fit: What fits these best.
    """

    prior: Prior
    residuals: Array
    towards: Array | None
    variance: Array
    fit: _Fit

    def errors(self, weight: float) -> Array:
        """``(rows,)`` residuals of the mean in which trees have this weight."""
        return self.residuals if self.towards is None else self.residuals - weight * self.towards


class _Fit(NamedTuple):
    """The factor on variances and the shape of errors with the best density, the negative log of it, and the trees."""

    factor: float
    shape: Shape
    density: float
    tree_weight: float = 0.0


@dataclass(frozen=True, eq=False)
class Calibration:
    """Everything that rows set aside have chosen.

    Attributes:
        prior: Prior variances and noise.
        error_shape: Of predictive distributions.
        nearness: The factor on the variance of rows far from what was seen together.
        tree_weight: Of boosted trees in the mean; zero if rows set aside gain too little by them.
        scores: ``(rows,)`` absolute normal scores of the rows set aside, each under a prior that the other half of
            them chose.
        record: The same and more, as JSON.
    """

    prior: Prior
    error_shape: Shape
    nearness: float
    tree_weight: float
    scores: Array
    record: dict[str, object]


def calibrate(
    statistics: FeatureStatistics,
    blocks: Blocks,
    held_out: HeldOut,
    left_out: LeftOut | None,
    *,
    noise_variance: float,
    heavy_tails: bool = True,
    skewed_errors: bool = True,
    threads: int = 1,
) -> Calibration:
    r"""Choose the prior variances of both blocks, the noise and the shape of errors.

    With network prior a, Fourier prior b and noise s all multiplied by T, means stay what they are (the line's prior,
    which is all but flat, aside) and variances are multiplied by T. So the pair (a, b) is searched, each with the
    factor and the shape of errors that have the best density; sums of rows are rescaled by block and never read again.
    The linear block is not shrunk.

    Where there are boosted trees, each pair has them in the mean with the weight that gives the smallest squared error
    in units of the predicted variances. They stay only if the rows set aside gain more than three nats by them in all.

    The rows set aside are few, and may be easier than others. Many more rows were left out by single networks, whose
    errors on both kinds of rows are compared: where the left-out ones are worse, error bars are widened by as much.
    They are never narrowed. Nor do they stay where the rows set aside say that 90 % intervals hold less: one shape for
    all rows is a compromise, and the densest one may be too narrow on more rows than it is too wide on.

    Args:
        statistics: Sums of all rows but those set aside, under unit priors, on the device of their features.
        blocks: Of the features.
        held_out: The rows set aside.
        left_out: Residuals of single networks, or None.
        noise_variance: Where the search begins.
        heavy_tails: Whether another shape than the Gaussian may be chosen ...
        skewed_errors: ... and a skewed one.
        threads: Pairs judged at once, which does not change the result.
    """
    few = held_out.first(_SEARCH_ROWS)
    # Networks' features come in a size of their own; priors are searched relative to it.
    size = float(torch.linalg.vector_norm(held_out.features[:, : blocks.networks], dim=1).square().mean())
    shapes = _SHAPES if heavy_tails else _SHAPES[:1]
    judged: dict[tuple[float, float], _Judged] = {}
    noise = noise_variance

    def judge(places: Sequence[tuple[float, float]]) -> list[float]:
        nonlocal noise
        new = [place for place in dict.fromkeys(places) if place not in judged]
        priors = [Prior(10.0 ** place[0] / size, 10.0 ** place[1], noise) for place in new]
        found = in_parallel(_judge, [(statistics, blocks, few, prior, shapes) for prior in priors], threads)
        judged.update(zip(new, found, strict=True))
        if new:
            # The next ones begin where the best of these would end.
            best = min((judged[place].fit for place in new), key=lambda fit: fit.density)
            noise *= min(max(best.factor, 0.1), 10.0)
        return [judged[place].fit.density for place in places]

    best = _climb(judge)
    prior, factor = judged[best].prior, judged[best].fit.factor
    for _ in range(_SETTLING):
        # The pair stays; only the noise settles.
        prior = prior._replace(noise=prior.noise * min(max(factor, 1e-3), 1e3))
        whole = _judge(statistics, blocks, held_out, prior, shapes)
        factor = whole.fit.factor
        if abs(math.log(factor)) < _SETTLED:
            break
    held = held_out.rows
    if whole.towards is not None:
        plain = _fit(held, whole.errors(0.0), whole.variance, held_out.excess, shapes)
        if (plain.density - whole.fit.density) * held.total < _GAIN_OF_TREES:
            whole = whole._replace(towards=None, fit=plain)
            judged = {place: each._replace(towards=None) for place, each in judged.items()}
    weight = whole.fit.tree_weight
    errors = whole.errors(weight)
    nearness = _choose_nearness(whole, errors, held_out, shapes)
    held_out, few = held_out.with_nearness(nearness), few.with_nearness(nearness)
    whole = whole._replace(fit=_fit(held, errors, whole.variance, held_out.excess, shapes))
    factor, widened = whole.fit.factor, 1.0
    samples = [(errors / np.sqrt(whole.variance * factor + held_out.excess), held)]
    if left_out is not None:
        ratio, left = _compare(left_out, held, whole.fit.shape)
        widened = max(ratio, 1.0)
        # In its own units: how wide error bars are is settled here, and what shape errors have below.
        unit = math.sqrt(max(fit_scale([(left, left_out.rows)], whole.fit.shape), 1e-12))
        samples.append((left / unit, left_out.rows))
    shape = choose_shape(samples, skewed=skewed_errors) if heavy_tails else GAUSSIAN
    tail = None
    if isinstance(shape, TailedShape):
        tail = {"share": shape.share, "ratio": shape.ratio, "offset": shape.offset}
    relative = _cross_fitted(judged, few, widened, shape)
    short = _widen_to_hold(relative, few.rows, shape)
    final = fit_scale([samples[0]], shape) * factor * widened * short
    prior = Prior(*(value * final for value in prior))
    variance = whole.variance * final + held_out.excess
    return Calibration(
        prior=prior,
        error_shape=shape,
        nearness=nearness,
        tree_weight=weight,
        scores=np.abs(shape.normal_scores(relative / math.sqrt(short))),
        record={
            "network_prior": prior.network * size,
            "fourier_prior": prior.fourier,
            "noise_variance": prior.noise,
            "search": {"places": len(judged), "best": list(best)},
            "widened": widened,
            "widened_to_hold": short,
            "nearness": nearness,
            "tree_weight": weight,
            "degrees_of_freedom": shape.degrees_of_freedom,
            "tail": tail,
            "validation_nlpd": mean_nlpd(held, errors, variance, shape),
            "validation_rmse": math.sqrt(held.mean(np.square(errors))),
        },
    )


def _judge(
    statistics: FeatureStatistics, blocks: Blocks, held_out: HeldOut, prior: Prior, shapes: Sequence[Shape]
) -> _Judged:
    scales = blocks.scales(prior).to(held_out.features.device)
    posterior = WeightPosterior(rescale(statistics, scales), prior.noise)
    parts = []
    for start in range(0, len(held_out.features), held_out.chunk_size):
        part = slice(start, start + held_out.chunk_size)
        log_scale = None if held_out.log_scale is None else held_out.log_scale[part]
        parts.append(posterior.predict(held_out.features[part] * scales, log_scale))
    prediction = Prediction.concatenate(parts)
    mean, variance = prediction.mean.cpu().numpy(), prediction.variance.cpu().numpy()
    towards = None if held_out.trees is None else held_out.trees - mean
    judged = _Judged(prior, held_out.rows.targets - mean, towards, variance, _Fit(1.0, GAUSSIAN, math.inf))
    return judged._replace(fit=_fit_with_trees(judged, held_out.rows, held_out.excess, shapes))


def _fit_with_trees(
    judged: _Judged, rows: Table, excess: Array, shapes: Sequence[Shape], own: Index | None = None
) -> _Fit:
    """The best factor and shape, trees with the best weight in the mean; of some of the rows set aside, or of all."""
    part = slice(None) if own is None else own
    variance, weight = judged.variance[part], 0.0
    if judged.towards is not None:
        towards, trust = judged.towards[part], rows.shares() / (variance + excess)
        weight = float(trust @ (judged.residuals[part] * towards) / max(float(trust @ towards**2), 1e-300))
        weight = min(max(weight, 0.0), 1.0)
    fit = _fit(rows, judged.errors(weight)[part], variance, excess, shapes)
    return fit._replace(tree_weight=weight)


def _fit(rows: Table, errors: Array, variance: Array, excess: Array, shapes: Sequence[Shape]) -> _Fit:
    """The best of several shapes, each with its best factor on the variance (not on the excess)."""
    fits = []
    for shape in shapes:

        def density(factor: float, shape: Shape = shape) -> float:
            return mean_nlpd(rows, errors, factor * variance + excess, shape)

        factor = search_factor(density) if is_skewed(shape) else 1.0
        for _ in range(0 if is_skewed(shape) else _ITERATIONS):
            relative = errors / np.sqrt(factor * variance + excess)
            step = min(max(fit_scale([(relative, rows)], shape, iterations=1), 1e-6), 1e6)
            factor = min(max(factor * step, 1e-12), 1e12)
            if abs(math.log(step)) < 1e-3:
                break
        fits.append(_Fit(factor, shape, density(factor)))
    return min(fits, key=lambda fit: fit.density)


def _choose_nearness(whole: _Judged, errors: Array, held_out: HeldOut, shapes: Sequence[Shape]) -> float:
    """The largest factor on distances that costs the rows set aside next to nothing: they are not outside."""
    found: dict[float, float] = {}
    for factor in _NEARNESS:
        excess = held_out.with_nearness(factor).excess
        found[factor] = _fit(held_out.rows, errors, whole.variance, excess, shapes).density
    lowest = min(found.values())
    return max(factor for factor, density in found.items() if density <= lowest + _PRICE_OF_NEARNESS)


def _compare(left_out: LeftOut, held: Table, shape: Shape) -> tuple[float, Array]:
    """How much larger errors of single networks are on left-out rows than on those set aside, and the former.

    In units of predicted noise deviations. There are many more left-out rows: where those set aside are easier than
    most, or have none of the rare large errors, this shows it.
    """
    left = left_out.residuals * np.exp(-0.5 * left_out.log_variance)
    aside = left_out.held_out_residuals * np.exp(-0.5 * left_out.held_out_log_variance)
    scales = [fit_scale([(left, left_out.rows)], shape), fit_scale([(each, held) for each in aside], shape)]
    return scales[0] / max(scales[1], 1e-12), left


def _climb(judge: Callable[[Sequence[tuple[float, float]]], list[float]]) -> tuple[float, float]:
    """Down the density from the usual place: in decades along both axes, then in half decades."""
    place = _START
    (lowest,) = judge([place])
    for step in (1.0, 0.5):
        while True:
            around = [
                (min(max(place[0] + step * up, _NETWORK_RANGE[0]), _NETWORK_RANGE[1]), place[1]) for up in (-1, 1)
            ]
            around += [
                (place[0], min(max(place[1] + step * up, _FOURIER_RANGE[0]), _FOURIER_RANGE[1])) for up in (-1, 1)
            ]
            densities = judge(around)
            if min(densities) >= lowest:
                break
            lowest = min(densities)
            place = around[densities.index(lowest)]
    return place


def _cross_fitted(judged: Mapping[tuple[float, float], _Judged], few: HeldOut, widened: float, shape: Shape) -> Array:
    """Errors of each half of the rows in spreads under prior and factor that the other half would choose."""
    relative = np.zeros(len(few.rows))
    halves = np.arange(len(few.rows)) % 2
    for half in (0, 1):
        own, others = np.flatnonzero(halves == half), np.flatnonzero(halves != half)
        if len(others) == 0:
            continue
        rows, excess = few.rows.take(others), few.excess[others]
        found = [(_fit_with_trees(each, rows, excess, [shape], others), each) for each in judged.values()]
        fit, each = min(found, key=lambda both: both[0].density)
        spread = np.sqrt(fit.factor * widened * each.variance[own] + few.excess[own])
        relative[own] = each.errors(fit.tree_weight)[own] / spread
    return relative


def _widen_to_hold(relative: Array, rows: Table, shape: Shape) -> float:
    """The factor on variances with which 90 % intervals hold so many of these errors; one unless they clearly do not.

    By normal scores and not in standard deviations: with heavy tails these depend on the degrees of freedom far more
    than intervals do.
    """

    def held(log_factor: float) -> float:
        return rows.mean((np.abs(shape.normal_scores(relative * math.exp(-0.5 * log_factor))) <= _END).astype(float))

    chance = math.sqrt(_COVERAGE * (1.0 - _COVERAGE) / len(relative))
    if held(0.0) >= _COVERAGE - _CLEAR_ERRORS * chance:
        return 1.0
    low, high = 0.0, math.log(_MOST_WIDENED)
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if held(middle) >= _COVERAGE else (middle, high)
    return math.exp(high)
