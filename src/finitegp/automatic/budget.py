"""``BudgetedFit``: how kernels are fitted and networks trained within a memory budget."""

from __future__ import annotations

from collections.abc import Callable

from ..data import Source
from ..memory import MemoryBudgetError, MemoryPlan, format_budget, format_bytes
from ..memory.plan import Described, SettingT
from .large_table_memory import LargeTableSetting, plan_large_table
from .settings import AutoSettings
from .small_table_memory import SmallTableSetting, plan_small_table

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
