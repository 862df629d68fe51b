"""Users' tables as Arrow record batches, and Arrow's values as NumPy numbers."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike

from ..data.naming import check_unique, listed, shortened, unknown_column
from ..errors import DataError
from ..lite.tables import NOT_A_MOMENT

if TYPE_CHECKING:
    import pandas

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class ArrowStream(Protocol):
    """A table that other libraries of Arrow can read, such as those of pandas, Polars and DuckDB."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The capsule of the stream."""


# What is read as a table: see :func:`record_batches`, which files have to be opened for.
_Chunk = ArrayLike | ArrowStream | Mapping[str, object] | os.PathLike[str]
TableLike = _Chunk | Iterable[_Chunk]


def record_batches(data: TableLike) -> Iterator[pa.RecordBatch]:
    """The rows of anything that is a table, as Arrow record batches, without views and extension types.

    Args:
        data: A pandas data frame, an Arrow table or record batch, anything with the Arrow stream protocol, a mapping
            of names to columns, a NumPy array ``(rows, columns)`` (the names are ``x0``, ``x1``, …), or an iterable of
            these, such as `TableReader`.

    Example:
        >>> [batch.schema.names for batch in record_batches(np.zeros((3, 2)))]
        [['x0', 'x1']]
    """
    for batch in _batches(data):
        if not batch.num_columns:
            raise DataError("The table has no columns.")
        yield pa.RecordBatch.from_arrays([without_views(column) for column in batch.columns], batch.schema.names)


