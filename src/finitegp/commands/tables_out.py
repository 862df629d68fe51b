"""Tables written chunk by chunk: CSV, gzipped or not, and Parquet."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from ..atomic import complete_or_absent
from ..errors import DataError

ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".parquet", ".pq")


def check_ending(path: Path) -> Path:
    """``path``, if its name shows how the table is to be written."""
    if str(path) != "-" and not path.name.lower().endswith(ENDINGS):
        raise DataError(f"{path} has no known ending: give the table a name that ends in {', '.join(ENDINGS)}.")
    return path


class BatchWriter(Protocol):
    """A writer of a table."""

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write more rows."""


@contextmanager
def table_writer(path: Path, schema: pa.Schema, *, overwrite: bool = True) -> Iterator[BatchWriter]:
    """A writer of the table at ``path``, complete or not at all."""
    name = path.name.lower()
    if str(path) == "-":
        with csv.CSVWriter(sys.stdout.buffer, schema) as writer:
            yield writer
        return
    with complete_or_absent(path, overwrite=overwrite) as temporary:
        if name.endswith((".parquet", ".pq")):
            with pq.ParquetWriter(temporary, schema) as writer:
                yield writer
        else:
            unwritable = [field.name for field in schema if pa.types.is_nested(field.type)]
            if unwritable:
                raise DataError(f"Column {unwritable[0]!r} holds lists, which CSV cannot: write .parquet instead.")
            options = csv.WriteOptions(delimiter="\t" if ".tsv" in name else ",")
            with ExitStack() as streams:
                stream = streams.enter_context(pa.OSFile(str(temporary), "wb"))
                if name.endswith(".gz"):
                    stream = streams.enter_context(pa.CompressedOutputStream(stream, "gzip"))
                yield streams.enter_context(csv.CSVWriter(stream, schema, write_options=options))


@contextmanager
def text_writer(path: Path, *, encoding: str = "utf8", overwrite: bool = True) -> Iterator[IO[str]]:
    """A text file, gzipped if its name ends so, that is there when it is complete; ``-`` is standard output."""
    if str(path) == "-":
        yield sys.stdout
        sys.stdout.flush()
        return
    with complete_or_absent(path, overwrite=overwrite) as temporary:
        opened = gzip.open if path.name.lower().endswith(".gz") else open
        with opened(temporary, "wt", encoding=encoding, newline="") as stream:
            yield stream
