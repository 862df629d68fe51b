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
# BLAS copies panels of so many rows into memory of its own, and keeps it: measured with OpenBLAS.
_BLAS_PANEL_ROWS = 384
# The embedding of noise networks: the default of PeriodicEmbedding.
_NOISE_FREQUENCIES, _NOISE_WIDTH = 8, 4


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
        columns_bytes: What finding the types of a table's columns took.
        refined: Whether networks are trained further when the noise is known.
    """

    network: Setting
    members: int
    held_out_rows: int
    test_rows: int = 0
    noise_networks: int = 4
    noise_hidden: int = 64
    columns_bytes: int = 0
    refined: bool = True

    @property
    def num_features(self) -> int:
        """The features of all networks and a constant."""
        return self.members * self.network.num_features + 1

    @property
    def matrix_bytes(self) -> int:
        """Of the Gram matrix of all features and the target."""
        return 8 * (self.num_features + self.network.num_targets) ** 2

    @property
    def chunk_size(self) -> int:
        """Rows that pass at once in exact passes and prediction."""
        return self.network.chunk_size

    @property
    def noise_batch_size(self) -> int:
        """Rows per step of a noise network."""
        return 2 * self.network.batch_size

    @property
    def noise_rows(self) -> int:
        """Held-out rows that the noise is learned from."""
        return max(1, int(NOISE_SHARE * self.held_out_rows)) if self.noise_networks else 0

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


def fit_items(fit: FitSetting) -> Iterator[Item]:
    """The bill."""
    yield Item("always", "small objects", SMALL_OBJECTS)
    yield from _spool(fit)
    yield from _training(fit)
    if fit.noise_networks:
        yield from _noise(fit)
    yield from _exact_pass(fit)
    yield from _calibration(fit)
    yield from _prediction(fit)


def _spool(fit: FitSetting) -> Iterator[Item]:
    s = fit.network
    if s.reading_bytes:
        yield Item("spool", "decoded part of the table", s.reading_bytes)
    if fit.columns_bytes:
        yield Item("spool", "samples of the columns", fit.columns_bytes)
    # A chunk as float64, encoded, checked and scaled, its moments, and its records.
    chunk = s.chunk_size * (5 * 8 * (s.num_columns + s.num_targets) + s.row_bytes)
    yield Item("spool", "chunk and its records", chunk)


def _kept(phase: str, fit: FitSetting) -> Iterator[Item]:
    """What stays from the first network to the last calibration."""
    s = fit.network
    # With what is found out about them: residuals, variances.
    rows = 8 * (fit.held_out_rows + fit.test_rows) * (s.num_columns + 4)
    # Those from before they are refined stay until it is known whether it paid.
    copies = 2 if fit.refined else 1
    networks = s.float_bytes * (fit.members * s.num_parameters + fit.noise_networks * fit.noise_parameters)
    yield Item(phase, "held-out rows and finished networks", rows + copies * networks)
    if fit.refined:
        yield Item(phase, "sums from before the refinement", fit.matrix_bytes)
    yield _blas(phase, fit)


def _blas(phase: str, fit: FitSetting) -> Item:
    return Item(phase, "work space of BLAS", 8 * _BLAS_PANEL_ROWS * fit.num_features)


def _training(fit: FitSetting) -> Iterator[Item]:
    s = fit.network
    items = [item for item in items_of(s) if item.name != "small objects"]
    always = sum(item.bytes for item in items if item.phase == "always")
    for phase in ("reading rows", "refresh", "step"):
        name = f"training: {phase}"
        yield from _kept(name, fit)
        yield Item(name, "network, optimizer and what the algorithm tracks", always)
        for item in items:
            if item.phase == phase:
                yield Item(name, item.name, item.bytes)
    yield Item("training: step", "gradient and update of all parameters", 2 * s.float_bytes * s.num_parameters)
    if fit.refined:
        rows = min(s.chunk_size, s.gathered_batches * s.batch_size)
        yield Item("training: reading rows", "weights of rows by noise networks", 4 * rows * _noise_widest(fit))


def _noise(fit: FitSetting) -> Iterator[Item]:
    s = fit.network
    yield from _kept("noise", fit)
    rows = fit.noise_rows
    share = rows if fit.noise_networks == 1 else rows - rows // fit.noise_networks
    # One network's share in float64, and then in float32 or the next one's; the other rows in float32; residuals, their
    # squares, and orders of the rows.
    copies = share * 16 * s.num_columns + rows * 6 * 8 + (fit.held_out_rows - rows) * (4 * s.num_columns + 16)
    yield Item("noise", "copies of held-out rows", copies)
    # Values, gradients and moments, the step's gradient and update, and the best so far, twice while it is replaced.
    yield Item("noise", "networks and optimizer", 4 * (fit.noise_networks + 8) * fit.noise_parameters)
    # Angles, cosines and their gradients, what is joined and turned; outputs of the layers and gradients.
    per_row = s.num_columns * (4 * _NOISE_FREQUENCIES + 4 * _NOISE_WIDTH) + 6 * fit.noise_hidden
    inside = max(min(fit.noise_batch_size, share) * per_row, min(s.chunk_size, share) * _noise_widest(fit))
    yield Item("noise", "rows in the network", 4 * inside)


def _exact_pass(fit: FitSetting) -> Iterator[Item]:
    chunk, sums = fit.chunk_size, 3 if fit.test_rows else 2
    for phase in ("exact pass: features", "exact pass: sums"):
        yield from _kept(phase, fit)
        yield from _networks(phase, fit, chunk)
        # Of the chunks so far, of held-out and of test rows.
        yield Item(phase, "sums", sums * fit.matrix_bytes)
    yield Item("exact pass: features", "chunk in the networks", 8 * chunk * _numbers_per_row(fit))
    block = 8 * min(GRAM_BLOCK_ROWS, chunk) * fit.num_features
    yield Item("exact pass: sums", "features of the chunk", 8 * chunk * fit.num_features + block)
    yield Item("exact pass: sums", "Gram matrix of the chunk and its mirror image", 2 * fit.matrix_bytes)
    # LAPACK's divide and conquer works on two more matrices.
    yield from _kept("noise variance", fit)
    yield Item("noise variance", "sums with and without held-out rows", 2 * fit.matrix_bytes)
    yield Item("noise variance", "eigenvectors and work space", 3 * fit.matrix_bytes)


def _calibration(fit: FitSetting) -> Iterator[Item]:
    yield from _kept("calibration", fit)
    rows = min(fit.chunk_size, max(fit.noise_rows, fit.held_out_rows - fit.noise_rows))
    yield from _networks("calibration", fit, rows)
    yield Item("calibration", "sums with and without held-out rows, factor", 3 * fit.matrix_bytes)
    yield Item("calibration", "held-out rows in the networks", 8 * rows * _numbers_per_prediction(fit))


def _prediction(fit: FitSetting) -> Iterator[Item]:
    yield _blas("prediction", fit)
    yield from _networks("prediction", fit, fit.chunk_size)
    yield Item("prediction", "posterior", 2 * fit.matrix_bytes)
    yield Item("prediction", "chunk in the networks", 8 * fit.chunk_size * _numbers_per_prediction(fit))


def _networks(phase: str, fit: FitSetting, rows: int) -> Iterator[Item]:
    """All networks in float64, with the rows that they are given."""
    s = fit.network
    parameters = fit.members * s.num_parameters + fit.noise_networks * fit.noise_parameters
    yield Item(phase, "networks in float64", 8 * parameters)
    yield Item(phase, "rows of the chunk", rows * (s.row_bytes + 2 * 8 * s.num_columns))


def _numbers_per_row(fit: FitSetting) -> int:
    """Features of all networks and these joined; or a layer at work, beside features of other networks or of all."""
    d, layer = fit.num_features, widest_layer(fit.network)
    return max(2 * d, d - fit.network.num_features + layer, d + _noise_widest(fit))


def _numbers_per_prediction(fit: FitSetting) -> int:
    """The same; then the features, what is solved with them, and its squares."""
    return max(_numbers_per_row(fit), 3 * fit.num_features)


def _noise_widest(fit: FitSetting) -> int:
    """Numbers per row of a noise network's widest layer: angles and cosines, or the mixed cosines."""
    if not fit.noise_networks:
        return 0
    columns = fit.network.num_columns * max(2 * _NOISE_FREQUENCIES, 3 * _NOISE_WIDTH)
    return max(columns, 2 * fit.noise_hidden)
