"""The command line: ``finitegp``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from . import __version__
from .commands import evaluate, fit, info, merge, predict, report, statistics, update

app = typer.Typer(
    help="Exact Gaussian-process regression on finite features.",
    no_args_is_help=True,
    add_completion=False,
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
    (evaluate.evaluate, evaluate.EXAMPLES),
    (update.update, update.EXAMPLES),
    (statistics.statistics, statistics.EXAMPLES),
    (merge.merge, merge.EXAMPLES),
    (info.info, info.EXAMPLES),
    (report.report, report.EXAMPLES),
):
    app.command(epilog=epilog)(command)


@app.command()
def demo(
    rows: Annotated[int | None, typer.Option(min=100, help="Use only so many rows.")] = None,
    seed: Annotated[int, typer.Option(help="Of the split and of the network.")] = 0,
    directory: Annotated[Path, typer.Option(help="Where to leave the model and the report.")] = Path("finitegp-demo"),
) -> None:
    """Predict diamond prices with error bars from a table in the package; leaves a model and a report."""
    from .demo import run_demo

    run_demo(max_rows=rows, seed=seed, directory=directory)


# The experiments name their methods and datasets in their own help, so their commands are made there; and they import
# what takes seconds, so their arguments are handed on unread.
_HANDED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


@app.command(context_settings=_HANDED_ON)
def reproduce(context: typer.Context) -> None:
    """Rerun cells of the paper's tables, and the peers; what is finished already is not run again."""
    from .experiments.command import reproduce as command

    _hand_on(command, context)


@app.command(context_settings=_HANDED_ON)
def tables(context: typer.Context) -> None:
    """Write the page of results and its figures: the paper's tables, what was reproduced, ours, the peers."""
    from .experiments.tables_command import tables as command

    _hand_on(command, context)


def _hand_on(command: Callable[..., None], context: typer.Context) -> None:
    inner = typer.Typer(add_completion=False)
    inner.command()(command)
    inner(context.args, prog_name=context.command_path)
