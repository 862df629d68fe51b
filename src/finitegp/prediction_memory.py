"""The memory bill of predictions of a ``ScaledGP``, and how many rows at once a budget allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from .extrapolation import MOST_CENTRES, PIECE
from .features import PeriodicEmbedding
from .features.landmarks import LandmarkFeatures
from .lite.program import TREE_NUMBERS, TREES_AT_ONCE
from .memory.plan import (
    CHUNKS,
    SMALL_OBJECTS,
    Item,
    MemoryBudgetError,
    MemoryPlan,
    find_plan,
    format_budget,
    format_bytes,
)
from .model import FittedGP
from .scaled import ScaledGP
from .trees import mask_bytes

_PROBE_ROWS = 2


@dataclass(frozen=True)
class PredictionSetting:
    """Everything that the memory of prediction depends on.

    Attributes:
        num_columns: Input columns, after encoding.
        num_features: Of each GP.
        num_parameters: Of all feature maps and noise.
        numbers_per_row: In the GP that takes most, while it predicts a row.
        landmarks: Of each GP, or 0: the factor of their kernel matrix is kept.
        trees: Boosted trees that have a part in the mean.
        table_columns: Columns of the table, which go along into the output.
        table_rows: Rows of the table that are read at once.
        reading_bytes: What reading the table takes.
        chunk_size: Rows that pass through the features at once.
    """

    num_columns: int
    num_features: tuple[int, ...]
    num_parameters: int
    numbers_per_row: int
    landmarks: tuple[int, ...] = ()
    trees: int = 0
    table_columns: int = 0
    table_rows: int = 0
    reading_bytes: int = 0
    chunk_size: int = 4096

    @classmethod
    def of(cls, fit: ScaledGP, **table: int) -> PredictionSetting:
        """Of a fit; its widest layer is found by a probe.

        Args:
            fit: The fit.
            table: ``table_columns``, ``table_rows`` and ``reading_bytes``.
        """
        columns = len(fit.inputs_scaler.scale)
        parts = [(component.fitted, columns) for component in fit.components]
        if fit.spread is not None:
            parts.append((fit.spread.fitted, columns + 2))  # it also reads mean and variance
        trees = 0 if fit.trees is None else sum(each.numel() for each in fit.trees.tensors().values())
        return cls(
            num_columns=columns,
            num_features=tuple(fitted.posterior.num_features for fitted, _ in parts),
            num_parameters=trees + sum(t.numel() for fitted, _ in parts for t in fitted.model.state_dict().values()),
            trees=0 if fit.trees is None else len(fit.trees.leaves),
            numbers_per_row=max(_numbers_per_row(fitted, width) for fitted, width in parts),
            landmarks=tuple(
                each.num_features
                for fitted, _ in parts
                for each in fitted.model.modules()
                if isinstance(each, LandmarkFeatures)
            ),
            chunk_size=fit.chunk_size,
            **table,
        )

    def describe(self) -> str:
        """The setting in a line."""
        table = f"{self.table_rows} rows of the table at once, " if self.table_rows else ""
        features = " + ".join(map(str, self.num_features))
        return f"{self.num_columns} columns, {features} features: {table}chunks of {self.chunk_size} in the model"


def plan_prediction(budget: int, setting: PredictionSetting) -> MemoryPlan[PredictionSetting]:
    """The largest chunks, up to those of the setting, with which prediction fits a budget.

    Raises:
        MemoryBudgetError: If even the smallest do not.

    Example:
        >>> setting = PredictionSetting(9, (641,), num_parameters=200_000, numbers_per_row=3000)
        >>> plan_prediction(64 * 10**6, setting).setting.chunk_size < plan_prediction(10**9, setting).setting.chunk_size
        True
    """
    sizes = [size for size in CHUNKS if size < setting.chunk_size]
    plan = find_plan((replace(setting, chunk_size=size) for size in (setting.chunk_size, *sizes)), memory_bill, budget)
    if plan.fits:
        return plan
    raise MemoryBudgetError(
        f"A budget of {format_budget(budget)} is too small: prediction with this model needs "
        f"{format_bytes(plan.limit)}.",
        "The nearest plan:",
        plan,
    )


def memory_bill(s: PredictionSetting) -> Iterator[Item]:
    """The items in memory while a file is loaded, and while rows are predicted."""
    squares = sum(count**2 for count in s.num_features)
    yield Item("always", "model", 8 * s.num_parameters)
    yield Item("always", "sums and factor of each posterior", 2 * 8 * squares)
    yield Item("always", "small objects", SMALL_OBJECTS)
    yield Item("loading", "file", 8 * (s.num_parameters + squares))
    # The columns of the table and of the output, encoded and scaled inputs, and what is predicted.
    table = s.table_rows * 8 * (2 * s.table_columns + 2 * s.num_columns + 8)
    yield Item("prediction", "decoded part of the table", s.reading_bytes)
    yield Item("prediction", "rows of the table and of the output", table)
    yield Item("prediction", "factors of the landmarks", 8 * sum(count**2 for count in s.landmarks))
    yield Item("prediction", "blocks of each factor", 4 * squares)
    if not s.landmarks:
        yield Item("prediction", "inverse of each factor, and it in float32", (8 + 2) * squares)
    yield Item("prediction", "chunk in the model", 8 * s.chunk_size * (s.numbers_per_row + 8 * s.num_columns))
    if s.trees:
        yield Item("prediction", "rows in the trees", TREE_NUMBERS * 8 * TREES_AT_ONCE)
        yield Item("prediction", "leaves that columns allow", mask_bytes(s.trees))
    yield Item("prediction", "distances to centres", 2 * 8 * PIECE * MOST_CENTRES)


def _numbers_per_row(fitted: FittedGP, columns: int) -> int:
    """Features, what is solved with them, and its squares; or features of other maps beside a layer at work."""
    features = fitted.posterior.num_features
    return max(4 * features, features + widest_layer_of(fitted.model, columns))


@torch.no_grad()
def widest_layer_of(model: nn.Module, num_columns: int) -> int:
    """Numbers per row that go into and come out of one layer, where they are most.

    Example:
        >>> from finitegp import FeatureGP
        >>> from finitegp.features import MLPFeatures
        >>> widest_layer_of(FeatureGP(MLPFeatures(3, hidden=(40, 20))).double(), num_columns=3)
        80
    """
    widest = num_columns

    def measure(layer: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        nonlocal widest
        tensors = [each for each in (*inputs, output) if isinstance(each, Tensor)]
        inside = 0
        if isinstance(layer, PeriodicEmbedding):
            inside = 2 * layer.frequencies.numel()  # angles and cosines
        if isinstance(layer, LandmarkFeatures):
            inside = 5 * layer.num_features  # products, distances, roots, exponentials, and what is solved
        widest = max(widest, inside, sum(tensor.numel() for tensor in tensors) // _PROBE_ROWS)

    layers = [layer for layer in model.modules() if not list(layer.children())]
    hooks = [layer.register_forward_hook(measure) for layer in layers]
    try:
        like = next((t for t in model.parameters() if t.is_floating_point()), torch.zeros((), dtype=torch.float64))
        model(torch.zeros(_PROBE_ROWS, num_columns).to(like))
    finally:
        for hook in hooks:
            hook.remove()
    return widest
