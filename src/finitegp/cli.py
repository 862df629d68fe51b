"""The command line: ``finitegp``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import __version__
from .commands import export, fit, look, more_rows, predict

app = typer.Typer(
    help="Exact Gaussian-process regression on finite features.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"finitegp {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Exact Gaussian-process regression on finite features."""


for command, epilog in (
    (fit.fit, fit.EXAMPLES),
    (predict.predict, predict.EXAMPLES),
    (look.evaluate, look.EVALUATE_EXAMPLES),
    (more_rows.update, more_rows.UPDATE_EXAMPLES),
    (more_rows.forget, more_rows.FORGET_EXAMPLES),
    (more_rows.statistics, more_rows.STATISTICS_EXAMPLES),
    (more_rows.merge, more_rows.MERGE_EXAMPLES),
    (export.export, export.EXAMPLES),
    (look.info, look.INFO_EXAMPLES),
    (look.report, look.REPORT_EXAMPLES),
):
    # A paragraph is one line, which the terminal breaks where it is full.
    paragraphs = (" ".join(paragraph.split()) for paragraph in str(command.__doc__).split("\n\n"))
    app.command(epilog=epilog, help="\n\n".join(paragraphs))(command)


@app.command()
def demo(
    rows: Annotated[int | None, typer.Option(min=100, help="Use at most this many rows.")] = None,
    seed: Annotated[int, typer.Option(help="Of the split and of the network.")] = 0,
    directory: Annotated[Path, typer.Option(help="Where to leave the model and the report.")] = Path("finitegp-demo"),
) -> None:
    """Predict diamond prices with error bars from a table in the package; leaves a model and a report."""
    from .demo import run_demo

    run_demo(max_rows=rows, seed=seed, directory=directory)
