"""Users' tables as record batches of Arrow, and tables in memory that know where their rows came from."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numpy.typing import ArrayLike

from ..data.naming import Locator, Renumbered, check_columns, check_unique, locator_of, row_label, shortened
from ..errors import DataError
from .arrow_values import without_views

if TYPE_CHECKING:
    import pandas

_CHUNK_ROWS = 65_536


class ArrowStream(Protocol):
    """A table that other libraries of Arrow can read, such as those of pandas, Polars and DuckDB."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The capsule of the stream."""


# What is read as a table: see :func:`record_batches`, which files have to be opened for.
_Chunk = ArrayLike | ArrowStream | Mapping[str, object] | os.PathLike[str]
TableLike = _Chunk | Iterable[_Chunk]


def record_batches(data: TableLike) -> Iterator[pa.RecordBatch]:
    """The rows of anything that is a table, as Arrow record batches, without views and extension types.

    Args:
        data: A pandas data frame, an Arrow table or record batch, anything with the Arrow stream protocol, a mapping
            of names to columns, a NumPy array ``(rows, columns)`` (the names are ``x0``, ``x1``, …), or an iterable of
            these, such as `TableReader`.

    Example:
        >>> [batch.schema.names for batch in record_batches(np.zeros((3, 2)))]
        [['x0', 'x1']]
    """
    for batch in _batches(data):
        if not batch.num_columns:
            raise DataError("The table has no columns.")
        yield pa.RecordBatch.from_arrays([without_views(column) for column in batch.columns], batch.schema.names)


def _batches(data: TableLike) -> Iterator[pa.RecordBatch]:
    if isinstance(data, pa.RecordBatch):
        check_unique(data.schema.names, "The table")
        yield data
    elif isinstance(data, pa.Table):
        check_unique(data.schema.names, "The table")
        yield from data.to_batches()
    elif hasattr(data, "iloc") and hasattr(data, "columns"):
        names = [str(name) for name in data.columns]
        check_unique(names, "The data frame")
        yield _batch({name: data.iloc[:, number] for number, name in enumerate(names)})
    elif hasattr(data, "name") and hasattr(data, "to_frame"):
        raise DataError(
            "The table is a Series, one row or one column of a data frame: pass a frame, for a row df.iloc[[0]] in "
            "place of df.iloc[0]."
        )
    elif isinstance(data, Mapping):
        names = [str(name) for name in data]
        check_unique(names, "The mapping")
        columns = [_column_of(values, name) for values, name in zip(data.values(), names, strict=True)]
        try:
            table = pa.table(columns, names=names)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise DataError(f"The mapping is not a table of columns of equal length: {error}.") from None
        yield from table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    elif isinstance(data, np.ndarray):
        if data.ndim != 2:
            raise DataError(f"A NumPy table must be (rows, columns), but has shape {data.shape}.")
        yield _batch({f"x{number}": column for number, column in enumerate(data.T)})
    elif isinstance(data, io.IOBase):
        raise DataError("The table is an open file: pass its name.")
    elif hasattr(data, "detach"):
        yield from _batches(data.detach().cpu().numpy())
    elif hasattr(data, "__arrow_c_stream__"):
        yield from _batches(pa.table(data))
    elif hasattr(data, "to_arrow"):  # polars before it had a stream
        yield from _batches(data.to_arrow())
    elif isinstance(data, str | os.PathLike):
        raise DataError(f"The table is the name of a file: open it with TableReader({str(data)!r}) first.")
    elif hasattr(data, "toarray"):
        raise DataError(f"A table must be dense, but is a {_name(data)}: pass X.toarray().")
    elif isinstance(data, Iterable):
        for chunk in data:
            if isinstance(chunk, str | bytes | int | float | list | tuple):
                raise DataError(
                    f"A table must come in chunks such as Arrow record batches, but one is a {_name(chunk)}: make an "
                    "array or a data frame of lists of rows."
                )
            yield from _batches(chunk)
    else:
        advice = ": call its method collect() first" if hasattr(data, "collect") else ""
        kinds = "a data frame, an Arrow table, a mapping, an array or chunks of these"
        raise DataError(f"A table must be {kinds}, but is a {_name(data)}{advice}.")


def _name(value: object) -> str:
    return type(value).__name__


