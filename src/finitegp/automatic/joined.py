"""All features in one exact GP: networks, a Fourier kernel, a line; rows set aside choose how much each may say."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..error_shape import GAUSSIAN, ErrorShape
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
from ..statistics import FeatureStatistics
from .table import Array, Table
from .tails import choose_error_shape

# Of the two halves of the Fourier features, with all columns together weighted to one.
_SHORT, _LONG = 0.5, 2.0
# What a column without any effect still counts, as a share of all effects.
_LEAST_EFFECT = 0.01
# Prior variances are searched in decades and then in halves of these, within these exponents of ten.
_NETWORK_RANGE, _FOURIER_RANGE = (-7.0, 0.5), (-5.0, 1.0)
_START = (-3.0, -2.0)
# Rows that a search looks at; the end of it looks at all.
_SEARCH_ROWS = 2000
_SETTLING = 3


class Blocks(NamedTuple):
    """How many features there are of each kind, in this order: networks, Fourier, and line with constant."""

    networks: int
    fourier: int
    line: int

    def scales(self, prior: Prior) -> Tensor:
        """``(features,)`` standard deviations of the weights of features with unit priors."""
        values = (prior.network, prior.fourier, 1.0)
        parts = [torch.full((size,), math.sqrt(value)) for size, value in zip(self, values, strict=True)]
        return torch.cat(parts).double()


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
        gram=statistics.gram * scales[:, None] * scales,
        projected_targets=statistics.projected_targets * scales[:, None],
    )


def with_prior(model: FeatureGP, statistics: FeatureStatistics, blocks: Blocks, prior: Prior) -> FittedGP:
    """The posterior under this prior, from sums under the unit prior; the model itself gets the prior, too."""
    model.noise.set_variance(prior.noise)
    model.set_output_scale(prior.network)
    features = model.feature_map
    assert isinstance(features, ConcatenatedFeatures)
    plain = features.maps[-1]
    assert isinstance(plain, ComposedFeatures)
    with torch.no_grad():
        # The output scale multiplies everything; what is not a network has to be divided by it.
        for part, variance in zip(plain.second.maps, (prior.fourier, prior.fourier, 1.0, 1.0), strict=True):  # type: ignore[union-attr, arg-type]
            part.log_magnitude += math.log(variance) - model.log_output_scale
    exact = model.exact_copy().requires_grad_(False)
    return FittedGP(exact, WeightPosterior(rescale(statistics, blocks.scales(prior)), exact.noise_variance))


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
        excess: ``(rows,)`` variance from outside of what was seen.
    """

    rows: Table
    features: Tensor
    log_scale: Tensor | None
    excess: Array

    def first(self, count: int) -> HeldOut:
        """The first rows."""
        scale = None if self.log_scale is None else self.log_scale[:count]
        kept = np.arange(min(count, len(self.rows)))
        return HeldOut(self.rows.take(kept), self.features[:count], scale, self.excess[:count])


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
    """A prior on rows set aside: squared residuals, variances without the excess, and the best factor on these."""

    prior: Prior
    squares: Array
    variance: Array
    factor: float
    density: float


