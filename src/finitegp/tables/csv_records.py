"""Records of CSV files as they are written, character for character, and the lines on which they stand."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

import pyarrow as pa
from pyarrow import csv

_GZIP = b"\x1f\x8b"


class Record(NamedTuple):
    """One record of a CSV file.

    Attributes:
        line: Where it begins, counted from 1, the header included, as editors count.
        text: Its characters, without those that end the line.
        end: These.
    """

    line: int
    text: str
    end: str


def is_packed(path: Path) -> bool:
    """Whether a file is gzipped, whatever its name."""
    with open(path, "rb") as opened:
        return opened.read(2) == _GZIP


def open_text(path: Path, encoding: str = "utf8") -> IO[str]:
    """A text file, gzipped or not, with the ends of lines as they are."""
    if is_packed(path):
        return io.TextIOWrapper(gzip.open(path, "rb"), encoding=encoding, newline="")
    return open(path, encoding=encoding, newline="")


def read_records(stream: IO[str], delimiter: str = ",") -> Iterator[Record]:
    r"""The records of a CSV file, the header first; empty lines are none.

    Example:
        >>> [record.text for record in read_records(io.StringIO('a,b\n1,"x\ny"\n\n2,5" pipe\n'))]
        ['a,b', '1,"x\ny"', '2,5" pipe']
    """
    parts: list[str] = []
    first, inside = 1, False
    for number, line in enumerate(stream, start=1):
        if not parts:
            first = number
        parts.append(line)
        inside = _ends_inside(line, delimiter, inside)
        if inside:
            continue
        whole = "".join(parts)
        parts = []
        text = whole.rstrip("\r\n")
        if text:
            yield Record(first, text, whole[len(text) :])
    if parts:
        yield Record(first, "".join(parts), "")


def _ends_inside(line: str, delimiter: str, inside: bool) -> bool:
    """Whether a quoted field is open at the end of a line. A quotation mark opens a field at its beginning only."""
    if not inside and '"' not in line:
        return False
    place, end = 0, len(line)
    while True:
        if inside:
            place = line.find('"', place)
            if place < 0:
                return True
            if line[place + 1 : place + 2] == '"':
                place += 2
                continue
            inside = False
        elif line.startswith('"', place) or (place == 0 and line.startswith('\ufeff"')):
            inside = True
            place += 1 + line.startswith("\ufeff", place)
            continue
        place = line.find(delimiter, place) + 1
        if place == 0 or place >= end:
            return False


def line_of_row(path: Path, row: int, *, delimiter: str = ",", encoding: str = "utf8") -> int | None:
    """The line on which a row begins, counted from 1; rows are counted from 0, without the header.

    None if the file has fewer rows or is not text in this encoding.
    """
    try:
        with open_text(path, encoding) as stream:
            found = next(islice(read_records(stream, delimiter), row + 1, None), None)
    except (UnicodeError, OSError, EOFError):
        return None
    return None if found is None else found.line


class RecordChunk(NamedTuple):
    """Some records, and the same as an Arrow record batch of text."""

    records: list[Record]
    batch: pa.RecordBatch


def read_chunks(stream: IO[str], delimiter: str, size: int) -> Iterator[RecordChunk]:
    """Records with what stands in their fields, some at a time; the first chunk is the header, and has no rows."""
    records = read_records(stream, delimiter)
    header = next(records, None)
    if header is None:
        return
    text = header.text.removeprefix("\ufeff")
    # A file of nothing but the header: Arrow finds the names in it.
    names = _parse([text, text], delimiter, {}).schema.names
    yield RecordChunk([header], pa.RecordBatch.from_arrays([pa.array([], pa.string())] * len(names), names=names))
    while chunk := list(islice(records, size)):
        types = dict.fromkeys(names, pa.string())
        yield RecordChunk(chunk, _parse([text, *(record.text for record in chunk)], delimiter, types))


def _parse(lines: list[str], delimiter: str, types: dict[str, pa.DataType]) -> pa.RecordBatch:
    """Lines of CSV, the header first, as a record batch."""
    text = "\n".join(lines).encode()
    table = csv.read_csv(
        pa.BufferReader(text),
        read_options=csv.ReadOptions(use_threads=False, block_size=max(1 << 16, len(text) + 1)),
        parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=csv.ConvertOptions(column_types=types, strings_can_be_null=False),
    )
    return table.combine_chunks().to_batches()[0]
