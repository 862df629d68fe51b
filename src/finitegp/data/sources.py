"""Data sources: anything that yields chunks of rows, again and again, with every value checked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import DataError
from .naming import row_label
from .shares import WHOLE, Share

# How many parts rows may have: inputs and targets, then weights, then counts.
NUMBERS_OF_PARTS = (2, 3, 4)


class Rows(NamedTuple):
    """Some rows of data: inputs ``(rows, columns)``, targets ``(rows, t)`` in float64, weights ``(rows,)`` or None.

    A weight ``k`` divides the row's noise variance by ``k``; a count ``k`` makes the row stand for ``k`` equal rows.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor | None = None
    counts: Tensor | None = None


class Source(ABC):
    """What the sources of this package share: a row count and names where they are known, and chunks in order.

    Attributes:
        num_data: The number of rows; None if only a pass can tell.
        column_names: Of the inputs, for error messages; None if they have none.
    """

    num_data: int | None = None
    column_names: list[str] | None = None

    @abstractmethod
    def __iter__(self) -> Iterator[Rows]:
        """One pass over all rows, in order, every value checked."""

    def part(self, share: Share) -> Iterator[Rows]:
        """One pass over a share of the rows: each row is in one share.

        Where rows cannot be skipped, as here, all are read, and every so many-th chunk is given out.
        """
        return islice(self, share.index, None, share.count)

    def fingerprint(self) -> dict[str, Any] | None:
        """What determines the rows besides the contents of :meth:`files`, for JSON; None if nobody can tell."""
        return None

    def files(self) -> list[Path]:
        """The files that the rows come from."""
        return []


class IndexedSource(Source):
    """A source whose rows can be picked by number: uniform random batches are drawn from it without keeping it.

    Attributes:
        num_data: The number of rows.
        num_targets: The number of target columns.
        target_mean_square: The mean square of the targets.
        mean_count: The mean of the counts of the rows; None if they have none.
    """

    num_data: int
    num_targets: int
    target_mean_square: float
    mean_count: float | None = None

    @abstractmethod
    def gather(self, indices: npt.NDArray[np.int64]) -> Rows:
        """The rows of these numbers, in this order."""


class ArraySource(Source):
    """Rows held in arrays (NumPy, torch, pandas), read in chunks without copying the whole.

    Args:
        inputs: ``(rows, columns)``; a one-dimensional array is refused because it could mean one row or one column.
        targets: ``(rows,)`` or ``(rows, t)``.
        weights: ``(rows,)`` positive; a row of weight ``k`` has its noise variance divided by ``k``.
        counts: ``(rows,)`` positive; a row of count ``k`` stands for ``k`` equal rows. The posterior is that of the
            weight ``k``; likelihood and noise differ, because there are more rows. Need not be whole numbers.
        chunk_size: Rows per chunk; memory grows with it, results do not depend on it.
        column_names: Names used in error messages; taken from a data frame by themselves.

    Example:
        >>> source = ArraySource(np.zeros((10, 2)), np.arange(10), chunk_size=4)
        >>> [len(rows.inputs) for rows in source]
        [4, 4, 2]
    """

    num_data: int

    def __init__(
        self,
        inputs: Any,
        targets: Any,
        weights: Any = None,
        *,
        counts: Any = None,
        chunk_size: int = 4096,
        column_names: list[str] | None = None,
    ) -> None:
        if chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, but is {chunk_size}.")
        if column_names is None and hasattr(inputs, "columns"):
            column_names = [str(name) for name in inputs.columns]
        self.inputs = _as_array(inputs, "inputs", column_names)
        self.targets = _as_array(targets, "targets", None)
        self.weights = None if weights is None else _as_array(weights, "weights", None)
        self.counts = None if counts is None else _as_array(counts, "counts", None)
        self.chunk_size = chunk_size
        self.column_names = column_names
        if self.inputs.ndim != 2:
            raise DataError(
                f"inputs must be two-dimensional (rows, columns), but have shape {tuple(self.inputs.shape)}; "
                "use inputs.reshape(-1, 1) for a single column."
            )
        self.num_data = len(self.inputs)
        if self.num_data == 0:
            raise DataError("inputs have no rows: the data are empty.")
        if self.inputs.shape[1] == 0:
            raise DataError("inputs have no columns.")
        for name, values in (("targets", self.targets), ("weights", self.weights), ("counts", self.counts)):
            if values is not None and (values.ndim == 0 or len(values) != self.num_data):
                found = "no rows" if values.ndim == 0 else f"{len(values)} rows"
                raise DataError(f"inputs have {self.num_data} rows but {name} have {found}.")

    @property
    def input_dim(self) -> int:
        """The number of input columns."""
        return int(self.inputs.shape[1])

    def __len__(self) -> int:
        return self.num_data

    def __iter__(self) -> Iterator[Rows]:
        return self.part(WHOLE)

    def part(self, share: Share) -> Iterator[Rows]:
        """One pass over a share of the rows, which are neighbours."""
        own = share.cut(self.num_data)
        for start in range(own.start, own.stop, self.chunk_size):
            yield self.rows(start, min(start + self.chunk_size, own.stop))

    def rows(self, start: int, stop: int, *, first_row: int = 0) -> Rows:
        """Rows ``start`` to ``stop``, checked; errors count rows from ``first_row``."""
        return check_rows(
            _to_tensor(self.inputs[start:stop]),
            _to_tensor(self.targets[start:stop]),
            None if self.weights is None else _to_tensor(self.weights[start:stop]),
            None if self.counts is None else _to_tensor(self.counts[start:stop]),
            first_row=first_row + start,
            column_names=self.column_names,
        )


