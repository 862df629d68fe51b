"""Rows of tables in files: CSV and Parquet, one file, many or a directory."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from ..arguments import check_arguments, check_chunk_size
from ..data.arrays import check_rows
from ..data.naming import check_columns, listed
from ..data.sources import Rows, Source
from ..errors import DataError
from ..statistics import WHOLE, Share
from .arrow_values import family, number_values, plain
from .encoder import TableEncoder
from .reader import TableReader, pieces
from .summaries import TransformReport
from .targets import target_values


@check_arguments
class TableSource(Source):
    r"""Rows of CSV or Parquet files, read chunk by chunk in any number of passes; memory does not grow with the rows.

    The rows come in the order of the files, which may be sorted. Exact passes do not mind. ``train`` needs uniform
    random batches and spools the rows into a temporary file first; :func:`finitegp.data.spool` keeps that file.

    Args:
        table: A :class:`~finitegp.tables.reader.TableReader`, or what it takes: a file, several, or a directory.
        target: The column to predict, or several; None for new rows, which have none.
        weights: A column of positive row weights.
        counts: A column of how many equal rows each row stands for.
        encoder: Turns the other columns into numbers, and settles what to do about missing values; without one they
            must all be numbers without gaps.
        chunk_size: Rows per chunk.

    Attributes:
        table: The reader.
        report: Unusual values that the encoder met in the last pass; None without an encoder.

    Example:
        >>> import tempfile
        >>> directory = tempfile.TemporaryDirectory()
        >>> path = Path(directory.name) / "parts.csv"
        >>> _ = path.write_text("length,width,price\n1,2,10\n2,2,20\n3,1,30\n")
        >>> source = TableSource(path, "price")
        >>> source.column_names, source.num_data, [rows.inputs.tolist() for rows in source]
        (['length', 'width'], 3, [[[1.0, 2.0], [2.0, 2.0], [3.0, 1.0]]])
        >>> directory.cleanup()
    """

    num_data: int
    input_dim: int
    num_targets: int
    column_names: list[str]
    chunk_size: int

    def __init__(
        self,
        table: TableReader | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        target: str | Sequence[str] | None,
        *,
        weights: str | None = None,
        counts: str | None = None,
        encoder: TableEncoder | None = None,
        chunk_size: int = 4096,
    ) -> None:
        self.chunk_size = check_chunk_size(chunk_size)
        self.table = table if isinstance(table, TableReader) else TableReader(table, chunk_size=max(chunk_size, 8192))
        self.targets = [target] if isinstance(target, str) else list(target or ())
        self.weights = weights
        self.counts = counts
        self.encoder = encoder
        # Shared with sources of the same rows in other chunks.
        self._reports: list[TransformReport] = []
        names = self.table.column_names
        numbers = {kind: name for kind, name in (("weights", weights), ("counts", counts)) if name is not None}
        special = [*self.targets, *numbers.values()]
        needed = [*special, *([] if encoder is None else encoder.required_columns)]
        check_columns(needed, names)
        if not self.targets and target is not None:
            raise DataError("target must name at least one column.")
        for kind, name in numbers.items():
            if family(self.table.schema.field(name).type) != "number":
                raise DataError(f"The {kind} {name!r} must be numbers, but are {self.table.schema.field(name).type}.")
        self._plain_columns = [name for name in names if name not in special]
        if encoder is None:
            self._check_numbers()
            self.column_names = self._plain_columns
        else:
            taken = [name for name in encoder.required_columns if name in special]
            if taken:
                raise DataError(
                    f"The encoder uses {listed(taken)} as an input, which is a target, the weights or the counts: fit "
                    f"it with exclude={special!r}."
                )
            self.column_names = encoder.feature_names_out
        self.num_data = self.table.num_rows
        self.input_dim = len(self.column_names)
        self.num_targets = len(self.targets)

    @property
    def report(self) -> TransformReport | None:
        """Unusual values that the encoder met in the last pass; None without an encoder."""
        return self._reports[-1] if self._reports else None

    @property
    def reading_bytes(self) -> int:  # type: ignore[override]
        """Memory that the reader takes besides the chunks."""
        return self.table.reading_bytes

    def __len__(self) -> int:
        return self.num_data

    def __iter__(self) -> Iterator[Rows]:
        return self.part(WHOLE)

    def part(self, share: Share) -> Iterator[Rows]:
        """One pass over a share of the rows, which are neighbours; Parquet files are read only where these are."""
        self._reports[:] = [] if self.encoder is None else [TransformReport(source=self.table)]
        own = share.cut(self.num_data)
        row = own.start
        for batch in self.table.rows(own.start, own.stop):
            for part, _ in pieces(batch, self.chunk_size):
                yield self._rows(part, row)
                row += part.num_rows
        if row != own.stop:
            raise DataError(f"The table changed between passes: {own.stop} rows before, {row} rows now.")

    def locate(self, row: int) -> tuple[Path, int]:
        """The file that holds a row, and the number of the row in that file."""
        return self.table.locate(row)

    def line_of(self, row: int) -> int | None:
        """The line of its file on which a row stands; None for rows of Parquet files."""
        return self.table.line_of(row)

    def fingerprint(self) -> dict[str, object]:
        """The columns and how they are encoded."""
        encoder = None
        if self.encoder is not None:
            encoder = hashlib.sha256(json.dumps(self.encoder.to_dict(), sort_keys=True).encode()).hexdigest()
        return {
            "kind": "table",
            "inputs": self.column_names,
            "targets": self.targets,
            "weights": self.weights,
            "counts": self.counts,
            "encoder": encoder,
        }

    def files(self) -> list[Path]:
        """The files of the table."""
        return list(self.table.paths)

    def _rows(self, batch: pa.RecordBatch, first_row: int) -> Rows:
        def numbers(name: str) -> npt.NDArray[np.float64]:
            return number_values(plain(batch.column(name)))

        if self.encoder is None:
            inputs = np.empty((batch.num_rows, len(self._plain_columns)))
            for column, name in enumerate(self._plain_columns):
                inputs[:, column] = numbers(name)
        else:
            inputs = self.encoder.transform(batch, self.report)
        targets = np.empty((batch.num_rows, self.num_targets))
        for column, name in enumerate(self.targets):
            # Within a chunk of a sorted file the targets may well be all the same.
            targets[:, column] = target_values(batch, name, first_row=first_row, source=self.table, allow_constant=True)
        weights, counts = (
            None if name is None else torch.from_numpy(numbers(name).copy()) for name in (self.weights, self.counts)
        )
        return check_rows(
            torch.from_numpy(inputs),
            torch.from_numpy(targets) if self.targets else None,
            weights,
            counts,
            numbers=first_row,
            column_names=self.column_names,
            places=[self.table] * 4,
        )

    def _check_numbers(self) -> None:
        if not self._plain_columns:
            raise DataError("The table has no columns besides the targets, weights and counts.")
        kinds = {name: family(self.table.schema.field(name).type) for name in self._plain_columns}
        other = [name for name, kind in kinds.items() if kind not in ("number", "boolean", "empty")]
        if other:
            raise DataError(
                f"These columns are not numbers: {listed(other)} ({self.table.schema.field(other[0]).type}). Pass "
                "encoder=TableEncoder.fit(reader, exclude=…), or leave them out with TableReader(…, columns=[…])."
            )
