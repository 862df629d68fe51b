"""A fitted model as formulas: its prediction, and ends of intervals, in the units of the target."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
from numpy.polynomial import chebyshev

from ..component import Component
from ..data.scaling import Standardizer
from ..errors import DataError
from ..lite import LiteError, load
from ..lite.container import read_file
from ..lite.fits import Fit
from ..lite.model import LiteModel, read_model
from ..lite.program import Array, Value, affine, apply, beside, constant, largest, less, ordered, smallest, take, total
from ..lite.target_scale import COVERAGES, NODE_WEIGHTS, Scale
from ..model import FittedGP
from ..scaled import ScaledGP

#: The largest coverage of an exported interval; more is taken as this.
MOST_COVERAGE = 0.9999
_DEGREES = 20
# Of tails in mixtures: in the place, up to where nothing is left of a tail, and in one over the degrees of freedom.
_TAIL_DEGREES, _FARTHEST = (40, 24), 8.3
# Wichura's approximation of the normal quantile (1988, AS 241), to sixteen digits: numerators and denominators near the
# middle, in the tails, and far out, from the constant on.
_MIDDLE = (
    (
        *(3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4),
        *(4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
    ),
    (
        *(1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3),
        *(2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3),
    ),
)
_TAIL = (
    (
        *(1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0),
        *(1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4),
    ),
    (
        *(1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1),
        *(1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
    ),
)


class Saves(Protocol):
    """A fitted estimator: what writes a model file."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file."""


#: A fitted model, or its file.
Exportable: TypeAlias = LiteModel | FittedGP | ScaledGP | Saves | str | os.PathLike[str]


def described(model: Exportable) -> LiteModel:
    """The formulas of a model file, or of a fitted model."""
    try:
        if isinstance(model, LiteModel):
            return model
        if isinstance(model, str | os.PathLike):
            return load(model)
        if isinstance(model, FittedGP):
            model = _in_its_own_units(model)
        if not hasattr(model, "save") and not isinstance(model, ScaledGP):
            raise DataError(
                "model must be a model file, a fitted GPRegressor or TableRegressor, a ScaledGP or a FittedGP, but is "
                f"{model!r:.60}."
            )
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "model.finitegp"
            if hasattr(model, "save"):
                model.save(path)
            else:
                from ..persistence.fits import save_fit

                save_fit(model, path)
            return read_model("it", *read_file(path))
    except LiteError as error:
        raise DataError(f"The model cannot be exported: {error}") from None


def _in_its_own_units(fitted: FittedGP) -> ScaledGP:
    columns, targets = getattr(fitted.model.feature_map, "input_dim", None), fitted.posterior.statistics.num_targets
    if columns is None or targets > 1:
        what = "a feature map without input_dim" if columns is None else f"{targets} targets"
        raise DataError(f"A FittedGP with {what} cannot be exported:", "fit a GPRegressor with this feature map.")
    inputs, target = (Standardizer(np.zeros(shape), np.ones(shape)) for shape in ((int(columns),), ()))
    return ScaledGP((Component(fitted),), inputs, target)


def check_columns(model: LiteModel, target: str, *, encodes: bool = False) -> list[str]:
    """The names of a model's inputs: numbers or, if the target ``encodes`` them, anything; others are refused."""
    for column in [] if model.encoder is None or encodes else model.encoder.used:
        what = {"category": "holds text", "date": "holds dates"}.get(column["type"])
        what = what or ("had gaps in the fit" if column["indicator"] else None)
        if what is not None:
            raise DataError(
                f"Column {column['name']!r} {what}, but {target} takes numbers only:",
                "fit without it (drop), or export an ONNX graph, or predict with finitegp-lite.",
            )
    return model.column_names or [f"column {number}" for number in range(model.fits[0].columns)]


def predicted(model: LiteModel) -> list[dict[str, Value]]:
    """For each target its mean and standard deviation, with the two parts of it where the scale is the target's own."""
    if model.scale.name != "identity":
        return [_moments(fit, model.scale) for fit in model.fits]
    return [_deviations(fit, model.scale) for fit in model.fits]


def target_ends(fit: Fit, scale: Scale, coverage: Value) -> tuple[Value, Value]:
    """Lower and upper ends of predictive intervals in the target's units, one column for each coverage."""
    lower, upper = interval_ends(fit, coverage)
    return _targets(lower, scale), _targets(upper, scale)


