"""``TableFile``, the interface of all files of tables; and those that are read as a whole, Feather and Excel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import feather

from ..data.naming import check_unique, unknown_column
from ..errors import DataError

ENDINGS = (".feather", ".arrow", ".xlsx")


class TableFile(ABC):
    """One file of a table.

    Attributes:
        path: Where it is.
        types: The type of every column that is read, by name, in the order of the file.
        num_rows: Of the whole file, without a header.
    """

    path: Path
    types: dict[str, pa.DataType]
    num_rows: int

    @abstractmethod
    def reading_bytes(self, chunk_size: int) -> int:
        """About how much memory reading takes besides the chunk that is given out."""

    @abstractmethod
    def rows(self, start: int, stop: int, columns: Sequence[str], chunk_size: int) -> Iterator[pa.RecordBatch]:
        """Record batches of the rows from ``start`` to ``stop`` with these columns at least, of about a chunk each."""

    def line_of(self, row: int) -> int | None:
        """The line on which a row stands, counted from 1; None unless the file is text."""
        return None


def chosen_columns(path: Path, names: Sequence[str], columns: Sequence[str] | None) -> list[str]:
    """The columns of a file that are to be read: those that are asked for, or all."""
    check_unique(names, str(path))
    for name in columns or ():
        if name not in names:
            raise DataError(unknown_column(name, names, str(path)))
    return list(names if columns is None else columns)


def rows_between(batches: Iterable[pa.RecordBatch], start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """The rows of record batches from ``start`` to ``stop``."""
    seen = 0
    for batch in batches:
        first, last = max(start - seen, 0), min(stop - seen, batch.num_rows)
        if first < last:
            yield batch.slice(first, last - first)
        seen += batch.num_rows
        if seen >= stop:
            return


class MemoryFile(TableFile):
    """One Arrow file, or the first sheet of an Excel workbook, in memory."""

    def __init__(self, path: Path, columns: Sequence[str] | None) -> None:
        self.path = path
        table = _read_sheet(path) if path.name.lower().endswith(".xlsx") else _read_arrow(path)
        self._table = table.select(chosen_columns(path, table.column_names, columns))
        self.types = {field.name: field.type for field in self._table.schema}
        self.num_rows = self._table.num_rows

    def reading_bytes(self, chunk_size: int) -> int:
        """The bytes that the table takes."""
        return int(self._table.nbytes)

    def rows(self, start: int, stop: int, columns: Sequence[str], chunk_size: int) -> Iterator[pa.RecordBatch]:
        """The rows as they are in memory."""
        return rows_between(self._table.to_batches(), start, stop)


def _read_arrow(path: Path) -> pa.Table:
    try:
        return feather.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a whole Arrow file ({str(error).splitlines()[0][:200]}).") from None


def _read_sheet(path: Path) -> pa.Table:
    try:
        import openpyxl  # type: ignore[import-untyped]
    except ImportError:
        raise DataError(
            f"{path} is an Excel workbook, which needs the package openpyxl: pip install 'finitegp[excel]', or save "
            "the sheet as CSV."
        ) from None
    try:
        rows = openpyxl.load_workbook(path, read_only=True, data_only=True).worksheets[0].iter_rows(values_only=True)
        header = next(rows, ())
        body = list(rows)
        while body and all(value is None for value in body[-1]):
            body.pop()  # rows that were formatted or emptied at the end of a sheet
        columns = list(zip(*body, strict=True))
    except Exception as error:  # whatever the package finds wrong with a file that is no workbook
        raise DataError(f"{path} cannot be read as an Excel workbook: {str(error)[:200]}.") from None
    names = [f"column {number + 1}" if name is None else str(name) for number, name in enumerate(header)]
    columns = columns or [()] * len(names)
    return pa.table([_cells(values) for values in columns], names=names)


def _cells(values: Sequence[object]) -> pa.Array:
    """A column of a sheet, whose cells may be of different types: then it is text."""
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError):
        return pa.array([None if value is None else str(value) for value in values], pa.string())
