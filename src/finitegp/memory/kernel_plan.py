"""The memory of a small table's fit: Fourier features of all rows at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .bill import SMALL_OBJECTS, Item
from .plan import MemoryPlan


@dataclass(frozen=True)
class KernelSetting:
    """A small table, and the features of its kernel.

    Attributes:
        num_data: Rows.
        num_columns: Input columns.
        num_features: The number of features.
    """

    num_data: int
    num_columns: int
    num_features: int

    def describe(self) -> str:
        """The setting in a line."""
        return (
            f"{self.num_data} rows of {self.num_columns} columns, a kernel of {self.num_features} features, full-batch"
        )

    def training_arguments(self) -> dict[str, Any]:
        """None: there are no batches."""
        return {}


KernelPlan = MemoryPlan[KernelSetting]


def plan_kernel_fit(budget: int, setting: KernelSetting) -> KernelPlan:
    """The bill of the full-batch fit of a kernel; there is nothing to choose, so that it fits or does not.

    Example:
        >>> plan_kernel_fit(64 * 10**6, KernelSetting(1000, 8, 522)).fits
        True
    """
    rows, features = setting.num_data, setting.num_features
    items = (
        Item("always", "rows", 4 * 8 * rows * setting.num_columns),
        Item("always", "small objects", SMALL_OBJECTS),
        # Measured: the exact gradient through autograd keeps that many arrays of all features.
        Item("fit", "features of all rows, and what their gradient needs", int(7.5 * 8 * rows * features)),
        Item("fit", "matrices", 2 * 8 * features**2),
    )
    return MemoryPlan(setting, items, budget)
