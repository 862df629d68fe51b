"""Ends of intervals as formulas of the coverage: the normal quantile, and Student's t beside it."""

from __future__ import annotations

import numpy as np
from numpy.polynomial import chebyshev

from ..lite.fits import Fit
from ..lite.program import Array, Value, affine, apply, beside, constant, less, smallest, total

#: The largest coverage of an exported interval; more is taken as this.
MOST_COVERAGE = 0.9999
_DEGREES = 20
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


def interval_ends(fit: Fit, coverage: Value) -> tuple[Value, Value] | None:
    """Lower and upper ends at a coverage, one column; None for mixtures, whose quantiles have no formula."""
    if fit.distribution == "mixture":
        return None
    deviations = normal_reach(coverage)
    if fit.distribution == "student":
        freedom = float(fit.header["components"][0]["degrees_of_freedom"])
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
    """Student's quantile over the normal one at the same probability, for at least so many degrees of freedom.

    Its logarithm is a smooth function of the squared normal quantile and of one over the degrees of freedom: Chebyshev
    polynomials of degree 19 in both have twelve digits, up to the largest coverage.
    """
    from scipy.special import ndtr, ndtri, stdtrit

    farthest = float(ndtri(0.5 + 0.5 * MOST_COVERAGE))
    nodes = np.cos(np.pi * (np.arange(_DEGREES) + 0.5) / _DEGREES)
    places, inverses = np.sqrt(0.5 * (nodes + 1.0)) * farthest, 0.5 * (nodes + 1.0) / fewest
    exact = -stdtrit(1.0 / inverses[None], ndtr(-places)[:, None])
    basis = np.linalg.inv(chebyshev.chebvander(nodes, _DEGREES - 1))
    coefficients: Array = basis @ np.log(exact / places[:, None]) @ basis.T
    by_place = affine(_chebyshev(2.0 / farthest**2 * deviations * deviations - 1.0), coefficients)
    return apply("exp", total(by_place * _chebyshev(2.0 * fewest / freedoms - 1.0)))


def _chebyshev(value: Value) -> Value:
    """The first polynomials of a value, side by side."""
    found = [0.0 * value + 1.0, value]
    for _ in range(_DEGREES - 2):
        found.append(2.0 * value * found[-1] - found[-2])
    return beside(found)
