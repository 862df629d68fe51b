"""Rows in ``.npy`` files, read from disk as they are needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..errors import DataError
from .moments import SourceMeasure
from .row_files import Array, RowFile
from .shares import WHOLE, Share
from .sources import IndexedSource, Rows, check_finite, check_positive


class NpySource(IndexedSource):
    """Rows in ``.npy`` files, as ``numpy.save`` writes them: any number of rows in fixed memory.

    Opening reads the files once, checks every value and measures the targets; nothing is kept. Batches drawn from it
    are as uniform as from arrays in memory.

    Args:
        inputs: A file of shape ``(rows, columns)``, in row order (C), of a number type.
        targets: A file of shape ``(rows,)`` or ``(rows, t)``.
        weights: A file of shape ``(rows,)``, positive.
        counts: A file of shape ``(rows,)``, positive: how many equal rows each row stands for.
        chunk_size: Rows per chunk of a pass.
        column_names: Of the inputs, for error messages.

    Example:
        >>> import tempfile
        >>> directory = tempfile.TemporaryDirectory()
        >>> inputs, targets = Path(directory.name) / "inputs.npy", Path(directory.name) / "targets.npy"
        >>> np.save(inputs, np.arange(8.0).reshape(4, 2))
        >>> np.save(targets, np.arange(4))
        >>> source = NpySource(inputs, targets)
        >>> source.num_data, source.gather(np.array([2, 0])).inputs.tolist()
        (4, [[4.0, 5.0], [0.0, 1.0]])
        >>> directory.cleanup()
    """

    def __init__(
        self,
        inputs: str | os.PathLike[str],
        targets: str | os.PathLike[str],
        weights: str | os.PathLike[str] | None = None,
        *,
        counts: str | os.PathLike[str] | None = None,
        chunk_size: int = 4096,
        column_names: list[str] | None = None,
    ) -> None:
        if chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, but is {chunk_size}.")
        self._inputs = _open(Path(inputs), (2,))
        self._targets = _open(Path(targets), (1, 2))
        self._weights = None if weights is None else _open(Path(weights), (1,))
        self._counts = None if counts is None else _open(Path(counts), (1,))
        self.num_data = self._inputs.num_rows
        self.chunk_size = chunk_size
        self.input_dim = self._inputs.dtype.shape[0]
        if column_names is not None and len(column_names) != self.input_dim:
            raise DataError(f"{inputs} has {self.input_dim} columns, but {len(column_names)} names were given.")
        self.column_names = column_names
        for file in (self._targets, self._weights, self._counts):
            if file is not None and file.num_rows != self.num_data:
                raise DataError(f"{inputs} has {self.num_data} rows, but {file.path} has {file.num_rows}.")
        self.num_targets = 1 if not self._targets.dtype.shape else self._targets.dtype.shape[0]
        # Taken before the values are checked: what is written later was not.
        self._times = [file.path.stat().st_mtime_ns for _, file in self._parts()]
        measured = SourceMeasure.of(self)
        self.target_mean_square, self.mean_count = measured.target_mean_square, measured.mean_count

    def __iter__(self) -> Iterator[Rows]:
        return self.part(WHOLE)

    def part(self, share: Share) -> Iterator[Rows]:
        """One pass over a share of the rows, which are neighbours."""
        own = share.cut(self.num_data)
        for start in range(own.start, own.stop, self.chunk_size):
            stop = min(start + self.chunk_size, own.stop)
            yield self._rows(lambda file, start=start, stop=stop: file.read(start, stop), start)

    def gather(self, indices: npt.NDArray[np.int64]) -> Rows:
        """The rows of these numbers, in this order."""
        return self._rows(lambda file: file.gather(indices), None)

    def fingerprint(self) -> dict[str, Any]:
        """The kind of source and what its files hold; the rest is in the files."""
        parts = [name for name, _ in self._parts()]
        return {"kind": "npy", "column_names": self.column_names, "parts": parts}

    def files(self) -> list[Path]:
        """The ``.npy`` files."""
        return [file.path for _, file in self._parts()]

    def _parts(self) -> list[tuple[str, RowFile]]:
        files = (self._inputs, self._targets, self._weights, self._counts)
        return [(name, file) for name, file in zip(Rows._fields, files, strict=True) if file is not None]

    def _rows(self, read: Any, first_row: int | None) -> Rows:
        for (_, file), time in zip(self._parts(), self._times, strict=True):
            if file.path.exists() and file.path.stat().st_mtime_ns != time:
                raise DataError(f"{file.path} changed since it was opened: open the source anew.")
        parts = {name: _tensor(read(file)) for name, file in self._parts()}
        for name in parts.keys() - {"inputs"}:
            parts[name] = parts[name].double()
        parts["targets"] = parts["targets"].reshape(len(parts["targets"]), -1)
        if first_row is not None:  # otherwise checked when the source was opened
            # Each part is in a file of its own, which the error has to name.
            for name, file in self._parts():
                if name in ("inputs", "targets"):
                    names = self.column_names if name == "inputs" else None
                    check_finite(parts[name], name, first_row, names, file)
                else:
                    check_positive(parts[name], name, first_row, file)
        return Rows(**parts)


def _open(path: Path, dimensions: tuple[int, ...]) -> RowFile:
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
    return RowFile(path, np.dtype((dtype, tuple(shape[1:]))), int(shape[0]), offset=offset)


def _tensor(values: Array) -> torch.Tensor:
    kind = np.float32 if values.dtype.kind == "f" and values.dtype.itemsize <= 4 else np.float64
    # In the byte order of this machine.
    return torch.from_numpy(np.ascontiguousarray(values, dtype=kind))
