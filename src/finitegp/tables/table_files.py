"""``TableFile``, the interface of all files of tables; Parquet, read in pieces; Feather and Excel, as a whole."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import feather

from ..data.naming import check_columns, check_unique, listed
from ..errors import DataError

ENDINGS = (".feather", ".arrow", ".xlsx")
_PARQUET_BUFFER = 1 << 16
# Measured by benchmarks/reading.py: bytes for each byte of a chunk, and besides, apart from open pages.
_CHUNK_COPIES, _PARQUET_BYTES = 4.2, 500_000
# Measured by benchmarks/reading.py: what an open page and a dictionary take, in their own sizes.
_PAGE_COPIES, _DICTIONARY_COPIES = 1.05, 2.0
# The sizes come first in a header; statistics, which can be long, come after them.
_HEADER_BYTES = 64
# Types of Thrift's compact protocol, and fields of PageHeader in parquet.thrift.
_INTEGER, _STRUCT = 5, 12
_UNCOMPRESSED_SIZE, _PAGE_KINDS = 2, (5, 7, 8)


class TableFile(ABC):
    """One file of a table.

    Attributes:
        path: Where it is.
        types: The type of every column that is read, by name, in the order of the file.
        num_rows: Of the whole file, without a header.
        notes: What the user should know, one sentence each.
    """

    path: Path
    types: dict[str, pa.DataType]
    num_rows: int
    notes: Sequence[str] = ()

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
    check_columns(columns or (), names, str(path))
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
        if path.name.lower().endswith(".xlsx"):
            table, self.notes = _read_sheet(path)
        else:
            try:
                table = feather.read_table(path)
            except (pa.ArrowException, OSError) as error:
                raise DataError(f"{path} is not a whole Arrow file ({str(error).splitlines()[0][:200]}).") from None
        self._table = table.select(chosen_columns(path, table.column_names, columns))
        self.types = {field.name: field.type for field in self._table.schema}
        self.num_rows = self._table.num_rows

    def reading_bytes(self, chunk_size: int) -> int:
        """The bytes that the table takes."""
        return int(self._table.nbytes)

    def rows(self, start: int, stop: int, columns: Sequence[str], chunk_size: int) -> Iterator[pa.RecordBatch]:
        """The rows as they are in memory."""
        return rows_between(self._table.to_batches(), start, stop)


def _read_sheet(path: Path) -> tuple[pa.Table, list[str]]:
    """The first sheet of a workbook, and a sentence on others that hold something."""
    try:
        import openpyxl  # type: ignore[import-untyped]
    except ImportError:
        raise DataError(
            f"{path} is an Excel workbook, which needs the package openpyxl: pip install 'finitegp[excel]', or save "
            "the sheet as CSV."
        ) from None
    try:
        sheet, *others = openpyxl.load_workbook(path, read_only=True, data_only=True).worksheets
        unread = [each.title for each in others if any(map(_is_filled, each.iter_rows(values_only=True)))]
        rows = list(sheet.iter_rows(values_only=True))
        # Without rows that were left free before the header, and those that were formatted or emptied at the end.
        filled = [number for number, row in enumerate(rows) if _is_filled(row)] or [0]
        header, *body = rows[filled[0] : filled[-1] + 1] or [()]
        columns = list(zip(*body, strict=True))
    except Exception as error:  # whatever the package finds wrong with a file that is no workbook
        raise DataError(f"{path} cannot be read as an Excel workbook: {str(error)[:200]}.") from None
    names = [f"column {number + 1}" if name is None else str(name) for number, name in enumerate(header)]
    columns = columns or [()] * len(names)
    notes = [f"{path} has several sheets, of which only the first, {sheet.title!r}, is read: not {listed(unread)}."]
    return pa.table([_cells(values) for values in columns], names=names), notes if unread else []


def _is_filled(row: Sequence[object]) -> bool:
    return any(value is not None for value in row)


def _cells(values: Sequence[object]) -> pa.Array:
    """A column of a sheet, whose cells may be of different types: then it is text."""
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError):
        return pa.array([None if value is None else str(value) for value in values], pa.string())


class ParquetFile(TableFile):
    """One Parquet file."""

    def __init__(self, path: Path, columns: Sequence[str] | None) -> None:
        self.path = path
        try:
            with pq.ParquetFile(path, buffer_size=_PARQUET_BUFFER, pre_buffer=False) as file:
                schema = file.schema_arrow
                self.num_rows = file.metadata.num_rows
                groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
                self._group_rows = [group.num_rows for group in groups]
                self._group_bytes = [group.total_byte_size for group in groups]
                self._check_largest_group(file)
                self._page_bytes = open_page_bytes(path, file.metadata)
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{path} is not a whole Parquet file ({_sentence(error)}): it may be truncated or still being written; "
                "fetch or write it again."
            ) from None
        self.types = {name: schema.field(name).type for name in chosen_columns(path, schema.names, columns)}

    def _check_largest_group(self, file: pq.ParquetFile) -> None:
        """Read a row: damaged descriptions of columns are an error then, and end the process if asked for first."""
        if not self._group_rows:
            return
        largest = self._group_bytes.index(max(self._group_bytes))
        try:
            next(file.iter_batches(batch_size=1, row_groups=[largest], use_threads=False), None)
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(sum(self._group_rows[:largest]), error) from None

    def _damaged(self, row: int, error: Exception) -> DataError:
        return DataError(f"{self.path} is damaged after row {row} ({_sentence(error)}): fetch or write it again.")

    def reading_bytes(self, chunk_size: int) -> int:
        """For the open pages of all columns, and parts of chunks."""
        # Text is taken for as long as it is in the file, where equal texts may be written once.
        sizes = zip(self._group_bytes, self._group_rows, strict=True)
        row_bytes = max(8.0 * len(self.types), *(size / max(rows, 1) for size, rows in sizes))
        runs = runs_of_row_groups(self._group_rows, chunk_size)
        chunk = min(chunk_size, max(sum(self._group_rows[group] for group in run) for run in runs)) * row_bytes
        return int(_PARQUET_BYTES + self._page_bytes + _CHUNK_COPIES * chunk)

    def rows(self, start: int, stop: int, columns: Sequence[str], chunk_size: int) -> Iterator[pa.RecordBatch]:
        """The rows and columns that are asked for; row groups before and after are not read."""
        seen = 0
        try:
            # A few row groups at a time and without threads: otherwise Arrow's memory grows with the file. Reading
            # ahead (pre_buffer) would be done by threads, whose heaps keep up to 20 MB of what others free.
            with pq.ParquetFile(self.path, buffer_size=_PARQUET_BUFFER, pre_buffer=False) as file:
                for groups in runs_of_row_groups(self._group_rows, chunk_size):
                    rows = sum(self._group_rows[group] for group in groups)
                    if start < seen + rows and seen < stop:
                        found = file.iter_batches(
                            batch_size=chunk_size, row_groups=groups, columns=list(columns), use_threads=False
                        )
                        yield from rows_between(found, start - seen, stop - seen)
                    seen += rows
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(seen, error) from None


def runs_of_row_groups(group_rows: Sequence[int], size: int) -> Iterator[list[int]]:
    """Numbers of neighbouring row groups that together have at most ``size`` rows, or of one that has more."""
    run: list[int] = []
    rows = 0
    for group, more in enumerate(group_rows):
        if run and rows + more > size:
            yield run
            run, rows = [], 0
        run.append(group)
        rows += more
    if run:
        yield run


def _sentence(error: Exception) -> str:
    return str(error).split("\n")[0].rstrip(".")[:200]


def open_page_bytes(path: Path, metadata: pq.FileMetaData) -> int:
    """Bytes of one open page of each column, with its dictionary, in the largest row group of a file.

    A reader holds one page of every column at a time.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    if not groups:
        return 0
    largest = max(groups, key=lambda group: group.total_byte_size)
    with open(path, "rb") as file:
        return int(sum(_column_bytes(file, largest.column(number)) for number in range(largest.num_columns)))


