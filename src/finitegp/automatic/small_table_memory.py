"""The memory bill of :mod:`.small_table`, item by item: matrices of the size of rows by rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..lite.program import TREE_NUMBERS, TREES_AT_ONCE
from ..memory.plan import CHUNKS, SMALL_OBJECTS, Item, MemoryPlan, find_plan
from ..trees import mask_bytes
from .boosting import SMALL_TREES, boosting_bytes, tree_bytes
from .kernels import FORMS


@dataclass(frozen=True)
class SmallTableSetting:
    """Everything that the memory of the fit depends on.

    Attributes:
        rows: Different rows.
        columns: Input columns.
        learning_rows: Rows that hyperparameters are learned from.
        threads: Kernels that are fitted at once.
        trees: The most boosted trees.
        kept_bytes: What the caller keeps.
    """

    rows: int
    columns: int
    learning_rows: int
    threads: int = 1
    trees: int = 0
    kept_bytes: int = 0

    def describe(self) -> str:
        """The setting in a line."""
        at_once = "one kernel" if self.threads == 1 else f"{self.threads} kernels"
        trees = "" if self.trees else ", no trees"
        return f"{self.rows} different rows of {self.columns} columns, exact kernels, {at_once} at once{trees}"


def plan_small_table(budget: int, wanted: SmallTableSetting) -> MemoryPlan[SmallTableSetting]:
    """The most threads that fit; without trees if one does not; with one thread if that does not either."""
    candidates = (
        replace(wanted, threads=count, trees=trees)
        for trees in dict.fromkeys((wanted.trees, 0))
        for count in range(wanted.threads, 0, -1)
    )
    return find_plan(candidates, memory_bill, budget)


def memory_bill(fit: SmallTableSetting) -> Iterator[Item]:
    """The items in memory in each stage of :func:`~finitegp.automatic.small_table.fit_small_table`."""
    matrix, learned = 8 * fit.rows**2, 8 * min(fit.learning_rows, fit.rows) ** 2
    stationary = sum(form.correlation is not None for form in FORMS.values())
    threads = min(fit.threads, len(FORMS))
    yield Item("always", "small objects", SMALL_OBJECTS)
    if fit.kept_bytes:
        yield Item("always", "rows held out or shown", fit.kept_bytes)
    yield Item("always", "rows", 8 * 8 * fit.rows * (fit.columns + 1))
    yield Item("learning", "kernels and their gradients", threads * 10 * learned)
    kept = "landmarks, sums and factor of each kernel"
    for phase in ("conditioning", "left-out rows", "spread and extrapolation"):
        yield Item(phase, kept, 3 * stationary * matrix)
    yield Item("conditioning", "features and sums", threads * 4 * matrix)
    yield Item("left-out rows", "kernels without a fold", threads * max(10 * learned, 4 * matrix))
    if fit.trees:
        growing = threads * boosting_bytes(fit.rows, fit.columns, fit.trees, SMALL_TREES)
        yield Item("trees", "binned rows, histograms and trees that grow", growing)
        yield Item("trees", "leaves that columns allow", mask_bytes(fit.trees))
        yield Item("trees", "rows as each number of trees predicts them", 2 * 8 * fit.trees * fit.rows)
        for phase in ("trees", "conditioning", "spread and extrapolation", "prediction"):
            yield Item(phase, "trees", tree_bytes(fit.trees, SMALL_TREES))
        walks = TREE_NUMBERS * 8 * TREES_AT_ONCE + mask_bytes(fit.trees)
        yield Item("prediction", "rows in the trees", walks)
    # That of the spread is one more kernel; then a posterior without outer rows.
    yield Item("spread and extrapolation", "model of the spread, and work space", (3 + 7) * matrix)
    yield Item("prediction", kept, 3 * (stationary + 1) * matrix)
    yield Item("prediction", "rows at once", 6 * 8 * CHUNKS[-1] * fit.rows)