def _batches(data: TableLike) -> Iterator[pa.RecordBatch]:
    if isinstance(data, pa.RecordBatch):
        check_unique(data.schema.names, "The table")
        yield data
    elif isinstance(data, pa.Table):
        check_unique(data.schema.names, "The table")
        yield from data.to_batches()
    elif hasattr(data, "iloc") and hasattr(data, "columns"):
        yield _from_pandas(data)
    elif hasattr(data, "name") and hasattr(data, "to_frame"):
        raise DataError(
            "The table is a Series, one row or one column of a data frame: pass a frame, for a row df.iloc[[0]] in "
            "place of df.iloc[0]."
        )
    elif isinstance(data, Mapping):
        names = [str(name) for name in data]
        check_unique(names, "The mapping")
        columns = [_column_of(values, name) for values, name in zip(data.values(), names, strict=True)]
        try:
            table = pa.table(columns, names=names)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise DataError(f"The mapping is not a table of columns of equal length: {error}.") from None
        yield from table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    elif isinstance(data, np.ndarray):
        if data.ndim != 2:
            raise DataError(f"A NumPy table must be (rows, columns), but has shape {data.shape}.")
        names = [f"x{number}" for number in range(data.shape[1])]
        arrays = [_array_of(column, name) for column, name in zip(data.T, names, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=names)
    elif isinstance(data, io.IOBase):
        raise DataError("The table is an open file: pass its name.")
    elif hasattr(data, "detach"):
        yield from _batches(data.detach().cpu().numpy())
    elif hasattr(data, "__arrow_c_stream__"):
        yield from _batches(pa.table(data))
    elif hasattr(data, "to_arrow"):  # polars before it had a stream
        yield from _batches(data.to_arrow())
    elif isinstance(data, str | os.PathLike):
        raise DataError(f"The table is the name of a file: open it with TableReader({str(data)!r}) first.")
    elif hasattr(data, "toarray"):
        raise DataError(f"A table must be dense, but is a {_name(data)}: pass X.toarray().")
    elif isinstance(data, Iterable):
        for chunk in data:
            if isinstance(chunk, str | bytes | int | float | list | tuple):
                raise DataError(
                    f"A table must come in chunks such as Arrow record batches, but one is a {_name(chunk)}: make an "
                    "array or a data frame of lists of rows."
                )
            yield from _batches(chunk)
    else:
        advice = ": call its method collect() first" if hasattr(data, "collect") else ""
        kinds = "a data frame, an Arrow table, a mapping, an array or chunks of these"
        raise DataError(f"A table must be {kinds}, but is a {_name(data)}{advice}.")


def check_columns(names: Iterable[str], columns: Sequence[str], where: str = "the table") -> None:
    """An error if one of some columns is not among those of a table."""
    absent = [name for name in names if name not in columns]
    if absent:
        more = f" Also absent: {listed(absent[1:])}." if len(absent) > 1 else ""
        raise DataError(unknown_column(absent[0], columns, where) + more)


def _name(value: object) -> str:
    return type(value).__name__


def _from_pandas(frame: pandas.DataFrame) -> pa.RecordBatch:
    names = [str(name) for name in frame.columns]
    check_unique(names, "The data frame")
    arrays = [_array_of(frame.iloc[:, number], name) for number, name in enumerate(names)]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _column_of(values: object, name: str) -> pa.Array | pa.ChunkedArray:
    """One column of a mapping as an Arrow array."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise DataError(f"Column {name!r} must hold one value for each row, but is {shortened(values)}.")
    if getattr(values, "ndim", 1) != 1:
        raise DataError(f"Column {name!r} must hold one value for each row, but has shape {np.asarray(values).shape}.")
    values = values if hasattr(values, "__len__") else list(values)
    try:
        return pa.table({name: values}).column(0)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return _array_of(values if hasattr(values, "dtype") else np.fromiter(values, dtype=object), name)


def _array_of(values: npt.NDArray[Any] | pandas.Series, name: str) -> pa.Array:
    """One column as an Arrow array; columns of mixed objects become text."""
    try:
        array = pa.array(np.ascontiguousarray(values) if isinstance(values, np.ndarray) else values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        if hasattr(values, "sparse"):
            return _array_of(values.sparse.to_dense(), name)
        if getattr(values.dtype, "kind", "O") != "O":
            raise DataError(f"Column {name!r} has the type {values.dtype}, which cannot be used.") from None
        texts = [None if value is None or value != value else str(value) for value in values]
        array = pa.array(texts, pa.large_string())
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def plain(array: pa.Array) -> pa.Array:
    """An array without wrappings: no chunks, dictionary or extension type; text with 64-bit offsets."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        # First the values: Arrow decodes no dictionary of views.
        array = plain(array.dictionary).take(array.indices)
    return pc.cast(array, pa.large_string()) if is_text(array.type) else array


def without_views(array: pa.Array) -> pa.Array:
    """Values without views, of which Arrow can take no rows, and without extension types."""
    wanted = type_without_views(array.type)
    if wanted == array.type:
        return array
    array = plain(array)
    return array if array.type == wanted else pc.cast(array, wanted)


def type_without_views(kind: pa.DataType) -> pa.DataType:
    """The type of what :func:`without_views` makes of values."""
    return _without_views(kind) if "view" in str(kind) or isinstance(kind, pa.BaseExtensionType) else kind


def _without_views(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _without_views(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _without_views(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_views(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        made = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return made(_without_views(kind.value_type))
    return {"string_view": pa.large_string(), "binary_view": pa.large_binary()}.get(str(kind), kind)


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is one of Arrow's several types of text, perhaps in a dictionary."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    # Views of text are newer than the oldest Arrow that is supported, so they are known by their name.
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view")


def family(kind: pa.DataType) -> str:
    """The family of a plain type: ``number``, ``boolean``, ``text``, ``date``, ``time``, ``empty`` or ``other``.

    Example:
        >>> family(pa.int8()), family(pa.date32()), family(pa.list_(pa.int8()))
        ('number', 'date', 'other')
    """
    if pa.types.is_null(kind):
        return "empty"
    if pa.types.is_boolean(kind):
        return "boolean"
    if (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_duration(kind)
    ):
        return "number"
    if pa.types.is_large_string(kind):
        return "text"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "date"
    return "time" if pa.types.is_time(kind) else "other"


def number_values(array: pa.Array) -> npt.NDArray[np.float64]:
    """Numbers of any type, booleans and durations (in seconds) as float64; NaN where missing.

    Example:
        >>> number_values(pa.array([True, None])).tolist()
        [1.0, nan]
    """
    kind = array.type
    if pa.types.is_null(kind):
        return np.full(len(array), np.nan)
    if pa.types.is_float16(kind):
        return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.float64)
    scale = 1
    if pa.types.is_duration(kind):
        array, scale = pc.cast(array, pa.int64()), _PER_SECOND[kind.unit]
    values = pc.cast(array, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(values, dtype=np.float64) / scale if scale > 1 else np.asarray(values, dtype=np.float64)


def moment_values(array: pa.Array) -> npt.NDArray[np.int64]:
    """Dates and times as microseconds since 1970 (UTC), times of day since midnight; ``NOT_A_MOMENT`` where missing.

    Example:
        >>> moment_values(pa.array([1], pa.date32())).tolist()
        [86400000000]
    """
    if pa.types.is_null(array.type):
        return np.full(len(array), NOT_A_MOMENT, dtype=np.int64)
    if pa.types.is_time(array.type):
        moments = pc.cast(array, pa.time64("us"), safe=False)
    else:
        unit = pa.timestamp("us", tz=getattr(array.type, "tz", None))
        try:
            moments = pc.cast(array, options=pc.CastOptions(unit, allow_time_truncate=True))
        except pa.ArrowInvalid:
            raise DataError("a date or time is too far from 1970 to be counted in microseconds") from None
    filled = pc.fill_null(pc.cast(moments, pa.int64()), NOT_A_MOMENT)
    return np.asarray(filled.to_numpy(zero_copy_only=False), dtype=np.int64)


def text_values(array: pa.Array) -> pa.Array:
    """Values of any plain type as Arrow text, numbers in their shortest form.

    Example:
        >>> text_values(pa.array([2.0, 2.5, None])).to_pylist()
        ['2', '2.5', None]
    """
    if pa.types.is_floating(array.type):
        # A column of whole numbers with gaps is read as floats, yet its categories are whole numbers.
        texts = [
            None if value is None or value != value else repr(value).removesuffix(".0") for value in array.to_pylist()
        ]
        return pa.array(texts, pa.large_string())
    return array if pa.types.is_large_string(array.type) else pc.cast(array, pa.large_string())
