"""Tables without Arrow: the columns of a model file's encoder."""

from __future__ import annotations

import datetime
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .program import Array, LiteError

#: In microseconds, as dates are; and what stands for none.
DAY = 86_400_000_000
NOT_A_MOMENT = int(np.iinfo(np.int64).min)
_COMBINATIONS, _MOST_REPRESENTATIVES = 24, 24
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf(inity)?", re.IGNORECASE)
_ISO = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[T ]([0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.][0-9]{1,9})?)?)(Z|[+-].*)?)?"
)
#: Words for true and false, in small letters.
BOOLEAN_WORDS = (("true", "false"), ("yes", "no"), ("y", "n"), ("t", "f"))
#: Encodings of many categories by their mean targets; the second one has places as well.
MEAN, MEAN_AND_PLACE = "target mean", "target mean and place"
#: Rows of a category that has a place.
PLACED_ROWS = 30
_TRUE, _FALSE = zip(*BOOLEAN_WORDS, strict=True)
#: What people write where a number is missing; compared without regard to case and surrounding blanks.
MISSING_WORDS = {
    *("", "-", "--", "---", "–", "—", ".", "..", "?", "*", "n/a", "na", "n.a.", "n.a", "#n/a", "#na", "<na>", "nan"),
    *("-nan", "null", "none", "nil", "(null)", "missing", "not available", "nat", "#value!", "#div/0!", "#ref!"),
}


#: Microseconds since 1970.
Moments = npt.NDArray[np.int64]
#: A column as a file describes it.
Column = Mapping[str, Any]
Cells = Sequence[object] | npt.NDArray[np.generic]
#: Columns by name. Data frames, which are array-like, are taken as well.
Table = Mapping[str, Cells]


def read_table(rows: Table | npt.ArrayLike) -> dict[str, Cells]:
    """Columns by name of a mapping or a data frame."""
    columns: Any = rows  # of which a data frame has more than arrays have
    names = list(columns.keys()) if hasattr(rows, "keys") else list(getattr(rows, "columns", []))
    if not names:
        raise LiteError("The model takes tables: pass a mapping of names to columns, or a data frame.")
    found = {str(name): columns[name] for name in names}
    return {name: each if isinstance(each, np.ndarray) else _plain(name, each) for name, each in found.items()}


def _plain(name: str, column: Any) -> Cells:
    if isinstance(column, str) or not (hasattr(column, "to_numpy") or hasattr(column, "__iter__")):
        raise LiteError(f"Column {name!r} must hold one value per row, but is {column!r:.60}.")
    return column.to_numpy() if hasattr(column, "to_numpy") else list(column)


@dataclass(frozen=True, eq=False)
class Encoder:
    """Turns the columns of a table into numbers, as the library's ``TableEncoder`` does.

    Attributes:
        used: The stored columns that give numbers.
        imputes: Whether gaps are filled; if not, they are an error.
    """

    used: Sequence[Column]
    imputes: bool

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Encoder:
        """The encoder of a file."""
        if stored.get("format") != "finitegp table encoder" or stored.get("version") not in (1, 2):
            raise LiteError("its encoding of tables is of a version that is not known here")
        return cls([each for each in stored["columns"] if _width(each)], stored["missing"] == "impute")

    @property
    def width(self) -> int:
        """How many numbers a row becomes."""
        return sum(map(_width, self.used))

    def encode(self, table: Table) -> tuple[Array, npt.NDArray[np.bool_] | None]:
        """Numbers ``(rows, width)``, and for each column where a row holds what no fit has seen; None if nowhere."""
        blocks, unknown = [], []
        for column in self.used:
            if column["name"] not in table:
                raise LiteError(f"There is no column {column['name']!r}; there are {', '.join(map(repr, table))}.")
            values, gaps = _READERS[column["type"]](column, table[column["name"]])
            if gaps.any() and not self.imputes:
                raise LiteError(
                    f"Column {column['name']!r} has no value in row {int(np.argmax(gaps))}: remove such rows."
                )
            new = gaps.copy() if column["type"] != "category" else values < 0
            unknown.append(new & ~(gaps & column["indicator"]) & (column.get("distinct", 0) > 0))
            values = np.where(gaps, 0 if column["type"] == "category" else column["usual"], values)
            encoded = encode_values(column, values)
            blocks += [encoded, gaps[:, None].astype(np.float64)] if column["indicator"] else [encoded]
        if len({len(each) for each in blocks}) > 1 or len(blocks[0]) == 0:
            raise LiteError("The columns must have equally many rows, and at least one.")
        where = np.stack(unknown, axis=1)
        return np.hstack(blocks), where if where.any() else None

    def combinations(self, inputs: Array, unknown: npt.NDArray[np.bool_]) -> list[Array]:
        """The rows with known values put in where something is new, in several ways."""
        ends = np.cumsum([0, *(_width(column) for column in self.used)])
        places = [slice(int(start), int(end)) for start, end in itertools.pairwise(ends)]
        return fill_unknown(inputs, unknown, list(zip(places, map(representatives, self.used), strict=True)))


