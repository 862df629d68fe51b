"""Columns whose encoding is settled: what each reads from a table, the numbers it makes of it, its form in files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..data.naming import shortened
from ..errors import DataError
from ..lite.tables import BOOLEAN_WORDS, NOT_A_MOMENT, encode_values, representatives
from .arrow_values import (
    PARTS,
    STYLES,
    family,
    flags,
    moment_text,
    moment_values,
    number_values,
    part_names,
    plain,
    read_moments,
    whole_number_moments,
)
from .sketches import MAX_CATEGORIES, OutsideValues
from .text_values import DECIMALS, MAX_UNIT, parse_numbers, read_numbers, strange_texts

_FAMILY_WORDS = {
    "number": "numbers",
    "boolean": "true or false",
    "text": "text",
    "date": "dates",
    "time": "times of day",
    "other": "values of a type that cannot be used",
}
# Values that lie outside of the fit's by more than this share of its range are reported.
_BEYOND = 0.1
_MAX_NAME = 1_000_000


class MisfitError(Exception):
    """A chunk holds something in a column that its encoding cannot take: in which rows of the chunk, and what."""

    def __init__(self, rows: npt.NDArray[np.int64] | None, message: str) -> None:
        super().__init__(message)
        self.rows = rows

    @property
    def row(self) -> int | None:
        """The first row; None if it is the type of all rows."""
        return None if self.rows is None else int(self.rows[0])


@dataclass
class Cells:
    """The values of one column of a chunk and which of them cannot be used.

    Attributes:
        values: Numbers, moments or numbers of categories (-1 where a category is new), one per row.
        missing: Which rows have no value.
        infinite: Which rows have an infinite one.
        unseen: Texts of categories that are new, with their counts.
        folds: For training rows, the fold of each: categories are then encoded from the other folds.
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
class FittedColumn:
    """One column of the table; one that gives nothing is never read.

    Attributes:
        name: In the table.
        kind: What it holds.
        encoding: How it is turned into numbers; ``missing or not`` if only its gaps carry information.
        indicator: Whether there is an output column that marks where values were missing.
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
    types: ClassVar[dict[str, type[FittedColumn]]] = {}

    def __init_subclass__(cls) -> None:
        """A type with a name is one that files may hold."""
        if cls.type_name:
            FittedColumn.types[cls.type_name] = cls

    @property
    def value_names(self) -> list[str]:
        """The output columns without the indicator."""
        return []

    def check_stored(self) -> None:
        """An error if the entries of a column from a file do not fit together."""

    @property
    def outputs(self) -> list[str]:
        """The output columns."""
        return [*self.value_names, *([f"{self.name} missing"] if self.indicator else [])]

    def read(self, array: pa.Array) -> Cells:
        """The values in one column of a chunk, of any type that can be understood."""
        raise NotImplementedError

    def fill(self, cells: Cells) -> None:
        """Put the usual value where there is none: of categories, the most frequent one."""
        cells.values[cells.gaps] = self._stored.get("usual", 0)

    def encode(self, cells: Cells) -> npt.NDArray[np.float64]:
        """The output columns without the indicator, ``(rows, columns)``."""
        return encode_values(self._stored, cells.values)

    def is_unknown(self, cells: Cells) -> npt.NDArray[np.bool_]:
        """Which rows hold something that the fit did not see, so that nothing is known of its effect."""
        return cells.gaps if not self.indicator else np.zeros(len(cells.values), dtype=bool)

    def representatives(self) -> npt.NDArray[np.float64]:
        """Encodings of values that the fit saw, ``(values, columns)``, each for an equal share of rows or so."""
        return representatives(self._stored)

    def outside(self, cells: Cells) -> OutsideValues | None:
        """Values that lie clearly outside of what the fit saw; None if there are none."""
        return None

    @cached_property
    def _stored(self) -> dict[str, object]:
        return self.to_dict()

    def to_dict(self) -> dict[str, object]:
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


@dataclass(frozen=True)
class OrderedColumn(FittedColumn):
    """Numbers or moments, as they are or written in text.

    Attributes:
        usual: The median, or the more frequent of true and false; put in where values are missing.
        words: Texts that stand for a missing value, besides the usual ones.
        quantiles: Values that stand for the column.
        span: Its smallest and largest value.
    """

    usual: float
    words: tuple[str, ...]
    quantiles: tuple[float, ...] = field(default=(), kw_only=True)
    span: tuple[float, ...] = field(default=(), kw_only=True)

    def outside(self, cells: Cells) -> OutsideValues | None:
        """Values beyond the span, by a share of its width."""
        if self.kind not in ("number", "date") or len(self.span) != 2 or self.span[0] == self.span[1]:
            return None
        low, high = self.span
        values = np.where(cells.gaps, low, cells.values)
        with np.errstate(over="ignore"):
            beyond = np.maximum(low - values, values - high) / (high - low)
        count = int(np.count_nonzero(beyond > _BEYOND))
        if count == 0:
            return None
        worst = int(np.argmax(beyond))
        shown = [
            moment_text(int(each)) if self.kind == "date" else f"{each:.6g}" for each in (low, high, values[worst])
        ]
        return OutsideValues(count, float(beyond[worst]), shown[2], f"{shown[0]} to {shown[1]}")

    def _refuse_strange(self, texts: pa.Array, unread: npt.NDArray[np.bool_]) -> None:
        """An error if a text that was not read is no word for a missing value."""
        strange = strange_texts(texts, unread, self.words)
        if len(strange):
            raise _wrong_text(self, strange, texts[int(strange[0])].as_py())


@dataclass(frozen=True)
class NumberColumn(OrderedColumn):
    """Numbers as they are, and true or false as one and zero.

    Attributes:
        decimal: What stands before decimals in text, ``"."`` or ``","``; empty for numbers as programs write them.
        unit: What stands beside the numbers in text, if anything.
    """

    decimal: str = field(default="", kw_only=True)
    unit: str = field(default="", kw_only=True)

    type_name: ClassVar[str] = "number"
    kinds: ClassVar[tuple[str, ...]] = ("number", "boolean")
    encodings: ClassVar[tuple[str, ...]] = ("number", "missing or not")

    @property
    def value_names(self) -> list[str]:
        """The column itself."""
        return [self.name] if self.encoding == "number" else []

    def read(self, array: pa.Array) -> Cells:
        """Numbers, booleans, or text that stands for them."""
        array = plain(array)
        found = family(array.type)
        if found in ("number", "boolean", "empty"):
            values = number_values(array).copy()
        elif found == "text":
            values = self._read_text(array)
        else:
            raise wrong_family(self, array, found)
        return Cells(values, np.isnan(values), np.isinf(values))

    def _read_text(self, texts: pa.Array) -> npt.NDArray[np.float64]:
        values = parse_numbers(texts) if self.decimal in ("", ".") else np.full(len(texts), np.nan)
        if self.decimal and bool(np.isnan(values).any()):
            written, units = read_numbers(texts, self.decimal)
            known = flags(pc.is_in(units, value_set=pa.array(["", self.unit], units.type)))
            values = np.where(np.isnan(values) & known, written, values)
        if self.kind == "boolean":
            words = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
            for true, false in BOOLEAN_WORDS:
                for word, value in ((true, 1.0), (false, 0.0)):
                    values[flags(pc.equal(words, word))] = value
        self._refuse_strange(texts, np.isnan(values))
        return values


@dataclass(frozen=True)
class DateColumn(OrderedColumn):
    """Dates and times by their parts; the values are whole numbers, microseconds since 1970.

    Attributes:
        parts: The parts that vary, out of ``PARTS``.
        style: How they are written, out of ``STYLES``.
    """

    parts: tuple[str, ...]
    style: str = field(default="iso", kw_only=True)

    type_name: ClassVar[str] = "date"
    kinds: ClassVar[tuple[str, ...]] = ("date", "time")
    encodings: ClassVar[tuple[str, ...]] = ("date parts", "missing or not")

    @property
    def value_names(self) -> list[str]:
        """The parts that vary."""
        return [f"{self.name} {part}" for part in part_names(self.parts)]

    def read(self, array: pa.Array) -> Cells:
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
                raise _wrong_text(self, strange, f"{numbers[strange[0]]:g}")
        elif found == "text":
            moments = self._read_text(array)
            self._refuse_strange(array, moments == NOT_A_MOMENT)
        else:
            raise wrong_family(self, array, found)
        return Cells(moments, moments == NOT_A_MOMENT)

    def _read_text(self, texts: pa.Array) -> npt.NDArray[np.int64]:
        if self.kind == "date":
            moments = read_moments(texts, self.style)
            # Programs write ISO, also into columns that people fill in their own way.
            return moments if self.style == "iso" else np.where(moments == NOT_A_MOMENT, read_moments(texts), moments)
        # A time of day is a moment of the first day.
        day, blank = (pa.scalar(text, pa.large_string()) for text in ("1970-01-01", " "))
        return read_moments(pc.binary_join_element_wise(day, pc.utf8_trim_whitespace(texts), blank))


def _wrong_text(column: FittedColumn, rows: npt.NDArray[np.int64], text: str) -> MisfitError:
    """Texts that are none of the kind of the column, and the first of them."""
    commas = " with a decimal comma" if isinstance(column, NumberColumn) and column.decimal == "," else ""
    return MisfitError(
        rows,
        f"holds {shortened(text)}, but the column was {_FAMILY_WORDS[column.kind]}{commas} in the fit",
    )


def wrong_family(column: FittedColumn, array: pa.Array, found: str) -> MisfitError:
    """Values of another type than the column's."""
    was = _FAMILY_WORDS.get(column.kind, "text")
    return MisfitError(None, f"holds {_FAMILY_WORDS[found]} ({array.type}), but was {was} in the fit")


