"""Which rows of a table belong together, and which come after which, by a column."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import DataError
from .arrow_values import number_values
from .columns import DateColumn, NumberColumn
from .profiles import ColumnOptions, ColumnProfile
from .rows import TableRows


def groups_of(rows: TableRows, column: str | None) -> npt.NDArray[np.int64]:
    """A number for each row, equal for rows of one value in a column; without one, for copies of one another."""
    if column is None:
        return rows.copies()
    array = rows.column(column).combine_chunks()
    encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode(null_encoding="encode")
    codes: npt.NDArray[np.int64] = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def order_of(rows: TableRows, column: NumberColumn | DateColumn) -> npt.NDArray[np.float64]:
    """The values of a column whose encoding is settled: numbers, or microseconds since 1970; NaN where missing."""
    cells = column.read(rows.column(column.name))
    return np.where(cells.gaps, np.nan, cells.values.astype(np.float64))


def order_by(rows: TableRows, name: str, options: ColumnOptions) -> npt.NDArray[np.float64]:
    """The values of a column that orders all rows: numbers or dates, however they are written."""
    array = rows.column(name).combine_chunks()
    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        values = number_values(array)
    else:
        profile = ColumnProfile(name, options)
        profile.add(array, 0)
        column = profile.verdict(max_one_hot=1).column
        if not isinstance(column, NumberColumn | DateColumn):
            raise DataError(f"Column {name!r} holds neither numbers nor dates, so rows have no order by it.")
        values = order_of(rows, column)
    if np.isnan(values).any():
        first = rows.label(int(np.flatnonzero(np.isnan(values))[0]))
        raise DataError(f"Column {name!r}, by which to split, has no value in {first}: correct it, or split otherwise.")
    return values