def _batch(columns: Mapping[str, npt.NDArray[Any] | pandas.Series]) -> pa.RecordBatch:
    arrays = [_array_of(values, name) for name, values in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _column_of(values: object, name: str) -> pa.Array | pa.ChunkedArray:
    """One column of a mapping as an Arrow array."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise DataError(f"Column {name!r} must hold one value for each row, but is {shortened(values)}.")
    if getattr(values, "ndim", 1) != 1:
        raise DataError(f"Column {name!r} must hold one value for each row, but has shape {np.asarray(values).shape}.")
    values = values if hasattr(values, "__len__") else list(values)
    try:
        return pa.table({name: values}).column(0)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return _array_of(values if hasattr(values, "dtype") else np.fromiter(values, dtype=object), name)


def _array_of(values: npt.NDArray[Any] | pandas.Series, name: str) -> pa.Array:
    """One column as an Arrow array; columns of mixed objects become text."""
    try:
        array = pa.array(np.ascontiguousarray(values) if isinstance(values, np.ndarray) else values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        if hasattr(values, "sparse"):
            return _array_of(values.sparse.to_dense(), name)
        if getattr(values.dtype, "kind", "O") != "O":
            raise DataError(f"Column {name!r} has the type {values.dtype}, which cannot be used.") from None
        texts = [None if value is None or value != value else str(value) for value in values]
        array = pa.array(texts, pa.large_string())
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
#: One number for each row of a record batch, whose first row has this number; NaN where there is none.
ReadNumbers = Callable[[pa.RecordBatch, int], npt.NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class TableRows(Renumbered):
    """Rows of a table in memory.

    Attributes:
        table: An Arrow table.
        numbers: The number that each row had in what the table was read from.
        source: What finds these in files, if they come from files.
    """

    table: pa.Table
    numbers: npt.NDArray[np.int64]
    source: Locator | None = None

    @classmethod
    def read(cls, data: TableLike) -> TableRows:
        """All rows of a data frame, an Arrow table, a mapping, an array or a reader.

        Example:
            >>> TableRows.read({"size": [1, 2]}).num_rows
            2
        """
        if isinstance(data, TableRows):
            return data
        batches = list(record_batches(data))
        if not batches:
            raise DataError("The table has no rows.")
        try:
            table = pa.Table.from_batches(batches)
        except pa.ArrowException as error:
            raise DataError(f"The chunks of the table do not fit together: {error}.") from None
        return cls(table, np.arange(table.num_rows), locator_of(data))

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return int(self.table.num_rows)

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return list(self.table.column_names)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from self.table.to_batches()

    def rows(self, start: int, stop: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Chunks of the rows from ``start`` to ``stop``, as `TableReader` has them."""
        table = self.table if columns is None else self.table.select(list(columns))
        yield from table.slice(start, stop - start).to_batches(max_chunksize=_CHUNK_ROWS)

    def take(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> TableRows:
        """Some of the rows: their positions, or true where a row is kept."""
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        return TableRows(self.table.take(pa.array(rows)), self.numbers[rows], self.source)

    def column(self, name: str) -> pa.ChunkedArray:
        """One column, as an Arrow array."""
        check_columns([name], self.column_names)
        return self.table.column(name)

    def number(self, row: int) -> int:
        """The number that a row had in what the table was read from."""
        return int(self.numbers[row])

    def label(self, row: int) -> str:
        """Where a row is, for messages."""
        return row_label(row, self)

    def copies(self) -> npt.NDArray[np.int64]:
        """For each row the first row that is equal to it in all columns.

        Example:
            >>> TableRows.read({"x": [1, 2, 1], "c": ["a", "b", "a"]}).copies().tolist()
            [0, 1, 0]
        """
        keys = np.zeros(self.num_rows, dtype=np.int64)
        for array in self.table.columns:
            if pa.types.is_nested(array.type):
                continue
            array = array.combine_chunks()
            encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode(null_encoding="encode")
            codes = np.asarray(encoded.indices.cast(pa.int64()).fill_null(-1))
            # Pairs of the group so far and the value here, numbered anew: no overflow, however many columns.
            keys = np.unique(keys * (int(codes.max(initial=0)) + 2) + codes + 1, return_inverse=True)[1]
        _, first = np.unique(keys, return_index=True)
        found: npt.NDArray[np.int64] = first[keys]
        return found


class ChunkWithTarget(NamedTuple):
    """Some rows, their targets, and their weights; None if all are one."""

    rows: pa.RecordBatch
    targets: npt.NDArray[np.float64]
    weights: npt.NDArray[np.float64] | None


class RowsWithTarget(Renumbered):
    """Chunks of a table without the rows that have no target, or weight zero, read one after the other and let go.

    Attributes:
        rows: Rows of the table so far.
        dropped: The numbers of those without a target.
    """

    def __init__(self, data: TableLike, name: str, read: ReadNumbers, read_weights: ReadNumbers | None = None) -> None:
        self.data, self.name, self.read, self.read_weights = data, name, read, read_weights
        self.source = locator_of(data)
        self.rows = 0
        self.dropped: list[int] = []
        self._left_out: list[int] = []

    def __iter__(self) -> Iterator[ChunkWithTarget]:
        for batch in record_batches(self.data):
            check_columns([self.name], batch.schema.names)
            targets = self.read(batch, self.rows)
            weights = None if self.read_weights is None else self.read_weights(batch, self.rows)
            known = np.isfinite(targets)
            kept = known if weights is None else known & (weights > 0.0)
            self.dropped += (np.flatnonzero(~known) + self.rows).tolist()
            self._left_out += (np.flatnonzero(~kept) + self.rows).tolist()
            self.rows += batch.num_rows
            if kept.any():
                rows = batch if kept.all() else batch.filter(pa.array(kept))
                yield ChunkWithTarget(rows, targets[kept], None if weights is None else weights[kept])

    def number(self, row: int) -> int:
        """The number that a row has with those that were left out before it."""
        for left_out in self._left_out:
            row += left_out <= row
        return row


def is_file(data: object) -> TypeGuard[Files]:
    """Whether a table is given by the name of its file, or a list of such names."""
    if isinstance(data, str | os.PathLike):
        return True
    return isinstance(data, list | tuple) and bool(data) and all(isinstance(each, str | os.PathLike) for each in data)