def column_from_dict(stored: object) -> FittedColumn:
    """A column from what ``to_dict`` gave, every entry checked."""
    if not isinstance(stored, dict) or stored.get("type") not in list(FittedColumn.types):
        raise DataError("an entry of the stored encoder is not a column of a known type")
    made = FittedColumn.types[stored["type"]]
    stored_fields = [each for each in fields(made) if each.compare]
    expected = {each.name for each in stored_fields} | {"type"}
    # Entries with a default are newer than the first version of the format.
    required = {each.name for each in stored_fields if not each.kw_only} | {"type"}
    if not required <= set(stored) <= expected:
        raise DataError(f"a stored column has the entries {sorted(map(str, stored))} instead of {sorted(expected)}")
    column = made(**{key: _checked(key, value, made) for key, value in stored.items() if key != "type"})
    column.check_stored()
    return column


def _checked(key: str, value: Any, made: type[FittedColumn]) -> Any:
    """An entry of a stored column in the type of its field."""
    is_ordered, ordered = (_is_moment, int) if made is DateColumn else (_is_number, float)
    checks: dict[str, Callable[[Any], bool]] = {
        "name": lambda value: isinstance(value, str) and len(value) <= _MAX_NAME,
        "note": lambda value: isinstance(value, str) and len(value) <= _MAX_NAME,
        "kind": made.kinds.__contains__,
        "encoding": made.encodings.__contains__,
        "indicator": lambda value: isinstance(value, bool),
        "gaps": _is_count,
        "distinct": _is_count,
        "decimal": ("", *DECIMALS).__contains__,
        "unit": lambda value: isinstance(value, str) and len(value) <= 2 * MAX_UNIT,
        "style": STYLES.__contains__,
        "usual": is_ordered,
    }
    lists: dict[str, Callable[[Any], bool]] = {
        "counts": lambda value: _is_count(value) and value > 0,
        "means": _is_number,
        "quantiles": is_ordered,
        "span": is_ordered,
        "parts": PARTS.__contains__,
    }
    if key in checks:
        good = checks[key](value)
    else:
        is_entry = lists.get(key, lambda value: isinstance(value, str))
        good = isinstance(value, list) and len(value) <= MAX_CATEGORIES and all(map(is_entry, value))
        good = good and (key != "parts" or value == [part for part in PARTS if part in value])
    if not good:
        raise DataError(f"the entry {key!r} of a stored column cannot be used: {shortened(repr(value), 60)}")
    if key in ("means", "quantiles", "span"):
        return tuple(map(ordered, value))
    return ordered(value) if key == "usual" else tuple(value) if isinstance(value, list) else value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_moment(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and NOT_A_MOMENT < value < 2**63


def _is_number(value: object) -> bool:
    # Whole numbers in JSON may be larger than any float; NaN is not below it either.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
