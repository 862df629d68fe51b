"""Values of Arrow as numbers in NumPy; dates, also as people write them, as moments: microseconds since 1970."""

from __future__ import annotations

from datetime import datetime, timezone

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import DataError
from ..lite.tables import DAY, NOT_A_MOMENT

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
Integers = npt.NDArray[np.int64]


def flags(found: pa.Array) -> npt.NDArray[np.bool_]:
    """Arrow's truth values; false where missing."""
    return np.asarray(pc.fill_null(found, False), dtype=np.bool_)


def plain(array: pa.Array) -> pa.Array:
    """An array without wrappings: no chunks, dictionary or extension type; text with 64-bit offsets."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        # First the values: Arrow decodes no dictionary of views.
        array = plain(array.dictionary).take(array.indices)
    return pc.cast(array, pa.large_string()) if is_text(array.type) else array


def without_views(array: pa.Array) -> pa.Array:
    """Values without views, of which Arrow can take no rows, and without extension types."""
    wanted = type_without_views(array.type)
    if wanted == array.type:
        return array
    array = plain(array)
    return array if array.type == wanted else pc.cast(array, wanted)


def type_without_views(kind: pa.DataType) -> pa.DataType:
    """The type of what :func:`without_views` makes of values."""
    return _without_views(kind) if "view" in str(kind) or isinstance(kind, pa.BaseExtensionType) else kind


def _without_views(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _without_views(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _without_views(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_views(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        made = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return made(_without_views(kind.value_type))
    return {"string_view": pa.large_string(), "binary_view": pa.large_binary()}.get(str(kind), kind)


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is one of Arrow's several types of text, perhaps in a dictionary."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    # Views of text are newer than the oldest Arrow that is supported, so they are known by their name.
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view")


def is_number(kind: pa.DataType) -> bool:
    """Whether a type is one of Arrow's several types of numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def family(kind: pa.DataType) -> str:
    """The family of a plain type: ``number``, ``boolean``, ``text``, ``date``, ``time``, ``empty`` or ``other``.

    Example:
        >>> family(pa.int8()), family(pa.date32()), family(pa.list_(pa.int8()))
        ('number', 'date', 'other')
    """
    if pa.types.is_null(kind):
        return "empty"
    if pa.types.is_boolean(kind):
        return "boolean"
    if is_number(kind) or pa.types.is_duration(kind):
        return "number"
    if pa.types.is_large_string(kind):
        return "text"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "date"
    return "time" if pa.types.is_time(kind) else "other"


def number_values(array: pa.Array) -> npt.NDArray[np.float64]:
    """Numbers of any type, booleans and durations (in seconds) as float64; NaN where missing.

    Example:
        >>> number_values(pa.array([True, None])).tolist()
        [1.0, nan]
    """
    kind = array.type
    if pa.types.is_null(kind):
        return np.full(len(array), np.nan)
    if pa.types.is_float16(kind):
        return np.asarray(array, dtype=np.float64)
    if pa.types.is_duration(kind):
        return number_values(pc.cast(array, pa.int64())) / _PER_SECOND[kind.unit]
    return np.asarray(pc.cast(array, pa.float64(), safe=False), dtype=np.float64)


def moment_values(array: pa.Array) -> npt.NDArray[np.int64]:
    """Dates and times as microseconds since 1970 (UTC), times of day since midnight; ``NOT_A_MOMENT`` where missing.

    Example:
        >>> moment_values(pa.array([1], pa.date32())).tolist()
        [86400000000]
    """
    if pa.types.is_null(array.type):
        return np.full(len(array), NOT_A_MOMENT, dtype=np.int64)
    if pa.types.is_time(array.type):
        moments = pc.cast(array, pa.time64("us"), safe=False)
    else:
        unit = pa.timestamp("us", tz=getattr(array.type, "tz", None))
        try:
            moments = pc.cast(array, options=pc.CastOptions(unit, allow_time_truncate=True))
        except pa.ArrowInvalid:
            raise DataError("a date or time is too far from 1970 to be counted in microseconds") from None
    return np.asarray(pc.fill_null(pc.cast(moments, pa.int64()), NOT_A_MOMENT), dtype=np.int64)


