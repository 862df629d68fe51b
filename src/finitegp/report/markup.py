"""Pieces of HTML: every text that comes from a table or a model passes through ``escape`` here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str,
    *,
    text_columns: Sequence[int] = (0,),
    first_row_stands_out: bool = False,
) -> str:
    """A table that scrolls sideways by itself if it is wider than the page. All cells are plain text.

    Example:
        >>> "&lt;script&gt;" in table(["name"], [["<script>"]], "names")
        True
    """
    # The caption stands outside of what scrolls, or its end would be out of sight on a phone.
    out = [
        f'<p class="caption">{escape(caption)}</p>',
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}"><table>',
        "<thead><tr>",
    ]
    for number, heading in enumerate(headings):
        out.append(f'<th scope="col"{_kind(number, text_columns)}>{escape(heading)}</th>')
    out.append("</tr></thead><tbody>")
    for number, row in enumerate(rows):
        out.append('<tr class="own">' if first_row_stands_out and number == 0 else "<tr>")
        for column, cell in enumerate(row):
            # The part after a plus-minus is the standard error, smaller on a line of its own.
            value, _, error = cell.partition(" ± ")
            inside = escape(value) + (f'<span class="plusminus">± {escape(error)}</span>' if error else "")
            if column == 0:
                out.append(f'<th scope="row"{_kind(column, text_columns)}>{inside}</th>')
            else:
                out.append(f"<td{_kind(column, text_columns)}>{inside}</td>")
        out.append("</tr>")
    out.append("</tbody></table></div>")
    return "\n".join(out)


def _kind(column: int, text_columns: Sequence[int]) -> str:
    return ' class="text"' if column in text_columns else ""


def figure(drawing: str, caption: str, fallback: str, *, title: str = "") -> str:
    """A chart with its caption, and the same numbers as a table behind a click.

    Args:
        drawing: The ``<svg>``.
        caption: HTML.
        fallback: A table, as HTML.
        title: Plain text above the chart.
    """
    heading = f"<h3>{escape(title)}</h3>\n" if title else ""
    return (
        f"<div>{heading}<figure>\n{drawing}\n<figcaption>{caption}</figcaption></figure>\n"
        f"<details><summary>Numbers as a table</summary>{fallback}</details></div>"
    )


def section(identifier: str, heading: str, *parts: str) -> str:
    """A section of the page with its heading."""
    return "\n".join(
        [
            f'<section id="{identifier}" aria-labelledby="{identifier}-heading">',
            f'<h2 id="{identifier}-heading">{escape(heading)}</h2>',
            *(part for part in parts if part),
            "</section>",
        ]
    )


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def key(kind: str, text: str) -> str:
    """An entry of a chart's legend, which stands in its caption."""
    return f'<span class="entry"><span class="key {kind}"></span>{escape(text)}</span>'
