"""Numbers and names as a reader wants to see them: few digits, thousands kept apart, long names cut."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence


def shown(value: float | int | None, digits: int = 3, *, ascii_only: bool = False) -> str:
    """A number with this many significant digits; a dash for what is not known.

    With ``ascii_only`` as a terminal of any encoding can print it and a script can read it: no separators of thousands.

    Example:
        >>> shown(1234567.0), shown(0.000123456), shown(-2.0), shown(None)
        ('1,235,000', '0.000123', '−2', '–')
        >>> shown(31415.9), shown(3.2e-9), shown(8.1e15)
        ('31,420', '3.2e−9', '8.1e15')
        >>> shown(-1234.5678, 4, ascii_only=True), shown(None, ascii_only=True)
        ('-1235', '-')
    """
    if value is None or not math.isfinite(value):
        return "-" if ascii_only else "–"
    if value == 0:
        return "0"
    size = abs(value)
    if isinstance(value, int):
        text = f"{value:,}"
    elif size >= 10**digits and size < 1e9:
        text = f"{float(f'{value:.{max(digits, 4)}g}'):,.0f}"  # four digits at least: 1,234 is no longer than 1,230
    elif size < 1e-4 or size >= 1e9:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        text = f"{_trimmed(mantissa)}e{int(exponent)}"
    else:
        decimals = max(digits - 1 - math.floor(math.log10(size)), 0)
        text = _trimmed(f"{value:,.{decimals}f}")
    return text.replace(",", "") if ascii_only else text.replace("-", "−")


def counted(number: float, noun: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "row"), counted(2.0, "held-out row"), counted(2.5, "row")
        ('1 row', '2 held-out rows', '2.5 rows')
    """
    return f"{int(number) if float(number).is_integer() else f'{number:g}'} {noun}{'s' * (number != 1)}"


def percent(share: float | None, decimals: int = 1) -> str:
    """A share as a percentage.

    Example:
        >>> percent(0.8975), percent(None)
        ('89.8 %', '–')
    """
    if share is None or not math.isfinite(share):
        return "–"
    return f"{100 * share:.{decimals}f} %".replace("-", "−")


def cut(name: str, length: int) -> str:
    """A long name cut in its middle, so that the two ends that tell names apart stay.

    Example:
        >>> cut("average_monthly_income_2019", 15), cut("short", 15)
        ('average…me_2019', 'short')
    """
    if len(name) <= length:
        return name
    head = (length - 1) // 2
    return f"{name[:head]}…{name[len(name) - (length - 1 - head) :]}"


# Joiners of letters and of emoji, which change no other character.
_JOINERS = "\u200c\u200d"


def printable(text: str, keep: str = "") -> str:
    r"""Text of strangers for a terminal or a page: what moves the cursor, colours or turns around is written out.

    ``keep`` are characters that stay as they are.

    Example:
        >>> print(printable("a\x1b[31mb\u202ec\nd"), printable("größe €"))
        a\x1b[31mb\u202ec\nd größe €
    """
    if text.isprintable():
        return text
    return "".join(
        letter.encode("unicode_escape").decode()
        if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") and letter not in _JOINERS + keep
        else letter
        for letter in text
    )


def distinct_cuts(names: Sequence[str], length: int) -> list[str]:
    """Long names cut so that they can still be told apart: where they all begin or end alike, that part goes first.

    Example:
        >>> distinct_cuts(["income_in_region_1_before_tax", "income_in_region_2_before_tax"], 12)
        ['…ion_1_befo…', '…ion_2_befo…']
        >>> distinct_cuts(["age", "a_very_long_name_indeed"], 12)
        ['age', 'a_ver…indeed']
    """
    long = [name for name in names if len(name) > length]
    prefix, suffix = _shared_start(long), _shared_start([name[::-1] for name in long])
    result = []
    for name in names:
        # The part that differs, in the middle of the window.
        first, last = prefix, max(len(name) - suffix, prefix + 1)
        if len(name) <= length or len(long) < 2 or first < (length - 1) // 2 or len(name) - last < length // 2:
            result.append(cut(name, length))
            continue
        room = length - 2
        start = max(0, first - max(0, (room - (last - first)) // 2))
        result.append(f"…{name[start : start + room]}…")
    return result


def _shared_start(names: Sequence[str]) -> int:
    """How many characters all names begin with."""
    return next(
        (place for place, letters in enumerate(zip(*names, strict=False)) if len(set(letters)) > 1),
        min((len(name) for name in names), default=0),
    )


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def parse_seconds(value: str | float) -> float:
    """Seconds of a time budget.

    Example:
        >>> parse_seconds("90s"), parse_seconds("1.5 min"), parse_seconds(20)
        (90.0, 90.0, 20.0)
    """
    units = {"": 1.0, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(value))
    if isinstance(value, bool) or found is None or found[2] not in units or float(found[1]) <= 0.0:
        raise ValueError(f"time_budget must be a time such as '60s', '5min' or '1h', but is {value!r}.")
    return float(found[1]) * units[found[2]]
