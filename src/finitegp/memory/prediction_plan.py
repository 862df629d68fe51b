"""The memory of prediction from a table in chunks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .bill import SMALL_OBJECTS, Item
from .byte_sizes import format_budget, format_bytes, parse_bytes
from .plan import CHUNKS, MemoryBudgetError, MemoryPlan


@dataclass(frozen=True)
class PredictionSetting:
    """What the memory of prediction depends on.

    Attributes:
        num_columns: Input columns, after encoding.
        num_features: The number of features.
        num_parameters: Of feature map and noise.
        layer_width: Numbers per row of the widest layer's input and output.
        table_columns: Columns of the table, which go along into the output.
        table_rows: Rows of the table that are read at once.
        reading_bytes: What reading the table takes.
        chunk_size: Rows that pass through the model at once.
    """

    num_columns: int
    num_features: int
    num_parameters: int
    layer_width: int
    table_columns: int = 0
    table_rows: int = 0
    reading_bytes: int = 0
    chunk_size: int = 4096

    def describe(self) -> str:
        """The setting in a line."""
        return (
            f"{self.num_columns} columns, {self.num_features} features: {self.table_rows} rows of the table at once, "
            f"chunks of {self.chunk_size} in the model"
        )

    def training_arguments(self) -> dict[str, Any]:
        """None: nothing is trained."""
        return {}


PredictionPlan = MemoryPlan[PredictionSetting]


def plan_prediction(budget: str | int, setting: PredictionSetting) -> PredictionPlan:
    """The largest chunks, up to those of the setting, with which prediction fits a budget.

    Raises:
        MemoryBudgetError: If even the smallest do not.

    Example:
        >>> setting = PredictionSetting(num_columns=9, num_features=641, num_parameters=200_000, layer_width=300)
        >>> plan_prediction("64MB", setting).setting.chunk_size < plan_prediction("1GB", setting).setting.chunk_size
        True
    """
    size = parse_bytes(budget)
    for chunk in CHUNKS:
        if chunk <= setting.chunk_size or chunk == CHUNKS[-1]:
            plan = _plan(replace(setting, chunk_size=chunk), size)
            if plan.fits:
                return plan
    raise MemoryBudgetError(
        f"A budget of {format_budget(size)} is too small: prediction with this model needs {format_bytes(plan.limit)}.",
        "The nearest plan:",
        plan,
    )


def _plan(s: PredictionSetting, budget: int) -> PredictionPlan:
    # Features, what is solved with them, and its squares; or features of other networks beside a layer at work.
    inside = s.chunk_size * 8 * (max(3 * s.num_features, s.num_features + s.layer_width) + 2 * s.num_columns)
    # The columns of the table and of the output, encoded and scaled inputs, and what is predicted.
    table = s.table_rows * 8 * (2 * s.table_columns + 2 * s.num_columns + 8)
    items = (
        Item("always", "model", 8 * s.num_parameters),
        Item("always", "posterior", 3 * 8 * s.num_features**2),
        Item("always", "small objects", SMALL_OBJECTS),
        Item("loading", "file", 2 * 8 * (s.num_parameters + s.num_features**2)),
        Item("prediction", "decoded part of the table", s.reading_bytes),
        Item("prediction", "rows of the table and of the output", table),
        Item("prediction", "chunk in the model", inside),
    )
    return MemoryPlan(s, items, budget)
