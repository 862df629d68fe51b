"""``TableRows``: a table in memory that knows where its rows came from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..data.naming import LineLocator, Locator, locator_of, row_label
from ..errors import DataError
from .arrow_values import TableLike, check_columns, record_batches
from .reader import TableReader

_CHUNK_ROWS = 65_536
Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
#: One number for each row of a record batch, whose first row has this number; NaN where there is none.
ReadNumbers = Callable[[pa.RecordBatch, int], npt.NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class TableRows:
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
        """All rows of a data frame, an Arrow table, a mapping, an array, a reader or a file.

        Example:
            >>> TableRows.read({"size": [1, 2]}).num_rows
            2
        """
        if isinstance(data, TableRows):
            return data
        if is_file(data):
            data = TableReader(data)
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

    @property
    def reading_bytes(self) -> int:
        """Memory that reading takes: none."""
        return 0

    def __len__(self) -> int:
        return self.num_rows

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

    def locate(self, row: int) -> tuple[Path, int] | None:
        """The file of a row and its number there; None if the rows are in no file."""
        return None if self.source is None else self.source.locate(self.number(row))

    def line_of(self, row: int) -> int | None:
        """The line of its file on which a row stands; None if it is in no text file."""
        return self.source.line_of(self.number(row)) if isinstance(self.source, LineLocator) else None

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
            codes = encoded.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
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


class RowsWithTarget:
    """Chunks of a table without the rows that have no target, read one after the other and let go.

    Args:
        data: The table.
        name: The column of the target.
        read: The targets.
        read_weights: The weights, or None: rows of weight zero are left out.

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

    def locate(self, row: int) -> tuple[Path, int] | None:
        """The file of a row and its number there; None if the rows are in no file."""
        return None if self.source is None else self.source.locate(self.number(row))

    def line_of(self, row: int) -> int | None:
        """The line of its file on which a row stands; None if it is in no text file."""
        return self.source.line_of(self.number(row)) if isinstance(self.source, LineLocator) else None


def is_file(data: object) -> TypeGuard[Files]:
    """Whether a table is given by the name of its file, or a list of such names."""
    if isinstance(data, str | os.PathLike):
        return True
    return isinstance(data, list | tuple) and bool(data) and all(isinstance(each, str | os.PathLike) for each in data)
