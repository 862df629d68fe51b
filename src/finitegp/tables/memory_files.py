"""Files that are read as a whole: Arrow (Feather) files and Excel workbooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import feather

from ..data.naming import check_unique, unknown_column
from ..errors import DataError

ENDINGS = (".feather", ".arrow", ".xlsx")


class MemoryFile:
    """One Arrow file, or the first sheet of an Excel workbook, in memory."""

    def __init__(self, path: Path, columns: Sequence[str] | None) -> None:
        self.path = path
        table = _read_sheet(path) if path.name.lower().endswith(".xlsx") else _read_arrow(path)
        check_unique(table.column_names, str(path))
        for name in columns or ():
            if name not in table.column_names:
                raise DataError(unknown_column(name, table.column_names, str(path)))
        self._table = table if columns is None else table.select(list(columns))
        self.types = {field.name: field.type for field in self._table.schema}
        self.num_rows = self._table.num_rows

    def reading_bytes(self, chunk_size: int) -> int:
        """The bytes that the table takes."""
        return int(self._table.nbytes)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in record batches."""
        yield from self._table.to_batches()


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
