"""A prediction in the target's units as formulas; on another scale by the library's quadrature over quantiles."""

from __future__ import annotations

import math

import numpy as np

from ..lite.fits import Fit
from ..lite.model import LiteModel
from ..lite.program import Value, apply, constant, largest, less, smallest, take, total
from ..lite.target_scale import COVERAGES, NODE_WEIGHTS, Scale
from .interval_formulas import interval_ends


def predicted(model: LiteModel) -> list[dict[str, Value]]:
    """For each target its mean and standard deviation, with the two parts of it where the scale is the target's own."""
    if model.scale.name != "identity":
        return [_moments(fit, model.scale) for fit in model.fits]
    return [_deviations(fit) for fit in model.fits]


def target_ends(fit: Fit, scale: Scale, coverage: Value) -> tuple[Value, Value]:
    """Lower and upper ends of predictive intervals in the target's units, one column for each coverage."""
    lower, upper = interval_ends(fit, coverage)
    return _targets(lower, scale), _targets(upper, scale)


def _deviations(fit: Fit) -> dict[str, Value]:
    epistemic, noise = fit.outputs["epistemic_variance"], fit.outputs["noise_variance"]
    return {
        "mean": fit.outputs["mean"],
        "epistemic_std": apply("sqrt", epistemic),
        "noise_std": apply("sqrt", noise),
        "std": apply("sqrt", epistemic + noise),
    }


def _targets(values: Value, scale: Scale) -> Value:
    """:meth:`Scale.inverse`."""
    if scale.name == "log":
        values = apply("exp", values)
    elif scale.name == "square root":
        values = largest(values, 0.0).squared - scale.shift
    elif scale.name == "yeo-johnson":
        above = _growth(largest(values, 0.0), scale.power)
        values = (above - _growth(largest(0.0 - values, 0.0), 2.0 - scale.power)) * scale.unit + scale.shift
    return values if math.isinf(scale.lowest) else largest(values, scale.lowest)


def _growth(values: Value, power: float) -> Value:
    logarithm = values if power < 1e-9 else apply("log1p", power * values) * (1.0 / power)
    return apply("exp", logarithm) - 1.0


def _moments(fit: Fit, scale: Scale) -> dict[str, Value]:
    """:meth:`Scale.moments`."""
    lower, upper = target_ends(fit, scale, constant(np.array(COVERAGES)))
    (least, most), weights = scale.plausible, np.array(NODE_WEIGHTS)

    def plausible(value: Value) -> Value:
        value = value if math.isinf(least) else largest(value, least)
        return value if math.isinf(most) else smallest(value, most)

    low, high = plausible(lower), plausible(upper)
    mean = total(weights * (low + high))
    std = apply("sqrt", total(weights * ((low - mean).squared + (high - mean).squared)))
    first, last = ([take(end, [place]) for end in (lower, upper)] for place in (0, len(COVERAGES) - 1))
    cuts = [] if math.isinf(least) else [less(last[0], least)]
    cuts += [] if math.isinf(most) else [less(most, last[1])]
    if cuts:
        cut = largest(cuts[0], cuts[-1])
        median = plausible(0.5 * (first[0] + first[1]))
        wide = largest(std, 0.25 * (last[1] - last[0]))
        mean, std = mean + cut * (median - mean), std + cut * (wide - std)
    return {"mean": mean, "std": std}
