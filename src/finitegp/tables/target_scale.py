"""``TargetScale``: the scale on which a target is modelled, found by the density of left-out rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from ..errors import DataError
from ..lite.target_scale import SCALES, Scale
from ..stages import open_stages

Array = npt.NDArray[np.float64]
_FOLDS = 4
#: Rows that are enough to choose a scale by.
ROWS_TO_CHOOSE_BY = 2000
_FEWEST_ROWS, _LEAF = 12, 20
# Another scale than the target's own is taken if it is better by this number of standard errors, and of nats.
_CLEAR_ERRORS, _CLEAR_NATS = 2.0, 0.01


class TargetScale(Scale):
    """A :class:`~finitegp.lite.target_scale.Scale` that is found from targets.

    Example:
        >>> scale = TargetScale.fitted("log", np.array([1.0, 10.0]))
        >>> scale.forward(np.array([1.0])).tolist(), scale.inverse(np.array([0.0])).tolist()
        ([0.0], [1.0])
    """

    @classmethod
    def fitted(cls, name: str, targets: Array) -> TargetScale:
        """The scale of this name, with numbers that suit some targets.

        Raises:
            DataError: If the targets cannot have this scale, such as the logarithm of zero.
        """
        scale = cls._fitted(name, targets)
        if name == "identity":
            return scale
        ends = np.array([targets.min(), targets.max()])
        # As much again on each side, of what they span on this scale and of what they span themselves: logarithms that
        # span six powers of ten would allow for six more.
        values = scale.forward(ends)
        low, high = scale.inverse(values + np.ptp(values) * np.array([-1.0, 1.0]))
        low, high = max(float(low), ends[0] - np.ptp(ends)), min(float(high), ends[1] + np.ptp(ends))
        return replace(scale, plausible=(float(low), float(high)))

    @classmethod
    def _fitted(cls, name: str, targets: Array) -> TargetScale:
        lowest = 0.0 if targets.min() >= 0.0 else -math.inf
        if name == "identity":
            return cls(lowest=lowest)
        if name == "log":
            if targets.min() <= 0.0:
                raise DataError(
                    f"The scale 'log' needs positive targets, but the smallest is {targets.min():.6g}:",
                    "choose another target_scale, or leave it 'auto'.",
                    code="target_scale",
                )
            return cls("log", lowest=0.0)
        if name == "square root":
            if targets.min() < 0.0:
                raise DataError(
                    f"The scale 'square root' needs targets that are not negative, but one is {targets.min():.6g}:",
                    "choose another target_scale, or leave it 'auto'.",
                    code="target_scale",
                )
            positive = targets[targets > 0.0]
            # As Anscombe has it for counts, and so that the density at zero is finite.
            return cls("square root", shift=0.375 * float(positive.min()) if len(positive) else 0.375, lowest=0.0)
        if name != "yeo-johnson":
            raise ValueError(f"target_scale must be 'auto' or one of {SCALES}, but is {name!r}.")
        from scipy import stats

        middle = float(np.median(targets))
        unit = float(np.subtract(*np.quantile(targets, [0.75, 0.25]))) or float(targets.std()) or 1.0
        power = float(np.clip(stats.yeojohnson_normmax((targets - middle) / unit), 0.0, 2.0))
        return cls("yeo-johnson", middle, unit, power, lowest)

    def to_dict(self) -> dict[str, object]:
        """The scale in types that JSON has."""
        lowest, *plausible = (None if math.isinf(end) else end for end in (self.lowest, *self.plausible))
        numbers = {"shift": self.shift, "unit": self.unit, "power": self.power}
        return {"name": self.name, **numbers, "lowest": lowest, "plausible": plausible}

    @classmethod
    def from_dict(cls, stored: object) -> TargetScale:
        """The scale that `to_dict` described; None is the target's own."""
        try:
            return super().from_dict(stored)
        except ValueError as error:
            raise DataError(f"{error}.") from None


