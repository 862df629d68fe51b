"""Dates and times: the moments that texts and whole numbers stand for, and the parts of them that a regression can use.

A moment is a number of microseconds since 1970.
"""

from __future__ import annotations

from datetime import datetime, timezone

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..lite.tables import DAY, NOT_A_MOMENT

Integers = npt.NDArray[np.int64]

# How people write dates

_TIME = (
    r"(?:[T ,]+(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:[.,][0-9]+)?)?"
    r"(?: *(?P<half>[AaPp])[.]?[Mm][.]?)?)?$"
)
_ISO_TIME = r"[T ](?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:[.](?P<fraction>[0-9]{1,9}))?)?"
_ISO_ZONE = r"Z|(?P<zone>[+-])(?P<zone_hour>[0-9]{2}):?(?P<zone_minute>[0-9]{2})?"
_WEEKDAY = r"^(?:(?i:mon|tue|wed|thu|fri|sat|sun)[a-z]*[,.]? +)?"
_DAY_MONTH = r"(?P<{}>[0-9]{{1,2}})[/-](?P<{}>[0-9]{{1,2}})[/-](?P<year>[0-9]{{4}}|[0-9]{{2}})"
_NAME = r"(?P<name>(?i:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec))[a-z]*[.]?"
#: Every style with the form it has.
_PATTERNS = {
    "iso": rf"^(?P<year>[0-9]{{4}})-(?P<month>[0-9]{{2}})-(?P<day>[0-9]{{2}})(?:{_ISO_TIME}(?:{_ISO_ZONE})?)?$",
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
    "year and month name": r"^(?P<year>[0-9]{4})[ ,./-]*" + _NAME + r"(?:[ ,./-]+(?P<day>[0-9]{1,2}))?" + _TIME,
    "quarter": r"^(?P<year>[0-9]{4})[ ./-]*[Qq](?P<quarter>[1-4])$",
    "quarter first": r"^[Qq](?P<quarter>[1-4])[ ./-]*(?P<year>[0-9]{4})$",
    "week": r"^(?P<year>[0-9]{4})[ -]?W(?P<week>[0-9]{1,2})$",
    "year-month": r"^(?P<year>[0-9]{4})[-/.](?P<month>[0-9]{1,2})$",
    "yyyymmdd": r"^(?P<year>(?:19|20)[0-9]{2})(?P<month>[0-9]{2})(?P<day>[0-9]{2})$",
    "year": r"^(?P<year>[12][0-9]{3})$",
}
STYLES = tuple(_PATTERNS)
#: Styles that are tried on text of which nothing is known: a bare year is a number.
FOUND_STYLES = tuple(style for style in STYLES if style != "year")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def read_moments(texts: pa.Array, style: str = "iso") -> Integers:
    """The moments of dates in an Arrow array of text; ``NOT_A_MOMENT`` for texts that are not of a style.

    Years of two digits are from 1969 to 2068, as in POSIX. ISO times with a zone are converted to UTC; times without
    one are taken as they are.

    Example:
        >>> (read_moments(pa.array(["Apr 14, 2020", "13/2/1970"]), "day first") == NOT_A_MOMENT).tolist()
        [True, False]
        >>> [int(read_moments(pa.array([text]), style)[0] // DAY) for text, style in [
        ...     ("2/1/1970", "day first"), ("1970 Feb", "year and month name"), ("Q2 1970", "quarter first"),
        ...     ("1970-W02", "week")]]
        [1, 31, 90, 4]
        >>> read_moments(pa.array(["1970-01-02", "1970-01-01T01:00+01:00", "1 May"])).tolist() == [
        ...     86_400_000_000, 0, NOT_A_MOMENT]
        True
    """
    parts = pc.extract_regex(pc.utf8_trim_whitespace(texts), _PATTERNS[style])
    fits = pc.is_valid(parts).to_numpy(zero_copy_only=False)
    moments = np.full(len(texts), NOT_A_MOMENT, dtype=np.int64)
    if not fits.any():
        return moments
    parts = parts.filter(pa.array(fits))
    names = {field.name for field in parts.type}

    def words(name: str) -> pa.Array:
        return pc.utf8_lower(pc.fill_null(pc.struct_field(parts, name), ""))

    def numbers(name: str, default: int = 0) -> Integers:
        if name not in names:
            return np.full(len(parts), default, dtype=np.int64)
        found = words(name)
        found = pc.if_else(pc.equal(found, ""), str(default), found)
        values: Integers = pc.cast(found, pa.int64()).to_numpy(zero_copy_only=False)
        return values

    def are(name: str, word: str) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = pc.equal(words(name), word).to_numpy(zero_copy_only=False)
        return found

    year, month, day = numbers("year"), numbers("month", 1), numbers("day", 1)
    short = pc.equal(pc.utf8_length(words("year")), 2).to_numpy(zero_copy_only=False)
    year = year + np.where(short, np.where(year < 69, 2000, 1900), 0)
    if "name" in names:
        found = words("name")
        month = pc.index_in(found, value_set=pa.array(_MONTHS, found.type)).to_numpy(zero_copy_only=False) + 1
    if "quarter" in names:
        month = 3 * numbers("quarter") - 2
    hour, minute, second = numbers("hour"), numbers("minute"), numbers("second")
    good = (hour < 24) & (minute < 60) & (second < 60)
    if "half" in names:
        whole = are("half", "")
        good &= whole | ((hour >= 1) & (hour <= 12))
        hour = np.where(whole, hour, hour % 12 + 12 * are("half", "p"))
    time = ((hour * 60 + minute) * 60 + second) * 1_000_000
    if "zone" in names:
        away = numbers("zone_hour") * 60 + numbers("zone_minute")
        good &= (numbers("zone_hour") < 24) & (numbers("zone_minute") < 60)
        time -= np.where(are("zone", "-"), -away, away) * 60_000_000
        # Digits beyond the microsecond are cut.
        digits = pc.utf8_slice_codeunits(pc.utf8_rpad(words("fraction"), 6, "0"), 0, 6)
        time += pc.cast(digits, pa.int64()).to_numpy(zero_copy_only=False)
    if "week" in names:
        midnight = _mondays(year, numbers("week"))
    else:
        midnight = _midnights(year, np.asarray(month, dtype=np.int64), day)
    moments[fits] = np.where(good & (midnight != NOT_A_MOMENT), midnight + time, NOT_A_MOMENT)
    return moments


