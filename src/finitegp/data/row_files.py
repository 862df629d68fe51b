"""Array-likes over files of rows of fixed size, read in order or by number: memory does not grow with the file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from io import FileIO
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError

# Rows gathered before they are put together: each is a small object of its own until then.
_PIECE_ROWS = 1024

Array = npt.NDArray[Any]
Index = npt.NDArray[np.int64]


class RowFile:
    """An array-like over a file that is one row after another: ``file[start:stop]`` and ``file[indices]`` read rows.

    Rows are picked by one positioned read each, in the order of the file. Mapping the file into memory would need
    fewer calls, but the kernel counts every page that was touched as memory of the process (and maps sixteen pages
    around each row), and the whole mapping as its address space: with random rows both grow to the size of the file.

    Nothing is kept open between calls, so that a source can be copied, and a file that changed its size is noticed.

    Args:
        path: The file.
        dtype: The type of one row; a record, or numbers with a shape.
        num_rows: The number of rows.
        offset: Bytes before the first row.
        may_be_rewritten: Whether a file that was written again since it was opened here may be read.

    Example:
        >>> import tempfile
        >>> directory = tempfile.TemporaryDirectory()
        >>> path = Path(directory.name) / "rows.bin"
        >>> np.arange(12.0).tofile(path)
        >>> file = RowFile(path, np.dtype((np.float64, (3,))), 4)
        >>> file[np.array([3, 0, 3])][:, 0].tolist(), file[1:3].shape, file.shape
        ([9.0, 0.0, 9.0], (2, 3), (4, 3))
        >>> directory.cleanup()
    """

    def __init__(
        self, path: Path, dtype: npt.DTypeLike, num_rows: int, *, offset: int = 0, may_be_rewritten: bool = True
    ) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        self.num_rows = num_rows
        self.offset = offset
        self.size = offset + num_rows * self.dtype.itemsize
        self._modified: int | None = None
        with self._open() as opened:
            if not may_be_rewritten:
                self._modified = os.fstat(opened.fileno()).st_mtime_ns

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, then the shape of one row."""
        return (self.num_rows, *self.dtype.shape)

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, which: slice | Index) -> Array:
        if isinstance(which, slice):
            return self._read(*which.indices(self.num_rows)[:2])
        return self._pick(which)

    def _read(self, start: int, stop: int) -> Array:
        """Rows ``start`` to ``stop``, in order."""
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

    def _pick(self, indices: Index) -> Array:
        """The rows of these numbers, in the order of the numbers; a number may occur more than once."""
        check_numbers(indices, self.num_rows)
        rows = self._empty(len(indices))
        # In the order of the file, so that a disk is read in one direction.
        order = np.argsort(indices, kind="stable")
        ordered = indices[order]
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

    def _open(self) -> FileIO:
        try:
            opened = open(self.path, "rb", buffering=0)  # noqa: SIM115 (the caller closes it)
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror}.") from None
        status = os.fstat(opened.fileno())
        problem = ""
        if self._modified not in (None, status.st_mtime_ns):
            problem = "changed since it was opened: open the source anew."
        elif status.st_size != self.size:
            problem = (
                f"has {status.st_size} bytes, but {self.num_rows} rows of {self.dtype.itemsize} bytes need "
                f"{self.size}: it was cut off or changed; write it again."
            )
        if problem:
            opened.close()
            raise DataError(f"{self.path} {problem}")
        return opened


@dataclass(frozen=True, eq=False)
class RecordField:
    """An array-like over one field of a file of records.

    Attributes:
        file: The file.
        name: The name of the field.
    """

    file: RowFile
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, then the shape of the field of one row."""
        return (self.file.num_rows, *self.file.dtype[self.name].shape)

    def __getitem__(self, which: slice | Index) -> Array:
        return self.of(self.file[which])

    def of(self, records: Array) -> Array:
        """The field of records that were read; a copy, because fields of records are neither contiguous nor aligned."""
        return np.array(records[self.name])


def check_numbers(indices: Index, num_rows: int) -> None:
    """An error if there is no row of one of these numbers."""
    if not hasattr(indices, "shape") or np.asarray(indices).dtype.kind not in "iu" or np.ndim(indices) != 1:
        raise DataError("indices must be an array of whole numbers, the numbers of rows.")
    wrong = indices[(indices < 0) | (indices >= num_rows)]
    if len(wrong):
        raise IndexError(f"Rows are numbered from 0 to {num_rows - 1}, but {wrong[0]} was asked for.")


def open_npy(path: str | os.PathLike[str], dimensions: tuple[int, ...] = (1, 2)) -> RowFile:
    """The rows of a ``.npy`` file as ``numpy.save`` writes it: numbers in row order (C), of one of these dimensions."""
    path = Path(path)
    try:
        with open(path, "rb") as opened:
            version = np.lib.format.read_magic(opened)
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, fortran_order, dtype = read_header(opened)
            offset = opened.tell()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError) as error:
        raise DataError(f"{path} is not a whole .npy file ({error}): write it again with numpy.save.") from None
    if dtype.kind not in "biuf":
        raise DataError(f"{path} must hold numbers, but holds {dtype}: encode them as numbers first.")
    if len(shape) not in dimensions or 0 in shape:
        wanted = (
            "(rows, columns)" if dimensions == (2,) else "(rows,)" if dimensions == (1,) else "(rows,) or (rows, t)"
        )
        raise DataError(f"{path} must have the shape {wanted} without zeros, but has {shape}.")
    if fortran_order and len(shape) > 1:
        raise DataError(
            f"{path} is stored column by column (Fortran order), so that a row is all over the file: write it again "
            "with numpy.save(path, numpy.ascontiguousarray(array))."
        )
    row = np.dtype((dtype, tuple(shape[1:])))
    return RowFile(path, row, int(shape[0]), offset=offset, may_be_rewritten=False)


def unmapped(array: Array) -> Array | RowFile:
    """The rows of an array that maps a whole file, to be read instead: see :class:`RowFile`; others as they are."""
    name = getattr(array, "filename", None)
    # Changes of a copy on write are not in the file.
    if name is None or not isinstance(array, np.memmap) or array.mode == "c" or not array.flags.c_contiguous:
        return array
    if array.ndim not in (1, 2) or array.size == 0 or isinstance(array.base, np.ndarray):  # a part of a larger one
        return array
    try:
        return RowFile(Path(name), np.dtype((array.dtype, array.shape[1:])), len(array), offset=array.offset)
    except DataError:
        return array  # there is more in the file


def _seek_and_read(handle: int, count: int, offset: int) -> bytes:
    os.lseek(handle, offset, os.SEEK_SET)
    return os.read(handle, count)


# Windows has no positioned reads.
_pread = getattr(os, "pread", _seek_and_read)
