"""The paper's figures: NLML and RMSE of four methods on nine tables, both kernels, three batch sizes each."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .cells import PAPER_METHODS

#: The metrics that the paper has tables of.
PUBLISHED_METRICS = ("nlml", "rmse")


class Published(NamedTuple):
    """One cell of the paper's tables: mean and standard deviation over five splits, in raw units of the target."""

    mean: float
    std: float

    @property
    def spread(self) -> float:
        """The deviation, at least what printing with three decimals hides: some cells are printed with 0.000."""
        return max(self.std, 0.001)


class PublishedKey(NamedTuple):
    """Names one cell of the paper's tables."""

    metric: str
    kernel: str
    batch_size: int
    dataset: str
    method: str


@cache
def load_published() -> dict[PublishedKey, Published]:
    """All 432 cells, in the order of the paper.

    Example:
        >>> load_published()["nlml", "linear", 32, "bike", "minimax"]
        Published(mean=-1.482, std=0.249)
    """
    with Path(__file__).with_name("published.csv").open(encoding="utf-8", newline="") as file:
        return {
            PublishedKey(
                row["metric"], row["kernel"], int(row["batch_size"]), row["dataset"], row["method"]
            ): Published(float(row["mean"]), float(row["std"]))
            for row in csv.DictReader(file)
        }


def find_published(metric: str, kernel: str, batch_size: int, dataset: str, method: str) -> Published | None:
    """One cell, or None if the paper does not have it."""
    return load_published().get(PublishedKey(metric, kernel, batch_size, dataset, method))


def published_row(metric: str, kernel: str, batch_size: int, dataset: str) -> dict[str, Published]:
    """One row of the paper's tables by method; empty if the paper does not have it."""
    found = {method: find_published(metric, kernel, batch_size, dataset, method) for method in PAPER_METHODS}
    return {method: cell for method, cell in found.items() if cell is not None}
