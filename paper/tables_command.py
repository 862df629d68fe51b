"""The command ``python -m paper tables``."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from finitegp.errors import DataError

from .complexity import load_complexity
from .figures import draw_figures, figure_names
from .page import render_page
from .selection import METRICS, select
from .store import ResultStore

PAGE = "results.md"
#: In the directory of the page: what a person adds to the figures, taken in as it is.
REMARKS = "results-reading.md"
FIGURES = "figures"
_FORMATS = ("markdown", "png")


class Metric(str, Enum):
    """What there are tables of."""

    nlml = "nlml"
    rmse = "rmse"
    nlpd = "nlpd"
    crps = "crps"


class Kernel(str, Enum):
    """The paper's two."""

    linear = "linear"
    gaussian = "gaussian"


def tables(
    results: Annotated[Path, typer.Option(help="Where cells.jsonl is.")] = Path("results"),
    out: Annotated[Path, typer.Option(help=f"Where {PAGE} and {FIGURES}/ go.")] = Path("docs"),
    metrics: Annotated[list[Metric] | None, typer.Option("--metric", help="Repeat for several; default all.")] = None,
    kernels: Annotated[list[Kernel] | None, typer.Option("--kernel", help="Repeat for both; default both.")] = None,
    formats: Annotated[str, typer.Option("--format", help="markdown, png, or both.")] = "markdown,png",
) -> None:
    """Write the page of results and its figures: the paper's tables, what was reproduced, ours, the peers."""
    wanted = _formats(formats)
    chosen_metrics = list(dict.fromkeys(metric.value for metric in metrics)) if metrics else list(METRICS)
    chosen_kernels = list(dict.fromkeys(kernel.value for kernel in kernels or Kernel))
    try:
        _write(results, out, chosen_metrics, chosen_kernels, wanted)
    except DataError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from error


def _write(results: Path, out: Path, metrics: list[str], kernels: list[str], formats: set[str]) -> None:
    store = ResultStore(results)
    rows = store.rows()
    if not rows:
        raise DataError(f"There are no results in {store.path}: run `python -m paper run` first, or name --results.")
    out.mkdir(parents=True, exist_ok=True)
    if "png" in formats:
        for path in draw_figures(rows, select(rows), out / FIGURES, metrics=metrics, kernels=kernels):
            typer.echo(f"written {path}")
    if "markdown" in formats:
        captions = figure_names(metrics, kernels)
        remarks = out / REMARKS
        page = render_page(
            rows,
            metrics=metrics,
            kernels=kernels,
            complexity=load_complexity(results),
            figures={f"{FIGURES}/{n}": caption for n, caption in captions.items() if (out / FIGURES / n).exists()},
            remarks=remarks.read_text(encoding="utf-8") if remarks.exists() else "",
        )
        (out / PAGE).write_text(page, encoding="utf-8")
        typer.echo(f"written {out / PAGE}")


def _formats(text: str) -> set[str]:
    found = {name.strip() for name in text.split(",") if name.strip()}
    for name in sorted(found):
        if name not in _FORMATS:
            raise typer.BadParameter(
                f"{name!r} is not known; choose from {', '.join(_FORMATS)}.", param_hint="--format"
            )
    if not found:
        raise typer.BadParameter("Name at least one of markdown, png.", param_hint="--format")
    return found
