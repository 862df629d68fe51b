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
from .text_values import NOT_A_MOMENT, moment_text, parse_numbers, strange_texts
from .written_dates import STYLES, read_moments, whole_number_moments
from .written_numbers import DECIMALS, MAX_UNIT, read_numbers

_FAMILY_WORDS = {
    "number": "numbers",
    "boolean": "true or false",
    "text": "text",
    "date": "dates",
    "time": "times of day",
    "other": "values of a type that cannot be used",
}
_MAX_NAME = 1_000_000
#: Words for true and false, in small letters.
BOOLEAN_WORDS = (("true", "false"), ("yes", "no"), ("y", "n"), ("t", "f"))
# Values that lie outside of the fit's by more than this share of its range are told.
_BEYOND = 0.1
# Rows without a value in a column are predicted with so many of its values at most.
_MOST_REPRESENTATIVES = 24


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
        folds: For training rows, the fold of each: categories are then encoded by what the other folds say.
    """

    values: npt.NDArray[Any]
    missing: npt.NDArray[np.bool_]
    infinite: npt.NDArray[np.bool_] | None = None
    unseen: dict[str, int] = field(default_factory=dict)
    folds: npt.NDArray[np.int64] | None = None

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
        gaps: Missing or infinite values in the fit.
        distinct: Different values in the fit; of more than 16 384 numbers or dates, those in a sample.
    """

    name: str
    kind: str
    encoding: str
    indicator: bool
    note: str
    gaps: int = field(default=0, kw_only=True)
    distinct: int = field(default=0, kw_only=True)

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

    def is_unknown(self, cells: Cells) -> npt.NDArray[np.bool_]:
        """Which rows hold something that the fit did not see, so that nothing is known of its effect."""
        return cells.gaps if not self.indicator else np.zeros(len(cells.values), dtype=bool)

    def representatives(self) -> npt.NDArray[np.float64]:
        """Encodings of values that the fit saw, ``(values, columns)``, each for an equal share of rows or so."""
        return np.empty((0, len(self.outputs)))

    def farthest_outside(self, cells: Cells) -> tuple[int, str]:
        """How many values lie clearly outside of what the fit saw, and the farthest of them as text."""
        span: tuple[float, ...] = getattr(self, "span", ())
        if self.kind not in ("number", "date") or len(span) != 2:
            return 0, ""
        low, high = span
        values = np.where(cells.gaps, low, cells.values)
        with np.errstate(over="ignore"):
            beyond = np.maximum(low - values, values - high)
            count = int(np.count_nonzero(beyond > _BEYOND * (high - low)))
        farthest = values[int(np.argmax(beyond))] if count else low
        return count, moment_text(int(farthest)) if self.kind == "date" else f"{farthest:.6g}"

    def _with_indicator(self, encoded: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.column_stack([encoded, np.zeros(len(encoded))]) if self.indicator else encoded

    def to_dict(self) -> dict[str, Any]:
        """All there is to know, for JSON."""
        stored = {
            each.name: getattr(self, each.name)
            for each in fields(self)
            # What is as it was before there was the entry is not written: fingerprints of older models stay the same.
            if each.compare and not (each.kw_only and getattr(self, each.name) == each.default)
        }
        return {"type": self.type_name} | {
            key: list(value) if isinstance(value, tuple) else value for key, value in stored.items()
        }


@dataclass(frozen=True)
class LeftOutColumn(FittedColumn):
    """A column that gives nothing."""

    type_name: ClassVar[str] = "left out"
    kinds: ClassVar[tuple[str, ...]] = ("constant", "identifier", "free text", "empty", "other")
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
        decimal: What stands before decimals in text, ``"."`` or ``","``; empty for numbers as programs write them.
        unit: What stands beside the numbers in text, if anything.
        quantiles: Values that stand for the column.
        span: Its smallest and largest value.
    """

    usual: float
    words: tuple[str, ...]
    decimal: str = field(default="", kw_only=True)
    unit: str = field(default="", kw_only=True)
    quantiles: tuple[float, ...] = field(default=(), kw_only=True)
    span: tuple[float, ...] = field(default=(), kw_only=True)

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
        values = parse_numbers(texts) if self.decimal in ("", ".") else np.full(len(texts), np.nan)
        if self.decimal and bool(np.isnan(values).any()):
            values = np.where(np.isnan(values), _numbers_with_unit(texts, self.decimal, self.unit), values)
        if self.kind == "boolean":
            words = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
            for true, false in BOOLEAN_WORDS:
                for word, value in ((true, 1.0), (false, 0.0)):
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

    def representatives(self) -> npt.NDArray[np.float64]:
        """The quantiles."""
        values = np.array(self.quantiles or (self.usual,))
        return self._with_indicator(self.encode(Cells(values, np.zeros(len(values), dtype=bool))))


@dataclass(frozen=True)
class DateColumn(FittedColumn):
    """Dates and times by their parts.

    Attributes:
        usual: The median, in microseconds since 1970.
        parts: The parts that vary, out of ``PARTS``.
        words: Texts that stand for a missing value, besides the usual ones.
        style: How they are written, out of ``STYLES``.
        quantiles: Moments that stand for the column.
        span: Its first and last moment.
    """

    usual: int
    parts: tuple[str, ...]
    words: tuple[str, ...]
    style: str = field(default="iso", kw_only=True)
    quantiles: tuple[int, ...] = field(default=(), kw_only=True)
    span: tuple[int, ...] = field(default=(), kw_only=True)

    type_name: ClassVar[str] = "date"
    kinds: ClassVar[tuple[str, ...]] = ("date", "time")
    encodings: ClassVar[tuple[str, ...]] = ("date parts", "missing or not")

    @property
    def value_names(self) -> list[str]:
        """The parts that vary."""
        return [f"{self.name} {part}" for part in part_names(self.parts)]

    def read(self, array: Any) -> Cells:
        """Dates and times, or text and whole numbers in the style of the fit."""
        array = plain(array)
        found = family(array.type)
        if found in (self.kind, "empty"):
            moments = moment_values(array).copy()
        elif found == "number" and self.style in ("yyyymmdd", "year"):
            numbers = number_values(array)
            moments = whole_number_moments(numbers, self.style)
            strange = np.flatnonzero((moments == NOT_A_MOMENT) & ~np.isnan(numbers))
            if len(strange):
                raise _wrong_text(self, int(strange[0]), f"{numbers[strange[0]]:g}")
        elif found == "text":
            moments = self._read_text(array)
            strange = strange_texts(array, moments == NOT_A_MOMENT, self.words)
            if len(strange):
                raise _wrong_text(self, int(strange[0]), array[int(strange[0])].as_py())
        else:
            raise _wrong_family(self, array, found)
        return Cells(moments, moments == NOT_A_MOMENT)

    def _read_text(self, texts: Any) -> npt.NDArray[np.int64]:
        if self.kind == "date":
            moments = read_moments(texts, self.style)
            # Programs write ISO, also into columns that people fill in their own way.
            return moments if self.style == "iso" else np.where(moments == NOT_A_MOMENT, read_moments(texts), moments)
        # A time of day is a moment of the first day.
        day, blank = (pa.scalar(text, pa.large_string()) for text in ("1970-01-01", " "))
        return read_moments(pc.binary_join_element_wise(day, pc.utf8_trim_whitespace(texts), blank))

    def fill(self, cells: Cells) -> None:
        """The median."""
        cells.values[cells.missing] = self.usual

    def encode(self, cells: Cells) -> npt.NDArray[np.float64]:
        """The parts."""
        return date_parts(cells.values, self.parts)

    def representatives(self) -> npt.NDArray[np.float64]:
        """The quantiles."""
        values = np.array(self.quantiles or (self.usual,), dtype=np.int64)
        return self._with_indicator(self.encode(Cells(values, np.zeros(len(values), dtype=bool))))


@dataclass(frozen=True)
class CategoryColumn(FittedColumn):
    """Texts out of a known set.

    With few categories each has an output column that is one in its rows (``one-hot``). With many there are two numbers
    instead (``target mean``): the mean target of the category, shrunk towards that of all rows the more, the fewer and
    noisier its rows are, and the logarithm of its frequency (of the count plus one), which says how far that mean is to
    be trusted. Training rows get the mean over the other folds, so that it does not contain their own target. Where no
    targets are known, and in files of earlier versions, the first number is the rank by frequency (``rank``).

    A new category has zeros in all columns of a one-hot encoding, the mean of all rows and the frequency zero.

    Attributes:
        categories: The most frequent first; it is put in where values are missing.
        counts: Their frequencies.
        means: Their mean targets, as differences from the mean of all rows.
        out_of_fold: The same without the rows of each fold, ``(categories, folds)``; known after the fit only.
    """

    categories: tuple[str, ...]
    counts: tuple[int, ...]
    means: tuple[float, ...] = field(default=(), kw_only=True)
    out_of_fold: npt.NDArray[np.float64] | None = field(default=None, kw_only=True, compare=False)

    type_name: ClassVar[str] = "category"
    kinds: ClassVar[tuple[str, ...]] = ("category",)
    encodings: ClassVar[tuple[str, ...]] = ("one-hot", "target mean", "rank", "missing or not")

    @property
    def value_names(self) -> list[str]:
        """``column=category``, or mean target (rank) and frequency."""
        if self.encoding == "one-hot":
            return [f"{self.name}={category}" for category in self.categories]
        if self.encoding in ("rank", "target mean"):
            first = f"{self.name} {self.encoding}"
            return [first, *([f"{self.name} log frequency"] if self._frequencies_differ else [])]
        return []

    @cached_property
    def _means(self) -> npt.NDArray[np.float64]:
        # The last entry is that of new categories: index -1 finds it.
        return np.array([*self.means, 0.0])

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
        codes = self._codes(texts)
        codes[missing] = -1
        if found == "text" and bool((codes < 0).any()):
            # Codes that were whole numbers in the fit may come as text, such as 7 or 7.0.
            numbers = parse_numbers(texts)
            whole = (codes < 0) & np.isfinite(numbers) & (numbers == np.floor(numbers))
            if whole.any():
                codes[whole] = self._codes(pa.array([f"{value:.0f}" for value in numbers[whole]], pa.large_string()))
        unseen: dict[str, int] = {}
        new = (codes < 0) & ~missing
        if new.any():
            for item in pc.value_counts(texts.filter(pa.array(new))).to_pylist():
                unseen[item["values"]] = item["counts"]
        return Cells(codes, missing, None, unseen)

    def _codes(self, texts: Any) -> npt.NDArray[np.int64]:
        found = pc.fill_null(pc.index_in(texts, value_set=self._value_set), -1)
        return np.array(found.to_numpy(zero_copy_only=False), dtype=np.int64)

    def fill(self, cells: Cells) -> None:
        """The most frequent category."""
        cells.values[cells.missing] = 0

    def encode(self, cells: Cells) -> npt.NDArray[np.float64]:
        """One column per category, or rank and frequency."""
        codes = cells.values
        if self.encoding == "one-hot":
            one_hot: npt.NDArray[np.float64] = (codes[:, None] == np.arange(len(self.categories))).astype(np.float64)
            return one_hot
        if self.encoding in ("rank", "target mean"):
            if self.encoding == "rank":
                first = np.where(codes < 0, len(self.categories), codes).astype(np.float64)
            elif cells.folds is not None and self.out_of_fold is not None:
                first = np.where(codes < 0, 0.0, self.out_of_fold[codes, cells.folds])
            else:
                first = self._means[codes]
            return np.stack([first, *([self._log_frequencies[codes]] if self._frequencies_differ else [])], axis=1)
        return np.empty((len(codes), 0))

    def is_unknown(self, cells: Cells) -> npt.NDArray[np.bool_]:
        """New categories, and gaps where the fit had none."""
        return (cells.values < 0) & ~(cells.missing & self.indicator)

    def representatives(self) -> npt.NDArray[np.float64]:
        """All categories, or some from the lowest to the highest mean target, or from the commonest to the rarest."""
        order = np.argsort(self.means) if self.means else np.arange(len(self.categories))
        places = np.linspace(0, len(order) - 1, min(len(order), _MOST_REPRESENTATIVES - 2)).astype(np.int64)
        codes = np.unique(np.append(order[places], [0, len(order) - 1]))
        return self._with_indicator(self.encode(Cells(codes, np.zeros(len(codes), dtype=bool))))


def is_blank(texts: Any) -> npt.NDArray[np.bool_]:
    """Which of some Arrow texts are missing: null, or nothing but blanks."""
    blank = pc.equal(pc.utf8_trim_whitespace(texts), "")
    result: npt.NDArray[np.bool_] = pc.fill_null(blank, True).to_numpy(zero_copy_only=False)
    return result


def _numbers_with_unit(texts: Any, decimal: str, unit: str) -> npt.NDArray[np.float64]:
    """Written numbers; NaN also where another unit than the column's stands beside one."""
    values, units = read_numbers(texts, decimal)
    known = pc.is_in(units, value_set=pa.array(["", unit], units.type)).to_numpy(zero_copy_only=False)
    return np.where(known, values, np.nan)


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
    stored_fields = [each for each in fields(made) if each.compare]
    expected = {each.name for each in stored_fields} | {"type"}
    # Entries with a default are newer than the first version of the format.
    required = {each.name for each in stored_fields if not each.kw_only} | {"type"}
    if not required <= set(stored) <= expected:
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
        if len(entries.get("means", ())) != (len(categories) if entries["encoding"] == "target mean" else 0):
            raise DataError("the mean targets of a stored column do not match its categories")
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
    elif key in ("gaps", "distinct"):
        good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
    elif key == "decimal":
        good = value in ("", *DECIMALS)
    elif key == "unit":
        good = isinstance(value, str) and len(value) <= 2 * MAX_UNIT
    elif key == "style":
        good = isinstance(value, str) and value in STYLES
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
        elif key in ("means", "quantiles", "span"):
            whole = made is DateColumn
            good = all(isinstance(each, int if whole else int | float) and not isinstance(each, bool) for each in value)
            good = good and all(-(2**63) < each < 2**63 if whole else math.isfinite(each) for each in value)
            value = [int(each) if whole else float(each) for each in value] if good else value
        else:
            good = all(isinstance(each, str) for each in value)
        value = tuple(value)
    if not good:
        raise DataError(f"the entry {key!r} of a stored column cannot be used: {shortened(repr(value), 60)}")
    return value