def fill_unknown(
    inputs: Array, unknown: npt.NDArray[np.bool_], representatives: Sequence[tuple[slice, Array]]
) -> list[Array]:
    """Encoded rows with known values put in where something is new, in several ways.

    Args:
        inputs: ``(rows, outputs)`` encoded rows.
        unknown: ``(rows, columns)`` where a value is new.
        representatives: The outputs of each column, and encodings of values that it is known to have.
    """
    random = np.random.default_rng(0)
    filled = [inputs.copy() for _ in range(_COMBINATIONS)]
    for number, (place, known) in enumerate(representatives):
        # Each known value equally often, in another order for each column. Drawn for columns without new values too:
        # what is put into a row must not depend on the other rows.
        order = random.permutation(_COMBINATIONS)
        rows = np.flatnonzero(unknown[:, number])
        if len(rows) == 0 or len(known) == 0:
            continue
        for each, value in zip(filled, order % len(known), strict=True):
            each[rows, place] = known[value]
    return filled


def _width(column: Column) -> int:
    kind, encoding = column["type"], column["encoding"]
    width = 0
    if kind == "number" and encoding == "number":
        width = 1
    elif kind == "date" and encoding == "date parts":
        width = sum(1 if part == "days" else 2 for part in column["parts"])
    elif kind == "category" and encoding == "one-hot":
        width = len(column["categories"])
    elif kind == "category" and encoding in ("rank", MEAN, MEAN_AND_PLACE):
        width = 1 + (column["counts"][0] > column["counts"][-1]) + (encoding == MEAN_AND_PLACE)
    return width + bool(column["indicator"])


def encode_values(column: Column, values: npt.NDArray[Any]) -> Array:
    """Numbers of a column's values (of categories, their codes), without the one that tells of gaps."""
    if column["encoding"] == "missing or not":
        return np.empty((len(values), 0))
    if column["type"] == "number":
        return values[:, None].astype(np.float64)
    if column["type"] == "date":
        return date_parts(values.astype(np.int64), column["parts"])
    if column["encoding"] == "one-hot":
        return np.asarray(values[:, None] == np.arange(len(column["categories"])), dtype=np.float64)
    counts = column["counts"]
    if column["encoding"] == "rank":
        first = np.where(values < 0, len(counts), values).astype(np.float64)
    else:
        first = np.array([*column["means"], 0.0])[values]  # the last is that of new categories: index -1 finds it
    frequencies = np.log1p(np.array([*counts, 0], dtype=np.float64))[values]
    places = [places_of(counts)[values]] if column["encoding"] == MEAN_AND_PLACE else []
    return np.stack([first, *([frequencies] if counts[0] > counts[-1] else []), *places], axis=1)


def places_of(counts: Sequence[int]) -> Array:
    """Numbers of frequent categories, -1 for all others and, at the end, for new ones.

    Example:
        >>> places_of([70, 30, 29]).tolist()
        [0.0, 1.0, -1.0, -1.0]
    """
    found = np.arange(len(counts) + 1, dtype=np.float64)
    found[np.append(counts, 0) < PLACED_ROWS] = -1.0
    return found


