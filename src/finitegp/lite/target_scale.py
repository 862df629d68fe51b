"""``Scale``: a rising function of the target, which is modelled instead of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .program import Array

if TYPE_CHECKING:
    from typing_extensions import Self

#: Levels of quantiles above one half, and weights, by which integrals over a distribution are taken (Gauss-Legendre).
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
COVERAGES: tuple[float, ...] = tuple(float(node) for node in _NODES[_NODES > 0.0])
NODE_WEIGHTS: tuple[float, ...] = tuple(float(weight) for weight in _WEIGHTS[_NODES > 0.0] / 2.0)
SCALES = ("identity", "log", "square root", "yeo-johnson")


class Bend(NamedTuple):
    """Where a scale becomes linear: a target, its value, and targets per value beyond."""

    target: float
    value: float
    slope: float


@dataclass(frozen=True)
class Scale:
    """A rising function of the target, such as its logarithm.

    Attributes:
        name: ``"identity"``, ``"log"``, ``"square root"`` or ``"yeo-johnson"``.
        shift: Added under the root; subtracted before Yeo and Johnson's function.
        unit: What that function divides by.
        power: Its exponent, from 0 to 2: then every number is the image of a target.
        lowest: The smallest possible target; minus infinity if none is known.
        plausible: The range of the fit's targets with as much again on each side, on this scale and on their own.
            Beyond it, targets that would grow ever faster with values of this scale grow linearly: an exponential of an
            extrapolation with heavy tails is no amount that anyone means. And means are taken inside of it.
    """

    name: str = "identity"
    shift: float = 0.0
    unit: float = 1.0
    power: float = 1.0
    lowest: float = -math.inf
    plausible: tuple[float, float] = (-math.inf, math.inf)

    @classmethod
    def from_dict(cls, stored: object) -> Self:
        """The scale that a file describes; None is the target's own.

        Raises:
            ValueError: If the description makes no sense.
        """
        if stored is None:
            return cls()
        if not isinstance(stored, Mapping):
            raise ValueError("its scale of the target makes no sense")
        numbers: list[Any] = [stored.get(key) for key in ("shift", "unit", "power")]
        ends: Any = stored.get("plausible")
        lowest = stored.get("lowest")
        good = isinstance(ends, list) and len(ends) == 2 and stored.get("name") in SCALES and lowest in (None, 0)
        if not good or not all(map(_is_number, numbers)) or not all(each is None or _is_number(each) for each in ends):
            raise ValueError("its scale of the target makes no sense")
        shift, unit, power = map(float, numbers)
        if unit <= 0.0 or not 0.0 <= power <= 2.0:
            raise ValueError("its scale of the target makes no sense")
        low, high = (sign * math.inf if each is None else float(each) for sign, each in zip((-1, 1), ends, strict=True))
        return cls(stored["name"], shift, unit, power, -math.inf if lowest is None else 0.0, (low, high))

    def forward(self, targets: Array) -> Array:
        """Targets on the scale of the model; minus infinity or NaN where one is impossible."""
        low, high = self.bends()
        values = self._curve(np.clip(targets, low.target, high.target))
        if math.isfinite(low.target):
            values = values + np.minimum(targets - low.target, 0.0) / low.slope
        if math.isfinite(high.target):
            values = values + np.maximum(targets - high.target, 0.0) / high.slope
        return values

    def inverse(self, values: Array) -> Array:
        """Targets; where a value lies beyond the smallest possible target, that."""
        low, high = self.bends()
        targets = self._inverse_curve(np.clip(values, low.value, high.value))
        if math.isfinite(low.target):
            targets = targets + np.minimum(values - low.value, 0.0) * low.slope
        if math.isfinite(high.target):
            targets = targets + np.maximum(values - high.value, 0.0) * high.slope
        return np.maximum(targets, self.lowest)

    def log_derivative(self, targets: Array) -> Array:
        """The logarithm of the derivative of `forward`, which a density is multiplied by."""
        low, high = self.bends()
        return self._log_slope(np.clip(targets, low.target, high.target))

    def bends(self) -> tuple[Bend, Bend]:
        """Below and above which targets are a linear function of values; infinite where there is none."""
        low, high = Bend(-math.inf, -math.inf, 1.0), Bend(math.inf, math.inf, 1.0)
        if self.name == "log" or (self.name == "yeo-johnson" and self.power < 1.0):
            high = self._bend(self.plausible[1], high)
        elif self.name == "yeo-johnson" and self.power > 1.0:
            low = self._bend(self.plausible[0], low)
        return low, high

    def _bend(self, target: float, none: Bend) -> Bend:
        if not math.isfinite(target):
            return none
        place = np.array([target])
        return Bend(target, float(self._curve(place)[0]), math.exp(-float(self._log_slope(place)[0])))

    def _curve(self, targets: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.name == "log":
                return np.log(targets)
            if self.name == "square root":
                return np.sqrt(targets + self.shift)
        if self.name == "identity":
            return targets
        values = (targets - self.shift) / self.unit
        above, below = np.log1p(np.maximum(values, 0.0)), np.log1p(np.maximum(-values, 0.0))
        return np.where(values >= 0.0, _box_cox(above, self.power), -_box_cox(below, 2.0 - self.power))

    def _inverse_curve(self, values: Array) -> Array:
        if self.name == "log":
            with np.errstate(over="ignore"):
                return np.exp(values)
        if self.name == "square root":
            return np.square(np.maximum(values, 0.0)) - self.shift
        if self.name == "identity":
            return values
        above = np.expm1(_inverse_box_cox(np.maximum(values, 0.0), self.power))
        below = -np.expm1(_inverse_box_cox(np.maximum(-values, 0.0), 2.0 - self.power))
        return np.where(values >= 0.0, above, below) * self.unit + self.shift

    def _log_slope(self, targets: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.name == "log":
                return -np.log(targets)
            if self.name == "square root":
                return -0.5 * np.log(targets + self.shift) - math.log(2.0)
        if self.name == "identity":
            return np.zeros_like(targets)
        standard = (targets - self.shift) / self.unit
        exponent = np.where(standard >= 0, self.power - 1.0, 1.0 - self.power)
        return exponent * np.log1p(np.abs(standard)) - math.log(self.unit)

    def moments(self, lower: Array, upper: Array) -> tuple[Array, Array]:
        """Mean and standard deviation in the target's units from the ends of intervals at ``COVERAGES``.

        Both are integrals over the quantiles from 0.2 to 99.8 %: a logarithm with heavy-tailed errors has no mean, but
        what is left of it without the outermost tails is a good prediction.

        Args:
            lower: ``(rows, len(COVERAGES))``, in the target's units.
            upper: The same shape.
        """
        weights = np.array(NODE_WEIGHTS)
        low, high = (np.clip(each, *self.plausible) for each in (lower, upper))
        mean = (low + high) @ weights
        std = np.sqrt((np.square(low - mean[:, None]) + np.square(high - mean[:, None])) @ weights)
        cut = (lower[:, -1] < self.plausible[0]) | (upper[:, -1] > self.plausible[1])
        if cut.any():
            # The mean of a distribution as wide as this is that of its tail: the median is the better prediction.
            # What was cut stays in its error.
            mean[cut] = np.clip(0.5 * (lower[cut, 0] + upper[cut, 0]), *self.plausible)
            reach = np.minimum(upper[cut, -1] - lower[cut, -1], np.finfo(np.float64).max / 4)
            std[cut] = np.maximum(std[cut], 0.25 * reach)
        return mean, std


def _is_number(value: object) -> bool:
    # Compared, not converted: a whole number of JSON may be too large for a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _box_cox(logarithms: Array, power: float) -> Array:
    """``(exp(power * x) - 1) / power``, and its limit at zero."""
    return logarithms if power < 1e-9 else np.expm1(power * logarithms) / power


def _inverse_box_cox(values: Array, power: float) -> Array:
    return values if power < 1e-9 else np.log1p(power * values) / power
