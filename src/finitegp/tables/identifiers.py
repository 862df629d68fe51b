"""Whole numbers that name something instead of measuring it: row numbers, keys, codes."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .sketches import MAX_CATEGORIES

_UNNAMED = re.compile(
    r"^\s*$|^unnamed(: ?\d+)?$|^\.\.\.\d+$|^(row_?names?|row_?(num|number|id|nr|no)|index|idx|obs)$", re.I
)
_NAMES = re.compile(
    r"(^|[\s_.-])(id|ids|uid|uuid|guid|key|code|cod|index|idx|nr|no)$|^id([\s_.-]|code)|(code|cod|_id)$"
    r"|(customer|person|patient|user|order|item|product|subject|student|household|firm|account|record|case)(id|no|nr)$"
    r"|^(zip|postcode)$",
    re.I,
)
_CAMEL = re.compile(r"[a-z](Id|ID|Key|Code|Nr)$")
_TIMES = re.compile(r"year|yr|month|day|week|hour|minute|second|time|date|quarter|period|age|^t$", re.I)
# With fewer rows, different numbers are no sign of anything.
_FEWEST_ROWS = 10
# Whole numbers from 0 or 1 on that fill at least half of their range, in order, count rows; a sample of them too.
_DENSITY = 0.5


class IntegerSketch:
    """Which whole numbers a column holds, and whether they rise from row to row.

    Example:
        >>> sketch = IntegerSketch()
        >>> sketch.add(pa.array([3, 4, 9]), np.array([3.0, 4.0, 9.0]))
        >>> sketch.count, sketch.distinct, sketch.rises
        (3, 3, True)
    """

    def __init__(self) -> None:
        self.is_whole = True
        self.count = 0
        self.rises = True
        self.overflowed = False
        self.first: int | None = None
        self.last: int | None = None
        self._values: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def add(self, array: pa.Array, numbers: npt.NDArray[np.float64]) -> None:
        """The numbers of a chunk, in Arrow and as floats; of numbers that are not whole nothing more is known."""
        if not self.is_whole:
            return
        if pa.types.is_integer(array.type):
            # As floats, large keys would lose the digits in which they differ.
            values = pc.cast(array.drop_null(), pa.int64(), safe=False).to_numpy(zero_copy_only=False)
        else:
            known = numbers[~np.isnan(numbers)]
            whole = np.isfinite(known) & (known == np.floor(known)) & (abs(known) < 2.0**53)
            self.is_whole = bool(whole.all())
            values = known[whole].astype(np.int64)
        if len(values) == 0 or not self.is_whole:
            return
        self.rises = self.rises and bool((values[1:] > values[:-1]).all())
        self.rises = self.rises and (self.last is None or int(values[0]) > self.last)
        self.first, self.last = int(values[0]) if self.first is None else self.first, int(values[-1])
        self.count += len(values)
        if not self.overflowed:
            self._values = np.union1d(self._values, values)
            self.overflowed = len(self._values) > MAX_CATEGORIES

    @property
    def distinct(self) -> int:
        """Different numbers; of more than 100 000, all rows if they rise, otherwise those known."""
        return self.count if self.overflowed and self.rises else len(self._values)

    def names_rows(self, name: str) -> bool:
        """Whether a column of this name numbers or names its rows, so that there is nothing to learn from it."""
        if not self.is_whole or self.count < _FEWEST_ROWS or self.distinct < self.count:
            return False
        if _UNNAMED.search(name) or is_key(name):
            return True
        low, high = int(self._values.min()), int(self._values.max())
        if self.overflowed and self.first is not None and self.last is not None:
            low, high = self.first, self.last
        counts = self.rises and low in (0, 1) and self.count >= _DENSITY * (high - low + 1)
        return counts and not _TIMES.search(name)

    def names_groups(self, name: str) -> bool:
        """Whether a column of this name holds codes of things that have several rows each: categories, not amounts."""
        several = self.count >= _FEWEST_ROWS and 3 <= self.distinct <= self.count / 1.5
        return self.is_whole and several and is_key(name) and not self.overflowed


def is_key(name: str) -> bool:
    """Whether a name is one that people give to keys and codes.

    Example:
        >>> [name for name in ("customer_id", "idcode", "distcod", "userId", "paid", "grid") if is_key(name)]
        ['customer_id', 'idcode', 'distcod', 'userId']
    """
    return bool(_NAMES.search(name.strip()) or _CAMEL.search(name.strip()))
