"""Numbers as people write them: thousands separators, a decimal comma, currencies, percent signs and units."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

DECIMALS = (".", ",")
MAX_UNIT = 12

_NOTHING = pa.scalar("", pa.large_string())

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
