"""Small charts as inline SVG: points, lines, bands and bars on labelled axes, coloured by the page's style sheet.

Everything drawn with one call becomes one ``<path>``, so that a thousand points are a few kilobytes. Colours, fonts
and dark mode are CSS classes (:mod:`.style`); nothing here refers to anything outside of the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from .numbers import cut, tick_labels, ticks

_CHARACTER = 7.2  # width of a character at the font size of tick labels, in the widest of common fonts
_LABEL_CHARACTER = 7.9  # likewise of axis labels


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
    def around(cls, values: Any, label: str, *, margin: float = 0.04, include: Sequence[float] = ()) -> Axis:
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

    def marks(self, wanted: int) -> tuple[list[float], list[str]]:
        """Ticks and their labels."""
        if self.tick_values is None:
            values = ticks(self.low, self.high, wanted)
            return values, tick_labels(values)
        names = tick_labels(list(self.tick_values)) if self.tick_names is None else self.tick_names
        inside = [
            (value, name) for value, name in zip(self.tick_values, names, strict=True) if self.low <= value <= self.high
        ]
        return [value for value, _ in inside], [name for _, name in inside]


@dataclass
class Chart:
    """A chart being drawn: marks are added in the order in which they lie on each other, then :meth:`render`.

    Attributes:
        horizontal: The x axis.
        vertical: The y axis.
        title: Read out by screen readers and shown as a tooltip.
        description: What the chart shows, in a sentence, for readers who cannot see it.
        width: In SVG units; the page scales it to its column.
        height: Likewise.
        horizontal_grid: Whether ticks of the y axis continue as faint lines.
        vertical_grid: Whether ticks of the x axis do.

    Example:
        >>> chart = Chart(Axis(0, 1, "share"), Axis(0, 1, "seen"), "Coverage", "A line from 0 to 1.")
        >>> chart.line([0, 1], [0, 1], "reference")
        >>> drawing = chart.render("coverage")
        >>> drawing.startswith("<svg") and 'role="img"' in drawing
        True
    """

    horizontal: Axis
    vertical: Axis
    title: str
    description: str
    width: int = 400
    height: int = 320
    horizontal_grid: bool = True
    vertical_grid: bool = False
    _marks: list[str] = field(default_factory=list)
    _left: float = field(init=False)

    def __post_init__(self) -> None:
        """Leave as much room at the left as the labels of the y axis need."""
        labels = self.vertical.marks(self._wanted_rows())[1]
        widest = max((len(label) for label in labels), default=1)
        self._left = 16.0 + _CHARACTER * widest + (16.0 if self.vertical.label else 0.0)

    def _wanted_rows(self) -> int:
        return max(3, round(self.height / 50))

    @property
    def _box(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the plotting area."""
        return self._left, 10.0, self.width - 14.0, self.height - (44.0 if self.horizontal.label else 26.0)

    def _x(self, value: float) -> float:
        left, _, right, _ = self._box
        return left + (value - self.horizontal.low) / (self.horizontal.high - self.horizontal.low) * (right - left)

    def _y(self, value: float) -> float:
        _, top, _, bottom = self._box
        return bottom - (value - self.vertical.low) / (self.vertical.high - self.vertical.low) * (bottom - top)

    def points(self, x: Iterable[float], y: Iterable[float], style: str = "") -> None:
        """Dots: strokes of no length with round ends."""
        parts = [f"M{_n(self._x(a))} {_n(self._y(b))}h0" for a, b in _finite(x, y)]
        self._add("points", style, parts)

    def line(self, x: Iterable[float], y: Iterable[float], style: str = "") -> None:
        """A line through the points in their order."""
        pairs = [f"{_n(self._x(a))} {_n(self._y(b))}" for a, b in _finite(x, y)]
        self._add("line", style, ["M" + "L".join(pairs)] if pairs else [])

    def steps(self, edges: Sequence[float], heights: Sequence[float], style: str = "") -> None:
        """Bars of a histogram: one between each two neighbouring edges."""
        parts = []
        for left, right, height in zip(edges[:-1], edges[1:], heights, strict=True):
            x0, x1, y0, y1 = self._x(left) + 0.75, self._x(right) - 0.75, self._y(0.0), self._y(height)
            parts.append(f"M{_n(x0)} {_n(y0)}V{_n(y1)}H{_n(x1)}V{_n(y0)}Z")
        self._add("bar", style, parts)

    def bars(self, positions: Sequence[float], lengths: Sequence[float], style: str = "", width: float = 0.6) -> None:
        """Horizontal bars from zero."""
        parts = []
        for position, length in zip(positions, lengths, strict=True):
            y0, y1 = self._y(position - width / 2), self._y(position + width / 2)
            parts.append(f"M{_n(self._x(0.0))} {_n(y0)}H{_n(self._x(length))}V{_n(y1)}H{_n(self._x(0.0))}Z")
        self._add("bar", style, parts)

    def vertical_bars(self, x: Iterable[float], low: Iterable[float], high: Iterable[float], style: str = "") -> None:
        """Error bars along the y axis."""
        parts = [f"M{_n(self._x(a))} {_n(self._y(b))}V{_n(self._y(c))}" for a, b, c in _finite(x, low, high)]
        self._add("error", style, parts)

    def horizontal_bars(self, y: Iterable[float], low: Iterable[float], high: Iterable[float], style: str = "") -> None:
        """Error bars along the x axis."""
        parts = [f"M{_n(self._x(b))} {_n(self._y(a))}H{_n(self._x(c))}" for a, b, c in _finite(y, low, high)]
        self._add("error", style, parts)

    def band(self, x: Sequence[float], low: Sequence[float], high: Sequence[float], style: str = "") -> None:
        """The area between two lines."""
        triples = list(_finite(x, low, high))
        if triples:
            there = [f"{_n(self._x(a))} {_n(self._y(c))}" for a, _, c in triples]
            back = [f"{_n(self._x(a))} {_n(self._y(b))}" for a, b, _ in reversed(triples)]
            self._add("band", style, ["M" + "L".join(there + back) + "Z"])

    def _add(self, kind: str, style: str, parts: list[str]) -> None:
        if parts:
            self._marks.append(f'<path class="{" ".join([kind, *style.split()])}" d="{"".join(parts)}"/>')

    def render(self, name: str) -> str:
        """The ``<svg>`` element; ``name`` is unique on the page and starts the names of its parts."""
        left, top, right, bottom = self._box
        out = [
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-labelledby="{name}-title {name}-text">',
            f'<title id="{name}-title">{escape(self.title)}</title>',
            f'<desc id="{name}-text">{escape(self.description)}</desc>',
            f'<clipPath id="{name}-area"><rect x="{_n(left)}" y="{_n(top - 3)}" width="{_n(right - left + 3)}" '
            f'height="{_n(bottom - top + 6)}"/></clipPath>',
        ]
        out += self._vertical_axis()
        out += self._horizontal_axis()
        out += [f'<g clip-path="url(#{name}-area)">', *self._marks, "</g>", "</svg>"]
        return "\n".join(out)

    def _vertical_axis(self) -> list[str]:
        left, top, right, bottom = self._box
        out = []
        for value, label in zip(*self.vertical.marks(self._wanted_rows()), strict=True):
            y = self._y(value)
            if self.horizontal_grid:
                out.append(f'<path class="grid" d="M{_n(left)} {_n(y)}H{_n(right)}"/>')
            out.append(
                f'<text class="tick" x="{_n(left - 7)}" y="{_n(y + 4)}" text-anchor="end">{escape(label)}</text>'
            )
        if self.vertical.label:
            middle = (top + bottom) / 2
            label = cut(self.vertical.label, int((bottom - top) / _LABEL_CHARACTER))
            out.append(
                f'<text class="label" transform="translate(13 {_n(middle)}) rotate(-90)" text-anchor="middle">'
                f"{escape(label)}</text>"
            )
        return out

    def _horizontal_axis(self) -> list[str]:
        left, _, right, bottom = self._box
        wanted = max(3, round((right - left) / 62))
        values, labels = self.horizontal.marks(wanted)
        out = [f'<path class="axis" d="M{_n(left)} {_n(bottom)}H{_n(right)}"/>']
        names = self.horizontal.tick_names
        dense = names is not None and len(names) > 4
        style, character = ("tick dense", 0.85 * _CHARACTER) if dense else ("tick", _CHARACTER)
        room_ends = -1e9  # where the last label ended: a label that would touch it is left out
        for value, label in zip(values, labels, strict=True):
            x = self._x(value)
            if self.vertical_grid:
                out.append(f'<path class="grid" d="M{_n(x)} {_n(bottom)}V10"/>')
            half = character * len(label) / 2
            # A label at the end of the axis moves inwards rather than out of the picture.
            center = min(max(x, half + 2), self.width - half - 2)
            if center - half < room_ends + 3:
                continue
            room_ends = center + half
            out.append(f'<path class="axis" d="M{_n(x)} {_n(bottom)}v4"/>')
            out.append(
                f'<text class="{style}" x="{_n(center)}" y="{_n(bottom + 17)}" text-anchor="middle">'
                f"{escape(label)}</text>"
            )
        if self.horizontal.label:
            label = cut(self.horizontal.label, int((right - left) / _LABEL_CHARACTER))
            out.append(
                f'<text class="label" x="{_n((left + right) / 2)}" y="{_n(self.height - 6)}" text-anchor="middle">'
                f"{escape(label)}</text>"
            )
        return out


def _finite(*columns: Iterable[float]) -> Iterable[tuple[float, ...]]:
    """Rows of numbers; one that is not finite cannot be drawn and would break the whole path."""
    for row in zip(*columns, strict=True):
        numbers = tuple(float(value) for value in row)
        if all(np.isfinite(numbers)):
            yield numbers


def _n(value: float) -> str:
    """A coordinate with one decimal, kept inside what every browser can draw."""
    text = f"{min(max(value, -1e5), 1e5):.1f}"
    return text[:-2] if text.endswith(".0") else text
