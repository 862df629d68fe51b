"""``OtherRows``: the rows of a source but for some, which are held out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from .row_files import Index
from .sources import Rows, Source, WrappedSource
from .sums import Share


class OtherRows(WrappedSource):
    """The rows of another source that are not held out, in order.

    Args:
        source: A source that knows how many rows it has, and whose shares are neighbours.
        held_out: Numbers of the rows that are left out.

    Example:
        >>> from finitegp.data import ArraySource
        >>> rows = OtherRows(ArraySource(np.zeros((5, 1)), np.arange(5)), np.array([3, 0]))
        >>> rows.num_data, [int(value) for part in rows for value in part.observed[:, 0]]
        (3, [1, 2, 4])
    """

    def __init__(self, source: Source, held_out: Index) -> None:
        super().__init__(source)
        self._held_out = np.unique(held_out)
        self.can_take = False  # rows have other numbers here

    @property
    def num_data(self) -> int | None:  # type: ignore[override]
        """The number of rows that are left."""
        total = self._source.num_data
        return None if total is None else total - len(self._held_out)

    def part(self, share: Share) -> Iterator[Rows]:
        """One pass over a share of the rows, as the other source divides them."""
        total = self._source.num_data
        assert total is not None, "the source has to know how many rows it has"
        first = share.cut(total).start
        for rows in self._source.part(share):
            stop = first + len(rows.inputs)
            low, high = np.searchsorted(self._held_out, [first, stop])
            if low == high:
                yield rows
            elif high - low < stop - first:
                kept = np.delete(np.arange(stop - first), self._held_out[low:high] - first)
                yield rows.take(torch.from_numpy(kept))
            first = stop

    def take(self, indices: Index) -> Rows:
        """An error: the rows can only be read in order."""
        return Source.take(self, indices)

    def locate(self, row: int) -> tuple[Path, int] | None:
        """The file that holds a row, and the number of the row in that file."""
        before = np.searchsorted(self._held_out - np.arange(len(self._held_out)), row, side="right")
        return self._source.locate(row + int(before))

    def fingerprint(self) -> dict[str, object] | None:
        """The fingerprint of the other source, with the rows that are left out."""
        inner = self._source.fingerprint()
        held_out = hashlib.sha256(self._held_out.tobytes()).hexdigest()
        return None if inner is None else {"kind": "others", "of": inner, "held_out": held_out}

    def with_chunks(self, chunk_size: int) -> OtherRows:
        """The same rows in chunks of at most ``chunk_size`` rows; this source stays as it is."""
        return OtherRows(self._source.with_chunks(chunk_size), self._held_out)
