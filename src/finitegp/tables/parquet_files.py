"""Parquet files: rows page by page, and what reading them takes, found from the headers of their pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import DataError
from .table_files import TableFile, chosen_columns, rows_between

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
