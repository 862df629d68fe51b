"""``SpreadModel``: how much larger or smaller errors are than a GP's, depending on the row (heteroscedasticity)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from .error_tail import ErrorTail
from .model import FittedGP

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SpreadModel:
    """How much larger or smaller errors are than predicted, by a kernel GP on the log of squared out-of-fold errors.

    Attributes:
        fitted: The GP of the standardised log squares, given inputs, log variance and mean of the prediction.
        shift: Mean of the log squares.
        unit: Their standard deviation.
        centres: Of log variance and mean.
        units: Of log variance and mean.
        limits: Between which its values are kept.
        strength: By what it is multiplied.
        factor: On the scales.
        degrees_of_freedom: Of the predictions.
        share: Its weight beside the mixture without it.
        landmark_weights: What each landmark weighs in the row sums of ``fitted``; see ``Component``.
        landmark_targets: Targets of ``fitted`` times these weights; see ``Component``.
        tail: A share of errors that are of another size than the others, or None.
    """

    fitted: FittedGP
    shift: float
    unit: float
    centres: Array
    units: Array
    limits: tuple[float, float]
    strength: float
    factor: float
    degrees_of_freedom: float
    share: float
    landmark_weights: Tensor | None = None
    landmark_targets: Tensor | None = None
    tail: ErrorTail | None = None

    def log_factors(self, inputs: Array, mean: Array, variance: Array) -> Array:
        """The logarithm of the factor on each row's variance."""
        extra = np.clip((np.column_stack([np.log(variance), mean]) - self.centres) / self.units, -4.0, 4.0)
        found = self.fitted.predict(np.column_stack([inputs, extra])).mean.numpy() * self.unit + self.shift
        return self.strength * np.clip(found, *self.limits)