@dataclass(frozen=True, eq=False)
class Calibration:
    """What rows set aside have chosen.

    Attributes:
        prior: Prior variances and noise.
        error_shape: Of predictive distributions.
        scores: ``(rows,)`` absolute standardised residuals of the rows set aside, each under a prior that the other
            half of them chose.
        record: The same and more, as JSON.
    """

    prior: Prior
    error_shape: ErrorShape
    scores: Array
    record: dict[str, Any]


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
    factor that makes the mean of :math:`r^2 / \sigma^2` one; sums of rows are rescaled by block and never read again.
    The linear block is not shrunk.

    Where one row in thousands lies far outside of its error bar, the rows set aside are too few to tell: left-out
    residuals of single networks, scaled by how both compare on the rows set aside, may widen the error bars, half way
    as a geometric mean. They never narrow them: single networks that err by more are no evidence for smaller errors.

    Args:
        statistics: Sums of all rows but those set aside, under unit priors.
        blocks: Of the features.
        held_out: The rows set aside.
        left_out: Residuals of single networks, or None.
        noise_variance: Where the search begins.
        heavy_tails: Whether another shape than the Gaussian may be chosen.
    """
    few = held_out.first(_SEARCH_ROWS)
    # Networks' features come in a size of their own; priors are searched relative to it.
    size = float(held_out.features[:, : blocks.networks].square().sum(dim=1).mean())
    judged: dict[tuple[float, float], _Judged] = {}
    noise = noise_variance

    def judge(place: tuple[float, float]) -> float:
        nonlocal noise
        if place not in judged:
            judged[place] = _judge(statistics, blocks, few, Prior(10.0 ** place[0] / size, 10.0 ** place[1], noise))
            # The next one begins where this one would end.
            noise *= min(max(judged[place].factor, 0.1), 10.0)
        return judged[place].density

    best = _climb(judge)
    found = judged[best]
    prior = Prior(found.prior.network, found.prior.fourier, found.prior.noise * min(max(found.factor, 1e-3), 1e3))
    for _ in range(_SETTLING):
        whole = _judge(statistics, blocks, held_out, prior)
        prior = prior._replace(noise=prior.noise * min(max(whole.factor, 0.1), 10.0))
        if abs(math.log(whole.factor)) < 0.01:
            break
    # What remains is a factor close to one.
    squares, variance = whole.squares, whole.variance * whole.factor
    relative = squares / (variance + held_out.excess)
    held = held_out.rows
    factor, every, every_rows = 1.0, relative, held
    if left_out is not None:
        log_variance = np.log(variance + held_out.excess)
        offset = held.mean(log_variance - left_out.held_out_log_variance)
        single = left_out.held_out_squares * np.exp(-left_out.held_out_log_variance - offset)
        gain = _gain(relative, single)
        left = gain * left_out.squares * np.exp(-left_out.log_variance - offset)
        every = np.concatenate([relative, left])
        every_rows = _together(held, left_out.rows)
        factor = math.sqrt(max(every_rows.mean(every), 1.0))
    prior = Prior(whole.prior.network * whole.factor * factor, whole.prior.fourier * whole.factor * factor,
                  whole.prior.noise * whole.factor * factor)
    standardized = np.sqrt(squares / (variance * factor + held_out.excess))
    shape = GAUSSIAN
    if heavy_tails:
        # Each sample in its own units: how wide error bars are was settled above.
        samples = [(standardized / math.sqrt(max(held.mean(standardized**2), 1e-12)), held.mean)]
        if left_out is not None:
            samples.append((np.sqrt(every / max(every_rows.mean(every), 1e-12)), every_rows.mean))
        shape = choose_error_shape(samples, held.total)
    scores = _cross_fitted(judged, few, standardized, factor)
    return Calibration(
        prior=prior,
        error_shape=shape,
        scores=scores,
        record={
            "network_prior": prior.network,
            "fourier_prior": prior.fourier,
            "noise_variance": prior.noise,
            "search": {"places": len(judged), "best": list(best)},
            "widened": factor,
            "degrees_of_freedom": shape.degrees_of_freedom,
            "validation_nlpd": _density(held, squares, variance * factor + held_out.excess, shape),
            "validation_rmse": math.sqrt(held.mean(squares)),
        },
    )


def _judge(statistics: FeatureStatistics, blocks: Blocks, held_out: HeldOut, prior: Prior) -> _Judged:
    scales = blocks.scales(prior)
    posterior = WeightPosterior(rescale(statistics, scales), prior.noise)
    prediction = posterior.predict(held_out.features * scales, held_out.log_scale)
    squares = (torch.from_numpy(held_out.rows.targets) - prediction.mean).square().numpy()
    variance = prediction.variance.numpy()
    factor = _factor(held_out.rows, squares, variance, held_out.excess)
    density = _density(held_out.rows, squares, factor * variance + held_out.excess, GAUSSIAN)
    return _Judged(prior, squares, variance, factor, density)


def _factor(rows: Table, squares: Array, variance: Array, excess: Array) -> float:
    """On the variance, so that the mean of squared standardised residuals, with the excess, is one."""
    factor = 1.0
    for _ in range(20):
        step = max(rows.mean(squares / (factor * variance + excess)), 1e-12)
        factor = min(max(factor * step, 1e-12), 1e12)
        if abs(step - 1.0) < 1e-3:
            break
    return factor


def _density(rows: Table, squares: Array, variance: Array, shape: ErrorShape) -> float:
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


def _gain(whole: Array, single: Array) -> float:
    """How much smaller squared standardised residuals of the whole model are than those of single networks.

    For typical rows, by geometric means, and for bad ones, by the 99 % quantile, whichever is less: averaging takes
    more off the errors of networks that disagree than off those of rows that nothing could foresee.
    """
    typical = float(np.exp(np.mean(np.log(np.maximum(whole, 1e-20))) - np.mean(np.log(np.maximum(single, 1e-20)))))
    bad = float(np.quantile(whole, 0.99) / max(float(np.quantile(single, 0.99)), 1e-20))
    return min(typical, bad, 1.0)


def _together(first: Table, second: Table) -> Table:
    counts = None
    if first.counts is not None or second.counts is not None:
        counts = np.concatenate([np.ones(len(part)) if part.counts is None else part.counts for part in (first, second)])
    return Table(
        np.concatenate([first.inputs, second.inputs]), np.concatenate([first.targets, second.targets]), counts
    )


def _cross_fitted(
    judged: dict[tuple[float, float], _Judged], few: HeldOut, standardized: Array, factor: float
) -> Array:
    """Scores of each half of the rows under the prior that the other half would have chosen."""
    scores = standardized.copy()
    halves = np.arange(len(few.rows)) % 2
    for half in (0, 1):
        own, others = np.flatnonzero(halves == half), np.flatnonzero(halves != half)
        rows = few.rows.take(others)
        best: tuple[float, Array] | None = None
        for each in judged.values():
            excess = few.excess[others]
            scale = _factor(rows, each.squares[others], each.variance[others], excess)
            density = _density(rows, each.squares[others], scale * each.variance[others] + excess, GAUSSIAN)
            if best is None or density < best[0]:
                variance = scale * factor * each.variance[own] + few.excess[own]
                best = density, np.sqrt(each.squares[own] / variance)
        assert best is not None
        scores[own] = best[1]
    return scores[: len(few.rows)]
