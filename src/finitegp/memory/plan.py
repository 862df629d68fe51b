"""Memory budgets: sizes as people write them, the one search of plans, and the allocators that a budget needs."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Generic, NamedTuple, Protocol, TypeVar

from ..errors import FiniteGPError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_PATTERN = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([KMGT]I?)?B?\s*", re.IGNORECASE)
#: Interpreter objects, small tensors, and what the allocator cannot give back.
SMALL_OBJECTS = 1_500_000
#: Rows that pass at once, largest first: results differ by rounding at most.
CHUNKS = (4096, 2048, 1024, 512, 256, 128, 64, 32, 16)
# Share of the peak that is kept free: bills are within about a tenth of what is measured.
_RESERVE = 0.1
# Parameters of mallopt in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_THRESHOLD = 1 << 17
_PR_SET_THP_DISABLE = 41  # prctl in linux/prctl.h


def parse_bytes(size: str | int | float) -> int:
    """A number of bytes from ``"64MB"`` (10^6), ``"64MiB"`` (2^20), ``"1.5 GB"``, ``"4096"`` or a number.

    Example:
        >>> parse_bytes("64MB"), parse_bytes("1.5 GiB"), parse_bytes(4096)
        (64000000, 1610612736, 4096)
    """
    if isinstance(size, bool) or not isinstance(size, str | Real):
        raise TypeError(f"A size must be text such as '64MB' or a number of bytes, but is a {type(size).__name__}.")
    match = _PATTERN.fullmatch(str(size)) if isinstance(size, str) else None
    if isinstance(size, str) and match is None:
        raise ValueError(f"{size!r} is not a size: write for example '64MB', '1.5GiB', or a number of bytes.")
    found = float(match[1]) * _UNITS[(match[2] or "").upper()] if match is not None else float(size)
    if not 1.0 <= found < 2.0**63:
        raise ValueError(f"A size must be at least one byte and less than 2**63, but is {size!r}.")
    return int(found)


def format_bytes(size: int) -> str:
    """A number of bytes in megabytes, as :func:`parse_bytes` reads it.

    Example:
        >>> format_bytes(1_234_567), format_bytes(64_000_000)
        ('1.2MB', '64.0MB')
    """
    return f"{size / 1e6:.1f}MB"


def format_budget(size: int) -> str:
    """A budget as :func:`format_bytes` writes it; one so small that a unit may have been forgotten, in bytes.

    Example:
        >>> format_budget(64_000_000), format_budget(64)
        ('64.0MB', '64 bytes')
    """
    return format_bytes(size) if size >= 100_000 else f"{size} bytes"


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


def return_freed_memory() -> bool:
    """From now on, give freed blocks of 128 KiB and more back to the system at once (glibc; elsewhere nothing).

    By default glibc raises that size to that of the largest block it has seen freed, up to 32 MiB, and keeps what is
    smaller: of a pass whose arrays take 20 MB, 60 MB may stay. A memory budget holds only with the size fixed. The
    price is that the kernel has to clear the pages of every large array anew. What Arrow's own allocator
    keeps is released, too.

    Linux gives memory in pages of 4 KiB, or of 2 MiB where a program asks for huge ones (Arrow's allocator and NumPy
    do), and later fills the holes between small pages to make huge ones of them: freed memory comes back by itself.
    So huge pages are switched off for this process and those that it starts.

    Returns:
        Whether the C library's allocator took the settings.
    """
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
    if not sys.platform.startswith("linux"):
        return False
    try:
        library = ctypes.CDLL(None)
        mallopt, trim = library.mallopt, library.malloc_trim
    except (OSError, AttributeError):
        return False  # another C library
    if hasattr(library, "prctl"):
        library.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    taken = [mallopt(parameter, _THRESHOLD) for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD, _M_TOP_PAD)]
    trim(0)
    return all(taken)
