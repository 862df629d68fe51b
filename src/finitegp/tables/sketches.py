"""Sketches of a column from one pass over it, in bounded memory and whatever the chunks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..lite.hashing import SPLITMIX64_STEP, splitmix64
from ..lite.tables import DAY, NOT_A_MOMENT, calendar

RESERVOIR_SIZE = 16_384
MAX_CATEGORIES = 100_000
# Of all categories of a column together: long texts are no categories.
MAX_CATEGORY_BYTES = 1 << 24
# A value this many times the width of the middle half away from it is no value of a heavy tail.
_ABSURD = 1000.0
_FEWEST_FOR_ABSURD = 8


class Reservoir:
    """A uniform random sample of the values of a column, the same for any chunking.

    Every row number is hashed and the rows with the smallest hashes are kept: up to ``size`` values the sample is all
    of them, and the median is exact.

    Example:
        >>> sample = Reservoir(np.float64)
        >>> sample.add(np.arange(3), np.array([5.0, 1.0, 2.0]))
        >>> sample.middle()
        (2.0, 2.0)
    """

    def __init__(self, kind: type[np.float64] | type[np.int64], size: int = RESERVOIR_SIZE) -> None:
        self.size = size
        self.count = 0
        self._keys = np.empty(0, dtype=np.uint64)
        self._values = np.empty(0, dtype=kind)

    @property
    def is_exact(self) -> bool:
        """Whether all values are in the sample."""
        return self.count <= self.size

    @property
    def values(self) -> npt.NDArray[Any]:
        """The sample, in no order."""
        return self._values

    def add(self, rows: npt.NDArray[np.int64], values: npt.NDArray[np.float64] | npt.NDArray[np.int64]) -> None:
        """Values and the numbers of their rows."""
        self.count += len(rows)
        # Different row numbers have different hashes, so there are no ties.
        keys: npt.NDArray[np.uint64] = splitmix64(rows.astype(np.uint64) + np.uint64(SPLITMIX64_STEP))
        if len(self._keys) == self.size:
            # In a long column nearly all rows are turned away here.
            low = keys < self._keys.max()
            keys, values = keys[low], values[low]
        keys = np.concatenate([self._keys, keys])
        values = np.concatenate([self._values, values])
        if len(keys) > self.size:
            kept = np.argpartition(keys, self.size - 1)[: self.size]
            keys, values = keys[kept], values[kept]
        self._keys, self._values = keys, values

    def quantiles(self, count: int) -> list[float | int]:
        """Values of the sample that stand for equal shares of it, lowest first, each once."""
        ordered = np.sort(self._values)
        places = ((np.arange(count) + 0.5) / count * len(ordered)).astype(np.int64)
        return [each.item() for each in np.unique(ordered[places])] if len(ordered) else []

    @property
    def distinct(self) -> int:
        """Different values in the sample."""
        return len(np.unique(self._values))

    def middle(self) -> tuple[float | int, float | int]:
        """The two middle values of the sample: equal if their number is odd."""
        half = len(self._values) // 2
        ordered = np.sort(self._values)
        return ordered[half - (len(ordered) % 2 == 0)].item(), ordered[half].item()


@dataclass
class Gaps:
    """How many values cannot be used, and where the first is."""

    missing: int = 0
    first_missing: int = -1
    infinite: int = 0
    first_infinite: int = -1

    @classmethod
    def of(cls, missing: npt.NDArray[np.bool_], infinite: npt.NDArray[np.bool_] | None, first_row: int) -> Gaps:
        """The marked rows of a chunk."""
        found = cls()
        found.add(missing, infinite, first_row)
        return found

    def add(
        self, missing: npt.NDArray[np.bool_], infinite: npt.NDArray[np.bool_] | None = None, first_row: int = 0
    ) -> None:
        """Count the marked rows of a chunk."""
        if missing.any():
            self.first_missing = self.first_missing if self.missing else first_row + int(np.argmax(missing))
            self.missing += int(np.count_nonzero(missing))
        if infinite is not None and infinite.any():
            self.first_infinite = self.first_infinite if self.infinite else first_row + int(np.argmax(infinite))
            self.infinite += int(np.count_nonzero(infinite))

    def kinds(self) -> list[tuple[int, str, int]]:
        """Count, word and first row of each kind of gap that there is."""
        both = ((self.missing, "missing", self.first_missing), (self.infinite, "infinite", self.first_infinite))
        return [each for each in both if each[0]]

    @property
    def total(self) -> int:
        """Missing and infinite values."""
        return self.missing + self.infinite


class OutsideValues(NamedTuple):
    """Values of a column that lie clearly outside of what the fit saw.

    Attributes:
        number: How many.
        beyond: How far the farthest lies beyond the range of the fit, as a share of that range.
        farthest: It, as text.
        seen: The range, as text.
    """

    number: int
    beyond: float
    farthest: str
    seen: str


class NumberSketch:
    """Count, range, median and gaps of a column of numbers.

    Example:
        >>> sketch = NumberSketch()
        >>> sketch.add(np.array([1.0, np.nan, 4.0, np.inf]), first_row=10)
        >>> sketch.count, sketch.minimum, sketch.maximum, sketch.median(), sketch.gaps.first_infinite
        (2, 1.0, 4.0, 2.5, 13)
    """

    def __init__(self) -> None:
        self.count = self.ones = 0
        self.minimum, self.maximum = np.inf, -np.inf
        self.first_minimum = self.first_maximum = -1
        self.gaps = Gaps()
        self.sample = Reservoir(np.float64)

    def add(self, values: npt.NDArray[np.float64], first_row: int) -> None:
        """One chunk: NaN is missing."""
        finite = np.isfinite(values)
        if finite.all():
            chosen = np.arange(first_row, first_row + len(values))
        else:
            missing = np.isnan(values)
            self.gaps.add(missing, ~finite & ~missing, first_row)
            chosen = np.flatnonzero(finite) + first_row
            values = values[finite]
        if len(values) == 0:
            return
        self.count += len(values)
        self.ones += int(np.count_nonzero(values == 1.0))
        low, high = int(values.argmin()), int(values.argmax())
        if values[low] < self.minimum:
            self.minimum, self.first_minimum = float(values[low]), int(chosen[low])
        if values[high] > self.maximum:
            self.maximum, self.first_maximum = float(values[high]), int(chosen[high])
        self.sample.add(chosen, values)

    def absurd_row(self) -> int | None:
        """The row of a value that is a thousand times as far from the middle half of the values as that is wide."""
        if self.count < _FEWEST_FOR_ABSURD:
            return None
        low, high = np.quantile(self.sample.values, [0.25, 0.75]).tolist()
        reach = min(_ABSURD * (high - low), 1e300)
        if reach > 0 and self.maximum > high + reach:
            return self.first_maximum
        return self.first_minimum if reach > 0 and self.minimum < low - reach else None

    def median(self) -> float:
        """The median of the sample; halves are added, because the sum of two large values may overflow."""
        low, high = self.sample.middle()
        return float(low if low == high else 0.5 * low + 0.5 * high)


class MomentSketch:
    """Count, range, median, gaps and which parts vary of a column of moments in microseconds since 1970."""

    def __init__(self) -> None:
        self.count = 0
        self.minimum = np.iinfo(np.int64).max
        self.maximum = NOT_A_MOMENT
        self.days_of_year = np.zeros(367, dtype=bool)
        self.weekdays = np.zeros(7, dtype=bool)
        self.first_time, self.last_time = 86_400_000_000, -1
        self.only_months = True
        self.gaps = Gaps()
        self.sample = Reservoir(np.int64)

    def add(self, moments: npt.NDArray[np.int64], first_row: int) -> None:
        """One chunk: ``NOT_A_MOMENT`` is missing."""
        good = moments != NOT_A_MOMENT
        self.gaps.add(~good, None, first_row)
        moments = moments[good]
        if len(moments) == 0:
            return
        self.count += len(moments)
        self.minimum = min(self.minimum, int(moments.min()))
        self.maximum = max(self.maximum, int(moments.max()))
        parts = calendar(moments)
        self.days_of_year[parts.day_of_year] = True
        self.weekdays[parts.weekday] = True
        days = (moments // DAY).astype("datetime64[D]")
        self.only_months = self.only_months and bool((days == days.astype("datetime64[M]")).all())
        self.first_time = min(self.first_time, int(parts.time_of_day.min()))
        self.last_time = max(self.last_time, int(parts.time_of_day.max()))
        self.sample.add(np.flatnonzero(good) + first_row, moments)

    def median(self) -> int:
        """The lower middle of the sample."""
        return int(self.sample.middle()[0])


@dataclass
class CategoryCounter:
    """How often each text occurs, until there are too many different ones.

    Example:
        >>> counter = CategoryCounter()
        >>> counter.add(["b", "a", "c"], [1, 2, 1])
        >>> counter.by_frequency()
        [('a', 2), ('b', 1), ('c', 1)]
    """

    counts: dict[str, int] = field(default_factory=dict)
    count: int = 0
    num_bytes: int = 0
    overflowed: bool = False

    def add(self, texts: Iterable[str], counts: Iterable[int]) -> None:
        """Different texts with their counts."""
        for text, count in zip(texts, counts, strict=True):
            self.count += count
            if self.overflowed:
                continue
            before = self.counts.get(text, 0)
            self.counts[text] = before + count
            if before == 0:
                self.num_bytes += len(text.encode())
                if len(self.counts) > MAX_CATEGORIES or self.num_bytes > MAX_CATEGORY_BYTES:
                    self.overflowed = True
                    self.counts = {}

    def by_frequency(self) -> list[tuple[str, int]]:
        """Texts and counts, the most frequent first; equal counts in the order of the alphabet."""
        return sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))


# Whole numbers that name something instead of measuring it: row numbers, keys, codes

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
        self.is_whole = self.rises = True
        self.count = 0
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
            values = np.asarray(pc.cast(array.drop_null(), pa.int64(), safe=False))
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
