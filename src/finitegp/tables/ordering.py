"""Which training rows belong together, and which come after which, by a column: one pass over it, or two."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import DataError
from .arrow_values import number_values, plain
from .columns import DateColumn, NumberColumn
from .profiles import ColumnOptions, ColumnProfile
from .training_rows import TrainingRows


def groups_of(training: TrainingRows, name: str) -> npt.NDArray[np.int64]:
    """A number for each row, equal for rows of one value in a column, in the order in which values come first."""
    # Eight bytes of a value stand for it: two of a million values share them with probability 3e-8.
    keys, first = np.empty(training.num_rows, dtype=np.uint64), 0
    for array in training.column(name):
        encoded = plain(array).dictionary_encode(null_encoding="encode")
        texts = pc.cast(encoded.dictionary, pa.large_string()).to_pylist()
        known = np.array([_key(text) for text in texts], dtype=np.uint64)
        keys[first : first + len(array)] = known[encoded.indices.to_numpy(zero_copy_only=False)]
        first += len(array)
    _, firsts, codes = np.unique(keys, return_index=True, return_inverse=True)
    order = np.empty(len(firsts), dtype=np.int64)
    order[np.argsort(firsts)] = np.arange(len(firsts))
    return order[codes]


def _key(text: str | None) -> int:
    if text is None:
        return 0
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def order_of(training: TrainingRows, column: NumberColumn | DateColumn) -> npt.NDArray[np.float64]:
    """The values of a column whose encoding is settled: numbers, or microseconds since 1970; NaN where missing."""
    values, first = np.empty(training.num_rows), 0
    for array in training.column(column.name):
        cells = column.read(array)
        values[first : first + len(array)] = np.where(cells.gaps, np.nan, cells.values.astype(np.float64))
        first += len(array)
    return values


def order_by(training: TrainingRows, name: str, options: ColumnOptions) -> npt.NDArray[np.float64]:
    """The values of a column that orders all rows: numbers or dates, however they are written."""
    profile, first, numbers = ColumnProfile(name, options), 0, True
    values = np.empty(training.num_rows)
    for array in training.column(name):
        numbers = pa.types.is_integer(array.type) or pa.types.is_floating(array.type)
        if numbers:
            values[first : first + len(array)] = number_values(array)
        else:
            profile.add(array, first)
        first += len(array)
    if not numbers:
        column = profile.verdict(max_one_hot=1).column
        if not isinstance(column, NumberColumn | DateColumn):
            raise DataError(f"Column {name!r} holds neither numbers nor dates, so rows have no order by it.")
        values = order_of(training, column)
    if np.isnan(values).any():
        place = training.label(training.number(int(np.flatnonzero(np.isnan(values))[0])))
        raise DataError(f"Column {name!r}, by which to split, has no value in {place}: correct it, or split otherwise.")
    return values
