"""Columns whose encoding is settled: what each reads from a table and the numbers it makes of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..data.naming import shortened
from ..lite.tables import BOOLEAN_WORDS, NOT_A_MOMENT, date_parts, representatives
from .arrow_values import family, moment_values, number_values, plain
from .dates import moment_text, part_names, read_moments, whole_number_moments
from .summaries import OutsideValues
from .text_values import parse_numbers, read_numbers, strange_texts

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
class FittedColumn(ABC):
    """One column of the table.

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

    @property
    def value_names(self) -> list[str]:
        """The output columns without the indicator."""
        return []

    @property
    def outputs(self) -> list[str]:
        """The output columns."""
        return [*self.value_names, *([f"{self.name} missing"] if self.indicator else [])]

    @abstractmethod
    def read(self, array: pa.Array) -> Cells:
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
        return representatives(self.to_dict())

    def outside(self, cells: Cells) -> OutsideValues | None:
        """Values that lie clearly outside of what the fit saw; None if there are none."""
        return None

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

    def read(self, array: pa.Array) -> Cells:
        """Nothing is looked at: every value counts as there."""
        return Cells(values=array, missing=np.zeros(len(array), dtype=bool))

    def fill(self, cells: Cells) -> None:
        """There is nothing to fill."""

    def encode(self, cells: Cells) -> npt.NDArray[np.float64]:
        """No columns."""
        return np.zeros((len(cells.missing), 0))


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

    def fill(self, cells: Cells) -> None:
        """The usual value."""
        cells.values[cells.gaps] = self.usual

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
        missing = np.isnan(values)
        return Cells(values, missing, np.isinf(values))

    def _read_text(self, texts: pa.Array) -> npt.NDArray[np.float64]:
        values = parse_numbers(texts) if self.decimal in ("", ".") else np.full(len(texts), np.nan)
        if self.decimal and bool(np.isnan(values).any()):
            values = np.where(np.isnan(values), _numbers_with_unit(texts, self.decimal, self.unit), values)
        if self.kind == "boolean":
            words = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
            for true, false in BOOLEAN_WORDS:
                for word, value in ((true, 1.0), (false, 0.0)):
                    values[pc.fill_null(pc.equal(words, word), False).to_numpy(zero_copy_only=False)] = value
        self._refuse_strange(texts, np.isnan(values))
        return values

    def encode(self, cells: Cells) -> npt.NDArray[np.float64]:
        """The numbers."""
        return cells.values[:, None] if self.encoding == "number" else np.empty((len(cells.values), 0))


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

    def encode(self, cells: Cells) -> npt.NDArray[np.float64]:
        """The parts."""
        return date_parts(cells.values, self.parts)


def _numbers_with_unit(texts: pa.Array, decimal: str, unit: str) -> npt.NDArray[np.float64]:
    """Written numbers; NaN also where another unit than the column's stands beside one."""
    values, units = read_numbers(texts, decimal)
    known = pc.is_in(units, value_set=pa.array(["", unit], units.type)).to_numpy(zero_copy_only=False)
    return np.where(known, values, np.nan)


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