def _column_bytes(file: BinaryIO, column: pq.ColumnChunkMetaData) -> float:
    size = int(column.total_uncompressed_size)
    count = int(column.num_values)
    first, values = _sizes(file, column.data_page_offset) or (size, count)
    # Pages that follow may be larger: of a dictionary's numbers first, of the values themselves where it is full.
    page = min(size, max(first, size * values / max(count, 1)))
    if not column.has_dictionary_page:
        return _PAGE_COPIES * page
    dictionary, _ = _sizes(file, column.dictionary_page_offset) or (size, 0)
    return _PAGE_COPIES * page + _DICTIONARY_COPIES * min(size, dictionary)


def _sizes(file: BinaryIO, offset: int) -> tuple[int, int] | None:
    """Bytes and values of the page whose header begins there; None if it cannot be read."""
    file.seek(offset)
    header = iter(file.read(_HEADER_BYTES))
    size, field = None, 0
    try:
        while True:
            field, kind = _next_field(header, field)
            if kind == _INTEGER:
                number = _integer(header)
                size = number if field == _UNCOMPRESSED_SIZE else size
            elif kind == _STRUCT and field in _PAGE_KINDS and size is not None:
                # The number of values is the first field of each of these.
                return (size, _integer(header)) if _next_field(header, 0) == (1, _INTEGER) else None
            else:
                return None
    except StopIteration:
        return None


def _next_field(header: Iterator[int], field: int) -> tuple[int, int]:
    """Number and type of the next field of a struct."""
    first = next(header)
    step, kind = first >> 4, first & 15
    return (field + step if step else _integer(header)), kind


def _integer(header: Iterator[int]) -> int:
    """A number in zigzag form, seven bits in a byte."""
    number, shift = 0, 0
    while True:
        byte = next(header)
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (number >> 1) ^ -(number & 1)
