"""CSV files: records as they are written, and columns whose types are settled before the first row is handed out."""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

import pyarrow as pa
from pyarrow import csv

from ..data.naming import check_number_of_columns, shortened
from ..errors import DataError
from ..lite.tables import MISSING_WORDS
from .table_files import TableFile, chosen_columns, rows_between

_GZIP = b"\x1f\x8b"
# What a column becomes when a value does not fit its type; every value of the old type is one of the new, so rows
# already read need not be read again. What is not listed becomes text.
_WIDER = {
    pa.int64(): pa.float64(),
    pa.date32(): pa.timestamp("s"),
    pa.timestamp("s"): pa.timestamp("ns"),
    pa.timestamp("s", tz="UTC"): pa.timestamp("ns", tz="UTC"),
}
# What a column that was empty so far may become, in the order in which it is tried.
_AFTER_EMPTY = (
    *(pa.int64(), pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("s"), pa.timestamp("ns")),
    *(pa.timestamp("s", tz="UTC"), pa.timestamp("ns", tz="UTC"), pa.time32("s"), pa.string()),
)
_CONVERSION = re.compile(
    r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to [^:]*: (?:[^']* '(.*)')?", re.DOTALL
)
_EXCEL_NOTE = re.compile("sep=.$", re.IGNORECASE)
# Texts that stand for a missing number; in columns of text these stay text.
_NULL_VALUES = sorted(
    {spelled for word in MISSING_WORDS for spelled in (word, word.upper(), word.capitalize(), word.title())}
    | set(csv.ConvertOptions().null_values)
)
_ROW = re.compile(r"Row #(\d+): ")
# Before types are settled, rows are read as text: this many at a time, up to this many characters in all.
_LOOKED_AT_ONCE, _LOOKED_AT = 1000, 1 << 20
_HEADER_ROWS = 2  # Arrow counts rows from one and counts the header.
# Measured by benchmarks/reading.py: Arrow reads so far ahead, what it takes of that and of the block that it decodes,
# and the most that it takes besides.
_BLOCKS_AHEAD, _AHEAD_COPIES, _BLOCK_COPIES, _READER_BYTES = 32, 1.2, 2, 1_500_000


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


def open_text(path: Path, encoding: str = "utf8", errors: str = "strict") -> IO[str]:
    """A text file, gzipped or not, with the ends of lines as they are."""
    if is_packed(path):
        return io.TextIOWrapper(gzip.open(path, "rb"), encoding=encoding, errors=errors, newline="")
    return open(path, encoding=encoding, errors=errors, newline="")


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


def read_chunks(stream: IO[str], delimiter: str, size: int) -> Iterator[tuple[list[Record], pa.RecordBatch]]:
    """Records, and the same as Arrow text, some at a time; the first chunk is the header, and has no rows."""
    records = read_records(stream, delimiter)
    header = next(records, None)
    if header is None:
        return
    text = header.text.removeprefix("\ufeff")
    # A file of nothing but the header: Arrow finds the names in it.
    names = _parse([text, text], delimiter, {}).schema.names
    yield [header], pa.RecordBatch.from_arrays([pa.array([], pa.string())] * len(names), names=names)
    while chunk := list(islice(records, size)):
        types = dict.fromkeys(names, pa.string())
        yield chunk, _parse([text, *(record.text for record in chunk)], delimiter, types)


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


@dataclass(frozen=True)
class CsvOptions:
    """How CSV text is cut into fields, and what the fields hold.

    Attributes:
        delimiter: One character; None to find it: a tab in ``.tsv`` files, otherwise a comma, unless the header has
            none but semicolons, tabs or bars.
        encoding: Of the text, as Python names it.
        block_size: Bytes read at once; one row must fit.
        decimal: What stands before decimals.
        text: Columns that are read as text whatever they hold.
    """

    delimiter: str | None = None
    encoding: str = "utf8"
    block_size: int = 1 << 20
    decimal: str = "."
    text: tuple[str, ...] = ()

    def delimiter_of(self, path: Path) -> str:
        """The delimiter used for one file."""
        if self.delimiter is not None:
            return self.delimiter
        if path.name.lower().removesuffix(".gz").endswith(".tsv"):
            return "\t"
        header = self.first_line(path)
        if "," in header:
            return ","
        return max(";\t|", key=header.count) if any(other in header for other in ";\t|") else ","

    def first_line(self, path: Path) -> str:
        """The first line of a file, whose encoding may be another; empty if it cannot be read."""
        with suppress(UnicodeError, OSError, EOFError), open_text(path, self.encoding, "replace") as stream:
            return stream.readline(1 << 20).rstrip("\r\n").removeprefix("\ufeff")
        return ""

    def line_of(self, path: Path, row: int) -> int | None:
        """The line of a file on which a row begins, counted from 1; None if it cannot be found."""
        with suppress(UnicodeError, OSError, EOFError), open_text(path, self.encoding) as stream:
            found = next(islice(read_records(stream, self.delimiter_of(path)), row + 1, None), None)
            return None if found is None else found.line
        return None

    def place(self, path: Path, row: int) -> str:
        """A row of a file by its line, for messages."""
        line = self.line_of(path, row)
        return f"row {row}" if line is None else f"line {line}"


@dataclass
class CsvFile(TableFile):
    """One CSV file whose column types hold for all of its rows.

    Attributes:
        options: How its text is read.
        reasons: For columns that became text on the way: the row and the value that made them so.
    """

    path: Path
    options: CsvOptions
    types: dict[str, pa.DataType]
    num_rows: int = 0
    reasons: dict[str, tuple[int, str]] = field(default_factory=dict)

    def reading_bytes(self, chunk_size: int) -> int:
        """Arrow reads up to 32 blocks ahead, whatever the size of chunks."""
        block = self.options.block_size
        ahead = _BLOCKS_AHEAD * block
        if not is_packed(self.path):  # what a packed file unpacks to is not known
            size = self.path.stat().st_size
            block, ahead = min(block, size), min(ahead, size)
        return _READER_BYTES + int(_AHEAD_COPIES * ahead + _BLOCK_COPIES * block)

    @classmethod
    def settle(cls, path: Path, options: CsvOptions, columns: Sequence[str] | None = None) -> CsvFile:
        """Read the file through once, in blocks, and find types that fit all of its values.

        Arrow guesses types from the first block. Where a later value does not fit, a column of whole numbers becomes
        one of floats, one of dates becomes one of times, and any other becomes text, from the first row on.
        """
        if _EXCEL_NOTE.match(note := options.first_line(path)):
            raise DataError(f"{path}: the first line, {note!r}, is a note for Excel and not the header: remove it.")
        options = replace(options, delimiter=options.delimiter_of(path))
        reader, schema = _guess_types(path, options)
        names = list(schema.names)
        _check_delimiter(path, names, options.delimiter_of(path))
        if names.count("") > 1:
            raise DataError(
                f"{path}: the first line must be the header, but is {shortened(options.first_line(path))}: remove what "
                "stands above the header, or give every column a name."
            )
        chosen = chosen_columns(path, names, columns)
        types = {name: pa.string() if name in options.text else schema.field(name).type for name in chosen}
        file = cls(path, options, types)
        # A type that fails before any row was accepted under it can be exchanged for any other.
        candidates = {name: iter(_AFTER_EMPTY) for name, kind in file.types.items() if pa.types.is_null(kind)}
        since: dict[str, int] = {}
        # Where all columns are read as Arrow guesses, its first reader goes on.
        started = reader if types == {each.name: each.type for each in schema} else None
        while True:
            try:
                for batch in _batches(path, options, file.types, file.num_rows, started):
                    file.num_rows += batch.num_rows
                break
            except _DoesNotFitError as misfit:
                started = None
                name = names[misfit.column]
                row = file.num_rows if misfit.row is None else misfit.row
                kind = file.types[name]
                if misfit.value is None or pa.types.is_string(kind):
                    raise _encoding_error(path, options, name) from None
                if pa.types.is_null(kind) or (name in candidates and since.get(name) == file.num_rows):
                    file.types[name] = next(candidates[name])
                else:
                    file.types[name] = _WIDER.get(kind, pa.string())
                since[name] = file.num_rows
                if pa.types.is_string(file.types[name]):
                    file.reasons[name] = (row, misfit.value)
        for name, kind in file.types.items():
            if pa.types.is_binary(kind):
                raise _encoding_error(path, options, name)
        return file

    def rows(self, start: int, stop: int, columns: Sequence[str], chunk_size: int) -> Iterator[pa.RecordBatch]:
        """Record batches of one block each, with all columns in the settled types."""
        try:
            yield from rows_between(_batches(self.path, self.options, self.types), start, stop)
        except _DoesNotFitError as misfit:
            raise DataError(f"{self.path} changed while it was read: row {misfit.row} no longer fits.") from None

    def line_of(self, row: int) -> int | None:
        """The line on which a row begins, counted from 1."""
        return self.options.line_of(self.path, row)

    def first_texts(self) -> Iterator[pa.RecordBatch]:
        """The first mebibyte or so of the rows as text."""
        seen = 0
        with open_text(self.path, self.options.encoding) as stream:
            for records, batch in read_chunks(stream, self.options.delimiter_of(self.path), _LOOKED_AT_ONCE):
                yield batch
                seen += sum(len(record.text) for record in records)
                if seen > _LOOKED_AT:
                    return

    def texts(self, column: str) -> Iterator[pa.Array]:
        """One column as text, in Arrow arrays."""
        for batch in _batches(self.path, self.options, {column: pa.string()}):
            yield batch.column(0)


@dataclass(eq=False)
class _DoesNotFitError(Exception):
    """A value does not fit the type of its column."""

    column: int
    row: int | None
    value: str | None


def _batches(
    path: Path,
    options: CsvOptions,
    types: dict[str, pa.DataType],
    skip: int = 0,
    started: csv.CSVStreamingReader | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows after the first ``skip``, for settled or tentative types, perhaps from a reader that is open."""
    seen = skip
    try:
        for batch in _reader(path, options, types, skip) if started is None else started:
            seen += batch.num_rows
            yield batch
    except (pa.ArrowInvalid, OSError, UnicodeError) as error:
        found = _CONVERSION.match(str(error))
        if found is not None:
            row = int(found[2]) - _HEADER_ROWS if found[2] else None
            raise _DoesNotFitError(int(found[1]), row, found[3]) from None
        raise _translated(path, options, error, seen) from None


def _guess_types(path: Path, options: CsvOptions) -> tuple[csv.CSVStreamingReader, pa.Schema]:
    """A reader of all columns in the types that Arrow guesses from the first block, and these."""
    try:
        reader = _reader(path, options, {})
        check_number_of_columns(len(reader.schema), str(path))  # before each of them is looked at
        _ = reader.schema.names  # of which Arrow has not checked the encoding
        return reader, reader.schema
    except (pa.ArrowInvalid, OSError, UnicodeError) as error:
        raise _translated(path, options, error, 0) from None


def _reader(path: Path, options: CsvOptions, types: dict[str, pa.DataType], skip: int = 0) -> csv.CSVStreamingReader:
    # Of Arrow's own allocator each thread that reads ahead would keep megabytes, which cannot be asked back.
    pool = pa.system_memory_pool()
    file = pa.OSFile(str(path), memory_pool=pool)
    return csv.open_csv(
        pa.CompressedInputStream(file, "gzip") if is_packed(path) else file,
        memory_pool=pool,
        read_options=csv.ReadOptions(
            use_threads=False,  # Arrow knows the number of a bad row only when it reads in order.
            block_size=options.block_size,
            encoding=options.encoding,
            skip_rows_after_names=skip,
        ),
        # Quoted texts may hold line breaks.
        parse_options=csv.ParseOptions(delimiter=options.delimiter_of(path), newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            null_values=_NULL_VALUES,
            column_types=types,
            include_columns=list(types) or None,
            decimal_point=options.decimal,
        ),
    )


def _check_delimiter(path: Path, names: list[str], delimiter: str) -> None:
    if len(names) > 1:
        return
    for other, word in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars"), (",", "commas")):
        if other != delimiter and other in names[0]:
            raise DataError(
                f"{path} seems to be separated by {word}: its only column is {shortened(names[0])}.",
                f"Pass delimiter={other!r}.",
                code="wrong_delimiter",
                delimiter=other,
            )


def _translated(path: Path, options: CsvOptions, error: Exception, rows_read: int) -> DataError:
    """Arrow's error about a file, in words that help its owner."""
    if isinstance(error, UnicodeError):
        return _encoding_error(path, options)
    text = str(error).rstrip(".")
    if "Empty CSV file" in text:
        return DataError(f"{path} is empty: it has not even a header.")
    if "straddling" in text:
        return DataError(
            f"{path}: a row after row {rows_read} is longer than block_size: a quotation mark may never be closed; "
            "otherwise increase block_size."
        )
    found = _ROW.search(text)
    if found is not None and "Expected" in text:
        what = text[found.end() : found.end() + 200]
        return DataError(
            f"{path}, {options.place(path, int(found[1]) - _HEADER_ROWS)}: {what[0].lower()}{what[1:]}. Correct it, or "
            f"the header, which is {shortened(options.first_line(path))}, put quotation marks around texts that hold "
            "the delimiter,",
            "or pass another delimiter.",
            code="wrong_fields",
        )
    if "ompressed stream" in text or "zlib" in text:
        return DataError(
            f"{path} is a damaged or truncated gzip file, readable up to row {rows_read}: {text}. Fetch it again."
        )
    return DataError(f"{path} cannot be read as CSV after row {rows_read}: {text[:300]}.")


def _encoding_error(path: Path, options: CsvOptions, column: str | None = None) -> DataError:
    """Names the line that is not text in the encoding."""
    place = "" if column is None else f", column {column!r}"
    with suppress(UnicodeError), open_text(path, options.encoding, "surrogateescape") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.isascii() and any("\udc80" <= letter <= "\udcff" for letter in line):
                place = f", line {number}{place}"
                break
    return DataError(
        f"{path}{place} holds text that is not {options.encoding}: save the file as UTF-8,",
        "or pass its encoding, for example encoding='cp1252'.",
        code="wrong_encoding",
    )
