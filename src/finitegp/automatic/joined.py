"""All features in one exact GP: networks, a Fourier kernel, a line; rows set aside choose the weight of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..error_shape import GAUSSIAN, ErrorShape, Shape, TailedShape
from ..features import (
    ComposedFeatures,
    ConcatenatedFeatures,
    ConstantFeatures,
    FourierFeatures,
    LinearFeatures,
    SoftClip,
)
from ..model import FeatureGP, FittedGP
from ..noise import NoiseModel
from ..posterior import WeightPosterior
from ..predictive import Prediction
from ..statistics import FeatureStatistics
from .table import Array, Index, Table

# Of the two halves of the Fourier features, with all columns together weighted to one.
_SHORT, _LONG = 0.5, 2.0
# What a column without any effect still counts, as a share of all effects.
_LEAST_EFFECT = 0.01
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
# Shapes of errors that the search tries, and those that the end of it chooses from.
_SHAPES = (GAUSSIAN, *(ErrorShape(nu) for nu in (8.0, 4.0, 2.6)))
_TAILED = tuple((ErrorShape(nu), ErrorShape(mu)) for nu in (None, 8.0, 4.0) for mu in (None, 8.0, 4.0, 2.6))
_FEWEST_FOR_TAILS, _TAIL_ITERATIONS = 200, 50
_FINE_SHAPES = tuple(ErrorShape(nu) for nu in (2.3, 2.6, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 11.0, 16.0, 25.0, 50.0))


class Blocks(NamedTuple):
    """How many features there are of each kind, in this order: networks, Fourier, and line with constant."""

    networks: int
    fourier: int
    line: int

    def scales(self, prior: Prior) -> Tensor:
        """``(features,)`` standard deviations of the weights of features with unit priors."""
        values = (prior.network, prior.fourier, 1.0)
        sizes = torch.tensor(list(self))
        return torch.tensor(values, dtype=torch.float64).sqrt().repeat_interleave(sizes)


class Prior(NamedTuple):
    """Prior variances of the weights of network and of Fourier features, and the noise variance."""

    network: float
    fourier: float
    noise: float


def column_weights(effects: Array) -> Array:
    """Columns weighted by the root of their effect, none entirely absent; the squares add up to one."""
    total = float(effects.sum())
    squares = effects + _LEAST_EFFECT * total if total > 0.0 else np.ones(len(effects))
    weights: Array = np.sqrt(squares / squares.sum())
    return weights


def join_features(
    networks: list[nn.Module], effects: Array, num_fourier: int, *, seed: int
) -> tuple[ConcatenatedFeatures, Blocks]:
    """Networks beside Matérn-3/2 Fourier features of two length scales, weighted columns, and a constant.

    The weights of all features have unit prior variance, but for the slopes, whose variance is that of their columns'
    weights.
    """
    columns = len(effects)
    weights = torch.from_numpy(column_weights(effects))
    kernels = [
        FourierFeatures(
            columns,
            num_fourier // 2,
            "matern32",
            length / weights,
            magnitude=0.5,
            learn_length_scales=False,
            learn_magnitude=False,
            seed=seed + number,
        )
        for number, length in enumerate((_SHORT, _LONG))
    ]
    line = LinearFeatures(columns, bias=False, magnitude=weights.square(), ard=True)
    plain = ComposedFeatures(SoftClip(columns), ConcatenatedFeatures(*kernels, line, ConstantFeatures()))
    joined = ConcatenatedFeatures(*networks, plain, input_dim=columns).double().requires_grad_(False)
    return joined, Blocks(joined.num_features - plain.num_features, num_fourier, columns + 1)


def rescale(statistics: FeatureStatistics, scales: Tensor) -> FeatureStatistics:
    """The sums of features that are multiplied by these scales: no row is read again."""
    return replace(
        statistics,
        gram=(statistics.gram * scales[:, None]).mul_(scales),
        projected_targets=statistics.projected_targets * scales[:, None],
    )


def with_prior(
    model: FeatureGP, statistics: FeatureStatistics, blocks: Blocks, prior: Prior, *, chunk_size: int = 4096
) -> FittedGP:
    """The posterior under this prior, from sums under the unit prior; the model itself gets the prior, too."""
    model.noise.set_variance(prior.noise)
    model.set_output_scale(prior.network)
    features = model.feature_map
    assert isinstance(features, ConcatenatedFeatures)
    plain = features.maps[-1]
    assert isinstance(plain, ComposedFeatures)
    with torch.no_grad():
        # The output scale multiplies everything; what is not a network has to be divided by it.
        for part, variance in zip(plain.second.maps, (prior.fourier, prior.fourier, 1.0, 1.0), strict=True):  # type: ignore[arg-type]
            part.log_magnitude += math.log(variance) - model.log_output_scale
    exact = model.exact_copy().requires_grad_(False)
    posterior = WeightPosterior(rescale(statistics, blocks.scales(prior)), exact.noise_variance)
    return FittedGP(exact, posterior, chunk_size=chunk_size)


def make_joined_model(
    networks: list[nn.Module], effects: Array, num_fourier: int, noise: NoiseModel, *, seed: int
) -> tuple[FeatureGP, Blocks]:
    """A GP on joined features with unit priors."""
    features, blocks = join_features(networks, effects, num_fourier, seed=seed)
    return FeatureGP(features, noise_model=noise).double(), blocks


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
        squares: ``(rows,)`` squared residuals of rows that the network which predicts them was trained without.
        log_variance: ``(rows,)`` their noise variances, by noise networks that did not see them either.
        held_out_squares: ``(networks, held-out rows)`` squared residuals of the same single networks.
        held_out_log_variance: ``(held-out rows,)`` noise variances.
        rows: The rows, for their counts.
    """

    squares: Array
    log_variance: Array
    held_out_squares: Array
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

    def squares(self, weight: float) -> Array:
        """``(rows,)`` squared residuals of the mean in which trees have this weight."""
        return np.square(self.residuals if self.towards is None else self.residuals - weight * self.towards)