def _deviations(fit: Fit, scale: Scale) -> dict[str, Value]:
    epistemic, noise = fit.outputs["epistemic_variance"], fit.outputs["noise_variance"]
    return {
        "mean": _targets(fit.outputs["mean"], scale),
        "epistemic_std": apply("sqrt", epistemic),
        "noise_std": apply("sqrt", noise),
        "std": apply("sqrt", epistemic + noise),
    }


def _targets(values: Value, scale: Scale) -> Value:
    """:meth:`Scale.inverse`."""
    low, high = scale.bends()
    curved = values if math.isinf(low.value) else largest(values, low.value)
    curved = curved if math.isinf(high.value) else smallest(curved, high.value)
    targets = _inverse_curve(curved, scale)
    if math.isfinite(low.value):
        targets = targets + low.slope * smallest(values - low.value, 0.0)
    if math.isfinite(high.value):
        targets = targets + high.slope * largest(values - high.value, 0.0)
    return targets if math.isinf(scale.lowest) else largest(targets, scale.lowest)


def _inverse_curve(values: Value, scale: Scale) -> Value:
    if scale.name == "log":
        return apply("exp", values)
    if scale.name == "square root":
        return largest(values, 0.0).squared - scale.shift
    if scale.name == "identity":
        return values
    above = _growth(largest(values, 0.0), scale.power)
    return (above - _growth(largest(0.0 - values, 0.0), 2.0 - scale.power)) * scale.unit + scale.shift


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


@dataclass(frozen=True, eq=False)
class Search(Value):
    """The place between two inputs where a formula of the place falls from one to zero, by bisection.

    Attributes:
        below: One where the place is too low, else zero; the remaining inputs are all that it needs but the place.
    """

    below: Value = field(kw_only=True)


def interval_ends(fit: Fit, coverage: Value) -> tuple[Value, Value]:
    """Lower and upper ends of predictive intervals on the scale of the model, one column for each coverage.

    Several coverages must be constants.
    """
    if fit.distribution == "mixture":
        return _mixture_ends(fit, coverage)
    deviations = normal_reach(coverage)
    if fit.distribution == "student":
        freedom = fit.shapes[0].degrees_of_freedom
        deviations = deviations * _student_ratio(deviations, fit.outputs["freedoms"], freedom)
    reach = deviations * fit.outputs["scales"]
    return fit.outputs["means"] - reach, fit.outputs["means"] + reach


def normal_reach(coverage: Value) -> Value:
    """How many standard deviations to each side of a normal distribution hold this probability."""
    half = 0.5 * smallest(coverage, MOST_COVERAGE)
    middle = 0.180625 - half * half
    far = apply("sqrt", 0.0 - apply("log", 0.5 - half)) - 1.6
    inner = half * _polynomial(middle, _MIDDLE[0]) / _polynomial(middle, _MIDDLE[1])
    outer = _polynomial(far, _TAIL[0]) / _polynomial(far, _TAIL[1])
    return inner + less(0.425, half) * (outer - inner)


