"""Small charts: points, lines, bands and bars on labelled axes; the page's template draws them as inline SVG.

Everything drawn with one call becomes one ``<path>``, so that a thousand points are a few kilobytes. Colours, fonts
and dark mode are classes of ``templates/report.css``; nothing here refers to anything outside of the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..formatting import cut

_CHARACTER = 7.2  # width of a character at the font size of tick labels, in the widest of common fonts
_LABEL_CHARACTER = 7.9  # the same for axis labels
_BAR_WIDTH = 0.6  # of a horizontal bar, where the next one is one away


@dataclass(frozen=True)
class Axis:
    """A linear axis.

    Attributes:
        low: Its lower end.
        high: Its upper end.
        label: What it shows, with its unit.
        tick_values: Where ticks are; None chooses round numbers.
        tick_names: What stands at them; None writes the numbers.
    """

    low: float
    high: float
    label: str
    tick_values: Sequence[float] | None = None
    tick_names: Sequence[str] | None = None

    @classmethod
    def around(cls, values: ArrayLike, label: str, *, margin: float = 0.04, include: Sequence[float] = ()) -> Axis:
        """An axis that holds all values with a little room on both sides.

        Example:
            >>> axis = Axis.around([0.0, 10.0], "metres", margin=0.1)
            >>> axis.low, axis.high
            (-1.0, 11.0)
        """
        array = np.concatenate([np.asarray(values, dtype=np.float64).ravel(), np.asarray(include, dtype=np.float64)])
        array = array[np.isfinite(array)]
        low, high = (float(array.min()), float(array.max())) if len(array) else (0.0, 1.0)
        room = margin * (high - low)
        if not room > 1e-12 * max(abs(low), abs(high)):  # a single value
            room = 0.5 * abs(low) or 0.5
        return cls(low - room, high + room, label)

    def marks(self, wanted: int) -> list[tuple[float, str]]:
        """Ticks and their labels."""
        if self.tick_values is None:
            values = ticks(self.low, self.high, wanted)
            return list(zip(values, tick_labels(values), strict=True))
        names = tick_labels(list(self.tick_values)) if self.tick_names is None else self.tick_names
        pairs = zip(self.tick_values, names, strict=True)
        return [(value, name) for value, name in pairs if self.low <= value <= self.high]


class Mark(NamedTuple):
    """One ``<path>``: its classes and its ``d``."""

    style: str
    path: str


class Tick(NamedTuple):
    """A tick: where it is, where its label is (None leaves the label out), and the label."""

    place: float
    label_place: float | None
    label: str


@dataclass
class Chart:
    """A chart being drawn: marks are added in the order in which they lie on each other.

    Attributes:
        horizontal: The x axis.
        vertical: The y axis.
        title: Read out by screen readers and shown as a tooltip.
        description: What the chart shows, in a sentence, for readers who cannot see it.
        width: In SVG units; the page scales it to its column.
        height: In SVG units.
        horizontal_grid: Whether ticks of the y axis continue as faint lines.
        vertical_grid: Whether ticks of the x axis do.
        marks: What was drawn.

    Example:
        >>> chart = Chart(Axis(0, 1, "share"), Axis(0, 1, "seen"), "Coverage", "A line from 0 to 1.")
        >>> chart.line([0, 1], [0, 1], "reference")
        >>> chart.marks
        [Mark(style='line reference', path='M53.6 276L386 10')]
        >>> chart.rows[0]
        Tick(place=276.0, label_place=280.0, label='0.0')
    """

    horizontal: Axis
    vertical: Axis
    title: str
    description: str
    width: int = 400
    height: int = 320
    horizontal_grid: bool = True
    vertical_grid: bool = False
    marks: list[Mark] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Leave as much room at the left as the labels of the y axis need."""
        self._row_marks = self.vertical.marks(max(3, round(self.height / 50)))
        widest = max((len(label) for _, label in self._row_marks), default=1)
        self.left = 16.0 + _CHARACTER * widest + (16.0 if self.vertical.label else 0.0)
        self.top, self.right = 10.0, self.width - 14.0
        self.bottom = self.height - (44.0 if self.horizontal.label else 26.0)

    def _x(self, value: float) -> str:
        return coordinate(self._across(value))

    def _across(self, value: float) -> float:
        share = (value - self.horizontal.low) / (self.horizontal.high - self.horizontal.low)
        return self.left + share * (self.right - self.left)

    def _y(self, value: float) -> str:
        return coordinate(self._down(value))

    def _down(self, value: float) -> float:
        share = (value - self.vertical.low) / (self.vertical.high - self.vertical.low)
        return self.bottom - share * (self.bottom - self.top)

    def points(self, x: Iterable[float], y: Iterable[float], style: str = "") -> None:
        """Dots: strokes of no length with round ends."""
        self._add("points", style, (f"M{self._x(a)} {self._y(b)}h0" for a, b in _finite(x, y)))

    def line(self, x: Iterable[float], y: Iterable[float], style: str = "") -> None:
        """A line through the points in their order."""
        pairs = enumerate(_finite(x, y))
        self._add("line", style, (f"{'L' if n else 'M'}{self._x(a)} {self._y(b)}" for n, (a, b) in pairs))

    def steps(self, edges: Sequence[float], heights: Sequence[float]) -> None:
        """Bars of a histogram: one between each two neighbouring edges."""
        parts = []
        for (left, right), height in zip(pairwise(edges), heights, strict=True):
            x0, x1 = coordinate(self._across(left) + 0.75), coordinate(self._across(right) - 0.75)
            parts.append(f"M{x0} {self._y(0.0)}V{self._y(height)}H{x1}V{self._y(0.0)}Z")
        self._add("bar", "", parts)

    def bars(self, positions: Sequence[float], lengths: Sequence[float]) -> None:
        """Horizontal bars from zero."""
        zero, half = self._x(0.0), _BAR_WIDTH / 2
        self._add(
            "bar",
            "",
            (
                f"M{zero} {self._y(position - half)}H{self._x(length)}V{self._y(position + half)}H{zero}Z"
                for position, length in zip(positions, lengths, strict=True)
            ),
        )

    def vertical_bars(self, x: Iterable[float], low: Iterable[float], high: Iterable[float], style: str = "") -> None:
        """Error bars along the y axis."""
        self._add("error", style, (f"M{self._x(a)} {self._y(b)}V{self._y(c)}" for a, b, c in _finite(x, low, high)))

    def horizontal_bars(self, y: Iterable[float], low: Iterable[float], high: Iterable[float], style: str = "") -> None:
        """Error bars along the x axis."""
        self._add("error", style, (f"M{self._x(b)} {self._y(a)}H{self._x(c)}" for a, b, c in _finite(y, low, high)))

    def band(self, x: Sequence[float], low: Sequence[float], high: Sequence[float]) -> None:
        """The area between two lines."""
        triples = list(_finite(x, low, high))
        around = [(a, c) for a, _, c in triples] + [(a, b) for a, b, _ in reversed(triples)]
        if around:
            self._add("band", "", ["M", "L".join(f"{self._x(a)} {self._y(b)}" for a, b in around), "Z"])

    def _add(self, kind: str, style: str, parts: Iterable[str]) -> None:
        path = "".join(parts)
        if path:
            self.marks.append(Mark(" ".join([kind, *style.split()]), path))

    @property
    def rows(self) -> list[Tick]:
        """Ticks of the y axis."""
        places = [(self._down(value), label) for value, label in self._row_marks]
        return [Tick(place, place + 4, label) for place, label in places]

    @property
    def dense(self) -> bool:
        """Whether the names along the x axis are many, and therefore small."""
        return self.horizontal.tick_names is not None and len(self.horizontal.tick_names) > 4

    @property
    def columns(self) -> list[Tick]:
        """Ticks of the x axis; a label that would touch the one before it is left out."""
        character = 0.85 * _CHARACTER if self.dense else _CHARACTER
        found, room_ends = [], -1e9
        for value, label in self.horizontal.marks(max(3, round((self.right - self.left) / 62))):
            place, half = self._across(value), character * len(label) / 2
            # A label at the end of the axis moves inwards rather than out of the picture.
            center = min(max(place, half + 2), self.width - half - 2)
            touches = center - half < room_ends + 3
            found.append(Tick(place, None if touches else center, label))
            room_ends = room_ends if touches else center + half
        return found

    @property
    def horizontal_label(self) -> str:
        """The label of the x axis, cut to its length."""
        return cut(self.horizontal.label, int((self.right - self.left) / _LABEL_CHARACTER))

    @property
    def vertical_label(self) -> str:
        """The label of the y axis, cut to its length."""
        return cut(self.vertical.label, int((self.bottom - self.top) / _LABEL_CHARACTER))


def coordinate(value: float) -> str:
    """A coordinate with one decimal, kept inside what every browser can draw.

    Example:
        >>> coordinate(2.04), coordinate(1e300)
        ('2', '100000')
    """
    return f"{min(max(value, -1e5), 1e5):.1f}".removesuffix(".0")


def _finite(*columns: Iterable[float]) -> Iterator[tuple[float, ...]]:
    """Rows of numbers; one that is not finite cannot be drawn and would break the whole path."""
    for row in zip(*columns, strict=True):
        numbers = tuple(float(value) for value in row)
        if all(map(math.isfinite, numbers)):
            yield numbers


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
    # 2.5 needs one decimal more than its step's power of ten has.
    if abs(round(step * 10**decimals) - step * 10**decimals) > 1e-6 * step * 10**decimals:
        decimals += 1
    return f"{value:,.{decimals}f}".replace("-", "−")
