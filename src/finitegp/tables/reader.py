"""Tables in files, CSV and Parquet, read as one stream of Arrow record batches of bounded size."""

from __future__ import annotations

import bisect
import codecs
import io
import os
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from ..arguments import check_arguments
from ..data.naming import check_number_of_columns, listed
from ..errors import DataError
from .arrow_values import is_text, type_without_views, without_views
from .common_schema import common_schema, settle_decimals
from .csv_files import CsvFile, CsvOptions, Record, open_text, read_chunks
from .table_files import ENDINGS as _MEMORY_ENDINGS
from .table_files import MemoryFile, ParquetFile, TableFile
from .text_values import leading_zero, note_on_zero

_CSV_ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")
_PARQUET_ENDINGS = (".parquet", ".pq")
_MAX_CHUNK_ROWS = 65_536
_MAX_CHUNK_CELLS = 1 << 21
#: Up to this many rows are read into memory also within a memory budget: kernels can then be fitted to them.
ROWS_IN_MEMORY = 1500


class ReadingOptions(TypedDict, total=False):
    """Arguments of `TableReader`."""

    text: Sequence[str]
    decimal: str | None
    chunk_size: int
    block_size: int


#: How to read tables whose rows stay on disk: rows that are decoded, and bytes of a CSV file that are read at once.
ON_DISK: ReadingOptions = {"chunk_size": 8192, "block_size": 1 << 18}

_UTF_16 = "text in UTF-16"
# How files begin that are given a wrong name most often.
_BEGINNINGS = (
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"\x89PNG", "a PNG image"),
    (b"GIF8", "a GIF image"),
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive or Excel workbook: unpack it, or rename it so that it ends in .xlsx"),
    (b"\xd0\xcf\x11\xe0", "an old Excel workbook: save the sheet as CSV"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive: unpack it"),
    (b"BZh", "a bzip2 archive: unpack it"),
    (b"\xfd7zXZ", "an xz archive: unpack it"),
    (b"\xff\xfe", _UTF_16),
    (b"\xfe\xff", _UTF_16),
    (b"ARROW1", "an Arrow file: rename it so that it ends in .feather"),
)