class IterableSource(Source):
    """Rows from any iterable of ``(inputs, targets[, weights[, counts]])`` that can be read repeatedly.

    A list of batches, a torch ``DataLoader``, or an object with its own ``__iter__``. Every chunk is checked as it
    passes; a pass that yields another number of rows than the one before is an error, because sums would not match.

    Example:
        >>> batches = [(torch.zeros(3, 2), torch.zeros(3)), (torch.zeros(1, 2), torch.zeros(1))]
        >>> sum(len(rows.inputs) for rows in IterableSource(batches))
        4
    """

    def __init__(self, chunks: Iterable[Any]) -> None:
        if isinstance(chunks, Iterator):
            raise DataError(
                "data must be readable more than once, but a generator or iterator is used up after one pass: pass a "
                "list, a DataLoader, or an object whose __iter__ starts anew."
            )
        self.chunks = chunks

    def __iter__(self) -> Iterator[Rows]:
        first_row = 0
        for number, chunk in enumerate(self.chunks):
            if not isinstance(chunk, tuple | list) or len(chunk) not in NUMBERS_OF_PARTS:
                raise DataError(
                    f"chunk {number} of the data must be (inputs, targets), (inputs, targets, weights) or "
                    f"(inputs, targets, weights, counts), but is a {type(chunk).__name__}."
                )
            try:
                source = source_of_parts(chunk)
                rows = source.rows(0, source.num_data, first_row=first_row)
            except DataError as error:
                raise DataError(f"chunk {number}: {error}") from None
            yield rows
            first_row += source.num_data
        if first_row == 0:
            raise DataError("The data have no rows: the iterable yielded no chunks.")
        if self.num_data is not None and self.num_data != first_row:
            raise DataError(f"The data changed between passes: {self.num_data} rows before, {first_row} rows now.")
        self.num_data = first_row


def source_of_parts(parts: Sequence[Any], *, chunk_size: int = 4096) -> ArraySource:
    """``(inputs, targets[, weights[, counts]])`` in the order of :class:`Rows`; weights and counts may be None."""
    inputs, targets, weights, counts = (*parts, None, None)[:4]
    return ArraySource(inputs, targets, weights, counts=counts, chunk_size=chunk_size)


def check_rows(
    inputs: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
    counts: Tensor | None = None,
    *,
    first_row: int = 0,
    column_names: list[str] | None = None,
    source: Any = None,
) -> Rows:
    """One chunk with every value checked; errors name the row (counted over the whole data) and the column.

    Where ``source`` can ``locate`` a row in a file, they name the file, too.
    """
    targets = targets.to(torch.float64)
    if targets.ndim == 1:
        targets = targets[:, None]
    if targets.ndim != 2:
        raise DataError(f"targets must be (rows,) or (rows, targets), but have {targets.ndim} dimensions.")
    check_finite(inputs, "inputs", first_row, column_names, source)
    check_finite(targets, "targets", first_row, None, source)
    return Rows(
        inputs,
        targets,
        None if weights is None else check_positive(weights, "weights", first_row, source),
        None if counts is None else check_positive(counts, "counts", first_row, source),
    )


def check_positive(values: Tensor, name: str, first_row: int, source: Any = None) -> Tensor:
    """Weights or counts ``(rows,)`` in float64; an error if one is not a positive number."""
    if values.ndim != 1:
        raise DataError(f"{name} must be one number per row, but have shape {tuple(values.shape)}.")
    values = values.to(torch.float64)
    check_finite(values[:, None], name, first_row, None, source)
    if not bool((values > 0).all()):
        row = int((values <= 0).nonzero()[0])
        raise DataError(
            f"{name} must be positive, but {row_label(first_row + row, source)} has {float(values[row])}; leave rows "
            f"of {name.removesuffix('s')} zero out."
        )
    return values


def check_finite(values: Tensor, name: str, first_row: int, column_names: list[str] | None, source: Any = None) -> None:
    """An error if a value of ``(rows, columns)`` is NaN or infinite."""
    # A sum is finite unless a value is not (or the sum overflows): the cheap test comes first.
    if bool(torch.isfinite(values.sum(dtype=torch.float64))):
        return
    bad = (~torch.isfinite(values)).nonzero()
    if len(bad):
        row, column = int(bad[0, 0]), int(bad[0, 1])
        label = f"column {column}" if column_names is None else f"column {column} ({column_names[column]!r})"
        raise DataError(
            f"{name} must be finite, but {row_label(first_row + row, source)}, {label} is {float(values[row, column])} "
            f"({len(bad)} such values in this chunk). Remove or impute them first."
        )


def _as_array(values: Any, name: str, column_names: list[str] | None) -> Any:
    """A tensor or NumPy array of a numeric type, without copying; errors name what cannot be used."""
    if isinstance(values, Tensor):
        if values.is_complex():
            raise DataError(f"{name} must be real numbers, but are {values.dtype}.")
        return values.detach()
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
    rows = array.reshape(len(array), -1)
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


def _to_tensor(values: Any) -> Tensor:
    """A tensor of float32 or float64. NumPy chunks are copied: they may be read-only or have negative strides."""
    if isinstance(values, Tensor):
        tensor = values
    else:
        kind = np.float32 if values.dtype in (np.float16, np.float32) else np.float64
        tensor = torch.from_numpy(np.array(values, dtype=kind, order="C", copy=True))
    if tensor.dtype in (torch.float32, torch.float64):
        return tensor
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.float64)
