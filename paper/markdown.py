"""Markdown tables and figures in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
    """A figure with that number of decimals, or a dash; minus zero is zero.

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
