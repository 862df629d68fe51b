"""``BudgetedFit``: how kernels are fitted and networks trained within a memory budget; the bill of the kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ..data import Source
from ..lite.program import TREE_NUMBERS, TREES_AT_ONCE
from ..memory import MemoryBudgetError, format_budget, format_bytes
from ..memory.plan import CHUNKS, SMALL_OBJECTS, Described, Item, MemoryPlan, SettingT, find_plan
from ..trees import mask_bytes
from .boosting import SMALL_TREES, boosting_bytes, tree_bytes
from .kernels import FORMS
from .large_table_memory import LargeTableSetting, plan_large_table
from .settings import AutoSettings


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
    # Factors of all rows are kept for what is left out of them.
    for phase in ("learning", "left-out rows"):
        yield Item(phase, "kernels of all rows", stationary * matrix)
    yield Item("learning", "kernels of all rows as they are made", threads * 2 * matrix)
    kept = "landmarks, sums and factor of each kernel"
    for phase in ("conditioning", "spread and extrapolation"):
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


# Kernels and networks are both fitted where the budget is at least this multiple of what kernels take.
_PLENTY = 4
# Where a budget has no room for kernels, fewer rows are too few for networks.
_FEWEST_FOR_NETWORKS = 500


class BudgetedFit:
    """The settings of a fit, and what a memory budget makes of them."""

    def __init__(
        self,
        source: Source,
        total: int,
        settings: AutoSettings,
        threads: int,
        budget: int | None,
        kept_bytes: int,
        on_plan: Callable[[MemoryPlan[Described]], object] | None,
    ) -> None:
        self._source, self._total, self._settings, self._threads = source, total, settings, threads
        self._budget, self._kept_bytes, self._on_plan = budget, kept_bytes, on_plan
        self._refused: MemoryPlan[Described] | None = None
        self.plan: MemoryPlan[Described] | None = None

    def has_room_for_both(self, rows: int) -> bool:
        """Whether there is room in plenty for kernels as well as for networks."""
        if self._budget is None:
            return True
        return _PLENTY * plan_small_table(self._budget, self._kernels(rows)).total < self._budget

    def plan_small(self, rows: int, *, settle: bool = True) -> SmallTableSetting | None:
        """How kernels are fitted to this many different rows; None if the budget has no room for them."""
        wanted = self._kernels(rows)
        if self._budget is None:
            return wanted
        plan = plan_small_table(self._budget, wanted)
        if not plan.fits:
            self._refused = plan
            return None
        return self._settle(plan).setting if settle else plan.setting

    def plan_large(self) -> LargeTableSetting:
        """How networks are trained."""
        wanted = LargeTableSetting(
            self._settings,
            self._settings,
            self._total,
            self._columns(),
            self._threads,
            reading_bytes=self._source.reading_bytes,
            kept_bytes=self._kept_bytes,
            in_order=not self._source.can_take,
        )
        if self._budget is None:
            return wanted
        plan = plan_large_table(self._budget, wanted)
        nearest: MemoryPlan[Described] = plan
        if self._refused is not None and (self._total < _FEWEST_FOR_NETWORKS or self._refused.total < plan.total):
            nearest = self._refused
        if not nearest.fits:
            raise MemoryBudgetError(
                f"A budget of {format_budget(self._budget)} is too small: the smallest fit of {self._total} rows with "
                f"{self._columns()} columns needs {format_bytes(nearest.limit)}.",
                "The nearest plan:",
                nearest,
            )
        return self._settle(plan).setting

    def _kernels(self, rows: int) -> SmallTableSetting:
        return SmallTableSetting(
            rows,
            self._columns(),
            self._settings.learning_rows,
            self._threads,
            trees=self._settings.trees_beside_kernels,
            kept_bytes=self._kept_bytes,
        )

    def _settle(self, plan: MemoryPlan[SettingT]) -> MemoryPlan[SettingT]:
        self.plan = plan
        if self._on_plan is not None:
            self._on_plan(plan)
        return plan

    def _columns(self) -> int:
        return count_columns(self._source)


def count_columns(source: Source) -> int:
    """How many inputs a row has."""
    known = source.input_dim
    return next(iter(source)).inputs.shape[1] if known is None else known
