"""Numbers and missing values that are written as text, by programs or by people, one by one and in whole columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..data.naming import shortened
from ..lite.tables import MISSING_WORDS, NOT_A_MOMENT
from .dates import read_moments
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
    fits = _matches(trimmed, _NUMBER)
    if fits.any():
        # Arrow reads no leading plus sign.
        digits = pc.utf8_ltrim(trimmed.filter(pa.array(fits)), "+")
        result[fits] = pc.cast(digits, pa.float64()).to_numpy(zero_copy_only=False)
    infinite = _matches(trimmed, _INFINITY)
    if infinite.any():
        negative = pc.starts_with(trimmed.filter(pa.array(infinite)), "-").to_numpy(zero_copy_only=False)
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
    plain = pc.replace_substring_regex(trimmed, r"[\x{00a0}\x{202f}\x{2009}]", " ")
    plain = pc.replace_substring_regex(plain, _BRACKETS, r"-\1\2")
    alone = pc.all(pc.match_substring_regex(plain, r"^-?[0-9.,]*$")).as_py()
    parts = pc.extract_regex(plain, _ALONE if alone else _WRITTEN)
    body = pc.utf8_trim_whitespace(pc.struct_field(parts, "body"))
    fits = pc.fill_null(pc.match_substring_regex(body, _BODIES[decimal]), False)
    # "1,5" under a decimal point has no thousands; neither has a number with two signs.
    single = pc.fill_null(pc.not_equal(pc.binary_length(_sign(parts)), 2), False)
    fits = pc.and_(fits, single)
    values = np.full(len(texts), np.nan)
    rows = fits.to_numpy(zero_copy_only=False).astype(bool)
    if rows.any():
        chosen = parts.filter(fits)
        digits = pc.replace_substring_regex(body.filter(fits), r"[,'’ ]" if decimal == "." else r"[.'’ ]", "")
        digits = pc.replace_substring(digits, ",", ".")
        sign = pc.replace_substring_regex(pc.replace_substring(_sign(chosen), "+", ""), "−", "-")
        exponent = pc.replace_substring(_field(chosen, "exponent"), "+", "")
        whole = pc.binary_join_element_wise(sign, digits, exponent, _NOTHING)
        values[rows] = pc.cast(whole, pa.float64()).to_numpy(zero_copy_only=False)
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
    blank = pc.equal(pc.utf8_trim_whitespace(texts), "")
    result: npt.NDArray[np.bool_] = pc.fill_null(blank, True).to_numpy(zero_copy_only=False)
    return result


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
    different = [text for text in chosen.unique().to_pylist() if text is not None]
    strange = [text for text in different if not is_missing_word(text) and text.strip() not in words]
    if not strange:
        return rows[:0]
    which = pc.is_in(chosen, value_set=pa.array(strange, chosen.type)).to_numpy(zero_copy_only=False)
    found: npt.NDArray[np.int64] = rows[which]
    return found


def _matches(texts: pa.Array, pattern: str) -> npt.NDArray[np.bool_]:
    found = pc.fill_null(pc.match_substring_regex(texts, pattern), False)
    result: npt.NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
    return result


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
        self.indices = encoded.indices.fill_null(len(self.texts)).to_numpy(zero_copy_only=False).astype(np.int64)
        self.counts = np.bincount(self.indices, minlength=len(self.texts) + 1)[:-1].tolist()
        self.spelled = self.texts.to_pylist()
        self.filled: npt.NDArray[np.bool_] = ~is_blank(self.texts)

    def count(self, chosen: npt.NDArray[np.bool_], counter: CategoryCounter | WordCounter) -> None:
        """Give those texts that are chosen, with their counts, to a counter."""
        which = np.flatnonzero(chosen).tolist()
        counter.add([self.spelled[number] for number in which], [self.counts[number] for number in which])


class NumberReading:
    """A column of text read as numbers.

    Args:
        decimal: What stands before decimals; None for numbers as programs write them, without units or separators.
    """

    def __init__(self, decimal: str | None) -> None:
        self.decimal = decimal
        self.sketch = NumberSketch()
        self.words = WordCounter()
        self.units: set[str] = set()
        # Where all numbers stand in brackets, these do not say that they are below zero.
        self._without_brackets = decimal is None

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
            bare = ~_matches(chunk.texts, r"\(")
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


class DateReading:
    """A column of text read as dates of one style."""

    def __init__(self, style: str) -> None:
        self.style = style
        self.sketch = MomentSketch()
        self.words = WordCounter()

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
