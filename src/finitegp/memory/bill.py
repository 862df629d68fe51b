"""What each phase of training and prediction keeps in memory, item by item.

Every item follows the code that it is the bill of: where a line says ``3``, three such arrays are alive at once in the
worst moment. ``benchmarks/memory.py`` compares the sums with what the kernel measures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ALGORITHMS = ("lagged", "scgd", "minimax")

# Interpreter objects, small tensors, and what the allocator cannot give back.
SMALL_OBJECTS = 1_500_000
# linalg.gram_float64 sums rows in blocks of so many.
GRAM_BLOCK_ROWS = 512
# Bytes per row of the numbers of gathered rows and their order.
_INDEX_BYTES = 24


@dataclass(frozen=True)
class Item:
    """One line of the bill.

    Attributes:
        phase: ``"always"``, or the phase in which it is needed besides.
        name: What it is.
        bytes: How much.
    """

    phase: str
    name: str
    bytes: int


@dataclass(frozen=True)
class Setting:
    """What the memory depends on.

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
        num_frequencies: Cosines per column of a ``PeriodicEmbedding`` before the network; 0 if there is none.
        embedding_width: Outputs per column of that embedding.
        keeps_layer_inputs: Whether the backward pass needs the inputs of activations, too: all but ReLU.
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
    num_frequencies: int = 0
    embedding_width: int = 4
    keeps_layer_inputs: bool = False

    @property
    def network_inputs(self) -> int:
        """Columns that the first layer sees."""
        return self.num_columns * (self.embedding_width if self.num_frequencies else 1)

    @property
    def num_features(self) -> int:
        """The number of features ``d``."""
        return self.hidden[-1]

    @property
    def num_parameters(self) -> int:
        """Weights and biases of embedding and network, the weights of the features and the noise."""
        widths = (self.network_inputs, *self.hidden)
        network = sum((before + 1) * after for before, after in zip(widths, self.hidden, strict=False))
        if self.num_frequencies:
            mixed = (self.num_frequencies + 1) * (self.embedding_width - 1)
            network += self.num_columns * (2 * self.num_frequencies + mixed)
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

    def training_arguments(self) -> dict[str, Any]:
        """What :func:`finitegp.train` has to be given."""
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
    kept = 2 if s.keeps_layer_inputs else 1
    yield Item("step", "outputs of the layers", f * m * (s.num_columns + kept * sum(s.hidden)))
    if s.num_frequencies:
        # Angles, cosines, and what is joined and turned row by row.
        cosines = s.num_columns * (2 * s.num_frequencies + 2 * s.embedding_width)
        yield Item("step", "cosines of the columns", f * m * cosines)
    # The gradient in the features, and two on the way back; then two in the cosines.
    back = f * m * max(3 * max(s.hidden), s.network_inputs + 2 * s.num_columns * s.num_frequencies)
    if s.algorithm == "lagged":
        yield Item("step", "gradients of the rows", back)
        yield Item("refresh", "features side by side", f * max(s.block, s.initial_batches) * b * d)
        yield Item("refresh", "sums, factor and inverse", max(_sums(s), 5 * 8 * d**2))
    elif s.algorithm == "scgd":
        # The factor is gone when the gradients come; the inverse is still there.
        yield Item(
            "step", "factor, then inverse and gradients of the rows", max((8 + 2 * f) * d**2, back + 2 * f * d**2)
        )
        yield Item("tracking", "features of the batch", f * b * d)
        # Few rows are multiplied at once, more of them block by block into a matrix and its mirror image.
        yield Item("tracking", "Gram matrix of the batch", 8 * b * d if b <= 64 else 8 * (2 * d + GRAM_BLOCK_ROWS) * d)
    else:
        yield Item("step", "gradients of the rows", back)
        yield Item("tracking", "features of the batch", f * b * d)
        yield Item("tracking", "Gram matrix of the batch", 8 * b * d if b <= 64 else 8 * (2 * d + GRAM_BLOCK_ROWS) * d)
        yield Item("move", "means in the metric, factor or eigenvectors", 7 * 8 * d**2)
    if m < b:
        yield Item("step", "features of the batch, accumulated gradient", 2 * f * b * d + f * s.num_parameters)


def _exact_pass(s: Setting) -> Iterator[Item]:
    yield from _network("exact pass", s)
    yield Item("exact pass", "sums", 8 * s.num_features**2)
    # A layer at work; then the features, and what their sums take.
    inside = 8 * s.chunk_size * widest_layer(s)
    summed = 8 * (s.chunk_size * s.num_features + GRAM_BLOCK_ROWS * s.num_features + 2 * s.num_features**2)
    yield Item("exact pass", "chunk in the network, or its features and their sums", max(inside, summed))


def _prediction(s: Setting) -> Iterator[Item]:
    yield from _network("prediction", s)
    yield Item("prediction", "posterior", 3 * 8 * s.num_features**2)
    # A layer at work; then the features, what is solved with them, and its squares.
    yield Item("prediction", "chunk in the network", 8 * s.chunk_size * max(widest_layer(s), 3 * s.num_features))


def _network(phase: str, s: Setting) -> Iterator[Item]:
    """A float64 copy, and the rows that it is given."""
    yield Item(phase, "network in float64", 8 * s.num_parameters)
    yield Item(phase, "rows of the chunk", s.chunk_size * (2 * s.row_bytes + 8 * s.num_columns))


def widest_layer(s: Setting) -> int:
    """Numbers per row of one layer's or activation's input and output, where they are most."""
    widths = (s.network_inputs, *s.hidden)
    widest = max(max(one + other, 2 * other) for one, other in zip(widths, s.hidden, strict=False))
    if not s.num_frequencies:
        return widest
    # Angles and cosines; then the mixed cosines, joined with the columns, and turned row by row.
    return max(widest, s.num_columns * max(2 * s.num_frequencies, 3 * s.embedding_width))


def _sums(s: Setting) -> int:
    """FeatureStatistics of one chunk: the joint Gram matrix, its mirror image, a copy, and a block of rows."""
    width = s.num_features + s.num_targets
    return 8 * (3 * width**2 + GRAM_BLOCK_ROWS * width)