def choose_scale(
    inputs: Array, targets: Array, *, typical: Array | None = None, seed: int = 0
) -> tuple[TargetScale, dict[str, float]]:
    """The scale on which left-out rows of a stand-in model have the highest density, and the mean densities by scale.

    The stand-in is gradient-boosted trees, ridge regression or their average, whichever suits the scale best: an
    average alone hides that a target is a sum of columns. Errors are of Student's t or Gaussian, with a width and shape
    from left-out rows: cheap, and what matters is that errors are alike on all rows. Densities are those of the target
    itself. The target's own scale is kept unless another is clearly better.

    Args:
        inputs: ``(rows, columns)`` of training rows, of which 2,000 are enough.
        targets: ``(rows,)``.
        typical: Targets that a scale has to suit, the smallest and largest of all among them; by default these.
        seed: Of the folds.
    """
    typical = targets if typical is None else typical
    own = TargetScale.fitted("identity", typical)
    if len(targets) < _FEWEST_ROWS:
        return own, {}
    folds = np.random.default_rng(seed).permutation(len(targets)) % _FOLDS
    names = ["identity", "yeo-johnson"] + ["log"] * bool(typical.min() > 0.0)
    names += ["square root"] * bool(typical.min() >= 0.0)
    scales = {name: TargetScale.fitted(name, typical) for name in names}
    stages = open_stages("target scale", {"seed": seed}, inputs, targets, typical)

    def compute(missing: list[int]) -> Iterator[Array]:
        return (_left_out_density(inputs, targets, folds, scales[names[number]]) for number in missing)

    densities = dict(zip(names, stages.arrays(names, compute, [targets.shape] * len(names)), strict=True))
    means = {name: float(each.mean()) for name, each in densities.items()}
    best = max(means, key=lambda name: means[name])
    gain = densities[best] - densities["identity"]
    error = float(gain.std()) / math.sqrt(len(gain))
    clear = float(gain.mean()) > max(_CLEAR_ERRORS * error, _CLEAR_NATS)
    return (scales[best] if clear else own), means


def _left_out_density(inputs: Array, targets: Array, folds: npt.NDArray[np.int64], scale: TargetScale) -> Array:
    from scipy import stats
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import BayesianRidge
    from sklearn.preprocessing import StandardScaler

    values = scale.forward(targets)
    unit = float(values.std()) or 1.0  # the ridge regression has priors for targets of order one
    values = (values - values.mean()) / unit
    standard = StandardScaler().fit_transform(inputs)
    by_trees, by_ridge = np.empty_like(values), np.empty_like(values)
    with threadpool_limits(1):  # on so few rows threads wait for each other longer than they work
        for fold in range(_FOLDS):
            out = folds == fold
            by_trees[out] = values[~out].mean()  # what trees come to that have too few rows for two leaves
            if (~out).sum() >= 2 * _LEAF:
                trees = HistGradientBoostingRegressor(
                    max_iter=60, max_leaf_nodes=15, min_samples_leaf=_LEAF, random_state=0
                )
                by_trees[out] = (
                    trees.set_params(early_stopping=False).fit(inputs[~out], values[~out]).predict(inputs[out])
                )
            by_ridge[out] = BayesianRidge().fit(standard[~out], values[~out]).predict(standard[out])
    found = [np.full(len(values), -np.inf)]
    for predicted in (by_trees, by_ridge, 0.5 * (by_trees + by_ridge)):
        errors = values - predicted
        for degrees in (4.0, 10.0, 1e6):
            width = _width(errors, degrees)
            found.append(stats.t.logpdf(errors / width, degrees) - math.log(width))
    densest = max(found, key=lambda each: float(each.mean()))
    return densest - math.log(unit) + scale.log_derivative(targets)


def _width(errors: Array, degrees: float) -> float:
    """The maximum-likelihood width of Student's t around zero, by its fixed-point equation."""
    square = float(np.mean(errors**2)) or 1e-300
    for _ in range(50):
        weights = (degrees + 1.0) / (degrees + errors**2 / square)
        square = float(np.mean(weights * errors**2)) or 1e-300
    return math.sqrt(square)
