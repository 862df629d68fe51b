"""Numbers, dates and missing values that are written as text, and what whole columns show of the way of writing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..data.naming import shortened
from ..lite.tables import MISSING_WORDS, NOT_A_MOMENT
from .arrow_values import family, flags, plain, read_moments
from .sketches import CategoryCounter, MomentSketch, NumberSketch

# A column of text is one of numbers (or dates) if at most this share of its values, in at most this many spellings,
# is something else; the something else is then missing values in words nobody has listed above.
FEW_SHARE = 0.05
FEW_SPELLINGS = 20
# Words that are counted, and their length.
_MAX_WORDS = 1000
_MAX_WORD_LENGTH = 100

_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_INFINITY = r"^[+-]?[iI][nN][fF]([iI][nN][iI][tT][yY])?$"
_NOTHING = pa.scalar("", pa.large_string())
DECIMALS = (".", ",")
MAX_UNIT = 12
_CURRENCY = r"[$€£¥₹]|[A-Z]{1,2}[$]|[A-Z]{3} "
_UNIT = r"%|‰|[\p{L}°][\p{L}°²³0-9/·^]{0,11}"
_WRITTEN = (
    rf"^(?P<sign>[+−-]?) *(?P<currency>{_CURRENCY})? *(?P<inner>[+−-]?)(?P<body>[0-9][0-9.,'’ ]*|[.,][0-9]+)"
    rf"(?P<exponent>[eE][+-]?[0-9]+)? *(?P<unit>{_UNIT}|[$€£¥₹])?$"
)
# The same for numbers with nothing beside them: to compile the other takes as long as to read thousands of these.
_ALONE = r"^(?P<sign>-?)(?P<currency>)(?P<inner>)(?P<body>[0-9.,]+)(?P<exponent>)(?P<unit>)$"
# Brackets around a number, a currency before or in them: as bookkeepers write what is below zero.
_BRACKETS = r"^([^0-9()]*)\(([^()]+)\)$"
# A group that begins with 0 is no thousand: 0,123 has a decimal comma.
_BODIES = {
    ".": r"^([0-9]+([.][0-9]*)?|[.][0-9]+|[1-9][0-9]{0,2}([,'’ ][0-9]{3})+([.][0-9]*)?)$",
    ",": r"^([0-9]+(,[0-9]*)?|,[0-9]+|[1-9][0-9]{0,2}([.'’ ][0-9]{3})+(,[0-9]*)?)$",
}


def is_missing_word(text: str) -> bool:
    """Whether a text stands for a missing value.

    Example:
        >>> is_missing_word(" N/A"), is_missing_word("0")
        (True, False)
    """
    return text.strip().casefold() in MISSING_WORDS


def parse_numbers(texts: pa.Array) -> npt.NDArray[np.float64]:
    """The numbers in an Arrow array of text; NaN where a text is not a number, infinite where it means infinity.

    Example:
        >>> parse_numbers(pa.array(["1.5", " -2e3", "1,5", "inf", None])).tolist()
        [1.5, -2000.0, nan, inf, nan]
    """
    trimmed = pc.utf8_trim_whitespace(texts)
    result = np.full(len(texts), np.nan)
    fits = flags(pc.match_substring_regex(trimmed, _NUMBER))
    if fits.any():
        # Arrow reads no leading plus sign.
        digits = pc.utf8_ltrim(trimmed.filter(pa.array(fits)), "+")
        result[fits] = np.asarray(pc.cast(digits, pa.float64()))
    infinite = flags(pc.match_substring_regex(trimmed, _INFINITY))
    if infinite.any():
        negative = flags(pc.starts_with(trimmed.filter(pa.array(infinite)), "-"))
        result[infinite] = np.where(negative, -np.inf, np.inf)
    return result


class WrittenNumbers(NamedTuple):
    """The numbers in some texts (NaN where a text is none), and what stands beside each: a currency, a unit or ""."""

    values: npt.NDArray[np.float64]
    units: pa.Array


def read_numbers(texts: pa.Array, decimal: str = ".") -> WrittenNumbers:
    """Numbers in an Arrow array of text, with separators between thousands and a currency or unit beside them.

    Args:
        texts: Arrow text.
        decimal: What stands before the decimals, ``"."`` or ``","``.

    Example:
        >>> read_numbers(pa.array(["41,100", "-$1,234.50", "17.0 %", "12 Main St", "9,5"])).values.tolist()
        [41100.0, -1234.5, 17.0, nan, nan]
        >>> read_numbers(pa.array(["39,1", "1.234,5 kg", "(12,5)"]), ",").values.tolist()
        [39.1, 1234.5, -12.5]
    """
    trimmed = pc.utf8_trim_whitespace(pc.cast(texts, pa.large_string()))
    blanks = pc.replace_substring_regex(trimmed, r"[\x{00a0}\x{202f}\x{2009}]", " ")
    signed = pc.replace_substring_regex(blanks, _BRACKETS, r"-\1\2")
    alone = pc.all(pc.match_substring_regex(signed, r"^-?[0-9.,]*$")).as_py()
    parts = pc.extract_regex(signed, _ALONE if alone else _WRITTEN)
    body = pc.utf8_trim_whitespace(pc.struct_field(parts, "body"))
    # "1,5" under a decimal point has no thousands; neither has a number with two signs.
    single = pc.not_equal(pc.binary_length(_sign(parts)), 2)
    rows = flags(pc.match_substring_regex(body, _BODIES[decimal])) & flags(single)
    values = np.full(len(texts), np.nan)
    if rows.any():
        chosen, fits = parts.filter(pa.array(rows)), pa.array(rows)
        digits = pc.replace_substring_regex(body.filter(fits), r"[,'’ ]" if decimal == "." else r"[.'’ ]", "")
        digits = pc.replace_substring(digits, ",", ".")
        sign = pc.replace_substring_regex(pc.replace_substring(_sign(chosen), "+", ""), "−", "-")
        exponent = pc.replace_substring(_field(chosen, "exponent"), "+", "")
        whole = pc.binary_join_element_wise(sign, digits, exponent, _NOTHING)
        values[rows] = np.asarray(pc.cast(whole, pa.float64()))
    unit = pc.binary_join_element_wise(
        pc.utf8_trim_whitespace(_field(parts, "currency")), _field(parts, "unit"), _NOTHING
    )
    return WrittenNumbers(values, unit)


def _field(parts: pa.StructArray, name: str) -> pa.Array:
    return pc.fill_null(pc.struct_field(parts, name), "")


def _sign(parts: pa.StructArray) -> pa.Array:
    return pc.binary_join_element_wise(_field(parts, "sign"), _field(parts, "inner"), _NOTHING)


def is_blank(texts: pa.Array) -> npt.NDArray[np.bool_]:
    """Which of some Arrow texts are missing: null, or nothing but blanks."""
    return flags(pc.fill_null(pc.equal(pc.utf8_trim_whitespace(texts), ""), True))


def leading_zero(texts: pa.Array) -> str:
    """The first of some texts that is digits and begins with a zero that a number would not have; "" if none is.

    Example:
        >>> leading_zero(pa.array(["0", "0.5", "01067", None]))
        '01067'
    """
    found = texts.filter(pc.fill_null(pc.match_substring_regex(texts, "^0[0-9]+$"), False))
    return str(found[0].as_py()) if len(found) else ""


def note_on_zero(name: str, text: str) -> str:
    """For the user, about a column of numbers that has such a text."""
    return (
        f"Column {name!r} holds {shortened(text)}, which is read as the number {int(text)}: if these are codes, say so "
        f"with categorical=[{name!r}] (--categorical)."
    )


def strange_texts(texts: pa.Array, unread: npt.NDArray[np.bool_], words: Collection[str] = ()) -> npt.NDArray[np.int64]:
    """The rows of those unread texts that are not missing, nor a word for it.

    Example:
        >>> strange_texts(pa.array(["1", "-", "x", None]), np.array([False, True, True, True])).tolist()
        [2]
    """
    rows = np.flatnonzero(unread)
    chosen = texts.take(pa.array(rows))
    # Unread texts may be many, but different ones are few.
    different = (text for text in chosen.unique().to_pylist() if text is not None)
    strange = [text for text in different if not is_missing_word(text) and text.strip() not in words]
    return np.asarray(rows[flags(pc.is_in(chosen, value_set=pa.array(strange, chosen.type)))])


@dataclass
class WordCounter:
    """The texts in a column that are no numbers (or no dates): words for a missing value, known or not."""

    words: dict[str, int] = field(default_factory=dict)
    unknown: int = 0
    overflowed: bool = False

    def add(self, texts: Iterable[str], counts: Iterable[int]) -> None:
        """Different texts, in the order in which they first occur, with their counts."""
        for text, count in zip(texts, counts, strict=True):
            word = text.strip()
            known = is_missing_word(word)
            self.unknown += 0 if known else count
            if word in self.words:
                self.words[word] += count
            elif len(self.words) < _MAX_WORDS and len(word) <= _MAX_WORD_LENGTH:
                self.words[word] = count
            else:
                self.overflowed = self.overflowed or not known

    def unknown_words(self) -> list[str]:
        """The words that are not among ``MISSING_WORDS``, in alphabetical order."""
        return sorted(word for word in self.words if not is_missing_word(word))

    @property
    def is_hopeless(self) -> bool:
        """Whether there are too many other words already for the column to be one of numbers (or dates)."""
        return self.overflowed or len(self.unknown_words()) > FEW_SPELLINGS

    def are_few(self, others: int) -> bool:
        """Whether a column with this number of other values is one of these, and the words mean that one is missing."""
        if others == 0 or self.overflowed:
            return False
        share = self.unknown / (others + self.unknown)
        return self.unknown == 0 or (share <= FEW_SHARE and len(self.unknown_words()) <= FEW_SPELLINGS)


class DistinctTexts:
    """The different texts of a chunk: each is parsed once however often it occurs.

    Attributes:
        texts: An Arrow array without null.
        spelled: The same in Python.
        counts: How often each occurs.
        filled: Which are more than blanks.
        indices: For each row the number of its text; ``len(texts)`` where it is null.
    """

    def __init__(self, texts: pa.Array) -> None:
        encoded = texts.dictionary_encode()
        self.texts = encoded.dictionary
        self.indices = np.asarray(encoded.indices.fill_null(len(self.texts)), dtype=np.int64)
        self.counts = np.bincount(self.indices, minlength=len(self.texts) + 1)[:-1].tolist()
        self.spelled = self.texts.to_pylist()
        self.filled: npt.NDArray[np.bool_] = ~is_blank(self.texts)

    def count(self, chosen: npt.NDArray[np.bool_], counter: CategoryCounter | WordCounter) -> None:
        """Give those texts that are chosen, with their counts, to a counter."""
        which = np.flatnonzero(chosen).tolist()
        counter.add([self.spelled[number] for number in which], [self.counts[number] for number in which])


@dataclass
class NumberReading:
    """A column of text read as numbers.

    Attributes:
        decimal: What stands before decimals; None for numbers as programs write them, without units or separators.
    """

    decimal: str | None
    sketch: NumberSketch = field(default_factory=NumberSketch)
    words: WordCounter = field(default_factory=WordCounter)
    units: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Where all numbers stand in brackets, these do not say that they are below zero."""
        self._without_brackets = self.decimal is None

    @property
    def is_hopeless(self) -> bool:
        """Whether nothing that may follow can make this a column of numbers."""
        return self.words.is_hopeless or len(self.units) > 1

    def add(self, chunk: DistinctTexts, first_row: int) -> npt.NDArray[np.float64]:
        """One chunk: the numbers of its different texts, or none if the column is none of numbers."""
        if self.is_hopeless:
            return np.empty(0)
        if self.decimal is None:
            values = parse_numbers(chunk.texts)
        else:
            values, units = read_numbers(chunk.texts, self.decimal)
            bare = ~flags(pc.match_substring(chunk.texts, "("))
            self._without_brackets = self._without_brackets or bool(np.isfinite(values[bare]).any())
            self.units |= {*units.filter(pa.array(~np.isnan(values))).unique().to_pylist()} - {""}
        self.sketch.add(np.append(values, np.nan)[chunk.indices], first_row)
        chunk.count(chunk.filled & np.isnan(values), self.words)
        return values

    @property
    def unit(self) -> str:
        """The unit that stands beside the numbers, if any does."""
        return next(iter(self.units), "")

    @property
    def holds(self) -> bool:
        """Whether the column is one of numbers written so."""
        count = self.sketch.count + self.sketch.gaps.infinite
        return self._without_brackets and not self.is_hopeless and self.words.are_few(count)


