"""The command line: ``finitegp``."""

from __future__ import annotations

from typing import Annotated

import typer

from . import __version__
from .experiments.command import reproduce
from .experiments.tables_command import tables

app = typer.Typer(
    help="Exact Gaussian-process regression on finite features.", no_args_is_help=True, add_completion=False
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


@app.command()
def demo(
    rows: Annotated[int | None, typer.Option(min=100, help="Use only so many rows.")] = None,
    seed: Annotated[int, typer.Option(help="Of the split and of the network.")] = 0,
) -> None:
    """Predict diamond prices with error bars, from the table that comes with the package."""
    from .demo import run_demo

    run_demo(max_rows=rows, seed=seed)


# The experiments name their methods and datasets in their own help, so their commands are made there.
app.command()(reproduce)
app.command()(tables)