def text_values(array: pa.Array) -> pa.Array:
    """Values of any plain type as Arrow text, numbers in their shortest form.

    Example:
        >>> text_values(pa.array([2.0, 2.5, None])).to_pylist()
        ['2', '2.5', None]
    """
    if pa.types.is_floating(array.type):
        # A column of whole numbers with gaps is read as floats, yet its categories are whole numbers.
        texts = [
            None if value is None or value != value else repr(value).removesuffix(".0") for value in array.to_pylist()
        ]
        return pa.array(texts, pa.large_string())
    return array if pa.types.is_large_string(array.type) else pc.cast(array, pa.large_string())


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
    fits = flags(pc.is_valid(parts))
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
        return np.asarray(pc.cast(found, pa.int64()), dtype=np.int64)

    def are(name: str, word: str) -> npt.NDArray[np.bool_]:
        return flags(pc.equal(words(name), word))

    year, month, day = numbers("year"), numbers("month", 1), numbers("day", 1)
    short = flags(pc.equal(pc.utf8_length(words("year")), 2))
    year = year + np.where(short, np.where(year < 69, 2000, 1900), 0)
    if "name" in names:
        found = words("name")
        month = np.asarray(pc.index_in(found, value_set=pa.array(_MONTHS, found.type)), dtype=np.int64) + 1
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
        time += np.asarray(pc.cast(digits, pa.int64()))
    midnight = _mondays(year, numbers("week")) if "week" in names else _midnights(year, month, day)
    moments[fits] = np.where(good & (midnight != NOT_A_MOMENT), midnight + time, NOT_A_MOMENT)
    return moments


def whole_number_moments(values: npt.NDArray[np.float64], style: str = "yyyymmdd") -> Integers:
    """Moments of whole numbers such as 20200112 (``"yyyymmdd"``) or 2020 (``"year"``); others are ``NOT_A_MOMENT``.

    Example:
        >>> (whole_number_moments(np.array([19700102.0, 19701301.0])) // DAY).tolist()[0]
        1
    """
    low, high = (19_000_101, 21_001_231) if style == "yyyymmdd" else (1000, 2999)
    with np.errstate(invalid="ignore"):
        good = (values >= low) & (values <= high) & (values == np.floor(values))
    whole = np.where(good, values, low).astype(np.int64)
    year, month, day = (whole // 10_000, whole // 100 % 100, whole % 100) if style == "yyyymmdd" else (whole, 1, 1)
    return np.where(good, _midnights(year, month, day), NOT_A_MOMENT)


def _midnights(year: Integers, month: Integers | int, day: Integers | int) -> Integers:
    """The moments at which days begin; ``NOT_A_MOMENT`` where there is no such day."""
    first = ((year - 1970) * 12 + np.clip(month, 1, 12) - 1).astype("datetime64[M]").astype("datetime64[D]")
    last = (first.astype("datetime64[M]") + np.timedelta64(1, "M")).astype("datetime64[D]")
    good = (month >= 1) & (month <= 12) & (day >= 1) & (day <= (last - first).astype(np.int64))
    return np.where(good, (first.astype(np.int64) + day - 1) * DAY, NOT_A_MOMENT)


def _mondays(year: Integers, week: Integers) -> Integers:
    """The moments at which weeks of ISO 8601 begin: the first one of a year is that of its fourth day."""
    first, fourth, last = (_midnights(year, month, day) // DAY for month, day in ((1, 1), (1, 4), (12, 31)))
    # A year has 53 weeks if its first day, or the last, is a Thursday, as 1970-01-01.
    weeks = np.where((first % 7 == 0) | (last % 7 == 0), 53, 52)
    monday = fourth - (fourth + 3) % 7
    return np.where((week >= 1) & (week <= weeks), (monday + 7 * (week - 1)) * DAY, NOT_A_MOMENT)


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
