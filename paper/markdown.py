"""Markdown tables and figures in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

MISSING = "–"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> list[str]:
    """The lines of a table; the first ``words`` columns are aligned left, the others right.

    Example:
        >>> table(["a", "b"], [["x", "1"]])
        ['| a | b |', '|---|--:|', '| x | 1 |']
    """
    marks = ["---"] * words + ["--:"] * (len(header) - words)
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(marks) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def number(value: float | None, decimals: int = 3) -> str:
    """A figure with so many decimals, or a dash; minus zero is zero.

    Example:
        >>> number(-0.0004), number(None), number(1234.5678, 1)
        ('0.000', '–', '1234.6')
    """
    if value is None:
        return MISSING
    text = f"{value:.{decimals}f}"
    return text.lstrip("-") if float(text) == 0.0 else text


def spread(mean: float, std: float | None) -> str:
    """Mean and deviation as the paper prints them."""
    return number(mean) if std is None else f"{number(mean)} ± {number(std)}"


def bold(text: str, when: bool = True) -> str:
    """Bold if asked for."""
    return f"**{text}**" if when else text


def shared(values: Mapping[str, str]) -> str:
    """What most have, then the exceptions by name.

    Example:
        >>> shared({"scgd": "5", "bsgd": "5"}), shared({"svgp": "1", "scgd": "5", "bsgd": "5"}), shared({})
        ('5', '5; svgp 1', '–')
    """
    if not values:
        return MISSING
    usual = Counter(values.values()).most_common(1)[0][0]
    return "; ".join([usual, *(f"{name} {value}" for name, value in values.items() if value != usual)])