@check_arguments
class TableReader:
    r"""One table out of one or several files, read chunk by chunk, again and again.

    CSV files are plain or gzipped and separated by commas, tabs, semicolons or bars; Parquet files are read in pieces
    too; ``.feather`` and ``.arrow`` files and the first sheets of ``.xlsx`` workbooks are read into memory.

    Opening checks everything that can be checked without keeping rows: that files are what they are named, have
    rows, and agree in their columns and types. The order of columns may differ between files, and so may harmless
    details of types (32 or 64 bits, integers or floats); all chunks come with the schema of the whole.

    Types of CSV columns are guessed from the first block (a mebibyte) and then settled in one pass over the file at
    opening: a column whose later values do not fit becomes text *as a whole*, in all files, and `notes` has which value
    in which row was the reason. Such columns are not lost: `TableEncoder` reads numbers written as text and treats the
    few values that are none as missing. A column that is numbers in one file and mostly other text in another is an
    error. In columns of numbers the usual words for missing values ("n/a", "-", "?", …) are read as missing.

    Args:
        paths: A file, a directory (its CSV or its Parquet files, sorted by name; not both), or several files.
        columns: Read only these.
        chunk_size: Most rows per chunk; by default 65 536, or fewer in tables of more than 32 columns.
        delimiter: Of CSV files; by default it is found from the header.
        encoding: Of CSV files.
        block_size: Bytes of a CSV file read at once.
        decimal: What stands before decimals in CSV files, ``"."`` or ``","``; by default it is found. Where some column
            shows that it is a comma, and none that it is a point, 1.693 is a thousand and more: such columns are text.
        text: Columns of CSV files to read as text, whatever they hold.

    Attributes:
        paths: The files, in order.
        schema: Of every chunk.
        num_rows: Of all files together.
        notes: What was decided on the way, one sentence each.

    Rows are counted from 0, without the header, over all files; `locate` finds the file of a row.

    Example:
        >>> import tempfile
        >>> directory = tempfile.TemporaryDirectory()
        >>> path = Path(directory.name) / "parts.csv"
        >>> _ = path.write_text("length,colour\n1,red\n2.5,blue\n3,red\n")
        >>> table = TableReader(path, chunk_size=2)
        >>> table.column_names, table.num_rows, [chunk.num_rows for chunk in table]
        (['length', 'colour'], 3, [2, 1])
        >>> table.read()["length"].to_pylist()
        [1.0, 2.5, 3.0]
        >>> directory.cleanup()
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        columns: Sequence[str] | None = None,
        chunk_size: int | None = None,
        delimiter: str | None = None,
        encoding: str = "utf8",
        block_size: int = 1 << 20,
        decimal: str | None = None,
        text: Sequence[str] = (),
    ) -> None:
        if chunk_size is not None and chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, but is {chunk_size}.")
        if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii() or delimiter in "\0\r\n"):
            raise ValueError(f"delimiter must be one character, but is {delimiter!r}.")
        if decimal not in (None, ".", ","):
            raise ValueError(f"decimal must be '.' or ',', but is {decimal!r}.")
        if not is_text_encoding(encoding):
            raise ValueError(f"encoding must be one of text, such as 'utf8' or 'latin-1', but is {encoding!r}.")
        columns = None if columns is None else list(columns)
        options = CsvOptions(delimiter, encoding, block_size, decimal or ".", tuple(text))
        self.csv_options = options
        self.paths = _expand(paths)
        self.notes = _notes_on_repeats(self.paths)
        self._files = [_open(path, options, columns) for path in self.paths]
        self.notes += [note for file in self._files for note in file.notes]
        self._states = [_state(path) for path in self.paths]
        text_files = [file for file in self._files if isinstance(file, CsvFile)]
        if decimal is None and len(text_files) == len(self._files):
            decimal, notes = settle_decimals(text_files)
            self.notes += [*notes, *_notes_on_zeros(text_files)]
        self._decimal = decimal
        found, notes = common_schema(self._files)
        self.schema = pa.schema([each.with_type(type_without_views(each.type)) for each in found])
        self.notes += notes
        self._starts = list(accumulate((file.num_rows for file in self._files), initial=0))
        self.num_rows = self._starts[-1]
        self.chunk_size = chunk_size or max(1, min(_MAX_CHUNK_ROWS, _MAX_CHUNK_CELLS // len(self.schema)))

    @property
    def column_names(self) -> list[str]:
        """The columns, in the order of the first file."""
        return list(self.schema.names)

    @property
    def alike(self) -> ReadingOptions:
        """How to read other files as these: where decimal commas were found, numbers there are text as well."""
        given = self.csv_options.decimal
        found = self._decimal == "," and given == "."
        numbers = [each.name for each in self.schema if is_text(each.type) or pa.types.is_integer(each.type)]
        text = [*self.csv_options.text, *(numbers if found else [])]
        return {"text": text, "decimal": None if self._decimal is None else given}

    @property
    def reading_bytes(self) -> int:
        """About how much memory reading takes besides the chunk that is given out: does not grow with the rows."""
        return max(file.reading_bytes(self.chunk_size) for file in self._files)

    def __len__(self) -> int:
        return self.num_rows

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.rows(0, self.num_rows)

    def rows(self, start: int, stop: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Chunks of the rows from ``start`` to ``stop``, of all columns or some.

        Row groups of Parquet files before and after are not read, nor are their other columns.
        """
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        yield from self._rows(start, stop, schema)
        # So that the memory that reading has used is free for what comes after the pass.
        pa.default_memory_pool().release_unused()

    def _rows(self, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for file, state, first in zip(self._files, self._states, self._starts, strict=False):
            if (now := _state(file.path)) != state:
                what = "is gone" if now is None else "changed"
                raise DataError(f"{file.path} {what} since it was opened: open the table anew.")
            own_start, own_stop = max(start - first, 0), min(stop - first, file.num_rows)
            if own_start >= own_stop:
                continue
            for batch in file.rows(own_start, own_stop, schema.names, self.chunk_size):
                yield from (few for few, _ in pieces(_conform(batch, schema), self.chunk_size))

    @property
    def is_text(self) -> bool:
        """Whether all files are CSV, with the same columns in the same order and the same delimiter."""
        files = [file for file in self._files if isinstance(file, CsvFile)]
        alike = {(tuple(file.types), file.options.delimiter_of(file.path)) for file in files}
        return len(files) == len(self._files) and len(alike) == 1

    def text_files(self) -> Iterator[tuple[list[Record], pa.RecordBatch, str]]:
        """Records of CSV files as they are written, the same as text in Arrow, and the delimiter, some at a time.

        The first chunk of each file is its header, with no rows.
        """
        for file in self._files:
            assert isinstance(file, CsvFile)
            delimiter = file.options.delimiter_of(file.path)
            with open_text(file.path, file.options.encoding) as stream:
                for records, batch in read_chunks(stream, delimiter, self.chunk_size):
                    yield records, batch, delimiter

    def read(self) -> pa.Table:
        """The whole table in memory, a ``pyarrow.Table``."""
        return pa.Table.from_batches(list(self), schema=self.schema)

    def locate(self, row: int) -> tuple[Path, int]:
        """The file that holds a row of the table, and the number of the row in that file."""
        if not 0 <= row < self.num_rows:
            raise IndexError(f"row must be from 0 to {self.num_rows - 1}, but is {row}.")
        number = self._file_of(row)
        return self.paths[number], row - self._starts[number]

    def line_of(self, row: int) -> int | None:
        """The line of its file on which a row stands, counted from 1; None for rows that are not in a text file.

        Reads the file up to there.
        """
        return self._files[self._file_of(row)].line_of(self.locate(row)[1])

    def _file_of(self, row: int) -> int:
        return bisect.bisect_right(self._starts, row) - 1


def pieces(batch: pa.RecordBatch, size: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """A record batch in pieces of this many rows at most, with their starts: what is made of each stays small."""
    return ((batch.slice(start, size), start) for start in range(0, batch.num_rows, size))


def is_text_encoding(name: str) -> bool:
    r"""Whether bytes can be read as text in this encoding: not so for codecs such as base64, zip or punycode.

    Example:
        >>> [is_text_encoding(name) for name in ("latin-1", "utf-16", "base64", "punycode", "no such", "\0")]
        [True, True, False, False, False, False]
    """
    try:
        io.TextIOWrapper(io.BytesIO(), encoding=name)
        codecs.getincrementaldecoder(name)().decode(array("B", b"a,b\n"))  # what is no bytes, as Arrow passes it
    except UnicodeError:
        return name != "undefined"  # these bytes are none of its, but others may be
    except (LookupError, ValueError, TypeError, AttributeError):
        return False
    return True


def _expand(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The files meant by a path, a directory or a sequence of them."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise DataError("There are no files to read.")
    files: list[Path] = []
    for path in map(Path, given):
        if path.is_dir():
            # Names that begin so are notes that other programs leave beside their Parquet files.
            inside = sorted(file for file in path.iterdir() if not file.name.startswith(("_", ".")))
            # A link to a file that is not there is a part of the table that is missing: opening it fails.
            inside = [file for file in inside if file.is_file() or (file.is_symlink() and not file.exists())]
            parquet, text = (
                [file for file in inside if file.name.lower().endswith(endings)]
                for endings in (_PARQUET_ENDINGS, _CSV_ENDINGS)
            )
            if parquet and text:
                raise DataError(
                    f"The directory {path} has Parquet files (such as {parquet[0].name}) and CSV files (such as "
                    f"{text[0].name}), which may hold the same rows: name the files to read."
                )
            if not parquet and not text:
                raise DataError(
                    f"The directory {path} has no files that end in {', '.join(_PARQUET_ENDINGS + _CSV_ENDINGS)}; "
                    "directories inside it are not searched."
                )
            files += parquet + text
        elif path.exists():
            files.append(path)
        else:
            raise DataError(f"There is no file {path}.")
    return files


def _notes_on_repeats(files: Sequence[Path]) -> list[str]:
    """A sentence on each file that is given more than once, under this or another name."""
    names: dict[Path, list[str]] = {}
    for file in files:
        names.setdefault(file.resolve(), []).append(str(file))
    return [
        f"{given[0]} is read {len(given)} times, so that its rows count as often"
        + (f" (also as {listed(sorted({*given} - {given[0]}))})." if len({*given}) > 1 else ".")
        for given in names.values()
        if len(given) > 1
    ]


def _notes_on_zeros(files: Sequence[CsvFile]) -> list[str]:
    """A sentence on each column of whole numbers whose first rows have zeros before them."""
    found: dict[str, str] = {}
    for file in files:
        for batch in islice(file.first_texts(), 2):  # the header, and rows
            for name, kind in file.types.items():
                if pa.types.is_integer(kind) and (text := leading_zero(batch.column(name))):
                    found.setdefault(name, text)
    return [note_on_zero(name, text) for name, text in found.items()]


def _open(path: Path, options: CsvOptions, columns: Sequence[str] | None) -> TableFile:
    name = path.name.lower()
    named_parquet, named_memory = name.endswith(_PARQUET_ENDINGS), name.endswith(_MEMORY_ENDINGS)
    if not named_parquet and not named_memory and not name.endswith(_CSV_ENDINGS):
        raise DataError(
            f"The name of {path} does not show what kind of table it is: save it as CSV or Parquet, with a name that "
            f"ends in {', '.join(_CSV_ENDINGS + _PARQUET_ENDINGS + _MEMORY_ENDINGS)}."
        )
    try:
        with open(path, "rb") as opened:
            beginning = opened.read(4096)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    if not beginning:
        raise DataError(f"{path} is empty (0 bytes): remove it or fetch it again.")
    if named_memory:
        file: TableFile = MemoryFile(path, columns)
    else:
        found = "a Parquet file" if beginning.startswith(b"PAR1") else _guess(beginning, options.encoding)
        if named_parquet:
            found = None if found == "a Parquet file" else found or "something else"
        if found == _UTF_16 and not named_parquet:
            raise DataError(
                f"{path} is text in UTF-16: save it as UTF-8,",
                "or pass its encoding, encoding='utf-16'.",
                code="wrong_encoding",
                encoding="utf-16",
            )
        if found is not None:
            raise DataError(f"{path} is not {'Parquet' if named_parquet else 'CSV'} as its name has it, but {found}.")
        file = ParquetFile(path, columns) if named_parquet else CsvFile.settle(path, options, columns)
    if not file.types:
        raise DataError(f"{path} has no columns.")
    check_number_of_columns(len(file.types), str(path))
    if file.num_rows == 0:
        raise DataError(f"{path} has a header but no rows: remove it or fetch it again.")
    return file


def _guess(beginning: bytes, encoding: str) -> str | None:
    """The kind of a file that should be text but seems to be something else; None if it may well be text."""
    if encoding.lower().replace("-", "").startswith(("utf16", "utf32")):
        return None
    for magic, what in _BEGINNINGS:
        if beginning.startswith(magic):
            return what
    if beginning.startswith(b"\x1f\x8b"):
        return None
    start = beginning.lstrip()[:20].lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page or XML: the download may need a login"
    if b"\x00" in beginning:
        return "binary data"
    return None


def _state(path: Path) -> tuple[int, int] | None:
    """Size and time of a file; None if it is not there."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if batch.schema.equals(schema):
        return batch
    arrays = []
    for field in schema:
        values = without_views(batch.column(field.name))
        if pa.types.is_dictionary(values.type) and not pa.types.is_dictionary(field.type):
            values = values.dictionary_decode()
        # Large integers may lose digits as floats, as they do in any column of numbers.
        arrays.append(values if values.type == field.type else pc.cast(values, field.type, safe=False))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
