"""``TablePredictor``: predictions for encoded rows in the target's own units, wider where a row holds something new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import DataError, ModelFileError
from ..estimator import GPRegressor
from .encoder import TableEncoder
from .scoring import COVERAGES, quantile_moments
from .target_scale import TargetScale

Array = npt.NDArray[np.float64]
# Rows with something new are predicted with so many combinations of known values in its place.
_COMBINATIONS = 24


class EncodedRows(NamedTuple):
    """Inputs of the regressor, and for each column of the table whether a row holds there what no fit has seen."""

    inputs: Array
    unknown: npt.NDArray[np.bool_] | None = None


class Location(NamedTuple):
    """Mean and standard deviation of each row on the scale of the model: as predicted, and as claimed."""

    mean: Array
    std: Array
    claimed_mean: Array
    claimed_std: Array


@dataclass(frozen=True, eq=False)
class TablePredictor:
    """Predictive distributions of rows.

    A row with a category that the fit did not see, or with a gap where it had none, is predicted with values that it
    did see put in: mean and variance are those of the mixture, and the standard deviation is never below that of any of
    its parts. So the row is nowhere claimed to be better known than one of which everything is known.

    Attributes:
        regressor: Predicts the scaled target.
        encoder: Made its inputs.
        scale: Of the target.
    """

    regressor: GPRegressor
    encoder: TableEncoder
    scale: TargetScale

    def locate(self, rows: EncodedRows) -> Location:
        """Mean and standard deviation on the scale of the model."""
        mean, std = self.regressor.predict(rows.inputs, return_std=True)
        if rows.unknown is None:
            return Location(mean, std, mean, std)
        claimed_mean, claimed_std = mean.copy(), std.copy()
        which = np.flatnonzero(rows.unknown.any(axis=1))
        means, stds = [], []
        for inputs in self._combinations(rows.inputs[which], rows.unknown[which]):
            each_mean, each_std = self.regressor.predict(inputs, return_std=True)
            means.append(each_mean)
            stds.append(each_std)
        together = np.sqrt(np.mean(np.square(stds), axis=0) + np.var(means, axis=0))
        claimed_mean[which] = np.mean(means, axis=0)
        claimed_std[which] = np.maximum.reduce([together, *stds, std[which]])
        return Location(mean, std, claimed_mean, claimed_std)

    def _combinations(self, inputs: Array, unknown: npt.NDArray[np.bool_]) -> list[Array]:
        """The rows with known values put in where something is new, in several ways."""
        random = np.random.default_rng(0)
        filled = [inputs.copy() for _ in range(_COMBINATIONS)]
        for column, (place, known) in enumerate(self.encoder.representatives()):
            rows = np.flatnonzero(unknown[:, column])
            if len(rows) == 0 or len(known) == 0:
                continue
            # Each known value equally often, in another order for each column.
            order = random.permutation(_COMBINATIONS) % len(known)
            for each, value in zip(filled, order, strict=True):
                each[rows, place] = known[value]
        return filled

    def interval(
        self, rows: EncodedRows, coverage: float, method: str = "predictive", location: Location | None = None
    ) -> tuple[Array, Array]:
        """Lower and upper ends of central intervals, in the target's units."""
        try:
            lower, upper = self.regressor.predict_interval(rows.inputs, coverage, method)
        except ValueError as error:
            raise DataError(str(error)) from None
        except (KeyError, TypeError, AttributeError) as error:
            raise ModelFileError(f"What the model counted on rows kept aside makes no sense: {error}.") from None
        if rows.unknown is not None:
            mean, std, claimed_mean, claimed_std = location or self.locate(rows)
            lower, upper = (claimed_mean + (end - mean) * (claimed_std / std) for end in (lower, upper))
        return self.scale.inverse(lower), self.scale.inverse(upper)

    def intervals(
        self, rows: EncodedRows, coverages: Sequence[float], method: str = "predictive"
    ) -> tuple[Array, Array]:
        """The ends at several coverages, ``(rows, coverages)`` each."""
        location = None if rows.unknown is None else self.locate(rows)
        ends = [self.interval(rows, coverage, method, location) for coverage in coverages]
        lower, upper = (np.stack(each, axis=1) for each in zip(*ends, strict=True))
        return lower, upper

    def moments(self, rows: EncodedRows) -> tuple[Array, Array]:
        """Mean and standard deviation of a new observation, in the target's units."""
        if self.scale.name == "identity":
            location = self.locate(rows)
            return location.claimed_mean, location.claimed_std
        return self.quantile_moments(*self.intervals(rows, COVERAGES))

    def quantile_moments(self, lower: Array, upper: Array) -> tuple[Array, Array]:
        """Mean and standard deviation from the ends of intervals at ``COVERAGES``, cut where they are not plausible."""
        mean, std = quantile_moments(*(np.clip(ends, *self.scale.plausible) for ends in (lower, upper)))
        cut = (lower[:, -1] < self.scale.plausible[0]) | (upper[:, -1] > self.scale.plausible[1])
        if cut.any():
            # The mean of a distribution as wide as this is that of its tail: the median is the better prediction.
            # What was cut stays in its error.
            mean[cut] = np.clip(0.5 * (lower[cut, 0] + upper[cut, 0]), *self.scale.plausible)
            reach = np.minimum(upper[cut, -1] - lower[cut, -1], np.finfo(np.float64).max / 4)
            std[cut] = np.maximum(std[cut], 0.25 * reach)
        return mean, std

    def log_density(self, rows: EncodedRows, targets: Array) -> Array:
        """The log density of observed targets, by their own unit; minus infinity where a target is impossible."""
        location = self.locate(rows)
        values = self.scale.forward(targets)
        possible = np.isfinite(values)
        widening = location.claimed_std / location.std
        standard = (
            location.mean + (np.where(possible, values, location.claimed_mean) - location.claimed_mean) / widening
        )
        density = self.regressor.log_density(rows.inputs, standard) - np.log(widening)
        density = density + self.scale.log_derivative(np.where(possible, targets, 1.0))
        return np.where(possible, density, -np.inf)
