"""Dates as people write them: which style, and the moments that texts of a style stand for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .text_values import NOT_A_MOMENT, parse_moments

_DAY = 86_400_000_000
_TIME = (
    r"(?:[T ,]+(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:[.,][0-9]+)?)?"
    r"(?: *(?P<half>[AaPp])[.]?[Mm][.]?)?)?$"
)
_WEEKDAY = r"^(?:(?i:mon|tue|wed|thu|fri|sat|sun)[a-z]*[,.]? +)?"
_DAY_MONTH = r"(?P<{}>[0-9]{{1,2}})[/-](?P<{}>[0-9]{{1,2}})[/-](?P<year>[0-9]{{4}}|[0-9]{{2}})"
_NAME = r"(?P<name>(?i:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec))[a-z]*[.]?"
#: Every style but ISO, which :func:`~finitegp.tables.text_values.parse_moments` reads, with the form it has.
_PATTERNS = {
    "day first": "^(?:" + _DAY_MONTH.format("day", "month") + ")" + _TIME,
    "month first": "^(?:" + _DAY_MONTH.format("month", "day") + ")" + _TIME,
    "day.month.year": r"^(?P<day>[0-9]{1,2})[.] ?(?P<month>[0-9]{1,2})[.] ?(?P<year>[0-9]{4}|[0-9]{2})" + _TIME,
    "year first": r"^(?P<year>[0-9]{4})[/.](?P<month>[0-9]{1,2})[/.](?P<day>[0-9]{1,2})" + _TIME,
    "month name first": _WEEKDAY + _NAME + r" +(?P<day>[0-9]{1,2})(?:st|nd|rd|th)?,? +(?P<year>[0-9]{4})" + _TIME,
    "day and month name": _WEEKDAY
    + r"(?P<day>[0-9]{1,2})(?:st|nd|rd|th)?[. -]*"
    + _NAME
    + r"[ ,.-]+(?P<year>[0-9]{4}|[0-9]{2})"
    + _TIME,
    "month name and year": "^" + _NAME + r"[ ,.-]+(?P<year>[0-9]{4})$",
    "year-month": r"^(?P<year>[0-9]{4})[-/.](?P<month>[0-9]{1,2})$",
    "yyyymmdd": r"^(?P<year>(?:19|20)[0-9]{2})(?P<month>[0-9]{2})(?P<day>[0-9]{2})$",
    "year": r"^(?P<year>[12][0-9]{3})$",
}
STYLES = ("iso", *_PATTERNS)
#: Styles that are tried on text of which nothing is known: a bare year is a number.
FOUND_STYLES = tuple(style for style in STYLES if style != "year")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def read_moments(texts: pa.Array, style: str = "iso") -> npt.NDArray[np.int64]:
    """Microseconds since 1970 of dates in an Arrow array of text; ``NOT_A_MOMENT`` for texts that are not of a style.

    Years of two digits are from 1969 to 2068, as in POSIX.

    Example:
        >>> (read_moments(pa.array(["Apr 14, 2020", "13/2/1970"]), "day first") == NOT_A_MOMENT).tolist()
        [True, False]
        >>> [int(read_moments(pa.array([text]), style)[0] // _DAY) for text, style in [
        ...     ("2/1/1970", "day first"), ("2/1/1970", "month first"), ("1970-02", "year-month")]]
        [1, 31, 31]
    """
    if style == "iso":
        return parse_moments(texts)
    parts = pc.extract_regex(pc.utf8_trim_whitespace(texts), _PATTERNS[style])
    fits = pc.is_valid(parts).to_numpy(zero_copy_only=False)
    moments = np.full(len(texts), NOT_A_MOMENT, dtype=np.int64)
    if not fits.any():
        return moments
    parts = parts.filter(pa.array(fits))
    names = {field.name for field in parts.type}

    def numbers(name: str, default: int) -> npt.NDArray[np.int64]:
        if name not in names:
            return np.full(len(parts), default, dtype=np.int64)
        found = pc.struct_field(parts, name)
        found = pc.if_else(pc.equal(found, ""), str(default), found)
        values: npt.NDArray[np.int64] = pc.cast(pc.fill_null(found, str(default)), pa.int64()).to_numpy(False)
        return values

    year, day = numbers("year", 1970), numbers("day", 1)
    year = np.where(year < 69, year + 2000, np.where(year < 100, year + 1900, year))
    if "name" in names:
        found = pc.utf8_lower(pc.struct_field(parts, "name"))
        month = pc.index_in(found, value_set=pa.array(_MONTHS, found.type)).to_numpy(zero_copy_only=False) + 1
        month = np.asarray(month, dtype=np.int64)
    else:
        month = numbers("month", 1)
    hour, minute, second = (numbers(name, 0) for name in ("hour", "minute", "second"))
    if "half" in names:
        half = pc.fill_null(pc.utf8_lower(pc.struct_field(parts, "half")), "")
        is_half = pc.not_equal(half, "").to_numpy(zero_copy_only=False)
        after_noon = pc.equal(half, "p").to_numpy(zero_copy_only=False)
        good_hour = np.where(is_half, (hour >= 1) & (hour <= 12), hour < 24)
        hour = np.where(is_half, hour % 12 + 12 * after_noon, hour)
    else:
        good_hour = hour < 24
    midnight = _moments(year, month, day)
    good = (midnight != NOT_A_MOMENT) & good_hour & (minute < 60) & (second < 60)
    moments[fits] = np.where(good, midnight + ((hour * 60 + minute) * 60 + second) * 1_000_000, NOT_A_MOMENT)
    return moments


def whole_number_moments(values: npt.NDArray[np.float64], style: str = "yyyymmdd") -> npt.NDArray[np.int64]:
    """Moments of whole numbers such as 20200112 (``"yyyymmdd"``) or 2020 (``"year"``); others are ``NOT_A_MOMENT``.

    Example:
        >>> (whole_number_moments(np.array([19700102.0, 19701301.0])) // _DAY).tolist()[0]
        1
    """
    low, high = (19_000_101, 21_001_231) if style == "yyyymmdd" else (1000, 2999)
    with np.errstate(invalid="ignore"):
        good = (values >= low) & (values <= high) & (values == np.floor(values))
    whole = np.where(good, values, low).astype(np.int64)
    year, month, day = (whole // 10_000, whole // 100 % 100, whole % 100) if style == "yyyymmdd" else (whole, 1, 1)
    return np.where(good, _moments(year, np.asarray(month), np.asarray(day)), NOT_A_MOMENT)


def _moments(
    year: npt.NDArray[np.int64], month: npt.NDArray[np.int64], day: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Microseconds since 1970 at midnight; ``NOT_A_MOMENT`` where there is no such day."""
    first = ((year - 1970) * 12 + np.clip(month, 1, 12) - 1).astype("datetime64[M]").astype("datetime64[D]")
    last = (first.astype("datetime64[M]") + 1).astype("datetime64[D]")
    good = (month >= 1) & (month <= 12) & (day >= 1) & (day <= (last - first).astype(np.int64))
    return np.where(good, (first.astype(np.int64) + day - 1) * _DAY, NOT_A_MOMENT)
