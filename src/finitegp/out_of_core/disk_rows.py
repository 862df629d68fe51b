"""Scaled rows on disk, and which of them are for what: tests, calibration, training."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..automatic.residual_noise import relative_variance
from ..automatic.table import Table
from ..data import ArraySource, Measure, Rows, ScaledSource, Scaling, Source
from ..data.permutation import RandomPermutation
from ..data.row_files import Index, check_numbers
from ..data.scaling import Standardizer
from ..data.sources import WHOLE, Share
from ..data.spool import SpooledSource, open_spool, spool
from ..distributed import ALONE, Ranks
from ..errors import DataError
from ..noise import InputNoise

NO_WEIGHTS = "Weights of rows cannot be used by the automatic fit: give counts, or leave them out."
# Mean square of standardised targets below which they can only be rounding errors.
_NO_SPREAD = 1e-12

Progress = Callable[[str], None]


class DiskRows:
    """Rows of any source, standardised in one pass and spooled in another, in a random order that takes no memory.

    Attributes:
        data: The scaled rows on disk.
        inputs_scaler: The standardiser of the inputs.
        target_scaler: The standardiser of the target.
        order: The random order; the place of a row in it decides what the row is used for.
    """

    def __init__(self, data: SpooledSource, inputs: Standardizer, target: Standardizer, *, seed: int) -> None:
        self.data = data
        self.inputs_scaler = inputs
        self.target_scaler = target
        self.order = RandomPermutation(data.num_data, seed)

    @classmethod
    def prepare(
        cls,
        source: Source,
        *,
        chunk_size: int,
        seed: int,
        center: bool = True,
        directory: str | Path | None = None,
        progress: Progress | None = None,
        ranks: Ranks = ALONE,
    ) -> DiskRows:
        """Two passes over the source: one measures the columns, one writes the scaled rows.

        Args:
            source: A source of rows without weights and with one target; counts are kept.
            chunk_size: Rows in memory at once.
            seed: Determines the random order.
            center: Whether the target's mean is subtracted.
            directory: Where the spool is kept; by default in a temporary directory, until the result is deleted.
            progress: Called with a word on each finished part.
            ranks: The processes that need the rows: the first one reads the source and writes.
        """

        def write(beat: Callable[[], None]) -> tuple[DiskRows, Path, Any]:
            data, *scalers = _write(source, chunk_size, center, directory, progress, beat)
            numbers = [[scaler.mean.tolist(), scaler.scale.tolist()] for scaler in scalers]
            return cls(data, *scalers, seed=seed), data.directory, numbers

        def read(place: Path, numbers: Any) -> DiskRows:
            # Numbers of float64 survive JSON to the bit.
            scalers = (Standardizer(np.array(mean), np.array(scale)) for mean, scale in numbers)
            return cls(open_spool(place, chunk_size=chunk_size, verify=False), *scalers, seed=seed)

        return ranks.first_writes(write, read, advice="give a directory that all machines see, or set TMPDIR to one.")

    def __len__(self) -> int:
        return self.data.num_data

    def table(self, start: int, stop: int) -> Table:
        """The scaled rows at these places of the random order, in memory."""
        rows = self.data.take(np.sort(self.order(np.arange(start, stop))))
        counts = None if rows.counts is None else rows.counts.numpy()
        return Table(rows.inputs.double().numpy(), rows.observed[:, 0].numpy(), counts)

    def in_original_units(self, table: Table) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Inputs and targets of scaled rows as they were, but for the rounding of the spool."""
        return self.inputs_scaler.inverse(table.inputs), self.target_scaler.inverse(table.targets)

    def source(self, table: Table) -> ArraySource:
        """The same rows as models take them, in chunks of the size of the spool's."""
        return ArraySource(table.inputs, table.targets, counts=table.counts, chunk_size=self.data.chunk_size)


