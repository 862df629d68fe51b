"""Numbers and missing values that are written as text, by programs or by people."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# What people write where a number is missing; compared without regard to case and surrounding blanks.
MISSING_WORDS = frozenset(
    {"", "-", "--", "---", "–", "—", ".", "..", "?", "*", "n/a", "na", "n.a.", "n.a", "#n/a", "#na", "<na>", "nan"}
    | {"-nan", "null", "none", "nil", "(null)", "missing", "not available", "nat", "#value!", "#div/0!", "#ref!"}
)

# A column of text is one of numbers (or dates) if at most this share of its values, in at most this many spellings,
# is something else; the something else is then missing values in words nobody has listed above.
FEW_SHARE = 0.05
FEW_SPELLINGS = 20

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
        >>> read_numbers(pa.array(["39,1", "1.234,5 kg"]), ",").values.tolist()
        [39.1, 1234.5]
    """
    trimmed = pc.utf8_trim_whitespace(pc.cast(texts, pa.large_string()))
    plain = pc.replace_substring_regex(trimmed, r"[\x{00a0}\x{202f}\x{2009}]", " ")
    parts = pc.extract_regex(plain, _WRITTEN)
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
