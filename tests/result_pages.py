"""Pages of results, and the sections and lines of tables in them."""

from pathlib import Path

from paper.appendix import render_appendix


def appendix(rows, results=Path("nowhere"), **options):
    return render_appendix(rows, results=results, **options)


def section(text, heading):
    return text.split(f"## {heading}\n")[1].split("\n## ")[0]


def line(text, *starts):
    """The cells of the only line of a table that begins with these cells."""
    (found,) = [found for found in text.splitlines() if found.startswith("| " + " | ".join(starts) + " |")]
    return [cell.strip() for cell in found.strip("|").split("|")]
