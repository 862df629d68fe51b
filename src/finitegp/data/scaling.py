"""Standardisation of columns, in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError


@dataclass(frozen=True, eq=False)
class Standardizer:
    """Subtracts each column's mean and divides by its standard deviation.

    Columns that do not vary are only centred. Nothing is added to the scale: columns of scale 1e-6 come out at
    scale one like all others.

    Attributes:
        mean: ``(columns,)``.
        scale: ``(columns,)``, one for constant columns.

    Example:
        >>> scaler = Standardizer.fit(np.array([[1.0, 5.0], [3.0, 5.0]]))
        >>> scaler.transform([[1.0, 5.0], [3.0, 6.0]]).tolist()
        [[-1.0, 0.0], [1.0, 1.0]]
    """

    mean: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]

    @classmethod
    def fit(cls, values: Any, counts: Any = None) -> Standardizer:
        """The mean and standard deviation of each column of ``(rows, columns)`` or ``(rows,)`` values.

        ``counts`` ``(rows,)`` says how many equal rows each row stands for; None means one.
        """
        array = np.asarray(values, dtype=np.float64)
        if array.size == 0:
            raise DataError("There are no rows to standardise.")
        mean = np.average(array, axis=0, weights=counts)
        scale = np.sqrt(np.average(np.square(array - mean), axis=0, weights=counts))
        # A constant column has a standard deviation of rounding errors, not always of exactly zero.
        constant = array.max(axis=0) == array.min(axis=0)
        return cls(mean=mean, scale=np.where(constant | (scale == 0.0), 1.0, scale))

    def transform(self, values: Any) -> npt.NDArray[np.float64]:
        """Standardised values, float64."""
        result: npt.NDArray[np.float64] = (np.asarray(values, dtype=np.float64) - self.mean) / self.scale
        return result

    def inverse(self, values: Any) -> npt.NDArray[np.float64]:
        """The values in their original units."""
        result: npt.NDArray[np.float64] = np.asarray(values, dtype=np.float64) * self.scale + self.mean
        return result