def whole_number_moments(values: npt.NDArray[np.float64], style: str = "yyyymmdd") -> Integers:
    """Integers of whole numbers such as 20200112 (``"yyyymmdd"``) or 2020 (``"year"``); others are ``NOT_A_MOMENT``.

    Example:
        >>> (whole_number_moments(np.array([19700102.0, 19701301.0])) // DAY).tolist()[0]
        1
    """
    low, high = (19_000_101, 21_001_231) if style == "yyyymmdd" else (1000, 2999)
    with np.errstate(invalid="ignore"):
        good = (values >= low) & (values <= high) & (values == np.floor(values))
    whole = np.where(good, values, low).astype(np.int64)
    year, month, day = (whole // 10_000, whole // 100 % 100, whole % 100) if style == "yyyymmdd" else (whole, 1, 1)
    return np.where(good, _midnights(year, np.asarray(month), np.asarray(day)), NOT_A_MOMENT)


def _midnights(year: Integers, month: Integers, day: Integers) -> Integers:
    """The moments at which days begin; ``NOT_A_MOMENT`` where there is no such day."""
    first = ((year - 1970) * 12 + np.clip(month, 1, 12) - 1).astype("datetime64[M]").astype("datetime64[D]")
    last = (first.astype("datetime64[M]") + np.timedelta64(1, "M")).astype("datetime64[D]")
    good = (month >= 1) & (month <= 12) & (day >= 1) & (day <= (last - first).astype(np.int64))
    return np.where(good, (first.astype(np.int64) + day - 1) * DAY, NOT_A_MOMENT)


def _mondays(year: Integers, week: Integers) -> Integers:
    """The moments at which weeks of ISO 8601 begin: the first one of a year is that of its fourth day."""
    one = np.ones_like(year)
    fourth = _midnights(year, one, 4 * one) // DAY
    first, weeks = fourth - (fourth + 3) % 7, np.where(_has_53_weeks(year), 53, 52)
    return np.where((week >= 1) & (week <= weeks), (first + 7 * (week - 1)) * DAY, NOT_A_MOMENT)


def _has_53_weeks(year: Integers) -> npt.NDArray[np.bool_]:
    """Whether the last day of a year, or the first, is a Thursday."""
    one = np.ones_like(year)
    days = [_midnights(year, month * one, day * one) // DAY for month, day in ((1, 1), (12, 31))]
    found: npt.NDArray[np.bool_] = (days[0] % 7 == 0) | (days[1] % 7 == 0)  # as 1970-01-01
    return found


def moment_text(moment: int) -> str:
    """A moment as people write it.

    Example:
        >>> moment_text(0), moment_text(3_600_000_000)
        ('1970-01-01', '1970-01-01 01:00:00')
    """
    try:
        found = datetime.fromtimestamp(moment // 1_000_000, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"{moment / DAY:.0f} days from 1970"
    return found.strftime("%Y-%m-%d" if moment % DAY == 0 else "%Y-%m-%d %H:%M:%S")


# What a regression uses of them

# Each part but the first goes round in a circle, so it is given by its sine and cosine: 31 December is near 1 January.
PARTS = ("days", "day of year", "weekday", "time of day")


def part_names(parts: tuple[str, ...]) -> list[str]:
    """The names of the columns that ``date_parts`` gives.

    Example:
        >>> part_names(("days", "weekday"))
        ['days', 'weekday sine', 'weekday cosine']
    """
    return [name for part in parts for name in ([part] if part == "days" else [f"{part} sine", f"{part} cosine"])]
