"""Numbers, moments and missing values that are written as text."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timezone

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# What people write where a number is missing; compared without regard to case and surrounding blanks.
MISSING_WORDS = frozenset(
    {
        "",
        "-",
        "--",
        "---",
        "–",
        "—",
        ".",
        "..",
        "?",
        "*",
        "n/a",
        "na",
        "n.a.",
        "n.a",
        "#n/a",
        "#na",
        "<na>",
        "nan",
        "-nan",
    }
    | {"null", "none", "nil", "(null)", "missing", "not available", "nat", "#value!", "#div/0!", "#ref!"}
)

# A column of text is one of numbers (or dates) if at most this share of its values, in at most this many spellings,
# is something else; the something else is then missing values in words nobody has listed above.
FEW_SHARE = 0.05
FEW_SPELLINGS = 20

_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_INFINITY = r"^[+-]?[iI][nN][fF]([iI][nN][iI][tT][yY])?$"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"
_MOMENT = _DATE + r"([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?)?$"
_MOMENT_WITH_ZONE = _DATE + r"[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"

NOT_A_MOMENT = np.iinfo(np.int64).min


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


def parse_moments(texts: pa.Array) -> npt.NDArray[np.int64]:
    """Microseconds since 1970 of ISO dates and times in an Arrow array of text; ``NOT_A_MOMENT`` for other text.

    Times with a zone are converted to UTC; times without one are taken as they are.

    Example:
        >>> parse_moments(pa.array(["1970-01-02", "1970-01-01T01:00+01:00", "1 May"])).tolist() == [
        ...     86_400_000_000, 0, NOT_A_MOMENT]
        True
    """
    trimmed = pc.utf8_trim_whitespace(texts)
    result = np.full(len(texts), NOT_A_MOMENT, dtype=np.int64)
    for pattern, kind in ((_MOMENT, pa.timestamp("us")), (_MOMENT_WITH_ZONE, pa.timestamp("us", tz="UTC"))):
        fits = _matches(trimmed, pattern)
        if not fits.any():
            continue
        # Digits beyond the microsecond are cut: Arrow refuses what its unit cannot hold.
        chosen = pc.replace_substring_regex(trimmed.filter(pa.array(fits)), r"([.][0-9]{6})[0-9]+", r"\1")
        try:
            moments = pc.cast(pc.cast(chosen, kind), pa.int64()).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:
            # Some are no days of any calendar, such as 30 February: one by one.
            moments = np.array([_parse_moment(text) for text in chosen.to_pylist()], dtype=np.int64)
        result[fits] = moments
    return result


def _parse_moment(text: str) -> int:
    kind = pa.timestamp("us") if _is_naive(text) else pa.timestamp("us", tz="UTC")
    try:
        return int(pc.cast(pa.array([text]), kind)[0].value)
    except pa.ArrowInvalid:
        return NOT_A_MOMENT


def _is_naive(text: str) -> bool:
    return not (text.endswith("Z") or "+" in text or "-" in text[10:])


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


def moment_text(moment: int) -> str:
    """A moment in microseconds since 1970 as people write it.

    Example:
        >>> moment_text(0), moment_text(3_600_000_000)
        ('1970-01-01', '1970-01-01 01:00:00')
    """
    try:
        found = datetime.fromtimestamp(moment // 1_000_000, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"{moment / 86_400_000_000:.0f} days from 1970"
    return found.strftime("%Y-%m-%d" if moment % 86_400_000_000 == 0 else "%Y-%m-%d %H:%M:%S")
