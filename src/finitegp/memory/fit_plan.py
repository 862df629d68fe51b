"""The planner of a whole fit: the best ensemble of networks that a memory budget allows, or a refusal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from .bill import Setting
from .byte_sizes import format_budget, format_bytes, parse_bytes
from .fit_bill import FitSetting, fit_items
from .plan import MemoryBudgetError, MemoryPlan, largest_parts, smallest_parts

# What is tried, best first.
_SHARES_OF_WIDTH = (1.0, 0.75, 0.5, 0.375, 0.25, 0.125, 0.0625)
_FEWEST_ROWS_PER_BATCH = 64
_HELD_OUT_ROWS = (20_000, 10_000, 5_000, 2_000, 1_000)
# Held-out rows, and what is made of them, take at most this share of the budget.
_SHARE_OF_HELD_OUT_ROWS = 0.15
# The phases and the parts that each of them settles.
_PARTS = (
    ("spool", "chunk_size"),
    ("exact pass: features", "chunk_size"),
    ("exact pass: sums", "chunk_size"),
    ("calibration", "chunk_size"),
    ("prediction", "chunk_size"),
    ("noise", "chunk_size"),
    ("training: reading rows", "gathered_batches"),
    ("training: refresh", "gathered_batches"),
    ("training: step", "gathered_batches"),
    ("training: step", "micro_batch_size"),
)

FitPlan = MemoryPlan[FitSetting]


def plan_fit(
    budget: str | int,
    num_columns: int,
    *,
    num_data: int | None = None,
    members: int = 5,
    hidden: Sequence[int] = (128, 128, 128),
    batch_size: int = 1024,
    block: int = 5,
    num_frequencies: int = 16,
    embedding_width: int = 4,
    noise_networks: int = 4,
    noise_hidden: int = 64,
    refined: bool = True,
    test_fraction: float = 0.0,
    reading_bytes: int = 0,
    columns_bytes: int = 0,
) -> FitPlan:
    """Choose networks, batches, parts and held-out rows of a whole fit for a memory budget.

    The arguments are what a fit without a budget would use; less is taken in this order: smaller parts (chunks,
    gathered batches, micro-batches), which do not change results; smaller batches; fewer networks; narrower networks;
    no embedding.

    Args:
        budget: Such as ``"64MB"``: above the interpreter with its libraries
            (``benchmarks/libraries.py`` loads them).
        num_columns: Input columns, after encoding.
        num_data: Rows, if they are known: a tenth is held out at most.
        members: Networks.
        hidden: Widths of the layers of each.
        batch_size: Rows per step.
        block: Batches between refreshes of ``Lagged``.
        num_frequencies: Cosines per column of a ``PeriodicEmbedding`` before each network; 0 for none.
        embedding_width: Its outputs per column.
        noise_networks: Networks for the noise; 0 for constant noise.
        noise_hidden: Their width.
        refined: Whether networks are trained further when the noise is known.
        test_fraction: The share of rows held out for scores, as far as memory allows; none if ``num_data`` is None.
        reading_bytes: What reading the table takes (``TableReader.reading_bytes``).
        columns_bytes: What finding the types of its columns takes.

    Raises:
        MemoryBudgetError: If nothing fits; it has the smallest plan and the budget that it needs.

    Example:
        >>> plan = plan_fit("64MB", num_columns=16)
        >>> plan.setting.members, plan.setting.network.hidden, plan.fits
        (5, (128, 128, 128), True)
        >>> plan_fit("16MB", num_columns=16).setting.num_features < plan.setting.num_features
        True
    """
    size = parse_bytes(budget)
    for name, value in (("num_columns", num_columns), ("members", members), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, but is {value}.")
    network = Setting(
        num_columns=num_columns,
        hidden=tuple(hidden),
        batch_size=batch_size,
        micro_batch_size=batch_size,
        algorithm="lagged",
        block=block,
        initial_batches=block,
        reading_bytes=reading_bytes,
        num_frequencies=num_frequencies,
        embedding_width=embedding_width,
        keeps_layer_inputs=True,
    )
    affordable = _affordable_rows(size, num_columns)
    held_out = affordable if num_data is None else max(min(affordable, num_data // 10), 1)
    tests = 0 if num_data is None else min(affordable, int(test_fraction * num_data))
    wanted = FitSetting(
        network,
        members,
        held_out,
        test_rows=tests,
        noise_networks=noise_networks,
        noise_hidden=noise_hidden,
        columns_bytes=columns_bytes,
        refined=refined and noise_networks > 0,
    )
    smallest: FitPlan | None = None
    for candidate in _candidates(wanted):
        plan = _with_parts(candidate, size)
        if plan.fits:
            return plan
        if smallest is None or plan.total < smallest.total:
            smallest = plan
    assert smallest is not None
    raise MemoryBudgetError(
        f"A budget of {format_budget(size)} is too small: the smallest fit of {num_columns} columns needs "
        f"{format_bytes(smallest.limit)}.",
        "The nearest plan:",
        smallest,
    )


def _affordable_rows(budget: int, num_columns: int) -> int:
    """How many rows may be held out."""
    for rows in _HELD_OUT_ROWS:
        if 24 * rows * (num_columns + 4) <= _SHARE_OF_HELD_OUT_ROWS * budget:
            break
    return rows


def _candidates(wanted: FitSetting) -> Iterator[FitSetting]:
    widest = wanted.network.hidden
    for embedded in (True, False) if wanted.network.num_frequencies else (False,):
        for share in _SHARES_OF_WIDTH:
            hidden = tuple(max(8, int(share * width)) for width in widest)
            for members in range(wanted.members if share == 1.0 else min(wanted.members, 2), 0, -1):
                batch = wanted.network.batch_size
                while True:
                    network = replace(
                        wanted.network,
                        hidden=hidden,
                        batch_size=batch,
                        micro_batch_size=batch,
                        num_frequencies=wanted.network.num_frequencies if embedded else 0,
                    )
                    yield replace(wanted, network=network, members=members)
                    if batch // 2 < _FEWEST_ROWS_PER_BATCH:
                        break
                    batch //= 2


def _with_parts(fit: FitSetting, budget: int) -> FitPlan:
    """The largest parts that fit; if not even the smallest do, the plan with those."""

    def plan_with(network: Setting) -> FitPlan:
        setting = replace(fit, network=network)
        return MemoryPlan(setting, tuple(fit_items(setting)), budget)

    least = plan_with(smallest_parts(fit.network))
    if not least.fits:
        return least
    return plan_with(largest_parts(fit.network, _PARTS, lambda network: plan_with(network).phases, budget))
