"""Mixtures of Student's t without SciPy: distribution function and quantiles to about 1e-12."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .program import Array

# Beyond these degrees of freedom Hill's normal deviate has all digits; below, the continued fraction is short.
_LARGE = 1000.0
_TERMS, _STEPS, _CONVERGED = 400, 100, 1e-15
_ERFC = np.frompyfunc(math.erfc, 1, 1)
_LGAMMA = np.frompyfunc(math.lgamma, 1, 1)


class Mixture(NamedTuple):
    """For each row a mixture of Student's t: all ``(rows, components)``, weights also ``(components,)``."""

    weights: Array
    means: Array
    scales: Array
    freedoms: Array

    def log_density(self, values: Array) -> Array:
        """``(rows,)`` log densities of one value per row."""
        parts = log_density((values[:, None] - self.means) / self.scales, self.freedoms) - np.log(self.scales)
        with np.errstate(divide="ignore"):
            return np.asarray(np.logaddexp.reduce(parts + np.log(self.weights), axis=1))

    @property
    def mean(self) -> Array:
        """``(rows,)``."""
        return self._mixed(self.means)

    @property
    def variance(self) -> Array:
        """``(rows,)``."""
        return self._mixed(variance_of_student(self.freedoms) * self.scales**2 + (self.means - self.mean[:, None]) ** 2)

    def with_values(self, values: Array, chances: Array, scale: float) -> Mixture:
        """The mixture with a Gaussian of this scale around values that rows have with these probabilities."""
        known = chances > 0.0
        added = (np.where(known, value, own) for value, own in ((values, self.means[:, 0]), (scale, self.scales[:, 0])))
        mean, spread = added
        weights = np.column_stack([(1.0 - chances)[:, None] * self.weights, chances])
        freedom = np.where(known, math.inf, self.freedoms[:, 0])
        rest = zip((self.means, self.scales, self.freedoms), (mean, spread, freedom), strict=True)
        return Mixture(weights, *(np.column_stack(pair) for pair in rest))

    def _mixed(self, values: Array) -> Array:
        return np.asarray((self.weights * values).sum(axis=1) if self.weights.ndim == 2 else values @ self.weights)

    def quantile(self, probability: float) -> Array:
        """``(rows,)`` values that are not exceeded with this probability."""
        if self.weights.ndim == 2:  # the last component is of values that some rows have had
            known = np.flatnonzero(self.weights[:, -1])
            rest = np.delete(np.arange(len(self.means)), known)
            found = np.empty(len(self.means))
            if len(known):
                found[known] = Mixture(*(each[known] for each in self))._search(probability)
            if len(rest):
                parts = (each[rest, :-1] for each in self[1:])
                found[rest] = Mixture(self.weights[rest[0], :-1], *parts).quantile(probability)
            return found
        one = len(self.weights) == 1
        if one:  # all rows alike have the same quantile
            freedoms, back = np.unique(self.freedoms[:, 0], return_inverse=True)
            standard = Mixture(
                self.weights, np.zeros((len(freedoms), 1)), np.ones((len(freedoms), 1)), freedoms[:, None]
            )
            return np.asarray(self.means[:, 0] + self.scales[:, 0] * standard._search(probability)[back])
        return self._search(probability)

    def _search(self, probability: float) -> Array:
        """Newton's method on log odds, which are nearly linear in the inverse hyperbolic sine, inside of a bracket."""
        wanted = math.log(probability) - math.log1p(-probability)
        middle, spread = self.mean, self.scales.max(axis=1)
        low, high = self._beyond(-1.0, wanted), self._beyond(1.0, wanted)
        place = 0.5 * (low + high)
        for _ in range(_STEPS):
            value = middle + spread * np.sinh(place)
            odds, density = self._log_odds(value)
            error = odds - wanted
            low, high = np.where(error < 0.0, place, low), np.where(error < 0.0, high, place)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                step = place - error / (density * spread * np.cosh(place))
            inside = (step > low) & (step < high)
            new = np.where(inside, step, 0.5 * (low + high))
            moved, place = np.abs(new - place), new
            if np.all(moved <= 1e-15 * (1.0 + np.abs(place))):
                break
        return np.asarray(middle + spread * np.sinh(place))

    def _beyond(self, sign: float, wanted: float) -> Array:
        """A place beyond the quantile, on the scale of the search: twice as far until it is."""
        middle, spread = self.mean, self.scales.max(axis=1)
        place = np.full(len(middle), sign)
        for _ in range(10):
            odds, _density = self._log_odds(middle + spread * np.sinh(place))
            short = sign * (odds - wanted) < 0.0
            if not short.any():
                break
            place = np.where(short, np.clip(2.0 * place, -700.0, 700.0), place)
        return place

    def _log_odds(self, values: Array) -> tuple[Array, Array]:
        """The logarithm of ``F / (1 - F)``, and its derivative."""
        z = (values[:, None] - self.means) / self.scales
        tails = tail(np.abs(z), self.freedoms)
        below = self._mixed(np.where(z < 0.0, tails, 1.0 - tails))
        above = self._mixed(np.where(z < 0.0, 1.0 - tails, tails))
        density = self._mixed(np.exp(log_density(z, self.freedoms)) / self.scales)
        tiny = 1e-320
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            return np.log(np.maximum(below, tiny)) - np.log(np.maximum(above, tiny)), density / (below * above)


