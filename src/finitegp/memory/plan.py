"""The one search of memory plans: the first setting whose bill fits a budget, with its bill; or the smallest of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from ..errors import FiniteGPError
from .byte_sizes import format_budget, format_bytes

#: Interpreter objects, small tensors, and what the allocator cannot give back.
SMALL_OBJECTS = 1_500_000
#: Rows that pass at once, largest first: results differ by rounding at most.
CHUNKS = (4096, 2048, 1024, 512, 256, 128, 64, 32, 16)
# Share of the peak that is kept free: bills are within about a tenth of what is measured.
_RESERVE = 0.1


class Item(NamedTuple):
    """One line of a bill.

    Attributes:
        phase: ``"always"``, or the phase in which it is needed besides.
        name: What it is.
        bytes: How much.
    """

    phase: str
    name: str
    bytes: int


class Described(Protocol):
    """The subject of a plan."""

    def describe(self) -> str:
        """In a line."""


SettingT = TypeVar("SettingT", bound=Described)
# Of plans, which only give their setting.
GivenT = TypeVar("GivenT", bound=Described, covariant=True)


class Part(NamedTuple, Generic[SettingT]):
    """Something that may be made smaller without another result.

    Attributes:
        variants: Settings that differ in it alone, the largest first.
        phases: Which phases it has to fit into; None for all.
    """

    variants: Callable[[SettingT], Iterable[SettingT]]
    phases: tuple[str, ...] | None = None


class MemoryBudgetError(FiniteGPError, MemoryError):
    """Nothing fits the budget as it is asked for.

    Attributes:
        plan: The nearest plan: one that fits the budget with a smaller batch or network if there is one, otherwise the
            smallest of all, which needs a larger budget.
    """

    def __init__(self, problem: str, advice: str, plan: MemoryPlan[Described]) -> None:
        super().__init__(problem, f"{advice}\n{plan}", code="memory_budget", needed=plan.limit)
        self.plan = plan


@dataclass(frozen=True)
class MemoryPlan(Generic[GivenT]):
    """A setting, and the memory that it needs above that of the interpreter with its libraries.

    Attributes:
        setting: Batch size, chunk size, number of features and so on.
        items: The bill.
        budget: What was asked for, in bytes.
    """

    setting: GivenT
    items: tuple[Item, ...]
    budget: int

    @property
    def phases(self) -> dict[str, int]:
        """The bytes of each phase, with what is always there."""
        always = sum(item.bytes for item in self.items if item.phase == "always")
        found: dict[str, int] = {}
        for item in self.items:
            if item.phase != "always":
                found[item.phase] = found.get(item.phase, always) + item.bytes
        return found

    @property
    def total(self) -> int:
        """The bytes of the largest phase: the peak."""
        return max(self.phases.values())

    @property
    def limit(self) -> int:
        """The peak and a reserve for what cannot be foreseen: what a hard limit has to allow."""
        return with_reserve(self.total)

    @property
    def fits(self) -> bool:
        """Whether the peak and the reserve are within the budget."""
        return self.limit <= self.budget

    def to_dict(self) -> dict[str, object]:
        """The entry in the record of a fit, as JSON."""
        return {"budget": self.budget, "planned": self.total, "setting": self.setting.describe()}

    def __str__(self) -> str:
        phases = self.phases
        lines = [
            f"Memory budget {format_budget(self.budget)}, planned peak {format_bytes(self.total)} (with a reserve "
            f"{format_bytes(self.limit)}), above the interpreter with its libraries",
            f"  {self.setting.describe()}",
        ]
        for phase in ("always", *phases):
            total = "" if phase == "always" else f"{format_bytes(phases[phase]):>10}  with what is always there"
            lines.append(f"  {phase:<48}{total}".rstrip())
            lines += [
                f"    {item.name:<46}{format_bytes(item.bytes):>10}" for item in self.items if item.phase == phase
            ]
        return "\n".join(lines)


def with_reserve(size: int) -> int:
    """A peak with the reserve that a budget has to hold besides."""
    return size + int(_RESERVE * size)


def find_plan(
    candidates: Iterable[SettingT],
    bill: Callable[[SettingT], Iterable[Item]],
    budget: int,
    parts: Sequence[Part[SettingT]] = (),
) -> MemoryPlan[SettingT]:
    """The first candidate that fits; if none does, the plan with the smallest peak, which does not fit.

    Args:
        candidates: Settings, the best first, with the largest parts.
        bill: The items of a setting.
        budget: In bytes.
        parts: What is made smaller before the next candidate is tried, one after the other.
    """
    smallest: MemoryPlan[SettingT] | None = None
    for candidate in candidates:
        plan = MemoryPlan(candidate, tuple(bill(candidate)), budget)
        for part in parts:
            if plan.fits:
                break
            for variant in part.variants(plan.setting):
                plan = MemoryPlan(variant, tuple(bill(variant)), budget)
                settled = plan.phases
                wanted = settled if part.phases is None else part.phases
                if all(with_reserve(settled.get(phase, 0)) <= budget for phase in wanted):
                    break
        if plan.fits:
            return plan
        if smallest is None or plan.total < smallest.total:
            smallest = plan
    assert smallest is not None, "there must be candidates"
    return smallest
