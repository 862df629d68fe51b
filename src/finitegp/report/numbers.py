"""Numbers as a reader wants to see them: few digits, thousands kept apart, round axis ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise


def shown(value: float | int | None, digits: int = 3) -> str:
    """A number with so many significant digits; an en dash for what is not known.

    Example:
        >>> shown(1234567.0), shown(0.000123456), shown(-2.0), shown(None)
        ('1,235,000', '0.000123', '−2', '–')
        >>> shown(31415.9), shown(3.2e-9), shown(8.1e15)
        ('31,420', '3.2e−9', '8.1e15')
    """
    if value is None or not math.isfinite(value):
        return "–"
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
    return text.replace("-", "−")


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


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About ``count`` round numbers from ``low`` to ``high``.

    Example:
        >>> ticks(0.0, 1.0)
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
        >>> ticks(-3.0, 14200.0)
        [0.0, 5000.0, 10000.0]
    """
    span = high - low
    if not (math.isfinite(span) and span > 0.0):
        return [low] if math.isfinite(low) else []
    raw = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= raw * 0.9999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # A multiple of the step with its digits cut: 3 * 0.1 would be written as 0.30000000000000004.
    decimals = max(0, 2 - math.floor(math.log10(step)))
    return [round(number * step, decimals) + 0.0 for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers for a logarithmic axis: 1, 2, 5 times powers of ten, or only powers if those are many.

    Example:
        >>> log_ticks(30.0, 1200.0), log_ticks(1e-3, 1e3)
        ([50.0, 100.0, 200.0, 500.0, 1000.0], [0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if math.log10(high / low) < 2.5 else (1,)
    found = [float(f"{factor}e{power}") for power in powers for factor in factors]
    return [value for value in found if low * 0.999 <= value <= high * 1.001]


def tick_labels(values: list[float]) -> list[str]:
    """Labels with one number of decimals and one unit for all ticks of an axis.

    Example:
        >>> tick_labels([0.0, 0.5, 1.0]), tick_labels([0.0, 20000.0]), tick_labels([-2e6, 2e6])
        (['0.0', '0.5', '1.0'], ['0', '20k'], ['−2M', '2M'])
    """
    if not values:
        return []
    largest = max(abs(value) for value in values)
    gaps = [b - a for a, b in pairwise(values)]
    step = min(gaps) if gaps else (largest or 1.0)
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if largest >= 10 * size or (largest >= size and size > 1e3):
            return [_fixed(value / size, step / size) + (unit if value else "") for value in values]
    if largest and largest < 1e-3:
        power = math.floor(math.log10(largest))
        return [(_fixed(value / 10.0**power, step / 10.0**power) + f"e{power}" if value else "0") for value in values]
    return [_fixed(value, step) for value in values]


def _fixed(value: float, step: float) -> str:
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    # 2.5 needs one decimal more than its step's power of ten says.
    if abs(round(step * 10**decimals) - step * 10**decimals) > 1e-6 * step * 10**decimals:
        decimals += 1
    return f"{value:,.{decimals}f}".replace("-", "−")


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
