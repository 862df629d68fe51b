"""The command ``python -m paper peers``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from .cells import AUTO, Cell
from .contenders import SPLITS
from .datasets import NUM_SPLITS, PAPER_DATASETS, SMALL_DATASETS, checksums, default_directory, is_available
from .peer_tables import peer_table
from .peers import DEFAULTS, PEERS, TREATED
from .runner import run_grid
from .store import ResultStore

#: The default with the mean of its networks in the place of the GP; not on small tables, where there are none.
WITHOUT_GP = "auto-without-gp"
METHODS = (AUTO, WITHOUT_GP, *PEERS)
#: What is compared unless methods are named: the strongest kinds, as they are and after the treatment.
COMPARED = (
    AUTO,
    *(
        name + end
        for name in ("lightgbm", "xgboost", "catboost", "ensemble", "realmlp", "tabm")
        for end in ("", TREATED)
    ),
)


def peers(
    tables: Annotated[str, typer.Option(help="Names with commas between; all that are there if left out.")] = "",
    splits: Annotated[str, typer.Option(help="Numbers with commas between.")] = ",".join(map(str, SPLITS)),
    methods: Annotated[str, typer.Option(help=f"Of {', '.join(METHODS)}.")] = ",".join(COMPARED),
    max_seconds: Annotated[
        float | None, typer.Option(min=1.0, help="Processor seconds of each fit of the peers that have a limit.")
    ] = None,
    seed: Annotated[int, typer.Option()] = 0,
    processes: Annotated[int, typer.Option("--processes", "-p", min=1, help="Cells at once, one thread each.")] = 1,
    data_dir: Annotated[Path | None, typer.Option(help="Where the datasets are.")] = None,
    results: Annotated[Path, typer.Option(help="Where cells.jsonl is.")] = Path("results"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would run.")] = False,
) -> None:
    """Run the default and the peers on the same splits and print them side by side; finished cells are not run again.

    Every peer is there as it is and, with +t after its name, with error bars and tails from left-out rows.
    """
    directory = data_dir or default_directory()
    known = (*PAPER_DATASETS, *SMALL_DATASETS)
    there = [name for name in known if is_available(name, directory)]
    chosen = _choose("--tables", tables, tuple(checksums())) or there
    if not chosen:
        raise typer.BadParameter(
            f"None of the tables is in {directory}: name one to have it fetched.", param_hint="--tables"
        )
    numbers = [int(split) for split in _choose("--splits", splits, tuple(map(str, range(NUM_SPLITS))))]
    names = _choose("--methods", methods, METHODS)
    # One table after the other, so that what is complete first can be read.
    cells = [make_cell(d, s, m, seed, max_seconds) for d in chosen for s in numbers for m in names]
    store = ResultStore(results)
    if dry_run:
        finished = store.finished()
        for cell in cells:
            typer.echo(f"{'finished' if cell.key in finished else 'to run  '} {cell}")
        return
    console = Console(stderr=True)
    report = run_grid(cells, results=results, data_directory=directory, processes=processes, console=console)
    wanted = {cell.key for cell in cells}
    rows = [row for row in store.rows() if Cell.from_row(row).key in wanted]
    typer.echo("\n".join(peer_table(rows, results)))
    if report.failed:
        console.print(f"[red]{len(report.failed)} of {len(cells)} cells failed[/red]; run again to repeat only these.")
        raise typer.Exit(1)


def make_cell(dataset: str, split: int, method: str, seed: int = 0, max_seconds: float | None = None) -> Cell:
    """The cell of a method, with the limit if it has one."""
    if method == WITHOUT_GP:
        return Cell(dataset, split, AUTO, seed=seed, settings={"gp": False})
    settings: dict[str, Any] = {}
    if max_seconds is not None and "max_seconds" in DEFAULTS.get(method, {}):
        settings["max_seconds"] = max_seconds
    return Cell(dataset, split, method, seed=seed, settings=settings)


def _choose(option: str, given: str, known: tuple[str, ...]) -> list[str]:
    names = [name.strip() for name in given.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is not known; choose from {', '.join(known)}.", param_hint=option)
    return list(dict.fromkeys(names))
