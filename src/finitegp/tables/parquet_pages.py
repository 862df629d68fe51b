"""How large the pages of a Parquet file are, from their own headers: a reader holds one of every column at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow.parquet as pq

# Measured by benchmarks/reading.py: what an open page and a dictionary take, in their own sizes.
_PAGE_COPIES, _DICTIONARY_COPIES = 1.05, 2.0
# The sizes come first in a header; statistics, which can be long, come after them.
_HEADER_BYTES = 64
# Types of Thrift's compact protocol, and fields of PageHeader in parquet.thrift.
_INTEGER, _STRUCT = 5, 12
_UNCOMPRESSED_SIZE, _PAGE_KINDS = 2, (5, 7, 8)


def open_page_bytes(path: Path, metadata: pq.FileMetaData) -> int:
    """Bytes of one open page of each column, with its dictionary, in the largest row group of a file."""
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
