"""``plan_memory``: batch, parts and width of one network that is trained from disk within a memory budget.

Every item follows the code that it is the bill of: where a line has ``3``, three such arrays are alive at once in the
worst moment. ``benchmarks/memory.py`` compares the sums with what the kernel measures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..arguments import check_arguments, check_at_least_one
from ..linalg import GRAM_BLOCK_ROWS, SMALL_BATCH_ROWS
from .plan import (
    CHUNKS,
    SMALL_OBJECTS,
    Item,
    MemoryBudgetError,
    MemoryPlan,
    Part,
    find_plan,
    format_budget,
    format_bytes,
    parse_bytes,
)

ALGORITHMS = ("lagged", "scgd", "minimax")

# Bytes per row of the numbers of gathered rows and their order.
_INDEX_BYTES = 24
# What is tried, best first. Gathered batches and micro-batches do not change results; the others do.
_GATHERED = (32, 16, 8, 4, 2, 1)
_BATCHES = (256, 128, 64, 32)
_FEATURES = (128, 96, 64, 48, 32, 24, 16, 8)
_SMALLEST_MICRO_BATCH = 8


@dataclass(frozen=True)
class Setting:
    """Everything that the memory depends on.

    Attributes:
        num_columns: Input columns.
        num_targets: Target columns.
        hidden: Widths of the network's layers; the last is the number of features.
        batch_size: Rows per batch.
        micro_batch_size: Rows that pass through the network at once in training.
        gathered_batches: Batches read from disk at once.
        chunk_size: Rows that pass through the network at once in exact passes and prediction.
        algorithm: ``"lagged"``, ``"scgd"`` or ``"minimax"``.
        block: Batches between refreshes of ``"lagged"``.
        initial_batches: Batches that start what the algorithm tracks.
        keep_best: Whether a callback keeps the best state.
        float_bytes: Of a number of the network: 4 for float32.
        reading_bytes: Of a chunk of the table while it is read and decoded; 0 if there is no table to read.
    """

    num_columns: int
    num_targets: int = 1
    hidden: tuple[int, ...] = (128, 128)
    batch_size: int = 256
    micro_batch_size: int = 256
    gathered_batches: int = 32
    chunk_size: int = 4096
    algorithm: str = "lagged"
    block: int = 20
    initial_batches: int = 20
    keep_best: bool = False
    float_bytes: int = 4
    reading_bytes: int = 0

    @property
    def num_features(self) -> int:
        """The number of features ``d``."""
        return self.hidden[-1]

    @property
    def num_parameters(self) -> int:
        """Weights and biases of the network, the weights of the features and the noise."""
        widths = (self.num_columns, *self.hidden)
        network = sum((before + 1) * after for before, after in zip(widths, self.hidden, strict=False))
        return network + self.num_features * self.num_targets + 2

    @property
    def row_bytes(self) -> int:
        """Of one row in the spool."""
        return 4 * self.num_columns + 8 * self.num_targets

    def describe(self) -> str:
        """The setting in a line."""
        return (
            f"{self.num_columns} columns, layers {' x '.join(map(str, self.hidden))}, {self.algorithm}: batches of "
            f"{self.batch_size} in parts of {self.micro_batch_size}, {self.gathered_batches} read at once, chunks of "
            f"{self.chunk_size}"
        )

    def training_arguments(self) -> dict[str, object]:
        """The arguments of :func:`finitegp.train`."""
        return {
            "batch_size": self.batch_size,
            "micro_batch_size": self.micro_batch_size if self.micro_batch_size < self.batch_size else None,
            "gathered_batches": self.gathered_batches,
            "initial_batches": self.initial_batches,
        }


def items_of(setting: Setting) -> Iterator[Item]:
    """The bill."""
    yield from _always(setting)
    yield from _spool(setting)
    yield from _training(setting)
    yield from _exact_pass(setting)
    yield from _prediction(setting)


def _always(s: Setting) -> Iterator[Item]:
    f, p, square = s.float_bytes, s.num_parameters, s.num_features**2
    # The tracked Gram matrix and an inverse; or metric, multiplier, two sums and an inverse.
    state = {"lagged": (8 + f) * square, "scgd": 8 * square, "minimax": (32 + f) * square}[s.algorithm]
    copies = 2 if s.keep_best else 1
    yield Item("always", "network and weights", f * p)
    yield Item("always", "gradients and Adam's moments", 3 * f * p)
    yield Item("always", "matrices of the algorithm", state)
    yield Item("always", "copies of the state to go back to", copies * (f * p + state))
    streams = 2 if s.algorithm == "minimax" else 1
    gathered = s.gathered_batches * s.batch_size * (s.num_columns + s.num_targets)
    yield Item("always", "rows gathered from disk", streams * f * gathered)
    if s.algorithm == "lagged":
        batches = max(s.block, s.initial_batches)
        yield Item("always", "features since the last refresh", f * batches * s.batch_size * s.num_features)
    yield Item("always", "small objects", SMALL_OBJECTS)


def _spool(s: Setting) -> Iterator[Item]:
    if s.reading_bytes:
        # A chunk as float64, its checks and moments, and its records.
        chunk = s.chunk_size * (3 * 8 * (s.num_columns + s.num_targets) + s.row_bytes)
        yield Item("spool", "decoded part of the table", s.reading_bytes)
        yield Item("spool", "chunk and its records", chunk)


def _training(s: Setting) -> Iterator[Item]:
    """Parts of training that come one after the other: each frees what it took."""
    f, d, b, m = s.float_bytes, s.num_features, s.batch_size, s.micro_batch_size
    rows = s.gathered_batches * b
    # Records and what is copied out of them; with two streams the rows of the first are there already.
    ahead = f * (s.num_columns + s.num_targets) if s.algorithm == "minimax" else 0
    yield Item("reading rows", "the next rows and their numbers", rows * (2 * s.row_bytes + _INDEX_BYTES + ahead))
    yield Item("step", "outputs of the layers", f * m * (s.num_columns + sum(s.hidden)))
    # The gradient in the features, and two on the way back.
    back = f * m * 3 * max(s.hidden)
    if s.algorithm == "lagged":
        yield Item("step", "gradients of the rows", back)
        yield Item("refresh", "features side by side", f * max(s.block, s.initial_batches) * b * d)
        yield Item("refresh", "sums, factor and inverse", max(_sums(s), 5 * 8 * d**2))
    elif s.algorithm == "scgd":
        # The factor is gone when the gradients come; the inverse is still there.
        yield Item(
            "step", "factor, then inverse and gradients of the rows", max((8 + 2 * f) * d**2, back + 2 * f * d**2)
        )
    else:
        yield Item("step", "gradients of the rows", back)
        yield Item("move", "means in the metric, factor or eigenvectors", 7 * 8 * d**2)
    if s.algorithm != "lagged":
        yield Item("tracking", "features of the batch", f * b * d)
        # Few rows are multiplied at once, more of them block by block into a matrix and its mirror image.
        gram = 8 * b * d if b <= SMALL_BATCH_ROWS else 8 * (2 * d + GRAM_BLOCK_ROWS) * d
        yield Item("tracking", "Gram matrix of the batch", gram)
    if m < b:
        yield Item("step", "features of the batch, accumulated gradient", 2 * f * b * d + f * s.num_parameters)


def _exact_pass(s: Setting) -> Iterator[Item]:
    yield from _network("exact pass", s)
    yield Item("exact pass", "sums", 8 * s.num_features**2)
    # A layer at work; then the features, and what their sums take.
    inside = 8 * s.chunk_size * _widest_layer(s)
    summed = 8 * (s.chunk_size * s.num_features + GRAM_BLOCK_ROWS * s.num_features + 2 * s.num_features**2)
    yield Item("exact pass", "chunk in the network, or its features and their sums", max(inside, summed))


def _prediction(s: Setting) -> Iterator[Item]:
    yield from _network("prediction", s)
    yield Item("prediction", "posterior", 3 * 8 * s.num_features**2)
    # A layer at work; then the features, what is solved with them, and its squares.
    yield Item("prediction", "chunk in the network", 8 * s.chunk_size * max(_widest_layer(s), 3 * s.num_features))


def _network(phase: str, s: Setting) -> Iterator[Item]:
    """A float64 copy, and the rows that it is given."""
    yield Item(phase, "network in float64", 8 * s.num_parameters)
    yield Item(phase, "rows of the chunk", s.chunk_size * (2 * s.row_bytes + 8 * s.num_columns))


def _widest_layer(s: Setting) -> int:
    """Numbers per row of one layer's or activation's input and output, where they are most."""
    widths = (s.num_columns, *s.hidden)
    return max(max(one + other, 2 * other) for one, other in zip(widths, s.hidden, strict=False))


def _sums(s: Setting) -> int:
    """FeatureStatistics of one chunk: the joint Gram matrix, its mirror image, a copy, and a block of rows."""
    width = s.num_features + s.num_targets
    return 8 * (3 * width**2 + GRAM_BLOCK_ROWS * width)


@check_arguments
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
    check_at_least_one(num_columns=num_columns, num_targets=num_targets, block=block)
    if batch_size is not None:
        check_at_least_one(batch_size=batch_size)
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
    plan = find_plan(_candidates(fixed, hidden, batch_size), items_of, size, _PARTS)
    if plan.fits:
        return plan
    other = find_plan(_candidates(fixed, None, None), items_of, size, _PARTS)
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


def _candidates(fixed: Setting, hidden: Sequence[int] | None, batch_size: int | None) -> Iterator[Setting]:
    for layers in [(width, width) for width in _FEATURES] if hidden is None else [tuple(hidden)]:
        for batch in _BATCHES if batch_size is None else (batch_size,):
            yield replace(fixed, hidden=layers, batch_size=batch, micro_batch_size=batch)


def _micro_batches(setting: Setting) -> Iterator[Setting]:
    size = setting.batch_size
    while True:
        yield replace(setting, micro_batch_size=size)
        if size <= _SMALLEST_MICRO_BATCH:
            return
        size = -(-size // 2)


# Each phase has parts of its own, so that one after the other is settled.
_PARTS: tuple[Part[Setting], ...] = (
    Part(
        lambda setting: (replace(setting, chunk_size=size) for size in CHUNKS if size <= setting.chunk_size),
        ("spool", "exact pass", "prediction"),
    ),
    Part(
        lambda setting: (replace(setting, gathered_batches=n) for n in _GATHERED if n <= setting.gathered_batches),
        ("reading rows", "refresh", "step"),
    ),
    Part(_micro_batches, ("step",)),
)