class RandomRows(Source):
    """Some rows of another source, picked by their places in a random order; nothing is kept in memory.

    The places are counted from ``start`` to the end of the order, and from ``offset`` on around this circle.

    Args:
        data: Where the rows are.
        order: The random order of all of its rows.
        start: Places before this one are never picked.
        count: The number of rows.
        offset: The place of the first one.
        noise: If given, a row has the weight ``v(x)^-power`` for its noise scale ``v``.
        power: The exponent of these weights.

    Example:
        >>> data = DiskRows.prepare(ArraySource(np.arange(10.0)[:, None], np.arange(10)), chunk_size=4, seed=0)
        >>> rows = RandomRows(data.data, data.order, start=2, count=8)
        >>> len(rows.take(np.arange(8)).inputs.unique()), sum(len(part.inputs) for part in rows)
        (8, 8)
    """

    num_data: int
    chunk_size: int
    can_take = True

    def __init__(
        self,
        data: Source,
        order: RandomPermutation,
        *,
        start: int,
        count: int,
        offset: int = 0,
        noise: InputNoise | None = None,
        power: float = 0.0,
    ) -> None:
        if not 0 < count <= order.size - start:
            raise ValueError(f"count must lie from 1 to {order.size - start}, but is {count}.")
        self._data = data
        self._order = order
        self._start = start
        self._offset = offset
        self._noise = noise
        self._power = power
        self.num_data = count
        self.input_dim, self.num_targets, self.column_names = data.input_dim, data.num_targets, data.column_names
        self.chunk_size = data.chunk_size or 4096

    def __iter__(self) -> Iterator[Rows]:
        return self.part(WHOLE)

    def part(self, share: Share) -> Iterator[Rows]:
        """One pass over a share of the rows."""
        own = share.cut(self.num_data)
        for first in range(own.start, own.stop, self.chunk_size):
            yield self.take(np.arange(first, min(first + self.chunk_size, own.stop)))

    def measure(self) -> Measure:
        """The measure of all rows instead of some, which makes no difference that matters."""
        return replace(self._data.measure(), num_data=self.num_data)

    def take(self, indices: Index) -> Rows:
        """The rows of these numbers, in this order."""
        check_numbers(indices, self.num_data)
        places = self._start + (self._offset + indices) % (self._order.size - self._start)
        rows = self._data.take(self._order(places))
        if self._noise is None:
            return rows
        variance = relative_variance(self._noise, rows.inputs.numpy(), self.chunk_size)
        return rows._replace(weights=torch.from_numpy(variance**-self._power))


def _write(
    source: Source,
    chunk_size: int,
    center: bool,
    directory: str | Path | None,
    progress: Progress | None,
    beat: Callable[[], None],
) -> tuple[SpooledSource, Standardizer, Standardizer]:
    """The scaled rows on disk, and the standardisers of inputs and target; ``beat`` is called after every chunk."""
    folder = Path(tempfile.mkdtemp(prefix="finitegp-rows-") if directory is None else directory)
    options: dict[str, Any] = {"chunk_size": chunk_size, "progress": lambda *_: beat()}
    try:
        source = source.with_chunks(min(chunk_size, source.chunk_size or chunk_size))
        if not source.can_reread:
            # The rows are rounded when they have been scaled.
            source = spool(source, folder / "stream", input_dtype="float64", **options)
        scaling = Scaling.measure(source, progress=beat)
        inputs, target = _scalers(scaling, center=center)
        _tell(progress, "columns measured")
        scaled = ScaledSource(source, Scaling(inputs, Standardizer(target.mean[None], target.scale[None])))
        data = spool(scaled, folder / "scaled", **options)
        if data.weights is not None:
            raise DataError(NO_WEIGHTS)
        if center and data.measure().target_mean_square < _NO_SPREAD:
            raise DataError(f"All targets are {float(target.mean):.6g}: there is nothing to learn.")
    except BaseException:
        if directory is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if directory is None:
        data.delete_when_unused(folder)
    _tell(progress, f"{data.num_data} rows on disk")
    return data, inputs, target


def _scalers(scaling: Scaling, *, center: bool) -> tuple[Standardizer, Standardizer]:
    if len(scaling.targets.mean) != 1:
        raise DataError(f"targets must be one column, but are {len(scaling.targets.mean)}: fit one model per column.")
    mean, scale = scaling.targets.mean[0], scaling.targets.scale[0]
    if center:
        return scaling.inputs, Standardizer(mean=mean, scale=scale)
    # The mean square is variance and squared mean.
    return scaling.inputs, Standardizer(mean=np.zeros(()), scale=np.hypot(mean, scale))


def _tell(progress: Progress | None, word: str) -> None:
    if progress is not None:
        progress(word)