def _polynomial(value: Value, coefficients: tuple[float, ...]) -> Value:
    found = constant(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        found = found * value + coefficient
    return found


def _student_ratio(deviations: Value, freedoms: Value, fewest: float) -> Value:
    """Student's quantile over the normal one at the same probability, for at least this many degrees of freedom.

    Its logarithm is a smooth function of the squared normal quantile and of one over the degrees of freedom: Chebyshev
    polynomials of degree 19 in both have twelve digits, up to the largest coverage.
    """
    from scipy.special import ndtr, ndtri, stdtrit

    farthest = float(ndtri(0.5 + 0.5 * MOST_COVERAGE))

    def log_ratio(squares: Array, inverses: Array) -> Array:
        places = np.sqrt(squares)
        return np.asarray(np.log(-stdtrit(1.0 / inverses, ndtr(-places)) / places))

    coefficients = _fitted(log_ratio, (farthest**2, 1.0 / fewest), (_DEGREES, _DEGREES))
    by_freedom = _chebyshev(2.0 * fewest / freedoms - 1.0, _DEGREES)
    if deviations.op == "const":
        at_places = chebyshev.chebvander(2.0 / farthest**2 * np.square(deviations.arrays[0]) - 1.0, _DEGREES - 1)
        return apply("exp", affine(by_freedom, (at_places @ coefficients).T))
    by_place = affine(_chebyshev(2.0 / farthest**2 * deviations * deviations - 1.0, _DEGREES), coefficients)
    return apply("exp", total(by_place * by_freedom))


def _mixture_ends(fit: Fit, coverage: Value) -> tuple[Value, Value]:
    """By bisection between bounds that hold for every distribution of this mean and variance, all ends at once."""
    outputs = fit.outputs
    std = apply("sqrt", outputs["epistemic_variance"] + outputs["noise_variance"])
    tail = 0.5 - 0.5 * smallest(coverage, MOST_COVERAGE)
    far, near = (apply("sqrt", ratio) * std for ratio in ((1.0 - tail) / tail, tail / (1.0 - tail)))
    low, high = outputs["mean"] - beside([far, near]), outputs["mean"] + beside([near, far])
    below = less(_cumulative(fit, 2 * tail.width), beside([tail, 1.0 - tail]))
    inside = {id(value) for value in ordered([below]) if any(each.op == "place" for each in ordered([value]))}
    needed = [each for value in ordered([below]) if id(value) in inside for each in value.inputs]
    given = {id(each): each for each in needed if id(each) not in inside}
    ends = Search("search", below.width, (low, high, *given.values()), below=below)
    return take(ends, np.arange(tail.width)), take(ends, tail.width + np.arange(tail.width))


def _cumulative(fit: Fit, places: int) -> Value:
    r"""The mixture's distribution function at some places, one column for each.

    With :math:`u^2 = \nu \log(1 + t^2 / \nu)`, which is the square of t itself for a Gaussian, the logarithm of
    Student's tail is a smooth function of u and of one over the degrees of freedom: Chebyshev polynomials in both.
    """
    from scipy.special import stdtr

    weights, fixed = fit.mixture_parts()
    finite = np.isfinite(fixed).astype(np.float64)
    fewest = float(fixed.min()) if finite.any() else 50.0
    freedoms = fit.outputs.get("freedoms", constant(np.ones(len(fixed))))
    count = len(weights)

    def log_tail(places: Array, inverses: Array) -> Array:
        values = np.sqrt(np.expm1(np.square(places) * inverses) / inverses)
        return np.asarray(np.log(2.0 * stdtr(1.0 / inverses, -values)))

    fitted = _fitted(log_tail, (_FARTHEST, 1.0 / fewest), _TAIL_DEGREES)
    basis = _chebyshev(2.0 * fewest * (finite / freedoms) - 1.0, _TAIL_DEGREES[1])
    by_component = take(basis, np.arange(basis.width).reshape(-1, count).T)
    coefficients = affine(by_component, np.tile(fitted.T, (count, 1, 1)))
    # One column for each place and component.
    each, every = np.repeat(np.arange(places), count), np.tile(np.arange(count), places)
    means, scales, degrees = (take(value, every) for value in (fit.outputs["means"], fit.outputs["scales"], freedoms))
    t, finite = (take(Value("place", places), each) - means) / scales, finite[every]
    squares = finite * degrees * apply("log1p", t.squared / degrees) + (1.0 - finite) * t.squared
    argument = smallest(apply("sqrt", squares), _FARTHEST) * (2.0 / _FARTHEST) - 1.0
    last, before = constant(np.zeros(len(every))), constant(np.zeros(len(every)))
    for degree in range(_TAIL_DEGREES[0] - 1, -1, -1):  # Clenshaw's recurrence
        own = take(coefficients, every * _TAIL_DEGREES[0] + degree)
        last, before = own + (2.0 if degree else 1.0) * argument * last - before, last
    tail = 0.5 * apply("exp", last)
    return total(weights[every] * (tail + less(0.0, t) * (1.0 - 2.0 * tail)), count)


def _fitted(function: Callable[[Array, Array], Array], ends: tuple[float, float], degrees: tuple[int, int]) -> Array:
    """Coefficients of Chebyshev polynomials in two variables, each from zero to an end."""
    nodes = [np.cos(np.pi * (np.arange(degree) + 0.5) / degree) for degree in degrees]
    places = [0.5 * (each + 1.0) * end for each, end in zip(nodes, ends, strict=True)]
    bases = [np.linalg.inv(chebyshev.chebvander(each, len(each) - 1)) for each in nodes]
    return np.asarray(bases[0] @ function(places[0][:, None], places[1][None]) @ bases[1].T)


def _chebyshev(value: Value, count: int) -> Value:
    """The first polynomials of a value, side by side."""
    found = [0.0 * value + 1.0, value]
    for _ in range(count - 2):
        found.append(2.0 * value * found[-1] - found[-2])
    return beside(found)
