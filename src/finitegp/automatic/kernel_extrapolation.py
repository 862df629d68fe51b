"""The variance of stacked kernels outside of the range of the rows, by their errors at outer rows left out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from ..component import Component
from ..extrapolation import ExcessVariance, factor_needed, total_effects
from ..kernel_gp import KernelPosterior, KernelRows
from .kernels import FORMS, LINEAR
from .table import Array

# The factor with too few rows, the limits with enough of them, and a safety: the next step outside may be worse than
# the last one inside.
_USUAL, _LIMITS, _SAFETY = 2.0, (2.0, 12.0), 2.0
# Rows that effects are measured with and outer rows predicted from, at most: the cost grows with the cube.
_KNOWN_ROWS = 800
# What outer rows ask for is weighed against this number of rows that ask for the usual.
_PRIOR_ROWS = 10
# The share of rows at an end of a column; columns that are tested, and the share of all effects that they need.
_OUTER, _TESTED_COLUMNS, _LEAST_SHARE = 0.1, 6, 0.02


def excess_of_kernels(
    components: Sequence[Component],
    inputs: Array,
    rows: KernelRows,
    parameters: Mapping[str, Array],
    *,
    tree_weight: float = 0.0,
    keep_rows: bool = True,
    seed: int,
) -> ExcessVariance:
    """Variance outside of the range of each column; within it kernels' own variance grows with the distance to rows.

    A kernel returns to its prior outside, at the pace of its length scale, which is long where a column is smooth. The
    outer tenth of a column's rows, at either end, is predicted from the rest (or some hundreds of them) by the heaviest
    kernel, and what is missing from its own variance there is what to add. The hyperparameters stay, so it is too
    little; hence a factor.
    As far as the weight of the linear component in the mean goes, a line is believed also outside.

    Args:
        components: The kernels with their posteriors.
        inputs: ``(rows, columns)`` standardised.
        rows: What the kernels were conditioned on.
        parameters: Their hyperparameters.
        tree_weight: Of boosted trees in the mean.
        keep_rows: Whether the ends of a column may be values of single rows, or are means of three.
        seed: Of the rows that effects are measured on.
    """
    some = rows.take(np.random.default_rng(seed).permutation(len(inputs))[:_KNOWN_ROWS])
    posteriors = [KernelPosterior(FORMS[each.name], parameters[each.name], some) for each in components]

    def mean(places: Array) -> Array:
        parts = [each.weight * posterior.mean(places) for each, posterior in zip(components, posteriors, strict=True)]
        return np.asarray(np.sum(parts, axis=0))

    effects = np.zeros(inputs.shape[1])
    effects[np.ptp(inputs, axis=0) > 0.0] = total_effects(mean, rows.inputs, np.random.default_rng(seed))
    factors = np.full((inputs.shape[1], 2), _USUAL)
    count = max(3, int(_OUTER * len(inputs)))
    heaviest = max(components, key=lambda component: component.weight)
    form, found_parameters = FORMS[heaviest.name], parameters[heaviest.name]
    for column in np.argsort(-effects, kind="stable")[:_TESTED_COLUMNS]:
        if effects[column] < _LEAST_SHARE * effects.sum() or len(inputs) < 4 * count:
            continue
        order = np.argsort(inputs[:, column], kind="stable")
        for side, outer in enumerate((order[:count], order[-count:])):
            rest = np.setdiff1d(order, outer)
            modelled = _range_only(inputs[rest], effects).variance(inputs[outer]).numpy()
            known = np.random.default_rng(seed + side).permutation(rest)[:_KNOWN_ROWS]
            posterior = KernelPosterior(form, found_parameters, rows.take(known))
            left, part = posterior.predict(rows.inputs[outer]), rows.take(outer)
            trust = 1.0 / part.noise_scales
            squares = trust * np.square(part.targets - left[0])
            variance = heaviest.factor**2 * (left[1] + posterior.scale * posterior.noise)
            asked = _SAFETY * factor_needed(squares, variance, modelled)
            share = count / (count + _PRIOR_ROWS)
            factors[column, side] = np.exp(share * np.log(asked) + (1.0 - share) * np.log(_USUAL))
    linear = (1.0 - tree_weight) * sum(each.weight for each in components if each.name == LINEAR)
    found = _range_only(inputs, effects, (1.0 - linear) * np.clip(factors, *_LIMITS))
    if keep_rows:
        return found
    ordered = np.sort(inputs, axis=0) / found.units.numpy()
    starts, ends = (torch.from_numpy(part.mean(axis=0)[:, None]) for part in (ordered[:3], ordered[-3:]))
    return replace(found, run_starts=starts, run_ends=ends)


def _range_only(inputs: Array, effects: Array, factors: Array | None = None) -> ExcessVariance:
    spread = np.ptp(inputs, axis=0)
    units = np.where(spread < 1e-9, 1.0, np.maximum(inputs.std(axis=0), spread / 8.0))
    return ExcessVariance(
        effects=torch.from_numpy(np.where(spread < 1e-9, 0.0, effects)),
        factors=torch.from_numpy(np.ones((len(effects), 2)) if factors is None else factors),
        units=torch.from_numpy(units),
        run_starts=torch.from_numpy((inputs.min(axis=0) / units)[:, None]),
        run_ends=torch.from_numpy((inputs.max(axis=0) / units)[:, None]),
        centres=torch.zeros(1, len(effects), dtype=torch.float64),
        threshold=0.0,
        nearness=0.0,
    )
