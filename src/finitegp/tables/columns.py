"""Columns whose encoding is settled: what each reads from a table and the numbers it makes of it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..data.naming import shortened
from ..errors import DataError
from .arrow_values import family, moment_values, number_values, plain, text_values
from .dates import PARTS, date_parts, part_names
from .sketches import MAX_CATEGORIES, MAX_CATEGORY_BYTES
from .text_values import NOT_A_MOMENT, parse_moments, parse_numbers, strange_texts

_FAMILY_WORDS = {
    "number": "numbers",
    "boolean": "true or false",
    "text": "text",
    "date": "dates",
    "time": "times of day",
    "other": "values of a type that cannot be used",
}
_MAX_NAME = 1_000_000


class MisfitError(Exception):
    """A chunk holds something in a column that its encoding cannot take: which row of the chunk, and what."""

    def __init__(self, row: int | None, message: str) -> None:
        super().__init__(message)
        self.row = row


@dataclass
class Cells:
    """The values of one column of a chunk and which of them cannot be used.

    Attributes:
        values: Numbers, moments or numbers of categories (-1 where a category is new), one per row.
        missing: Which rows have no value.
        infinite: Which rows have an infinite one.
        unseen: Texts of categories that are new, with their counts.
    """

    values: npt.NDArray[Any]
    missing: npt.NDArray[np.bool_]
    infinite: npt.NDArray[np.bool_] | None = None
    unseen: dict[str, int] = field(default_factory=dict)

    @property
    def gaps(self) -> npt.NDArray[np.bool_]:
        """Missing or infinite."""
        return self.missing if self.infinite is None else self.missing | self.infinite


@dataclass(frozen=True)
class FittedColumn(ABC):
    """One column of the table.

    Attributes:
        name: In the table.
        kind: What it holds.
        encoding: How it is turned into numbers; ``missing or not`` if only its gaps carry information.
        indicator: Whether there is an output column that says where values were missing.
        note: For the summary.
    """

    name: str
    kind: str
    encoding: str
    indicator: bool
    note: str

    type_name: ClassVar[str] = ""
    kinds: ClassVar[tuple[str, ...]] = ()
    encodings: ClassVar[tuple[str, ...]] = ()

    @property
    def value_names(self) -> list[str]:
        """The output columns without the indicator."""
        return []

    @property
    def outputs(self) -> list[str]:
        """The output columns."""
        return [*self.value_names, *([f"{self.name} missing"] if self.indicator else [])]

    @abstractmethod
    def read(self, array: Any) -> Cells:
        """The values in one column of a chunk, of any type that can be understood."""

    @abstractmethod
    def fill(self, cells: Cells) -> None:
        """Put the usual value where there is none."""

    @abstractmethod
    def encode(self, cells: Cells) -> npt.NDArray[np.float64]:
        """The output columns without the indicator, ``(rows, columns)``."""

    def to_dict(self) -> dict[str, Any]:
        """All there is to know, for JSON."""
        stored = {each.name: getattr(self, each.name) for each in fields(self)}
        return {"type": self.type_name} | {
            key: list(value) if isinstance(value, tuple) else value for key, value in stored.items()
        }


@dataclass(frozen=True)
class LeftOutColumn(FittedColumn):
    """A column that gives nothing."""

    type_name: ClassVar[str] = "left out"
    kinds: ClassVar[tuple[str, ...]] = ("constant", "identifier", "empty", "other")
    encodings: ClassVar[tuple[str, ...]] = ("left out",)

    def read(self, array: Any) -> Cells:
        """Nothing is looked at: every value counts as there."""
        return Cells(values=array, missing=np.zeros(len(array), dtype=bool))

    def fill(self, cells: Cells) -> None:
        """There is nothing to fill."""

    def encode(self, cells: Cells) -> npt.NDArray[np.float64]:
        """No columns."""
        return np.zeros((len(cells.missing), 0))


@dataclass(frozen=True)
class NumberColumn(FittedColumn):
    """Numbers as they are, and true or false as one and zero.

    Attributes:
        usual: The median, or the more frequent of true and false; put in where values are missing.
        words: Texts that stand for a missing value, besides the usual ones.
    """

    usual: float
    words: tuple[str, ...]

    type_name: ClassVar[str] = "number"
    kinds: ClassVar[tuple[str, ...]] = ("number", "boolean")
    encodings: ClassVar[tuple[str, ...]] = ("number", "missing or not")

    @property
    def value_names(self) -> list[str]:
        """The column itself."""
        return [self.name] if self.encoding == "number" else []

    def read(self, array: Any) -> Cells:
        """Numbers, booleans, or text that says them."""
        array = plain(array)
        found = family(array.type)
        if found in ("number", "boolean", "empty"):
            values = number_values(array).copy()
        elif found == "text":
            values = self._read_text(array)
        else:
            raise _wrong_family(self, array, found)
        missing = np.isnan(values)
        return Cells(values, missing, np.isinf(values))

    def _read_text(self, texts: Any) -> npt.NDArray[np.float64]:
        values = parse_numbers(texts)
        if self.kind == "boolean":
            words = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
            for word, value in (("true", 1.0), ("false", 0.0)):
                values[pc.fill_null(pc.equal(words, word), False).to_numpy(zero_copy_only=False)] = value
        strange = strange_texts(texts, np.isnan(values), self.words)
        if len(strange):
            raise _wrong_text(self, int(strange[0]), texts[int(strange[0])].as_py())
        return values

    def fill(self, cells: Cells) -> None:
        """The median, or the more frequent of true and false."""
        cells.values[cells.gaps] = self.usual

    def encode(self, cells: Cells) -> npt.NDArray[np.float64]:
        """The numbers."""
        return cells.values[:, None] if self.encoding == "number" else np.empty((len(cells.values), 0))


@dataclass(frozen=True)
class DateColumn(FittedColumn):
    """Dates and times by their parts.

    Attributes:
        usual: The median, in microseconds since 1970.
        parts: The parts that vary, out of ``PARTS``.
        words: Texts that stand for a missing value, besides the usual ones.
    """

    usual: int
    parts: tuple[str, ...]
    words: tuple[str, ...]

    type_name: ClassVar[str] = "date"
    kinds: ClassVar[tuple[str, ...]] = ("date", "time")
    encodings: ClassVar[tuple[str, ...]] = ("date parts", "missing or not")

    @property
    def value_names(self) -> list[str]:
        """The parts that vary."""
        return [f"{self.name} {part}" for part in part_names(self.parts)]

    def read(self, array: Any) -> Cells:
        """Dates and times, or ISO text that says them."""
        array = plain(array)
        found = family(array.type)
        if found in (self.kind, "empty"):
            moments = moment_values(array).copy()
        elif found == "text":
            moments = parse_moments(array) if self.kind == "date" else np.full(len(array), NOT_A_MOMENT)
            strange = strange_texts(array, moments == NOT_A_MOMENT, self.words)
            if len(strange):
                raise _wrong_text(self, int(strange[0]), array[int(strange[0])].as_py())
        else:
            raise _wrong_family(self, array, found)
        return Cells(moments, moments == NOT_A_MOMENT)

    def fill(self, cells: Cells) -> None:
        """The median."""
        cells.values[cells.missing] = self.usual

    def encode(self, cells: Cells) -> npt.NDArray[np.float64]:
        """The parts."""
        return date_parts(cells.values, self.parts)


@dataclass(frozen=True)
class CategoryColumn(FittedColumn):
    """Texts out of a known set.

    With few categories each has an output column that is one in its rows (``one-hot``). With many, that would be more
    columns than rows can teach, so there are two numbers instead (``rank``): the rank of the category by frequency,
    which keeps the frequent ones apart and puts the rare ones, of which little can be learnt, side by side at one end;
    and the logarithm of its frequency (of the count plus one), because how common something is often says something by
    itself (left out where all are equally frequent). A new category has zeros in all columns of a one-hot encoding,
    and stands at the rare end of the ranks.

    Attributes:
        categories: The most frequent first; it is put in where values are missing.
        counts: Their frequencies.
    """

    categories: tuple[str, ...]
    counts: tuple[int, ...]

    type_name: ClassVar[str] = "category"
    kinds: ClassVar[tuple[str, ...]] = ("category",)
    encodings: ClassVar[tuple[str, ...]] = ("one-hot", "rank", "missing or not")

    @property
    def value_names(self) -> list[str]:
        """``column=category``, or rank and frequency."""
        if self.encoding == "one-hot":
            return [f"{self.name}={category}" for category in self.categories]
        if self.encoding == "rank":
            return [f"{self.name} rank", *([f"{self.name} log frequency"] if self._frequencies_differ else [])]
        return []

    @cached_property
    def _value_set(self) -> Any:
        return pa.array(self.categories, pa.large_string())

    @property
    def _frequencies_differ(self) -> bool:
        # From the most to the least frequent.
        return self.counts[0] > self.counts[-1]

    @cached_property
    def _log_frequencies(self) -> npt.NDArray[np.float64]:
        # The last entry is that of new categories: index -1 finds it.
        return np.log1p(np.array([*self.counts, 0], dtype=np.float64))

    def read(self, array: Any) -> Cells:
        """Texts, or anything that is a text when written out."""
        array = plain(array)
        found = family(array.type)
        if found == "other":
            raise _wrong_family(self, array, found)
        texts = text_values(array)
        missing = is_blank(texts)
        codes = pc.fill_null(pc.index_in(texts, value_set=self._value_set), -1).to_numpy(zero_copy_only=False)
        codes = np.array(codes, dtype=np.int64)
        codes[missing] = -1
        unseen: dict[str, int] = {}
        new = (codes < 0) & ~missing
        if new.any():
            for item in pc.value_counts(texts.filter(pa.array(new))).to_pylist():
                unseen[item["values"]] = item["counts"]
        return Cells(codes, missing, None, unseen)

    def fill(self, cells: Cells) -> None:
        """The most frequent category."""
        cells.values[cells.missing] = 0

    def encode(self, cells: Cells) -> npt.NDArray[np.float64]:
        """One column per category, or rank and frequency."""
        codes = cells.values
        if self.encoding == "one-hot":
            one_hot: npt.NDArray[np.float64] = (codes[:, None] == np.arange(len(self.categories))).astype(np.float64)
            return one_hot
        if self.encoding == "rank":
            rank = np.where(codes < 0, len(self.categories), codes).astype(np.float64)
            return np.stack([rank, *([self._log_frequencies[codes]] if self._frequencies_differ else [])], axis=1)
        return np.empty((len(codes), 0))


def is_blank(texts: Any) -> npt.NDArray[np.bool_]:
    """Which of some Arrow texts are missing: null, or nothing but blanks."""
    blank = pc.equal(pc.utf8_trim_whitespace(texts), "")
    result: npt.NDArray[np.bool_] = pc.fill_null(blank, True).to_numpy(zero_copy_only=False)
    return result


def _wrong_text(column: FittedColumn, row: int, text: str) -> MisfitError:
    return MisfitError(
        row, f"holds {shortened(text)}, but the column was {_FAMILY_WORDS[column.kind]} when the encoder was fitted"
    )


def _wrong_family(column: FittedColumn, array: Any, found: str) -> MisfitError:
    was = _FAMILY_WORDS.get(column.kind, "text")
    return MisfitError(None, f"holds {_FAMILY_WORDS[found]} ({array.type}), but was {was} when the encoder was fitted")


_TYPES: dict[str, type[FittedColumn]] = {
    each.type_name: each for each in (LeftOutColumn, NumberColumn, DateColumn, CategoryColumn)
}


def column_from_dict(stored: Any) -> FittedColumn:
    """A column from what ``to_dict`` gave, every entry checked."""
    if not isinstance(stored, dict) or stored.get("type") not in list(_TYPES):
        raise DataError("an entry of the stored encoder is not a column of a known type")
    made = _TYPES[stored["type"]]
    expected = {each.name for each in fields(made)} | {"type"}
    if set(stored) != expected:
        raise DataError(f"a stored column has the entries {sorted(map(str, stored))} instead of {sorted(expected)}")
    entries = {key: _checked(key, value, made) for key, value in stored.items() if key != "type"}
    if made is CategoryColumn:
        categories, counts = entries["categories"], entries["counts"]
        if len(categories) != len(counts) or not categories or len(set(categories)) != len(categories):
            raise DataError("the categories of a stored column are empty, repeated, or do not match their counts")
        if sum(len(category) for category in categories) > MAX_CATEGORY_BYTES:
            raise DataError("the categories of a stored column are too long")
        if list(counts) != sorted(counts, reverse=True):
            raise DataError("the categories of a stored column are not in the order of their counts")
    return made(**entries)


def _checked(key: str, value: Any, made: type[FittedColumn]) -> Any:
    good = False
    if key in ("name", "note"):
        good = isinstance(value, str) and len(value) <= _MAX_NAME
    elif key == "kind":
        good = isinstance(value, str) and value in made.kinds
    elif key == "encoding":
        good = isinstance(value, str) and value in made.encodings
    elif key == "indicator":
        good = isinstance(value, bool)
    elif key == "usual" and made is NumberColumn:
        good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        value = float(value) if good else value
    elif key == "usual":
        good = isinstance(value, int) and not isinstance(value, bool) and NOT_A_MOMENT < value < 2**63
    elif isinstance(value, list) and len(value) <= MAX_CATEGORIES:
        if key == "counts":
            good = all(isinstance(each, int) and not isinstance(each, bool) and 0 < each < 2**63 for each in value)
        elif key == "parts":
            good = value == [part for part in PARTS if part in value]
        else:
            good = all(isinstance(each, str) for each in value)
        value = tuple(value)
    if not good:
        raise DataError(f"the entry {key!r} of a stored column cannot be used: {shortened(repr(value), 60)}")
    return value