def representatives(column: Column) -> Array:
    """Encodings of values that the fit saw, each for an equal share of rows or so."""
    if column["type"] == "category":
        count = len(column["categories"])
        order = np.argsort(column["means"]) if column.get("means") else np.arange(count)
        places = np.linspace(0, count - 1, min(count, _MOST_REPRESENTATIVES - 2)).astype(np.int64)
        values: npt.NDArray[Any] = np.unique(np.append(order[places], [0, count - 1]))
    else:
        values = np.array(column.get("quantiles") or [column["usual"]])
    encoded = encode_values(column, values)
    return np.column_stack([encoded, np.zeros(len(encoded))]) if column["indicator"] else encoded


def _is_gap(value: object) -> bool:
    return value is None or value != value or str(value) in ("<NA>", "NaT")


def _numbers(column: Column, cells: Cells) -> tuple[Array, npt.NDArray[np.bool_]]:
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "fiub":
        values = cells.astype(np.float64)
    else:
        values = np.array([_number(column, cell, row) for row, cell in enumerate(cells)], dtype=np.float64)
    return values, ~np.isfinite(values)


def _number(column: Column, cell: Any, row: int) -> float:
    if _is_gap(cell):
        return math.nan
    if isinstance(cell, datetime.timedelta | np.timedelta64):
        return float(np.timedelta64(cell) / np.timedelta64(1, "s"))
    if not isinstance(cell, str):
        return float(cell)
    text = cell.strip()
    decimal = column.get("decimal", "")
    if decimal in ("", ".") and _NUMBER.fullmatch(text):
        return float(text)
    if column["kind"] == "boolean" and text.lower() in (*_TRUE, *_FALSE):
        return float(text.lower() in _TRUE)
    if text.casefold() in MISSING_WORDS or text in column["words"]:
        return math.nan
    found = _written_number(text, decimal, column.get("unit", "")) if decimal else None
    if found is None:
        raise LiteError(f"Column {column['name']!r}, row {row} holds {text[:60]!r}, but the column holds numbers.")
    return found


def _written_number(text: str, decimal: str, unit: str) -> float | None:
    """A number with thousands apart, and the column's unit or currency beside it."""
    text = re.sub("[\u00a0\u202f\u2009]", " ", text)
    text = re.sub(r"^([^0-9()]*)\(([^()]+)\)$", r"-\1\2", text)  # what is below zero, as bookkeepers write it
    if unit:
        text = text.replace(unit, "", 1)
    text = text.replace(" ", "").replace("−", "-")
    group = "[,'’]" if decimal == "." else "[.'’]"
    point = re.escape(decimal)
    body = rf"([0-9]+({point}[0-9]*)?|{point}[0-9]+|[1-9][0-9]{{0,2}}({group}[0-9]{{3}})+({point}[0-9]*)?)"
    if not re.fullmatch(rf"[+-]?{body}([eE][+-]?[0-9]+)?", text):
        return None
    return float(re.sub(group, "", text).replace(",", "."))


def _moments(column: Column, cells: Cells) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    if isinstance(cells, np.ndarray) and cells.dtype.kind == "M":
        values = cells.astype("datetime64[us]").astype(np.int64)  # which has the same number where there is none
    else:
        values = np.array([_moment(column, cell, row) for row, cell in enumerate(cells)], dtype=np.int64)
    return values, values == NOT_A_MOMENT


