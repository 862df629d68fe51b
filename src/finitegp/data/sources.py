"""``Rows`` and ``Source``: anything that yields chunks of rows."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from numpy.typing import ArrayLike
from torch import Tensor

from ..arguments import check_arguments, check_at_least_one
from ..errors import DataError
from ..statistics import COMPLETE, WHOLE, Share, Sums
from .row_files import Index
from .scaling import Moments

# How many parts rows may have: inputs and targets, then weights, then counts.
NUMBERS_OF_PARTS = (2, 3, 4)


class Rows(NamedTuple):
    """Some rows of data: inputs ``(rows, columns)``, targets ``(rows, t)`` in float64, weights and counts ``(rows,)``.

    All but the inputs may be None; new rows, which are only predicted, have no targets. A weight ``k`` divides the
    row's noise variance by ``k``; a count ``k`` makes the row stand for ``k`` equal rows.

    Example:
        >>> import torch
        >>> rows = Rows(torch.zeros(3, 2), torch.ones(3, 1))
        >>> rows.take(slice(0, 2)).observed.shape
        torch.Size([2, 1])
    """

    inputs: Tensor
    targets: Tensor | None = None
    weights: Tensor | None = None
    counts: Tensor | None = None

    @property
    def observed(self) -> Tensor:
        """The targets; an error if there are none."""
        if self.targets is None:
            raise no_targets()
        return self.targets

    def take(self, which: slice | Tensor) -> Rows:
        """The rows of a slice, or of these numbers."""
        inputs, *others = (None if part is None else part[which] for part in self)
        assert inputs is not None
        return Rows(inputs, *others)


@dataclass(frozen=True)
class Measure:
    """Row sums that drawing batches from a source needs.

    Attributes:
        num_data: The number of rows.
        num_targets: The number of target columns; 0 without targets.
        target_mean_square: The mean square of the targets, each row once; 0 without targets.
        mean_count: The mean of the counts of the rows; None if they have none.
    """

    num_data: int
    num_targets: int
    target_mean_square: float
    mean_count: float | None


@check_arguments
class Source(ABC):
    """The interface of all sources: chunks of rows in order, and what is known about the rows without reading them.

    A source of your own needs ``__iter__``; everything else has a default that promises nothing.

    Attributes:
        num_data: The number of rows; None if only a pass can find it.
        input_dim: The number of input columns; None if only a pass can find it.
        num_targets: The number of target columns, 0 if the rows have no targets; None if only a pass can find it.
        column_names: Names of the inputs, for error messages; None if they have none.
        chunk_size: The most rows of a chunk, which passes respect; None if chunks come in a size of their own.
        reading_bytes: Memory that reading takes besides the chunks.
        can_reread: Whether a second pass is possible.
        can_take: Whether :meth:`take` reads rows by number.
        fits_memory: Whether training may hold all rows in memory; otherwise they stay on disk.
        sums: What exact passes sum over: all rows, or the share of this process (:meth:`.Ranks.shard`).
    """

    num_data: int | None = None
    input_dim: int | None = None
    num_targets: int | None = None
    column_names: list[str] | None = None
    chunk_size: int | None = None
    reading_bytes: int = 0
    can_reread: bool = True
    can_take: bool = False
    fits_memory: bool = False
    sums: Sums = COMPLETE

    @abstractmethod
    def __iter__(self) -> Iterator[Rows]:
        """One pass over all rows, in order, every value checked."""

    def part(self, share: Share) -> Iterator[Rows]:
        """One pass over a share of the rows: each row is in one share.

        Where rows cannot be skipped, as here, all are read, and every ``share.count``-th chunk is yielded.
        """
        return islice(self, share.index, None, share.count)

    def with_chunks(self, chunk_size: int) -> Source:
        """The same rows in chunks of at most ``chunk_size`` rows; this source stays as it is."""
        other = _Rechunked(self) if self.chunk_size is None else copy.copy(self)
        check_at_least_one(chunk_size=chunk_size)
        other.chunk_size = chunk_size
        return other

    def take(self, indices: Index) -> Rows:
        """The rows of these numbers, in this order; a number may occur more than once."""
        raise DataError(
            f"Rows of a {type(self).__name__} can only be read in order: write them to disk with "
            "finitegp.data.spool(source, directory), and take them from there."
        )

    def measure(self) -> Measure:
        """Number of rows and targets, mean square of the targets and mean count, in one pass unless they are known."""
        targets: Moments | int = 0
        num_data, sum_of_counts, counted = 0, 0.0, False
        for rows in self:
            if rows.targets is not None:
                targets += Moments.of(rows.targets.numpy())
            num_data += len(rows.inputs)
            counted = counted or rows.counts is not None
            sum_of_counts += len(rows.inputs) if rows.counts is None else float(rows.counts.sum())
        if num_data == 0:
            raise DataError("The data have no rows.")
        mean_count = sum_of_counts / num_data if counted else None
        if not isinstance(targets, Moments):
            return Measure(num_data, 0, 0.0, mean_count)
        return Measure(num_data, len(targets.mean), float(targets.mean_square.mean()), mean_count)

    def locate(self, row: int) -> tuple[Path, int] | None:
        """The file that holds a row and the number of the row in that file, for error messages; None without files."""
        return None

    def fingerprint(self) -> dict[str, object] | None:
        """The facts, for JSON, that determine the rows together with :meth:`files`; None if they are not known."""
        return None

    def files(self) -> list[Path]:
        """The files that the rows come from."""
        return []


# What every function that reads rows takes: a source, arrays ``(inputs, targets[, weights[, counts]])``, or an iterable
# of such chunks that can be read repeatedly.
Data = Source | Sequence[ArrayLike | None] | Iterable[Sequence[ArrayLike | None]]


@check_arguments
class WrappedSource(Source):
    """Base of sources that yield the rows of another one, changed on the way."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.column_names, self.chunk_size = source.column_names, source.chunk_size
        self.reading_bytes, self.sums = source.reading_bytes, source.sums
        self.can_reread, self.can_take, self.fits_memory = source.can_reread, source.can_take, source.fits_memory

    # These may become known in a pass.
    num_data = property(lambda self: self._source.num_data)
    input_dim = property(lambda self: self._source.input_dim)
    num_targets = property(lambda self: self._source.num_targets)

    def __iter__(self) -> Iterator[Rows]:
        return self.part(WHOLE)

    @abstractmethod
    def part(self, share: Share) -> Iterator[Rows]:
        """One pass over a share of the rows, as the other source divides them."""

    def take(self, indices: Index) -> Rows:
        """The rows of these numbers, in this order, if the other source can take them."""
        return self._source.take(indices)

    def locate(self, row: int) -> tuple[Path, int] | None:
        """The file that holds a row, and the number of the row in that file."""
        return self._source.locate(row)

    def fingerprint(self) -> dict[str, object] | None:
        """The fingerprint of the other source."""
        return self._source.fingerprint()

    def files(self) -> list[Path]:
        """The files of the other source."""
        return self._source.files()


class _Rechunked(WrappedSource):
    """The rows of a source whose chunks have a size of their own: larger ones are cut as they pass."""

    def part(self, share: Share) -> Iterator[Rows]:
        for rows in self._source.part(share):
            yield from cut_rows(rows, self.chunk_size)


def cut_rows(rows: Rows, chunk_size: int | None) -> Iterator[Rows]:
    """The rows in pieces of at most ``chunk_size``; in one piece if that is None."""
    if chunk_size is None or len(rows.inputs) <= chunk_size:
        yield rows
        return
    for start in range(0, len(rows.inputs), chunk_size):
        yield rows.take(slice(start, start + chunk_size))


def no_targets() -> DataError:
    """The error for rows without targets where they are needed."""
    return DataError("The rows have no targets, but targets are needed here: give (inputs, targets).")
