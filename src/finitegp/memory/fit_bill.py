"""What a whole fit within a memory budget keeps alive: spool, several networks, noise, exact passes, calibration.

It is the bill of ``finitegp.out_of_core``, as ``bill.py`` is that of one network.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .bill import GRAM_BLOCK_ROWS, SMALL_OBJECTS, Item, Setting, items_of, widest_layer

# Shares of the held-out rows that the noise is learned from, and that each of several noise networks sees.
NOISE_SHARE = 0.7
# Of the items that one network needs all the time it is trained.
_ALWAYS = "network, optimizer and what the algorithm tracks"


@dataclass(frozen=True)
class FitSetting:
    """What the memory of a whole fit depends on.

    Attributes:
        network: One network and its training; its ``chunk_size`` is that of all passes.
        members: Networks, trained one after the other; their features together are those of the model.
        held_out_rows: Rows in memory that no network is trained on.
        test_rows: Further such rows, for scores.
        noise_networks: Networks for the noise; 0 for constant noise.
        noise_hidden: Their width.
        noise_batch_size: Rows per step of theirs.
        columns_bytes: What finding the types of a table's columns took.
    """

    network: Setting
    members: int
    held_out_rows: int
    test_rows: int = 0
    noise_networks: int = 4
    noise_hidden: int = 64
    noise_batch_size: int = 256
    columns_bytes: int = 0

    @property
    def num_features(self) -> int:
        """The features of all networks and a constant."""
        return self.members * self.network.num_features + 1

    @property
    def refined(self) -> bool:
        """Whether networks are trained further when the noise is known."""
        return self.noise_networks > 0

    @property
    def chunk_size(self) -> int:
        """Rows that pass at once in exact passes and prediction."""
        return self.network.chunk_size

    @property
    def noise_parameters(self) -> int:
        """Of one noise network with its embedding."""
        s, hidden = self.network, self.noise_hidden
        embedding = s.num_columns * (2 * _NOISE_FREQUENCIES + (_NOISE_FREQUENCIES + 1) * (_NOISE_WIDTH - 1))
        return embedding + (s.num_columns * _NOISE_WIDTH + 1) * hidden + (hidden + 1) * hidden + hidden + 1

    def describe(self) -> str:
        """The setting in a line."""
        noise = f"{self.noise_networks} noise networks" if self.noise_networks else "constant noise"
        return (
            f"{self.members} networks, {self.num_features} features, {noise}, {self.held_out_rows} held-out rows; each "
            f"network: {self.network.describe()}"
        )

    def training_arguments(self) -> dict[str, Any]:
        """What :func:`finitegp.train` has to be given."""
        return self.network.training_arguments()


# The embedding of noise networks: the default of PeriodicEmbedding.
_NOISE_FREQUENCIES, _NOISE_WIDTH = 8, 4


def fit_items(fit: FitSetting) -> Iterator[Item]:
    """The bill."""
    s = fit.network
    rows = fit.held_out_rows + fit.test_rows
    yield Item("always", "held-out rows", 8 * rows * (s.num_columns + 4))
    # Those before they are refined stay until it is known whether it paid.
    yield Item("always", "finished networks", 2 * s.float_bytes * fit.members * s.num_parameters)
    if fit.refined:
        yield Item("always", "sums from before the refinement", 8 * fit.num_features**2)
    yield Item("always", "small objects", SMALL_OBJECTS)
    if s.reading_bytes:
        yield Item("spool", "decoded part of the table", s.reading_bytes)
    if fit.columns_bytes:
        yield Item("spool", "samples of the columns", fit.columns_bytes)
    # A chunk as float64, encoded, checked and scaled, its moments, and its records.
    chunk = s.chunk_size * (5 * 8 * (s.num_columns + s.num_targets) + s.row_bytes)
    yield Item("spool", "chunk and its records", chunk)
    yield from _training(s)
    if fit.refined:
        rows = min(s.chunk_size, s.gathered_batches * s.batch_size)
        yield Item("training: reading rows", "weights of rows by noise networks", 4 * rows * _noise_widest(fit))
    if fit.noise_networks:
        yield from _noise(fit)
    yield from _exact_pass(fit)
    yield from _calibration(fit)
    yield from _prediction(fit)


def _training(s: Setting) -> Iterator[Item]:
    items = [item for item in items_of(s) if item.name != "small objects"]
    always = sum(item.bytes for item in items if item.phase == "always")
    for phase in ("reading rows", "refresh", "step"):
        yield Item(f"training: {phase}", _ALWAYS, always)
        for item in items:
            if item.phase == phase:
                yield Item(f"training: {phase}", item.name, item.bytes)
    yield Item("training: step", "gradient and update of all parameters", 2 * s.float_bytes * s.num_parameters)


def _noise(fit: FitSetting) -> Iterator[Item]:
    s = fit.network
    rows = int(NOISE_SHARE * fit.held_out_rows)
    others = fit.held_out_rows - rows
    # One network's share in float64 and float32, the other rows in float32, residuals and an order of the rows.
    copies = rows * (12 * s.num_columns + 8 * 8) + others * (4 * s.num_columns + 16)
    yield Item("noise", "copies of held-out rows", copies)
    yield Item("noise", "networks with Adam's moments", 4 * (fit.noise_networks + 4) * fit.noise_parameters)
    # Autograd keeps outputs, and two gradients at a time.
    per_row = s.num_columns * (4 * _NOISE_FREQUENCIES + 4 * _NOISE_WIDTH) + 6 * fit.noise_hidden
    yield Item("noise", "rows in the network", 4 * max(fit.noise_batch_size, s.chunk_size) * per_row)


def _exact_pass(fit: FitSetting) -> Iterator[Item]:
    width = fit.num_features + fit.network.num_targets
    # Features of the networks, these joined or scaled, and those of the chunk before.
    yield from _chunk("exact pass", fit, 3)
    # The sum so far; of a chunk the joint Gram matrix, its mirror image and a copy; a block of rows; sums of held-out
    # rows and of test rows.
    matrices = 6 if fit.test_rows else 5
    yield Item("exact pass", "sums", 8 * (matrices * width**2 + GRAM_BLOCK_ROWS * width))


def _calibration(fit: FitSetting) -> Iterator[Item]:
    yield from _chunk("calibration", fit, 4)
    # Sums of all rows, and without those held out; the regularised matrix, and its factor twice.
    yield Item("calibration", "sums and their factors", 5 * 8 * fit.num_features**2)


def _prediction(fit: FitSetting) -> Iterator[Item]:
    yield from _chunk("prediction", fit, 4)
    yield Item("prediction", "posterior", 3 * 8 * fit.num_features**2)


def _chunk(phase: str, fit: FitSetting, features: int) -> Iterator[Item]:
    """A chunk on its way through float64 copies of all networks."""
    s = fit.network
    parameters = fit.members * s.num_parameters + fit.noise_networks * fit.noise_parameters
    yield Item(phase, "networks in float64", 8 * parameters)
    yield Item(phase, "rows of the chunk", s.chunk_size * (2 * s.row_bytes + 2 * 8 * s.num_columns))
    # A layer is at work while features of the chunk before and of other networks are there, or all of these are joined.
    inside = max(features * fit.num_features, 2 * fit.num_features + max(widest_layer(s), _noise_widest(fit)))
    yield Item(phase, "chunk in the networks", 8 * s.chunk_size * inside)


def _noise_widest(fit: FitSetting) -> int:
    """Numbers per row of a noise network's widest layer: angles and cosines, or the mixed cosines."""
    if not fit.noise_networks:
        return 0
    columns = fit.network.num_columns * max(2 * _NOISE_FREQUENCIES, _NOISE_FREQUENCIES + 3 * _NOISE_WIDTH)
    return max(columns, 2 * fit.noise_hidden)
