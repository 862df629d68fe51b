"""The command ``python -m paper cell``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from finitegp.errors import DataError

from .cells import KERNELS, OUR_METHODS, PAPER_METHODS, Cell
from .datasets import checksums
from .markdown import number, spread
from .protocol import EPOCHS, PAPER
from .published import PUBLISHED_METRICS, find_published
from .selection import Row, metric_value
from .store import ResultStore
from .worker import run_cell

_CHOICES = {"DATASET": tuple(checksums()), "METHOD": PAPER_METHODS + OUR_METHODS, "--kernel": KERNELS}


def cell(
    dataset: Annotated[str, typer.Argument(help="bike, elevators, ...")],
    method: Annotated[str, typer.Argument(help=", ".join(_CHOICES["METHOD"]))],
    rate: Annotated[float, typer.Option("--rate", "-r", help="The learning rate.")],
    batch_size: Annotated[int, typer.Option("--batch-size", "-b", min=1)] = 32,
    kernel: Annotated[str, typer.Option("--kernel", "-k", help=", ".join(KERNELS))] = "linear",
    split: Annotated[int, typer.Option("--split", "-s", min=0, max=9)] = 0,
    epochs: Annotated[int, typer.Option(min=1)] = EPOCHS,
    data_dir: Annotated[Path | None, typer.Option(help="Where the datasets are.")] = None,
    results: Annotated[Path, typer.Option(help="Where cells.jsonl is.")] = Path("results"),
) -> None:
    """Rerun one cell by the paper's protocol and print it beside the stored run and what was published."""
    for (name, known), given in zip(_CHOICES.items(), (dataset, method, kernel), strict=True):
        if given not in known:
            raise typer.BadParameter(f"{given!r} is not known; choose from {', '.join(known)}.", param_hint=name)
    chosen = Cell(dataset, split, method, kernel, batch_size, epochs, 0, PAPER | {"learning_rate": rate})
    torch.set_num_threads(1)  # as the stored runs
    try:
        row, _ = run_cell(chosen, data_directory=data_dir)
    except DataError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(f"{chosen}, {epochs} epochs: NLML, RMSE")
    typer.echo(f"now        {_figures(row)}")
    for stored in ResultStore(results).rows():
        if Cell.from_row(stored).key == chosen.key:
            typer.echo(f"stored     {_figures(stored)}")
    published = [find_published(metric, kernel, batch_size, dataset, method) for metric in PUBLISHED_METRICS]
    if all(published):
        typer.echo(f"published  {'  '.join(spread(*found) for found in published if found)} (five splits)")


def _figures(row: Row) -> str:
    return "  ".join(number(metric_value(row, metric), 4) for metric in PUBLISHED_METRICS)