class _Fit(NamedTuple):
    """The factor on variances and the shape of errors with the best density, the negative log of it, and the trees."""

    factor: float
    shape: Shape
    density: float
    tree_weight: float = 0.0


@dataclass(frozen=True, eq=False)
class Calibration:
    """What rows set aside have chosen.

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
    They are never narrowed.

    Args:
        statistics: Sums of all rows but those set aside, under unit priors, on the device of their features.
        blocks: Of the features.
        held_out: The rows set aside.
        left_out: Residuals of single networks, or None.
        noise_variance: Where the search begins.
        heavy_tails: Whether another shape than the Gaussian may be chosen.
    """
    few = held_out.first(_SEARCH_ROWS)
    # Networks' features come in a size of their own; priors are searched relative to it.
    size = float(torch.linalg.vector_norm(held_out.features[:, : blocks.networks], dim=1).square().mean())
    shapes = _SHAPES if heavy_tails else _SHAPES[:1]
    judged: dict[tuple[float, float], _Judged] = {}
    noise = noise_variance

    def judge(place: tuple[float, float]) -> float:
        nonlocal noise
        if place not in judged:
            prior = Prior(10.0 ** place[0] / size, 10.0 ** place[1], noise)
            judged[place] = _judge(statistics, blocks, few, prior, shapes)
            # The next one begins where this one would end.
            noise *= min(max(judged[place].fit.factor, 0.1), 10.0)
        return judged[place].fit.density

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
        plain = _fit(held, whole.squares(0.0), whole.variance, held_out.excess, shapes)
        if (plain.density - whole.fit.density) * held.total < _GAIN_OF_TREES:
            whole = whole._replace(towards=None, fit=plain)
            judged = {place: each._replace(towards=None) for place, each in judged.items()}
    weight = whole.fit.tree_weight
    squares = whole.squares(weight)
    nearness = _choose_nearness(whole, squares, held_out, shapes)
    held_out, few = held_out.with_nearness(nearness), few.with_nearness(nearness)
    whole = whole._replace(fit=_fit(held, squares, whole.variance, held_out.excess, shapes))
    factor, widened = whole.fit.factor, 1.0
    samples = [(squares / (whole.variance * factor + held_out.excess), held)]
    if left_out is not None:
        ratio, left = _compare(left_out, held, whole.fit.shape)
        widened = max(ratio, 1.0)
        # In its own units: how wide error bars are is settled here, and what shape errors have below.
        samples.append((left / max(_fit_scale([(left, left_out.rows)], whole.fit.shape), 1e-12), left_out.rows))
    shape = _choose_shape(samples) if heavy_tails else GAUSSIAN
    tail = {"share": shape.share, "ratio": shape.ratio} if isinstance(shape, TailedShape) else None
    final = _fit_scale([samples[0]], shape) * factor * widened
    prior = Prior(*(value * final for value in prior))
    variance = whole.variance * final + held_out.excess
    return Calibration(
        prior=prior,
        error_shape=shape,
        nearness=nearness,
        tree_weight=weight,
        scores=_cross_fitted(judged, few, widened, shape),
        record={
            "network_prior": prior.network * size,
            "fourier_prior": prior.fourier,
            "noise_variance": prior.noise,
            "search": {"places": len(judged), "best": list(best)},
            "widened": widened,
            "nearness": nearness,
            "tree_weight": weight,
            "degrees_of_freedom": shape.degrees_of_freedom,
            "tail": tail,
            "validation_nlpd": _density(held, squares, variance, shape),
            "validation_rmse": math.sqrt(held.mean(squares)),
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
    fit = _fit(rows, judged.squares(weight)[part], variance, excess, shapes)
    return fit._replace(tree_weight=weight)


def _fit(rows: Table, squares: Array, variance: Array, excess: Array, shapes: Sequence[Shape]) -> _Fit:
    """The best of several shapes, each with its best factor on the variance (not on the excess)."""
    fits = []
    for shape in shapes:
        factor = 1.0
        for _ in range(_ITERATIONS):
            relative = squares / (factor * variance + excess)
            step = min(max(_fit_scale([(relative, rows)], shape, iterations=1), 1e-6), 1e6)
            factor = min(max(factor * step, 1e-12), 1e12)
            if abs(math.log(step)) < 1e-3:
                break
        fits.append(_Fit(factor, shape, _density(rows, squares, factor * variance + excess, shape)))
    return min(fits, key=lambda fit: fit.density)


def _fit_scale(samples: Sequence[tuple[Array, Table]], shape: Shape, *, iterations: int = 30) -> float:
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


def _choose_shape(samples: Sequence[tuple[Array, Table]]) -> Shape:
    """The shape with the best density; a simpler one if hardly worse."""
    rows = samples[0][1].total

    def loss(shape: Shape) -> float:
        factor = _fit_scale(samples, shape)
        return sum((_density(table, squares, np.full(len(squares), factor), shape) for squares, table in samples), 0.0)

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


def _choose_nearness(whole: _Judged, squares: Array, held_out: HeldOut, shapes: Sequence[Shape]) -> float:
    """The largest factor on distances that costs the rows set aside next to nothing: they are not outside."""
    found: dict[float, float] = {}
    for factor in _NEARNESS:
        excess = held_out.with_nearness(factor).excess
        found[factor] = _fit(held_out.rows, squares, whole.variance, excess, shapes).density
    lowest = min(found.values())
    return max(factor for factor, density in found.items() if density <= lowest + _PRICE_OF_NEARNESS)


def _compare(left_out: LeftOut, held: Table, shape: Shape) -> tuple[float, Array]:
    """How much larger errors of single networks are on left-out rows than on those set aside, and the former squared.

    In units of predicted noise variances. There are many more left-out rows: where those set aside are easier than
    most, or have none of the rare large errors, this shows it.
    """
    left = left_out.squares * np.exp(-left_out.log_variance)
    aside = left_out.held_out_squares * np.exp(-left_out.held_out_log_variance)
    scales = [_fit_scale([(left, left_out.rows)], shape), _fit_scale([(each, held) for each in aside], shape)]
    return scales[0] / max(scales[1], 1e-12), left


def _density(rows: Table, squares: Array, variance: Array, shape: Shape) -> float:
    """The mean negative log density."""
    standardized = torch.from_numpy(np.sqrt(squares / variance))
    return rows.mean(0.5 * np.log(variance) - shape.log_density(standardized).numpy())


def _climb(judge: Callable[[tuple[float, float]], float]) -> tuple[float, float]:
    """Down the density from the usual place: in decades along both axes, then in half decades."""
    place = _START
    for step in (1.0, 0.5):
        while True:
            around = [
                (min(max(place[0] + step * up, _NETWORK_RANGE[0]), _NETWORK_RANGE[1]), place[1]) for up in (-1, 1)
            ]
            around += [
                (place[0], min(max(place[1] + step * up, _FOURIER_RANGE[0]), _FOURIER_RANGE[1])) for up in (-1, 1)
            ]
            best = min(around, key=judge)
            if judge(best) >= judge(place):
                break
            place = best
    return place


def _cross_fitted(judged: Mapping[tuple[float, float], _Judged], few: HeldOut, widened: float, shape: Shape) -> Array:
    """Absolute normal scores of each half of the rows under prior and factor that the other half would choose.

    By the shape that was chosen, and not in standard deviations: with heavy tails these depend on the degrees of
    freedom far more than intervals do.
    """
    from scipy.special import ndtri

    scores = np.empty(len(few.rows))
    halves = np.arange(len(few.rows)) % 2
    for half in (0, 1):
        own, others = np.flatnonzero(halves == half), np.flatnonzero(halves != half)
        if len(others) == 0:
            continue
        rows, excess = few.rows.take(others), few.excess[others]
        found = [(_fit_with_trees(each, rows, excess, [shape], others), each) for each in judged.values()]
        fit, each = min(found, key=lambda both: both[0].density)
        squares = each.squares(fit.tree_weight)[own]
        errors = np.sqrt(squares / (fit.factor * widened * each.variance[own] + few.excess[own]))
        scores[own] = -ndtri(np.maximum(fit.shape.cumulative(torch.from_numpy(-errors)).numpy(), 1e-300))
    return scores