@dataclass
class DateReading:
    """A column of text read as dates of one style."""

    style: str
    sketch: MomentSketch = field(default_factory=MomentSketch)
    words: WordCounter = field(default_factory=WordCounter)

    @property
    def is_hopeless(self) -> bool:
        """Whether nothing that may follow can make this a column of dates of this style."""
        return self.words.is_hopeless

    def add(self, chunk: DistinctTexts, first_row: int) -> None:
        """One chunk."""
        if self.is_hopeless:
            return
        moments = read_moments(chunk.texts, self.style)
        self.sketch.add(np.append(moments, NOT_A_MOMENT)[chunk.indices], first_row)
        chunk.count(chunk.filled & (moments == NOT_A_MOMENT), self.words)

    @property
    def holds(self) -> bool:
        """Whether the column is one of dates written so."""
        return not self.is_hopeless and self.words.are_few(self.sketch.count)


class DecimalEvidence:
    """Evidence of the decimal sign in one column of text.

    Attributes:
        readings: The column read with each sign.
        example: A text such as 1.693, whose point may stand before decimals or between thousands; "" if there is none.
        same: Whether some number is the same with either sign.

    Example:
        >>> [evidence_of(pa.array(texts)).shown for texts in (["3,54", "1.234"], ["1.5", "2"], ["1.693", "694"])]
        [',', '.', None]
    """

    def __init__(self, decimals: Sequence[str] = DECIMALS) -> None:
        self.readings = [NumberReading(decimal) for decimal in decimals]
        self.example = ""
        self.same = False

    def add(self, chunk: DistinctTexts, first_row: int = 0) -> None:
        """One chunk."""
        values = [reading.add(chunk, first_row) for reading in self.readings]
        if len(values) == len(DECIMALS) and all(len(each) for each in values):
            point, comma = np.abs(values)
            larger = np.flatnonzero(comma > point)
            if len(larger) and not self.example:
                self.example = chunk.spelled[int(larger[0])]
            self.same = self.same or bool((comma == point).any())

    @property
    def is_hopeless(self) -> bool:
        """Whether nothing that may follow can make this a column of numbers."""
        return all(reading.is_hopeless for reading in self.readings)

    @property
    def holds(self) -> bool:
        """Whether the column is one of numbers with some sign."""
        return any(reading.holds for reading in self.readings)

    @property
    def shown(self) -> str | None:
        """The sign with which more of the texts are numbers than with the other, if these are enough."""
        held = [reading for reading in self.readings if reading.holds]
        fewest = min((reading.words.unknown for reading in held), default=0)
        best = [reading.decimal for reading in held if reading.words.unknown == fewest]
        return best[0] if len(best) == 1 else None

    @property
    def is_open(self) -> bool:
        """Whether the column has points that could be of either kind, and numbers without: 1.693 and 694."""
        return bool(self.example) and self.same and self.shown is None

    def note(self, name: str) -> str:
        """For the user, where the table decides nothing either."""
        return (
            f"Column {name!r} holds {shortened(self.example)}, which is read with a decimal point: if the point stands "
            "between thousands, say so with decimal=',' (--decimal ,)."
        )


def evidence_of(array: pa.Array) -> DecimalEvidence:
    """The evidence of a column of any type: none, if it is not text."""
    evidence, array = DecimalEvidence(), plain(array)
    if family(array.type) == "text":
        evidence.add(DistinctTexts(array))
    return evidence


def decimal_of_columns(columns: Iterable[pa.Array]) -> str | None:
    """The decimal sign of most columns of text that are numbers in one way of writing only, or None.

    Example:
        >>> decimal_of_columns([pa.array(["3,5478", "1,2"]), pa.array(["1,234", "2,345"]), pa.array(["blue", "red"])])
        ','
    """
    shown = [evidence_of(array).shown for array in columns]
    points, commas = map(shown.count, DECIMALS)
    return None if points == commas else "." if points > commas else ","


def only_sign(shown: Iterable[str | None]) -> str | None:
    """The sign that some columns show and none contradicts, or None.

    Example:
        >>> only_sign([",", None, ","]), only_sign([",", "."])
        (',', None)
    """
    found = set(shown) - {None}
    return found.pop() if len(found) == 1 else None
