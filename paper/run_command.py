"""The command ``python -m paper run``."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from .cells import AUTO, KERNELS, OUR_METHODS, PAPER_METHODS, Cell, make_grid
from .datasets import PAPER_DATASETS, checksums, default_directory, is_available
from .peers import PEERS
from .runner import run_grid
from .store import ResultStore

METHODS = (*PAPER_METHODS, *OUR_METHODS, AUTO, *PEERS)


class Metric(str, Enum):
    """What the closing summary shows."""

    nlml = "nlml"
    rmse = "rmse"
    nlpd = "nlpd"
    crps = "crps"
    seconds = "seconds"


def run(
    datasets: Annotated[list[str] | None, typer.Option("--dataset", "-d", help="Repeat for several.")] = None,
    methods: Annotated[list[str] | None, typer.Option("--method", "-m", help=f"Any of {', '.join(METHODS)}.")] = None,
    kernels: Annotated[list[str] | None, typer.Option("--kernel", "-k", help="linear, gaussian.")] = None,
    batch_sizes: Annotated[list[int] | None, typer.Option("--batch-size", "-b", min=1)] = None,
    splits: Annotated[list[int] | None, typer.Option("--split", "-s", min=0, max=9)] = None,
    learning_rates: Annotated[
        list[float] | None, typer.Option("--learning-rate", "-r", help="In place of each method's own grid.")
    ] = None,
    optimizer: Annotated[str | None, typer.Option(help="adam, adadelta or sgd; the paper's is adadelta.")] = None,
    epochs: Annotated[int, typer.Option(min=1)] = 100,
    seed: Annotated[int, typer.Option()] = 0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A further setting of the method.")
    ] = None,
    processes: Annotated[int, typer.Option("--processes", "-p", min=1, help="Cells at once, one thread each.")] = 1,
    data_dir: Annotated[Path | None, typer.Option(help="Where the datasets are.")] = None,
    results: Annotated[Path, typer.Option(help="Where cells.jsonl is.")] = Path("results"),
    metric: Annotated[Metric, typer.Option(help="What the closing summary shows.")] = Metric.nlml,
    smoke: Annotated[bool, typer.Option("--smoke", help="A small table, two epochs: does everything run?")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would run.")] = False,
) -> None:
    """Rerun cells of the paper's tables, and the peers; what is finished already is not run again."""
    console = Console(stderr=True)
    directory = data_dir or default_directory()
    changes: dict[str, Any] = {
        "datasets": _choose("--dataset", datasets, tuple(checksums())),
        "methods": _choose("--method", methods, METHODS),
        "kernels": _choose("--kernel", kernels, KERNELS),
        "batch_sizes": batch_sizes,
        "splits": splits,
        "learning_rates": learning_rates,
        "optimizer": optimizer,
    }
    chosen = {name: value for name, value in changes.items() if value}
    common = {"seed": seed, "settings": _parse(settings or [])}
    if smoke:
        small: dict[str, Any] = {
            "methods": PAPER_METHODS + OUR_METHODS,
            "datasets": ["yacht"],
            "learning_rates": [1e-3],
        }
        cells = make_grid(**(small | {"kernels": KERNELS, "epochs": 2} | common | chosen))
    else:
        available = [name for name in PAPER_DATASETS if is_available(name, directory)]
        if not available and not datasets:
            raise typer.BadParameter(
                f"None of the paper's datasets is in {directory}: place them there, or name --dataset to have one "
                "fetched.",
                param_hint="--data-dir",
            )
        standard: dict[str, Any] = {"methods": PAPER_METHODS + OUR_METHODS, "datasets": available, "epochs": epochs}
        cells = make_grid(**(standard | common | chosen))
    absent = sorted({cell.dataset for cell in cells if not is_available(cell.dataset, directory)})
    if absent:
        console.print(f"Not in {directory}, to be fetched: {', '.join(absent)}.")
    if dry_run:
        finished = ResultStore(results).finished()
        for cell in cells:
            typer.echo(f"{'finished' if cell.key in finished else 'to run  '} {cell}")
        return
    report = run_grid(cells, results=results, data_directory=directory, processes=processes, console=console)
    Console().print(_summary(cells, results, metric))
    if report.elsewhere:
        console.print(f"{len(report.elsewhere)} cells are being run by another process.")
    if report.failed:
        console.print(f"[red]{len(report.failed)} of {len(cells)} cells failed[/red]; run again to repeat only these.")
        raise typer.Exit(1)


def _choose(option: str, given: list[str] | None, known: tuple[str, ...]) -> list[str] | None:
    for name in given or ():
        if name not in known:
            raise typer.BadParameter(f"{name!r} is not known; choose from {', '.join(known)}.", param_hint=option)
    return given


def _parse(settings: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator:
            raise typer.BadParameter(f"{setting!r} is not of the form NAME=VALUE.", param_hint="--set")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value  # a word
    return found


def _summary(cells: list[Cell], results: Path, metric: Metric) -> Table:
    wanted = {cell.key for cell in cells}
    column = "nlml_float64" if metric is Metric.nlml else metric.value
    table = Table("dataset", "split", "method", "kernel", "batch", "settings", metric.value)
    for row in ResultStore(results).rows():
        if Cell.from_row(row).key in wanted:
            value = row.get(column)
            settings = " ".join(f"{name}={setting}" for name, setting in row["settings"].items())
            batch = "" if row["batch_size"] is None else str(row["batch_size"])
            figure = "-" if value is None else f"{value:.4f}"
            table.add_row(
                row["dataset"], str(row["split"]), row["method"], row["kernel"] or "", batch, settings, figure
            )
    return table
