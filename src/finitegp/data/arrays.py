"""``ArraySource``: rows in arrays, whether these are in memory or in files, with every value checked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..arguments import check_arguments, check_at_least_one
from ..errors import DataError
from ..statistics import Share
from .naming import Locator, column_label, row_label
from .row_files import Index, RecordField, RowFile, check_numbers, open_npy, unmapped
from .sources import Measure, Rows, Source

# An array in memory, or the rows of a file.
RowValues = ArrayLike | RowFile | RecordField
# The same, checked: a tensor or an array of numbers, or the rows of a file.
Stored = Tensor | npt.NDArray[Any] | RowFile | RecordField


@check_arguments
class ArraySource(Source):
    """Rows in arrays (NumPy, torch, pandas) or array-likes on disk, read in chunks or by number without keeping a copy.

    Arrays that map a whole file (``numpy.load(path, mmap_mode="r")``) are read from the file.

    Args:
        inputs: ``(rows, columns)``; a one-dimensional array is refused because it could mean one row or one column.
        targets: ``(rows,)`` or ``(rows, t)``; None for new rows, which have none.
        weights: ``(rows,)`` positive; a row of weight ``k`` has its noise variance divided by ``k``.
        counts: ``(rows,)`` positive; a row of count ``k`` stands for ``k`` equal rows. The posterior is that of the
            weight ``k``; likelihood and noise differ, because there are more rows. Need not be whole numbers.
        chunk_size: Rows per chunk; memory grows with it, results do not depend on it.
        column_names: Names used in error messages; taken from a data frame by themselves.

    Example:
        >>> source = ArraySource(np.zeros((10, 2)), np.arange(10), chunk_size=4)
        >>> [len(rows.inputs) for rows in source], source.take(np.array([7, 7, 1])).targets[:, 0].tolist()
        ([4, 4, 2], [7.0, 7.0, 1.0])
    """

    num_data: int
    input_dim: int
    num_targets: int
    chunk_size: int
    can_take = True
    inputs: Any
    targets: Any
    weights: Any
    counts: Any

    def __init__(
        self,
        inputs: RowValues,
        targets: RowValues | None = None,
        weights: RowValues | None = None,
        *,
        counts: RowValues | None = None,
        chunk_size: int = 4096,
        column_names: list[str] | None = None,
    ) -> None:
        if column_names is None and hasattr(inputs, "columns"):
            column_names = [str(name) for name in inputs.columns]
        self.inputs = _as_array(inputs, "inputs", column_names)
        self.targets, self.weights, self.counts = (
            None if part is None else _as_array(part, name)
            for name, part in (("targets", targets), ("weights", weights), ("counts", counts))
        )
        self.column_names = column_names
        if len(self.inputs.shape) != 2:
            raise DataError(
                f"inputs must be two-dimensional (rows, columns), but have shape {tuple(self.inputs.shape)}; "
                "use inputs.reshape(-1, 1) for a single column."
            )
        self.num_data, self.input_dim = map(int, self.inputs.shape)
        if self.num_data == 0:
            raise DataError("inputs have no rows: the data are empty.")
        if self.input_dim == 0:
            raise DataError("inputs have no columns.")
        for name, values in (("targets", self.targets), ("weights", self.weights), ("counts", self.counts)):
            if values is not None and (not values.shape or values.shape[0] != self.num_data):
                found = f"{values.shape[0]} rows" if values.shape else "no rows"
                raise DataError(f"inputs have {self.num_data} rows but {name} have {found}.")
        self.num_targets = 0 if self.targets is None else int((*self.targets.shape, 1)[1])
        self.fits_memory = not isinstance(self.inputs, RowFile | RecordField)
        # Files that are known to hold usable values are not checked again and again.
        self._checked = False
        check_at_least_one(chunk_size=chunk_size)
        self.chunk_size = chunk_size

    def __len__(self) -> int:
        return self.num_data

    def __iter__(self) -> Iterator[Rows]:
        return self._between(0, self.num_data)

    def part(self, share: Share) -> Iterator[Rows]:
        """One pass over a share of the rows, which are neighbours."""
        own = share.cut(self.num_data)
        return self._between(own.start, own.stop)

    def _between(self, first: int, last: int) -> Iterator[Rows]:
        size = self.chunk_size
        return map(lambda start: self._read(slice(start, min(start + size, last)), start), range(first, last, size))

    def rows(self, start: int, stop: int, *, first_row: int = 0) -> Rows:
        """Rows ``start`` to ``stop``, checked; errors count rows from ``first_row``."""
        return self._read(slice(start, stop), first_row + start)

    def take(self, indices: Index) -> Rows:
        """The rows of these numbers, in this order; a number may occur more than once."""
        check_numbers(indices, self.num_data)
        return self._read(indices, indices)

    def locate(self, row: int) -> tuple[Path, int] | None:
        """The ``.npy`` file of the inputs and the row in it; None for others."""
        return self.inputs.locate(row) if isinstance(self.inputs, RowFile) else None

    def _parts(self) -> list[Any]:
        return [self.inputs, self.targets, self.weights, self.counts]

    def _values(self, which: slice | Index) -> list[Any]:
        """These rows of each part; None for parts that there are none of."""
        return [None if part is None else part[which] for part in self._parts()]

    def _read(self, which: slice | Index, numbers: int | Index) -> Rows:
        parts = self._parts()
        # A slice of an array in memory is part of the array; everything else is new.
        sliced = isinstance(which, slice)
        inputs, targets, weights, counts = (
            None if values is None else _to_tensor(values, copied=sliced and isinstance(part, np.ndarray))
            for part, values in zip(parts, self._values(which), strict=True)
        )
        assert inputs is not None
        if self._checked:
            targets = None if targets is None else targets.double().reshape(-1, self.num_targets)
            return Rows(inputs, targets, *(None if part is None else part.double() for part in (weights, counts)))
        places = [part if isinstance(part, RowFile) else None for part in parts]
        return check_rows(
            inputs, targets, weights, counts, numbers=numbers, column_names=self.column_names, places=places
        )


@check_arguments
class NpySource(ArraySource):
    """Rows in ``.npy`` files, as ``numpy.save`` writes them: any number of rows in fixed memory.

    Opening reads the files once, checks every value and measures the targets; nothing is kept. Batches drawn from it
    are as uniform as from arrays in memory.

    Args:
        inputs: A file of shape ``(rows, columns)``, in row order (C), of a number type.
        targets: A file of shape ``(rows,)`` or ``(rows, t)``; None for new rows, which have none.
        weights: A file of shape ``(rows,)``, positive.
        counts: A file of shape ``(rows,)``, positive: how many equal rows each row stands for.
        chunk_size: Rows per chunk of a pass.
        column_names: Names of the inputs, for error messages.

    Example:
        >>> import tempfile
        >>> directory = tempfile.TemporaryDirectory()
        >>> inputs, targets = Path(directory.name) / "inputs.npy", Path(directory.name) / "targets.npy"
        >>> np.save(inputs, np.arange(8.0).reshape(4, 2))
        >>> np.save(targets, np.arange(4))
        >>> source = NpySource(inputs, targets)
        >>> source.num_data, source.take(np.array([2, 0])).inputs.tolist()
        (4, [[4.0, 5.0], [0.0, 1.0]])
        >>> directory.cleanup()
    """

    def __init__(
        self,
        inputs: str | os.PathLike[str],
        targets: str | os.PathLike[str] | None = None,
        weights: str | os.PathLike[str] | None = None,
        *,
        counts: str | os.PathLike[str] | None = None,
        chunk_size: int = 4096,
        column_names: list[str] | None = None,
    ) -> None:
        check_at_least_one(chunk_size=chunk_size)
        dimensions = ((2,), (1, 2), (1,), (1,))
        files = [
            None if path is None else open_npy(path, allowed)
            for path, allowed in zip((inputs, targets, weights, counts), dimensions, strict=True)
        ]
        rows, *others = (file for file in files if file is not None)
        if column_names is not None and len(column_names) != rows.shape[1]:
            raise DataError(f"{inputs} has {rows.shape[1]} columns, but {len(column_names)} names were given.")
        for file in others:
            if file.num_rows != rows.num_rows:
                raise DataError(f"{inputs} has {rows.num_rows} rows, but {file.path} has {file.num_rows}.")
        super().__init__(rows, *files[1:3], counts=files[3], chunk_size=chunk_size, column_names=column_names)
        self._measure = super().measure()
        self._checked = True

    def measure(self) -> Measure:
        """The measure that was taken when the files were opened."""
        return self._measure

    def fingerprint(self) -> dict[str, object]:
        """The kind of source and the parts that its files hold; the rest is in the files."""
        parts = [name for name, part in zip(Rows._fields, self._parts(), strict=True) if part is not None]
        return {"kind": "npy", "column_names": self.column_names, "parts": parts}

    def files(self) -> list[Path]:
        """The ``.npy`` files."""
        return [part.path for part in self._parts() if part is not None]


def source_of_parts(parts: Sequence[RowValues | None], *, chunk_size: int = 4096) -> ArraySource:
    """``(inputs, targets[, weights[, counts]])`` in the order of :class:`Rows`; all but the inputs may be None."""
    inputs, targets, weights, counts = (*parts, None, None)[:4]
    if inputs is None:
        raise DataError("inputs are None: only targets, weights and counts may be left out.")
    return ArraySource(inputs, targets, weights, counts=counts, chunk_size=chunk_size)


def check_rows(
    inputs: Tensor,
    targets: Tensor | None,
    weights: Tensor | None = None,
    counts: Tensor | None = None,
    *,
    numbers: int | Index = 0,
    column_names: list[str] | None = None,
    places: Sequence[Locator | None] = (None, None, None, None),
) -> Rows:
    """One chunk with every value checked; errors name the row, the column and, where ``places`` has it, the file.

    ``numbers`` is the number of the first row in the whole data, if the rows are neighbours, or of each row. ``places``
    are for inputs, targets, weights and counts.
    """
    if targets is not None:
        targets = targets.to(torch.float64)
        if targets.ndim == 1:
            targets = targets[:, None]
        if targets.ndim != 2:
            raise DataError(f"targets must be (rows,) or (rows, targets), but have {targets.ndim} dimensions.")
    _check_finite(inputs, "inputs", numbers, places[0], column_names)
    if targets is not None:
        _check_finite(targets, "targets", numbers, places[1])
    return Rows(
        inputs,
        targets,
        None if weights is None else _check_positive(weights, "weights", numbers, places[2]),
        None if counts is None else _check_positive(counts, "counts", numbers, places[3]),
    )


def _check_positive(values: Tensor, name: str, numbers: int | Index, place: Locator | None) -> Tensor:
    """Weights or counts ``(rows,)`` in float64; an error if one is not a positive number."""
    if values.ndim != 1:
        raise DataError(f"{name} must be one number per row, but have shape {tuple(values.shape)}.")
    values = values.to(torch.float64)
    _check_finite(values[:, None], name, numbers, place)
    if not bool((values > 0).all()):
        row = int((values <= 0).nonzero()[0])
        raise DataError(
            f"{name} must be positive, but {_label(row, numbers, place)} has {float(values[row])}; leave rows "
            f"of {name.removesuffix('s')} zero out."
        )
    return values


def _check_finite(
    values: Tensor, name: str, numbers: int | Index, place: Locator | None, column_names: list[str] | None = None
) -> None:
    """An error if a value of ``(rows, columns)`` is NaN or infinite."""
    # A sum is finite unless a value is not (or the sum overflows): the cheap test comes first.
    if bool(torch.isfinite(values.sum(dtype=torch.float64))):
        return
    bad = (~torch.isfinite(values)).nonzero()
    if len(bad):
        row, column = int(bad[0, 0]), int(bad[0, 1])
        where = f"{_label(row, numbers, place)}, {column_label(column, column_names)}"
        raise DataError(
            f"{name} must be finite, but {where} is {float(values[row, column])} ({len(bad)} such values in this "
            "chunk). Remove or impute them first."
        )


def _label(row: int, numbers: int | Index, place: Locator | None) -> str:
    return row_label(numbers + row if isinstance(numbers, int) else int(numbers[row]), place)


def _as_array(values: RowValues, name: str, column_names: list[str] | None = None) -> Stored:
    """A tensor, an array of a numeric type or an array-like on disk, without copying; errors name what is unusable."""
    if isinstance(values, RowFile | RecordField):
        return values
    if isinstance(values, Tensor):
        if values.is_complex():
            raise DataError(f"{name} must be real numbers, but are {values.dtype}.")
        if values.layout != torch.strided or values.is_meta:
            kind = "on torch's device 'meta'" if values.is_meta else f"{values.layout}: pass {name}.to_dense()"
            raise DataError(f"{name} must be a dense tensor that holds numbers, but are {kind}.")
        return values.detach()
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise DataError(f"{name} have masked values, which would be used as they are: fill or remove them first.")
    if isinstance(values, np.memmap) and values.dtype.kind in "biuf":
        return unmapped(values)
    array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    if array.dtype.kind in "biuf":
        return array
    if array.dtype.kind == "O":
        # Data frames of mixed number types arrive as objects; text does not convert and is named.
        try:
            return array.astype(np.float64)
        except (TypeError, ValueError):
            raise DataError(_text_message(array, name, column_names)) from None
    raise DataError(f"{name} must be numbers, but have the type {array.dtype}: encode them as numbers first.")


def _text_message(array: np.ndarray[Any, Any], name: str, column_names: list[str] | None) -> str:
    rows = np.atleast_1d(array).reshape(array.shape[0] if array.ndim else 1, -1)
    for row, values in enumerate(rows):
        for column, value in enumerate(values):
            try:
                float(value)
            except (TypeError, ValueError):
                label = f"column {column}" if column_names is None else f"column {column_names[column]!r}"
                return (
                    f"{name} must be numbers, but row {row}, {label} holds {value!r}: "
                    "encode such columns as numbers first."
                )
    return f"{name} must be a rectangular array of numbers."


def _to_tensor(values: Tensor | npt.NDArray[Any], *, copied: bool) -> Tensor:
    """A tensor of float32 or float64 in the byte order of this machine.

    Slices of NumPy arrays have to be ``copied``: they may be read-only or have negative strides.
    """
    if isinstance(values, Tensor):
        tensor = values
    else:
        kind = np.float32 if values.dtype.kind == "f" and values.dtype.itemsize <= 4 else np.float64
        convert = np.array if copied else np.asarray
        tensor = torch.from_numpy(convert(values, dtype=kind, order="C"))
    if tensor.dtype in (torch.float32, torch.float64):
        return tensor
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.float64)
