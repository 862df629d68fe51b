"""Choices by out-of-fold errors: the shape of each kernel's errors, its weight, and the spread that a row has."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..component import SpreadModel, pooled
from ..kernel_gp import Array, KernelForm, KernelPosterior, KernelPrior, KernelRows, fit_from_several_starts
from ..predictive import StudentMixture, log_student
from .kernels import LEARNING_ROWS, condition_kernel, landmark_rows
from .misleading_rows import Groups

# Logarithms of squared errors are nearly all noise: standardised, 0.9 of their variance where nothing is to be learned.
_SPREAD_FORM = KernelForm(
    "matern52",
    prior=KernelPrior(
        noise=(math.log(0.9), 0.3),
        linear=(math.log(0.05), 1.5),
        signal=(math.log(0.1), 1.0),
        intercept=0.5,
        scale_degrees=1000.0,
    ),
)
_DEGREES = (2.2, 2.6, 3.2, 4.0, 5.0, 7.0, 10.0, 15.0, 30.0)
_LEAST_WEIGHT = 0.01
_ROUNDS = 200  # of expectation-maximisation
# The row of prior, and half a row in favour of the kernel.
_LEAST_ROWS = 1.5
# In nats, of all out-of-fold rows: what a part of boosted trees in the mean must be worth.
_LEAST_GAIN = 3.0
# Half the 90 % width is believed to shrink by a tenth, and to grow by three tenths, without much evidence.
_NARROWER, _WIDER = 0.1, 0.3


class Stacked(NamedTuple):
    """Kernels that have weight.

    Attributes:
        kept: Their numbers.
        factors: On the scales of each.
        mixture: What they predict of out-of-fold rows.
        tree_weight: Of boosted trees in the means.
    """

    kept: Groups
    factors: Array
    mixture: StudentMixture
    tree_weight: float = 0.0


def stack_kernels(means: Array, scales: Array, targets: Array, counts: Array, most_degrees: float) -> Stacked:
    """Shapes and weights of kernels by their out-of-fold errors.

    Args:
        means: ``(kernels, rows)``.
        scales: ``(kernels, rows)``.
        targets: ``(rows,)``.
        counts: ``(rows,)``.
        most_degrees: The most degrees of freedom of an error.
    """
    shapes = [
        choose_shape((targets - mean) / scale, most_degrees, counts) for mean, scale in zip(means, scales, strict=True)
    ]
    factors, freedoms = np.array(shapes).T
    loose = StudentMixture(np.ones(len(means)), means, scales * factors[:, None], freedoms[:, None])
    weights = stacking_weights(loose.component_log_densities(targets), counts)
    # What hardly counts is not worth its time and memory, and one row of prior is no reason to believe in a kernel:
    # where others are nearly without error it would move the mean by more than their error.
    least = max(_LEAST_WEIGHT, _LEAST_ROWS / (float(counts.sum()) + len(means)))
    kept = np.flatnonzero(weights >= min(least, weights.max()))
    weights = weights[kept] / weights[kept].sum()
    mixture = StudentMixture(weights, means[kept], loose.scales[kept], freedoms[kept][:, None])
    return Stacked(kept, factors[kept], mixture)


def stack_with_trees(
    without: Stacked,
    trees: Array,
    means: Array,
    scales: Array,
    targets: Array,
    counts: Array,
    most_degrees: float,
) -> Stacked:
    """The stack with ``(rows,)`` trees in all means, or the one without them if rows gain too little."""
    mean, variance = pooled(without.mixture)
    trust, towards = counts / variance, trees - mean
    weight = float((trust * towards) @ (targets - mean) / max(float(trust @ towards**2), 1e-300))
    weight = min(max(weight, 0.0), 1.0)
    if weight == 0.0:
        return without
    found = stack_kernels(means + weight * (trees - means), scales, targets, counts, most_degrees)
    gain = counts @ (found.mixture.log_density(targets) - without.mixture.log_density(targets))
    return found._replace(tree_weight=weight) if gain > _LEAST_GAIN else without


def choose_shape(standardized: Array, most_degrees: float, weights: Array) -> tuple[float, float]:
    """The factor on the scales and the degrees of freedom with the best penalised density of out-of-fold errors.

    The penalty is on the logarithm of the 90 % half-width relative to the model's own: narrowing is believed less
    readily than widening.
    """
    from scipy.special import stdtrit

    log_factors = np.linspace(-1.5, 2.5, 161)
    own = math.log(stdtrit(most_degrees, 0.95))
    best = (-math.inf, 1.0, most_degrees)
    for freedom in (*(value for value in _DEGREES if value <= most_degrees), most_degrees):
        widths = log_factors + math.log(stdtrit(freedom, 0.95)) - own
        density = weights @ log_student(standardized[:, None] / np.exp(log_factors), np.array(freedom))
        penalty = 0.5 * np.square(widths / np.where(widths < 0.0, _NARROWER, _WIDER)) + 3.0 / freedom
        value = density - weights.sum() * log_factors - penalty
        index = int(value.argmax())
        if value[index] > best[0]:
            best = (float(value[index]), math.exp(log_factors[index]), freedom)
    return best[1], best[2]


def stacking_weights(log_densities: Array, row_weights: Array) -> Array:
    """The weights of the mixture with the best density, by expectation-maximisation with one row of prior for each."""
    count, total = len(log_densities), float(row_weights.sum())
    weights = np.full(count, 1.0 / count)
    for _ in range(_ROUNDS):
        shares = np.log(weights)[:, None] + log_densities
        shares = np.exp(shares - shares.max(axis=0))
        shares /= shares.sum(axis=0)
        weights = (shares @ row_weights + 1.0) / (total + count)
    return weights


def fit_spread(
    inputs: Array, rows: KernelRows, groups: Groups, stacked: StudentMixture, most_degrees: float, seed: int
) -> tuple[Callable[[], SpreadModel] | None, StudentMixture]:
    """What makes a model of the spread, if out-of-fold errors gain by it, and the out-of-fold mixture with it."""
    mean, variance = pooled(stacked)
    squares = np.square(rows.targets - mean) / variance
    # The mean of the logarithm of a squared standard normal is -1.27.
    logs = np.clip(np.log(np.maximum(squares, 1e-6)) + 1.2704, -6.0, 6.0)
    extra = np.column_stack([np.log(variance), mean])
    centres, units = extra.mean(0), extra.std(0) + 1e-12
    shift, unit = float(logs.mean()), float(logs.std()) + 1e-12
    spread_rows = KernelRows.of(np.column_stack([rows.inputs, (extra - centres) / units]), (logs - shift) / unit)
    form = _SPREAD_FORM
    learning = np.sort(np.random.default_rng(seed + 2).permutation(len(logs))[:LEARNING_ROWS])
    parameters = fit_from_several_starts(form, spread_rows.take(learning), (1.0, 0.4), steps=25, seed=seed)
    posterior = KernelPosterior(form, parameters, spread_rows)
    left_out = np.clip(posterior.leave_groups_out(groups)[0] * unit + shift, -5.0, 5.0)
    limits = tuple(float(value) for value in np.quantile(left_out, [0.01, 0.99]))
    best: tuple[float, float, float, float] | None = None
    for strength in (0.0, 0.25, 0.5, 0.75, 1.0, 1.25):
        scales = np.sqrt(variance) * np.exp(0.5 * strength * left_out)
        factor, freedom = choose_shape((rows.targets - mean) / scales, most_degrees, rows.counts)
        density = float(rows.counts @ _log_density(rows.targets, mean, factor * scales, freedom)) - 3.0 * (
            strength > 0.0
        )
        if best is None or density > best[0]:
            best = density, strength, factor, freedom
    assert best is not None
    _, strength, factor, freedom = best
    if strength == 0.0:
        return None, stacked
    scales = factor * np.sqrt(variance) * np.exp(0.5 * strength * left_out)
    both = np.array([stacked.log_density(rows.targets), _log_density(rows.targets, mean, scales, freedom)])
    share = float(stacking_weights(both, rows.counts)[1])
    everything = np.column_stack([inputs, (extra - centres) / units])

    def condition() -> SpreadModel:
        return SpreadModel(
            condition_kernel(form, parameters, everything, spread_rows),
            shift,
            unit,
            centres,
            units,
            (limits[0], limits[1]),
            strength,
            factor,
            freedom,
            share,
            *landmark_rows(spread_rows),
        )

    return condition, stacked.with_component(share, mean, scales, freedom)


def _log_density(values: Array, means: Array, scales: Array, freedom: float) -> Array:
    return log_student((values - means) / scales, np.array(freedom)) - np.log(scales)
