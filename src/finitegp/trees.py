"""``BoostedTrees``: gradient-boosted trees that have a part in the mean of a fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .errors import ModelFileError
from .lite.program import LiteError, check_trees, sum_trees

Array = npt.NDArray[np.float64]
# No scaled input is larger: where a tree ends early, all rows go left below.
NEVER = 1e9


@dataclass(frozen=True, eq=False)
class BoostedTrees:
    """A sum of complete binary trees on scaled inputs, and its share in the mean of a fit.

    Features of networks are smooth, and trees are not: on tables with steps the mean of both is better than each. The
    posterior knows nothing of them: rows that come or go change the GP alone.

    Attributes:
        columns: ``(trees, nodes)``; see :func:`~finitegp.lite.program.sum_trees`.
        thresholds: ``(trees, nodes)``.
        leaves: ``(trees, nodes + 1)``, in units of the scaled target.
        weight: Of the trees in the mean; the GP has the rest.
    """

    columns: npt.NDArray[np.int64]
    thresholds: Array
    leaves: Array
    weight: float = 1.0

    def predict(self, inputs: Array) -> Array:
        """``(rows,)`` the sum of all trees."""
        found: Array = sum_trees(inputs, self.columns, self.thresholds, self.leaves)
        return found

    def blend(self, inputs: Array, mean: Tensor) -> Tensor:
        """The mean of trees and GP, given that of the GP."""
        return mean + self.weight * (torch.from_numpy(self.predict(inputs)) - mean)

    def tensors(self) -> dict[str, Tensor]:
        """The arrays of a file, by name."""
        parts = (self.columns, self.thresholds, self.leaves)
        return {
            name: torch.from_numpy(each) for name, each in zip(("columns", "thresholds", "leaves"), parts, strict=True)
        }

    @classmethod
    def from_tensors(cls, weight: object, tensors: Mapping[str, Tensor], columns: int) -> BoostedTrees:
        """What :meth:`tensors` gave, checked.

        Raises:
            ModelFileError: If it makes no sense for inputs of this many columns.
        """
        places, thresholds, leaves = (tensors[name].double().numpy() for name in ("columns", "thresholds", "leaves"))
        if tensors["columns"].dtype != torch.int64:
            raise ModelFileError("its trees make no sense")
        try:
            share = check_trees(weight, places, thresholds, leaves, columns)
        except LiteError as error:
            raise ModelFileError(str(error)) from None
        return cls(places.astype(np.int64), thresholds, leaves, share)
