"""``target_values``: the column that is to be predicted, as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..data.naming import Locator, locator_of, row_label, shortened, unknown_column
from ..errors import DataError
from .arrow_values import family, number_values, plain, record_batches
from .sketches import Gaps
from .text_values import parse_numbers, strange_texts


def target_values(
    data: Any, name: str, *, first_row: int = 0, source: Locator | None = None, allow_constant: bool = False
) -> npt.NDArray[np.float64]:
    """The targets of a chunk or a whole table as float64, ``(rows,)``; anything but finite numbers is an error.

    Args:
        data: A table or its chunks, as for `TableEncoder`.
        name: The name of the target column.
        first_row: Number of the first row, where ``data`` is one chunk of a larger table.
        source: What finds a row in its file, for error messages; by default ``data``, if it can.
        allow_constant: Do not check that the targets differ, because they need not within one chunk.

    Example:
        >>> target_values({"size": [1, 2], "price": ["3.5", "4"]}, "price").tolist()
        [3.5, 4.0]
    """
    source = locator_of(data) if source is None else source
    parts = []
    gaps = Gaps()
    row = first_row
    for batch in record_batches(data):
        if name not in batch.schema.names:
            raise DataError(unknown_column(name, batch.schema.names))
        values = _numbers(plain(batch.column(batch.schema.get_field_index(name))), name, row, source)
        missing = np.isnan(values)
        gaps.add(missing, np.isinf(values), row)
        parts.append(values)
        row += len(values)
    if row == first_row:
        raise DataError(f"The table has no rows, so there are no targets {name!r}.")
    for count, word, first in (
        (gaps.missing, "missing", gaps.first_missing),
        (gaps.infinite, "infinite", gaps.first_infinite),
    ):
        if count:
            raise DataError(
                f"The target {name!r} is {word} in {count} of {row - first_row} rows, first in "
                f"{row_label(first, source)}: remove these rows, because there is nothing to learn from them."
            )
    targets = np.concatenate(parts)
    if not allow_constant and targets.min() == targets.max():
        raise DataError(
            f"The target {name!r} is {targets[0]:.6g} in every row, so there is nothing to predict: choose another "
            "column."
        )
    return targets


def _numbers(array: Any, name: str, first_row: int, source: Locator | None) -> npt.NDArray[np.float64]:
    found = family(array.type)
    if found in ("number", "boolean", "empty"):
        return number_values(array)
    if found in ("date", "time"):
        raise DataError(
            f"The target {name!r} holds dates or times ({array.type}): turn it into a number first, such as the days "
            "since a fixed date, in a column of its own."
        )
    if found == "other":
        raise DataError(f"The target {name!r} has the type {array.type}, but must be numbers.")
    values = parse_numbers(array)
    strange = strange_texts(array, np.isnan(values))
    if len(strange):
        row = int(strange[0])
        raise DataError(
            f"The target {name!r} must be numbers, but {row_label(first_row + row, source)} holds "
            f"{shortened(array[row].as_py())}: correct the value, or choose another target."
        )
    return values
