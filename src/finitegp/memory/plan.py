"""The planner: the largest setting that fits a memory budget, with its bill; or a refusal with one that would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from ..errors import FiniteGPError
from .bill import ALGORITHMS, Item, Setting, items_of
from .byte_sizes import format_budget, format_bytes, parse_bytes

# What is tried, best first. Chunks, gathered batches and micro-batches do not change results; the others do.
CHUNKS = (4096, 2048, 1024, 512, 256, 128, 64, 32, 16)
_GATHERED = (32, 16, 8, 4, 2, 1)
_BATCHES = (256, 128, 64, 32)
_FEATURES = (128, 96, 64, 48, 32, 24, 16, 8)
_SMALLEST_MICRO_BATCH = 8
# The phases and the parts that each of them settles.
_PARTS = (
    ("spool", "chunk_size"),
    ("exact pass", "chunk_size"),
    ("prediction", "chunk_size"),
    ("reading rows", "gathered_batches"),
    ("refresh", "gathered_batches"),
    ("step", "gathered_batches"),
    ("step", "micro_batch_size"),
)
# Share of the peak that is kept free: predictions are that good.
_RESERVE = 0.1


class Described(Protocol):
    """What a plan is about: of one network, or of a whole fit."""

    def describe(self) -> str:
        """In a line."""

    def training_arguments(self) -> dict[str, Any]:
        """What ``train`` has to be given."""


SettingT = TypeVar("SettingT", bound=Described)


class MemoryBudgetError(FiniteGPError, MemoryError):
    """Nothing fits the budget as it is asked for.

    Attributes:
        plan: The nearest plan: one that fits the budget with a smaller batch or network if there is one, otherwise the
            smallest of all, which needs a larger budget.
    """

    def __init__(self, problem: str, advice: str, plan: MemoryPlan[Any]) -> None:
        super().__init__(problem, f"{advice}\n{plan}", code="memory_budget", needed=plan.limit)
        self.plan = plan


@dataclass(frozen=True)
class MemoryPlan(Generic[SettingT]):
    """A setting, and the memory that it needs above that of the interpreter with its libraries.

    Attributes:
        setting: Batch size, chunk size, number of features and so on.
        items: The bill.
        budget: What was asked for, in bytes.
    """

    setting: SettingT
    items: tuple[Item, ...]
    budget: int

    @property
    def phases(self) -> dict[str, int]:
        """The bytes of each phase, with what is always there."""
        always = sum(item.bytes for item in self.items if item.phase == "always")
        names = dict.fromkeys(item.phase for item in self.items if item.phase != "always")
        return {name: always + sum(item.bytes for item in self.items if item.phase == name) for name in names}

    @property
    def total(self) -> int:
        """The bytes of the largest phase: the peak."""
        return max(self.phases.values())

    @property
    def limit(self) -> int:
        """The peak and a reserve for what cannot be foreseen: what a hard limit has to allow."""
        return self.total + int(_RESERVE * self.total)

    @property
    def fits(self) -> bool:
        """Whether the peak and the reserve are within the budget."""
        return self.limit <= self.budget

    def training_arguments(self) -> dict[str, Any]:
        """What :func:`finitegp.train` has to be given for the plan to hold."""
        return self.setting.training_arguments()

    def __str__(self) -> str:
        lines = [
            f"Memory budget {format_budget(self.budget)}, planned peak {format_bytes(self.total)} (with a reserve "
            f"{format_bytes(self.limit)}), above the interpreter with its libraries",
            f"  {self.setting.describe()}",
        ]
        for phase in ("always", *self.phases):
            total = "" if phase == "always" else f"{format_bytes(self.phases[phase]):>10}  with what is always there"
            lines.append(f"  {phase:<48}{total}".rstrip())
            lines += [
                f"    {item.name:<46}{format_bytes(item.bytes):>10}" for item in self.items if item.phase == phase
            ]
        return "\n".join(lines)


def plan_memory(
    budget: str | int,
    num_columns: int,
    *,
    num_targets: int = 1,
    hidden: Sequence[int] | None = None,
    batch_size: int | None = None,
    algorithm: str = "lagged",
    block: int = 20,
    keep_best: bool = False,
    float_bytes: int = 4,
    reading_bytes: int = 0,
) -> MemoryPlan[Setting]:
    """Choose batch size, micro-batch, chunk size, gathered batches and width of the network for a memory budget.

    The rows are taken to be on disk (:class:`~finitegp.data.SpooledSource`), so their number does not matter. What is
    given is kept; the rest is chosen, in this order: the widest network up to two layers of 128, then the largest batch
    up to 256, then the largest parts, which do not change results.

    Args:
        budget: Such as ``"64MB"``: above the interpreter with its libraries
            (``benchmarks/libraries.py`` loads them).
        num_columns: Input columns, after encoding.
        num_targets: Target columns.
        hidden: Widths of the network's layers.
        batch_size: Rows per batch.
        algorithm: ``"lagged"``, ``"scgd"`` or ``"minimax"``.
        block: Of ``"lagged"``.
        keep_best: Whether a callback keeps the best state.
        float_bytes: 4 for a network of float32, 8 for float64.
        reading_bytes: What reading the table takes, if it is not spooled yet (``TableReader.reading_bytes``).

    Raises:
        MemoryBudgetError: If nothing fits; it has the nearest plan that would.

    Example:
        >>> plan = plan_memory("64MB", num_columns=16)
        >>> plan.setting.hidden, plan.setting.batch_size, plan.fits
        ((128, 128), 256, True)
        >>> plan_memory("4MB", num_columns=16).setting.num_features < 128
        True
    """
    size = parse_bytes(budget)
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm must be one of {list(ALGORITHMS)}, but is {algorithm!r}.")
    for name, value in (("num_columns", num_columns), ("num_targets", num_targets), ("block", block)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, but is {value}.")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, but is {batch_size}.")
    if hidden is not None and (len(hidden) == 0 or min(hidden) < 1):
        raise ValueError(f"hidden must list at least one layer width, such as (128, 128), but is {hidden!r}.")
    fixed = Setting(
        num_columns=num_columns,
        num_targets=num_targets,
        algorithm=algorithm,
        block=block,
        initial_batches=block if algorithm == "lagged" else 20,
        keep_best=keep_best,
        float_bytes=float_bytes,
        reading_bytes=reading_bytes,
    )
    plan = _best(fixed, size, None if hidden is None else tuple(hidden), batch_size)
    if plan.fits:
        return plan
    other = _best(fixed, size, None, None)
    if other.fits:
        advice = "A smaller batch or network fits:"
    else:
        advice = f"Nothing smaller fits either; the smallest plan needs a budget of {format_bytes(other.limit)}:"
    raise MemoryBudgetError(
        f"A budget of {format_budget(size)} is too small: with these settings at least {format_bytes(plan.limit)} are "
        "needed.",
        advice,
        other,
    )


def _best(fixed: Setting, budget: int, hidden: tuple[int, ...] | None, batch_size: int | None) -> MemoryPlan[Setting]:
    """The first candidate that fits, or the smallest of all."""
    smallest: MemoryPlan[Setting] | None = None
    for setting in _candidates(fixed, hidden, batch_size):
        plan = _with_parts(setting, budget)
        if plan.fits:
            return plan
        if smallest is None or plan.total < smallest.total:
            smallest = plan
    assert smallest is not None
    return smallest


def _candidates(fixed: Setting, hidden: tuple[int, ...] | None, batch_size: int | None) -> Iterator[Setting]:
    for width in _FEATURES if hidden is None else (None,):
        for batch in _BATCHES if batch_size is None else (batch_size,):
            layers = (width, width) if width is not None else hidden
            assert layers is not None
            yield replace(fixed, hidden=layers, batch_size=batch, micro_batch_size=batch)


def _with_parts(setting: Setting, budget: int) -> MemoryPlan[Setting]:
    parts = largest_parts(setting, _PARTS, lambda candidate: _plan(candidate, budget).phases, budget)
    return _plan(parts, budget)


def largest_parts(
    setting: Setting,
    parts: Sequence[tuple[str, str]],
    phases: Callable[[Setting], dict[str, int]],
    budget: int,
) -> Setting:
    """The largest parts that fit; each phase has its own, so that one after the other is settled.

    Args:
        setting: Has the largest parts.
        parts: Names of a phase and of a part that it depends on, in the order in which they are settled.
        phases: The bytes of each phase with some setting.
        budget: In bytes.
    """
    sizes = {
        "chunk_size": CHUNKS,
        "gathered_batches": _GATHERED,
        "micro_batch_size": _halves(setting.batch_size),
    }
    for phase, name in parts:
        for size in sizes[name]:
            if size > getattr(setting, name):
                continue
            setting = replace(setting, **{name: size})  # type: ignore[arg-type]
            if phases(setting).get(phase, 0) * (1.0 + _RESERVE) <= budget:
                break
    return setting


def smallest_parts(setting: Setting) -> Setting:
    """The same results from the smallest parts."""
    micro = _halves(setting.batch_size)[-1]
    return replace(setting, chunk_size=CHUNKS[-1], gathered_batches=_GATHERED[-1], micro_batch_size=micro)


def _halves(batch_size: int) -> Sequence[int]:
    sizes = [batch_size]
    while sizes[-1] > _SMALLEST_MICRO_BATCH:
        sizes.append(-(-sizes[-1] // 2))
    return sizes


def _plan(setting: Setting, budget: int) -> MemoryPlan[Setting]:
    return MemoryPlan(setting, tuple(items_of(setting)), budget)
