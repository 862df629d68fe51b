"""What a method is given and what it returns, the same for ours, the paper's and the peers'."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from finitegp.error_shape import GAUSSIAN, ErrorShape
from finitegp.predictive import StudentMixture

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DatasetSplit:
    """One table, split; float64, in the units of the file.

    Attributes:
        name: The dataset.
        split: Which of the ten splits.
        inputs: Training inputs ``(n, columns)``.
        targets: Training targets ``(n,)``.
        test_inputs: Test inputs.
        test_targets: Test targets; a method must not look at them.
    """

    name: str
    split: int
    inputs: Array
    targets: Array
    test_inputs: Array
    test_targets: Array


@dataclass(frozen=True, eq=False)
class Outcome:
    """Predictions for the test rows, in the target's units, and what the fit cost.

    Attributes:
        mean: Predictive mean ``(test rows,)``.
        std: Predictive standard deviation ``(test rows,)``, noise included.
        seconds: Seconds to fit, without loading the data and without predicting; of the peers and the default
            processor seconds of all threads.
        error_shape: Of the predictive distribution with that mean and that standard deviation.
        mixture: The predictive distribution, where it is neither a Gaussian nor one Student's t around mean and std.
        log_density: Log predictive density of the test targets where the prediction is of another kind.
        conformal: Conformal intervals, lower and upper ends, by the coverage that they claim.
        wall_seconds: The same by the clock on the wall; None where it was not taken.
        details: Whatever else the record should hold, such as ``steps`` or ``nlml``.
    """

    mean: Array
    std: Array
    seconds: float
    error_shape: ErrorShape = GAUSSIAN
    mixture: StudentMixture | None = None
    log_density: Array | None = None
    conformal: dict[float, tuple[Array, Array]] = field(default_factory=dict)
    wall_seconds: float | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def distribution(self) -> StudentMixture | None:
        """The predictive distribution; None for the Gaussian of mean and std."""
        return self.error_shape.around(self.mean, self.std) if self.mixture is None else self.mixture
