"""The command ``python -m paper page``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from finitegp.errors import DataError

from .appendix import render_appendix
from .complexity import load_complexity
from .figures import draw_figures
from .page import APPENDIX, render_page, share_sentence
from .selection import select
from .store import ResultStore

PAGE = "results.md"
#: In the directory of the page: what a person adds to the figures, taken in as it is.
READING = "results-reading.md"
#: In README: the sentence between these is written by the command.
_MARKS = re.compile(r"(<!-- reproduced -->).*?(<!-- /reproduced -->)", re.DOTALL)


def page(
    results: Annotated[Path, typer.Option(help="Where cells.jsonl is.")] = Path("results"),
    out: Annotated[Path, typer.Option(help=f"Where {PAGE}, {APPENDIX} and figures/ go.")] = Path("docs"),
    figures: Annotated[bool, typer.Option(help="Draw the figures, too.")] = True,
) -> None:
    """Write the page of results, its appendix, its figures and README's sentence from the stored lines."""
    try:
        texts = render(results, out)
        drawn = draw_figures(select(ResultStore(results).rows()), out / "figures") if figures else []
    except DataError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from error
    out.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    for path in [*texts, *drawn]:
        typer.echo(f"written {path}")


def render(results: Path, out: Path) -> dict[Path, str]:
    """Every text that the command writes, by its file."""
    store = ResultStore(results)
    rows = store.rows()
    if not rows:
        raise DataError(f"There are no results in {store.path}: run `python -m paper run` first, or name --results.")
    reading, readme = out / READING, out.parent / "README.md"
    texts = {
        out / PAGE: render_page(rows, reading=reading.read_text(encoding="utf-8") if reading.exists() else ""),
        out / APPENDIX: render_appendix(rows, complexity=load_complexity(results), results=results),
    }
    if readme.exists():
        sentence = share_sentence(rows)
        texts[readme] = _MARKS.sub(lambda found: found[1] + sentence + found[2], readme.read_text(encoding="utf-8"))
    return texts
