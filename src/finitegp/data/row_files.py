"""Rows of fixed size in a file: read in order, or gathered by number, in memory that does not grow with the file."""

from __future__ import annotations

import os
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError

# Rows gathered before they are put together: each is a small object of its own until then.
_PIECE_ROWS = 1024

Array = npt.NDArray[Any]


class RowFile:
    """A file that is one row after another, each of ``dtype``.

    Rows are gathered by one positioned read each, in the order of the file. Mapping the file into memory would need
    fewer calls, but the kernel counts every page that was touched as memory of the process (and maps sixteen pages
    around each row), and the whole mapping as its address space: with random rows both grow to the size of the file.

    Nothing is kept open between calls, so that a source can be copied, and a file that changed its size is noticed.

    Args:
        path: The file.
        dtype: Of one row; a record, or numbers with a shape.
        num_rows: How many there are.
        offset: Bytes before the first row.

    Example:
        >>> import tempfile
        >>> directory = tempfile.TemporaryDirectory()
        >>> path = Path(directory.name) / "rows.bin"
        >>> np.arange(12.0).tofile(path)
        >>> file = RowFile(path, np.dtype((np.float64, (3,))), 4)
        >>> file.gather(np.array([3, 0, 3]))[:, 0].tolist(), file.read(1, 3).shape
        ([9.0, 0.0, 9.0], (2, 3))
        >>> directory.cleanup()
    """

    def __init__(self, path: str | os.PathLike[str], dtype: npt.DTypeLike, num_rows: int, *, offset: int = 0) -> None:
        self.path = Path(path)
        self.dtype = np.dtype(dtype)
        self.num_rows = num_rows
        self.offset = offset
        self.size = offset + num_rows * self.dtype.itemsize
        with self._open():
            pass

    def read(self, start: int, stop: int) -> Array:
        """Rows ``start`` to ``stop``, in order."""
        stop = min(stop, self.num_rows)
        rows = self._empty(max(stop - start, 0))
        with self._open() as opened:
            opened.seek(self.offset + start * self.dtype.itemsize)
            view = rows.data.cast("B")
            filled = 0
            while filled < rows.nbytes:  # one call reads at most two gibibytes
                found = opened.readinto(view[filled:])
                if not found:
                    raise DataError(f"{self.path} ended before row {stop}: it changed while it was read.")
                filled += found
        return self._typed(rows)

    def gather(self, indices: npt.NDArray[np.int64]) -> Array:
        """The rows of these numbers, in the order of the numbers; a number may occur more than once."""
        rows = self._empty(len(indices))
        # In the order of the file, so that a disk is read in one direction.
        order = np.argsort(indices, kind="stable")
        ordered = indices[order]
        if len(ordered) and (ordered[0] < 0 or ordered[-1] >= self.num_rows):
            wrong = int(ordered[0] if ordered[0] < 0 else ordered[-1])
            raise IndexError(f"Rows are numbered from 0 to {self.num_rows - 1}, but {wrong} was asked for.")
        width = self.dtype.itemsize
        with self._open() as opened:
            handle = opened.fileno()
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead of rows nobody asked for
            for start in range(0, len(ordered), _PIECE_ROWS):
                offsets = (ordered[start : start + _PIECE_ROWS] * width + self.offset).tolist()
                piece = b"".join(map(_pread, repeat(handle), repeat(width), offsets))
                if len(piece) != len(offsets) * width:
                    raise DataError(f"{self.path} is shorter than before: it changed while it was read.")
                rows[order[start : start + _PIECE_ROWS]] = np.frombuffer(piece, np.uint8).reshape(-1, width)
        return self._typed(rows)

    def locate(self, row: int) -> tuple[Path, int]:
        """The file and the row in it, for error messages."""
        return self.path, row

    def _empty(self, rows: int) -> npt.NDArray[np.uint8]:
        return np.empty((rows, self.dtype.itemsize), dtype=np.uint8)

    def _typed(self, rows: npt.NDArray[np.uint8]) -> Array:
        return rows.view(self.dtype.base).reshape(len(rows), *self.dtype.shape)

    def _open(self) -> Any:
        try:
            opened = open(self.path, "rb", buffering=0)  # noqa: SIM115 (the caller closes it)
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror}.") from None
        found = os.fstat(opened.fileno()).st_size
        if found != self.size:
            opened.close()
            raise DataError(
                f"{self.path} has {found} bytes, but {self.num_rows} rows of {self.dtype.itemsize} bytes need "
                f"{self.size}: it was cut off or changed; write it again."
            )
        return opened


def _seek_and_read(handle: int, count: int, offset: int) -> bytes:
    os.lseek(handle, offset, os.SEEK_SET)
    return os.read(handle, count)


# Windows has no positioned reads.
_pread = getattr(os, "pread", _seek_and_read)