def _moment(column: Column, cell: Any, row: int) -> int:
    if _is_gap(cell):
        return NOT_A_MOMENT
    if isinstance(cell, np.datetime64):
        return int(cell.astype("datetime64[us]").astype(np.int64))
    if isinstance(cell, datetime.time):
        return ((cell.hour * 60 + cell.minute) * 60 + cell.second) * 1_000_000 + cell.microsecond
    if isinstance(cell, datetime.datetime) and cell.tzinfo is not None:
        cell = cell.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    if isinstance(cell, datetime.date):
        return int(np.datetime64(cell, "us").astype(np.int64))
    text = str(cell).strip()
    if isinstance(cell, str) and (text.casefold() in MISSING_WORDS or text in column["words"]):
        return NOT_A_MOMENT
    match = _ISO.fullmatch(f"1970-01-01 {text}" if column["kind"] == "time" else text)
    if match is None or not isinstance(cell, str):
        raise LiteError(
            f"Column {column['name']!r}, row {row} holds {text[:60]!r}: pass dates as datetime64, datetime.date or ISO "
            f"text; the style {column.get('style', 'iso')!r} is read by the library finitegp."
        )
    day, clock, zone = match.groups()
    try:
        moment = int(np.datetime64(f"{day}T{(clock or '00:00')[:15]}", "us").astype(np.int64))
        offset = datetime.datetime.strptime(zone, "%z").utcoffset() if zone else None
    except ValueError:
        raise LiteError(f"Column {column['name']!r}, row {row} holds {text[:60]!r}, which is no date.") from None
    return moment - (offset // datetime.timedelta(microseconds=1) if offset else 0)


def _codes(column: Column, cells: Cells) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    known = {category: code for code, category in enumerate(column["categories"])}
    values = np.full(len(cells), -1, dtype=np.int64)
    gaps = np.zeros(len(cells), dtype=bool)
    for row, cell in enumerate(cells):
        text = _text(cell)
        gaps[row] = text is None or not text.strip()
        if text is not None and not gaps[row]:
            code = known.get(text, -1)
            if code < 0 and isinstance(cell, str) and _NUMBER.fullmatch(text.strip()):
                number = float(text)  # codes that were whole numbers in the fit may come as text, such as 7.0
                code = known.get(f"{number:.0f}", -1) if math.isfinite(number) and number == math.floor(number) else -1
            values[row] = code
    return values, gaps


def _text(cell: object) -> str | None:
    if _is_gap(cell):
        return None
    if isinstance(cell, bool | np.bool_):
        return "true" if cell else "false"
    if isinstance(cell, float | np.floating):
        return repr(float(cell)).removesuffix(".0")
    return str(cell)


_READERS: dict[str, Callable[[Column, Cells], tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]]] = {
    "number": _numbers,
    "date": _moments,
    "category": _codes,
}


class Calendar(NamedTuple):
    """Days since 1970, day of the year from 0, days in that year, weekday from Monday = 0, microseconds of the day."""

    days: Moments
    day_of_year: Moments
    year_length: Moments
    weekday: Moments
    time_of_day: Moments


def calendar(moments: Moments) -> Calendar:
    """The calendar of moments.

    Example:
        >>> leap_day = calendar(np.array([1_709_164_800_000_000]))  # 29 February 2024, a Thursday
        >>> [int(part[0]) for part in leap_day]
        [19782, 59, 366, 3, 0]
    """
    days = moments // DAY
    year = days.astype("datetime64[D]").astype("datetime64[Y]")
    start = year.astype("datetime64[D]").astype(np.int64)
    end = (year + np.timedelta64(1, "Y")).astype("datetime64[D]").astype(np.int64)
    # 1 January 1970 was a Thursday.
    return Calendar(days, days - start, end - start, (days + 3) % 7, moments - days * DAY)


def date_parts(moments: Moments, parts: Sequence[str]) -> Array:
    """Columns for moments, ``(rows, columns)``.

    ``days`` is the time since 1970 in days, with fractions. The others are sine and cosine of the angle on a circle
    that is one year, one week or one day round.

    Example:
        >>> date_parts(np.array([0, 129_600_000_000]), ("days", "time of day")).round(6).tolist()
        [[0.0, 0.0, 1.0], [1.5, 0.0, -1.0]]
    """
    found = calendar(moments)
    turns = {
        "day of year": found.day_of_year / found.year_length,
        "weekday": found.weekday / 7,
        "time of day": found.time_of_day / DAY,
    }
    columns: list[Array] = []
    for part in parts:
        if part == "days":
            columns.append(found.days + found.time_of_day / DAY)
        else:
            angle = 2 * np.pi * turns[part]
            columns += [np.sin(angle), np.cos(angle)]
    return np.stack(columns, axis=1) if columns else np.empty((len(moments), 0))