def tail(values: Array, freedoms: Array) -> Array:
    """The probability of more than each value, which is not negative.

    Example:
        >>> round(float(tail(np.array([1.0]), np.array([1.0]))[0]), 12)
        0.25
    """
    t, nu = np.broadcast_arrays(np.asarray(values, np.float64), np.asarray(freedoms, np.float64))
    result = np.empty(t.shape)
    large = nu > _LARGE
    result[large] = 0.5 * np.asarray(_ERFC(_normal_deviate(t[large], nu[large]) * math.sqrt(0.5)), np.float64)
    result[~large] = _beta_tail(t[~large], nu[~large])
    return result


def log_density(z: Array, freedoms: Array) -> Array:
    """The log density of Student's t of scale one; infinite degrees of freedom are the Gaussian."""
    z, nu = np.broadcast_arrays(z, freedoms)
    many = nu > 1e8
    nu = np.where(many, 1.0, nu)
    constant = _log_gamma(0.5 * nu + 0.5) - _log_gamma(0.5 * nu) - 0.5 * np.log(math.pi * nu)
    student = constant - 0.5 * (nu + 1.0) * np.log1p(np.square(z) / nu)
    return np.where(many, -0.5 * (np.square(z) + math.log(2.0 * math.pi)), student)


def variance_of_student(freedoms: Array) -> Array:
    """The variance of Student's t of scale one."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(freedoms), 1.0, freedoms / (freedoms - 2.0))


def _log_gamma(values: Array) -> Array:
    return np.asarray(_LGAMMA(values), dtype=np.float64)


def _normal_deviate(t: Array, nu: Array) -> Array:
    """The standard normal value with the same tail (Hill, 1970)."""
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = np.square(t) / nu
        a = nu - 0.5
        b = 48.0 * np.square(a)
        z = np.where(np.isinf(nu), t, np.sqrt(a * np.log1p(ratio)))
        squares = z * z
        more = ((-0.4 * squares - 3.3) * squares - 24.0) * squares - 85.5
        series = (more / (0.8 * squares * squares + 100.0 + b) + squares + 3.0) / b + 1.0
        return np.where(np.isfinite(b), series * z, z)


def _beta_tail(t: Array, nu: Array) -> Array:
    """Half the incomplete beta function of ``nu / (nu + t^2)``, by its continued fraction (Lentz)."""
    x, rest = nu / (nu + np.square(t)), np.square(t) / (nu + np.square(t))
    a, b = 0.5 * nu, np.full(nu.shape, 0.5)
    # On the other side of its mean the complement converges.
    other = x > (a + 1.0) / (a + b + 2.0)
    first, second = np.where(other, b, a), np.where(other, a, b)
    place, complement = np.where(other, rest, x), np.where(other, x, rest)
    with np.errstate(divide="ignore"):
        log_front = first * np.log(place) + second * np.log(complement)
    log_front = log_front + _log_gamma(first + second) - _log_gamma(first) - _log_gamma(second)
    c = np.ones(nu.shape)
    d = 1.0 / (1.0 - (first + second) * place / (first + 1.0))
    total = d.copy()
    for m in range(1, _TERMS):
        even = m * (second - m) * place / ((first + 2 * m - 1.0) * (first + 2 * m))
        odd = -(first + m) * (first + second + m) * place / ((first + 2 * m) * (first + 2 * m + 1.0))
        d, c = 1.0 / (1.0 + even * d), 1.0 + even / c
        total = total * d * c
        d, c = 1.0 / (1.0 + odd * d), 1.0 + odd / c
        change = d * c
        total = total * change
        if np.all(np.abs(change - 1.0) < _CONVERGED):
            break
    found = np.exp(log_front) * total / first
    return np.asarray(0.5 * np.where(other, 1.0 - found, found))
