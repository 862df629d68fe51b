"""CSV files: the types of their columns settled over the whole file before the first row is handed out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyarrow import csv

from ..data.naming import check_number_of_columns, shortened
from ..errors import DataError
from .csv_records import is_packed, line_of_row, open_text
from .table_files import TableFile, chosen_columns, rows_between
from .text_values import MISSING_WORDS

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
    pa.int64(),
    pa.float64(),
    pa.bool_(),
    pa.date32(),
    pa.timestamp("s"),
    pa.timestamp("ns"),
    pa.timestamp("s", tz="UTC"),
    pa.timestamp("ns", tz="UTC"),
    pa.time32("s"),
    pa.string(),
)
_CONVERSION = re.compile(
    r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to [^:]*: (?:[^']* '(.*)')?", re.DOTALL
)
_ROW = re.compile(r"Row #(\d+): ")
_HEADER_ROWS = 2  # Arrow counts rows from one and counts the header.
# Measured by benchmarks/reading.py: Arrow reads so far ahead, what it takes of that and of the block that it decodes,
# and the most that it takes besides.
_BLOCKS_AHEAD, _AHEAD_COPIES, _BLOCK_COPIES, _READER_BYTES = 32, 1.2, 2, 1_500_000


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
        try:
            with open_text(path, self.encoding) as stream:
                header = stream.readline(1 << 20)
        except (UnicodeError, OSError, EOFError):
            return ","
        if "," in header:
            return ","
        return max(";\t|", key=header.count) if any(other in header for other in ";\t|") else ","

    def line_of(self, path: Path, row: int) -> int | None:
        """The line of a file on which a row begins; None if it cannot be found."""
        return line_of_row(path, row, delimiter=self.delimiter_of(path), encoding=self.encoding)

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
        schema = _first_schema(path, options)
        names = list(schema.names)
        _check_delimiter(path, names, options.delimiter_of(path))
        chosen = chosen_columns(path, names, columns)
        types = {name: pa.string() if name in options.text else schema.field(name).type for name in chosen}
        file = cls(path, options, types)
        # A type that fails before any row was accepted under it can be exchanged for any other.
        candidates = {name: iter(_AFTER_EMPTY) for name, kind in file.types.items() if pa.types.is_null(kind)}
        since: dict[str, int] = {}
        while True:
            try:
                for batch in _batches(path, options, file.types, file.num_rows):
                    file.num_rows += batch.num_rows
                break
            except _DoesNotFitError as misfit:
                name = names[misfit.column]
                row = file.num_rows if misfit.row is None else misfit.row
                kind = file.types[name]
                if misfit.value is None or pa.types.is_string(kind):
                    raise _encoding_error(path, name, options.place(path, row), options.encoding) from None
                if pa.types.is_null(kind) or (name in candidates and since.get(name) == file.num_rows):
                    file.types[name] = next(candidates[name])
                else:
                    file.types[name] = _WIDER.get(kind, pa.string())
                since[name] = file.num_rows
                if pa.types.is_string(file.types[name]):
                    file.reasons[name] = (row, misfit.value)
        for name, kind in file.types.items():
            if pa.types.is_binary(kind):
                raise _encoding_error(path, name, None, options.encoding)
        return file

    def rows(self, start: int, stop: int, columns: Sequence[str], chunk_size: int) -> Iterator[pa.RecordBatch]:
        """Record batches of one block each, with all columns in the settled types."""
        try:
            yield from rows_between(_batches(self.path, self.options, self.types, 0), start, stop)
        except _DoesNotFitError as misfit:
            raise DataError(f"{self.path} changed while it was read: row {misfit.row} no longer fits.") from None

    def line_of(self, row: int) -> int | None:
        """The line on which a row begins, counted from 1."""
        return self.options.line_of(self.path, row)

    def texts(self, column: str) -> Iterator[pa.RecordBatch]:
        """One column as text, in Arrow arrays."""
        for batch in _batches(self.path, self.options, {column: pa.string()}, 0):
            yield batch.column(0)


class _DoesNotFitError(Exception):
    """A value does not fit the type of its column."""

    def __init__(self, column: int, row: int | None, value: str | None) -> None:
        super().__init__()
        self.column, self.row, self.value = column, row, value


def _batches(path: Path, options: CsvOptions, types: dict[str, pa.DataType], skip: int) -> Iterator[pa.RecordBatch]:
    """The rows after the first ``skip``, for settled or tentative types."""
    seen = skip
    try:
        for batch in _reader(path, options, types, skip):
            seen += batch.num_rows
            yield batch
    except (pa.ArrowInvalid, OSError, UnicodeError) as error:
        found = _CONVERSION.match(str(error))
        if found is not None:
            row = int(found[2]) - _HEADER_ROWS if found[2] else None
            raise _DoesNotFitError(int(found[1]), row, found[3]) from None
        raise DataError(_translated(path, options, error, seen)) from None


def _first_schema(path: Path, options: CsvOptions) -> pa.Schema:
    try:
        schema = _reader(path, options, {}, 0).schema
        check_number_of_columns(len(schema), str(path))  # before each of them is looked at
        _ = schema.names
        return schema
    except UnicodeDecodeError:  # of names: Arrow checks only values
        raise DataError(
            f"{path}: the names of the columns are not {options.encoding}: save the file as UTF-8,",
            "or pass its encoding, for example encoding='latin-1'.",
            code="wrong_encoding",
        ) from None
    except (pa.ArrowInvalid, OSError, UnicodeError) as error:
        raise DataError(_translated(path, options, error, 0)) from None


def _reader(path: Path, options: CsvOptions, types: dict[str, pa.DataType], skip: int) -> csv.CSVStreamingReader:
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
            null_values=_null_values(),
            column_types=types,
            include_columns=list(types) or None,
            decimal_point=options.decimal,
        ),
    )


def _null_values() -> list[str]:
    """Texts that stand for a missing number; in columns of text these stay text."""
    words = set(csv.ConvertOptions().null_values)
    for word in MISSING_WORDS:
        words |= {word, word.upper(), word.capitalize(), word.title()}
    return sorted(words)


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


def _translated(path: Path, options: CsvOptions, error: Exception, rows_read: int) -> str:
    """Arrow's error about a file, in words that help its owner."""
    text = str(error).rstrip(".")
    if "Empty CSV file" in text:
        return f"{path} is empty: it has not even a header."
    if "straddling" in text:
        return (
            f"{path}: a row after row {rows_read} is longer than block_size: a quotation mark may never be closed; "
            "otherwise increase block_size."
        )
    found = _ROW.search(text)
    if found is not None and "Expected" in text:
        what = text[found.end() : found.end() + 200]
        return (
            f"{path}, {options.place(path, int(found[1]) - _HEADER_ROWS)}: {what[0].lower()}{what[1:]}. Correct it, or "
            "put quotation marks around texts that hold the delimiter."
        )
    if "ompressed stream" in text or "zlib" in text:
        return f"{path} is a damaged or truncated gzip file, readable up to row {rows_read}: {text}. Fetch it again."
    if isinstance(error, UnicodeError):
        return f"{path} is not text in the encoding that was given, after row {rows_read}: {text}."
    return f"{path} cannot be read as CSV after row {rows_read}: {text[:300]}."


def _encoding_error(path: Path, column: str, row: str | None, encoding: str) -> DataError:
    place = f"column {column!r}" if row is None else f"{row}, column {column!r}"
    return DataError(
        f"{path}, {place} holds text that is not {encoding}: save the file as UTF-8,",
        "or pass its encoding, for example encoding='latin-1'.",
        code="wrong_encoding",
    )
