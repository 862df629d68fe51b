"""The parts of dates and times that a regression can use."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_DAY = 86_400_000_000

# Each part but the first goes round in a circle, so it is given by its sine and cosine: 31 December is near 1 January.
PARTS = ("days", "day of year", "weekday", "time of day")


class Calendar(NamedTuple):
    """Days since 1970, day of the year from 0, days in that year, weekday from Monday = 0, microseconds of the day."""

    days: npt.NDArray[np.int64]
    day_of_year: npt.NDArray[np.int64]
    year_length: npt.NDArray[np.int64]
    weekday: npt.NDArray[np.int64]
    time_of_day: npt.NDArray[np.int64]


def calendar(moments: npt.NDArray[np.int64]) -> Calendar:
    """The calendar of moments in microseconds since 1970.

    Example:
        >>> leap_day = calendar(np.array([1_709_164_800_000_000]))  # 29 February 2024, a Thursday
        >>> [int(part[0]) for part in leap_day]
        [19782, 59, 366, 3, 0]
    """
    days = moments // _DAY
    year = days.astype("datetime64[D]").astype("datetime64[Y]")
    start = year.astype("datetime64[D]").astype(np.int64)
    end = (year + np.timedelta64(1, "Y")).astype("datetime64[D]").astype(np.int64)
    # 1 January 1970 was a Thursday.
    return Calendar(days, days - start, end - start, (days + 3) % 7, moments - days * _DAY)


def part_names(parts: tuple[str, ...]) -> list[str]:
    """The names of the columns that ``date_parts`` gives.

    Example:
        >>> part_names(("days", "weekday"))
        ['days', 'weekday sine', 'weekday cosine']
    """
    return [name for part in parts for name in ([part] if part == "days" else [f"{part} sine", f"{part} cosine"])]


def date_parts(moments: npt.NDArray[np.int64], parts: tuple[str, ...]) -> npt.NDArray[np.float64]:
    """Columns for moments in microseconds since 1970, ``(rows, columns)``.

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
        "time of day": found.time_of_day / _DAY,
    }
    columns: list[npt.NDArray[np.float64]] = []
    for part in parts:
        if part == "days":
            columns.append(found.days + found.time_of_day / _DAY)
        else:
            angle = 2 * np.pi * turns[part]
            columns += [np.sin(angle), np.cos(angle)]
    return np.stack(columns, axis=1) if columns else np.empty((len(moments), 0))
