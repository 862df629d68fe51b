"""The reproduction at full length: its cells in the order of their use, and ``python -m paper reproduce``.

The learning rate is searched on split 0, and the best one by NLML is used on the other splits; the paper searched it on
every split. Stopped at any time, it goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from .cells import Cell
from .datasets import PAPER_DATASETS, default_directory, is_available
from .protocol import EPOCHS, LEARNING_RATES, PAPER
from .runner import run_grid
from .selection import metric_value
from .store import ResultStore

_ALL = tuple(name for name in PAPER_DATASETS if name != "slice")  # which is not to be had
_FOUR = ("bike", "elevators", "pol", "kin40k")


@dataclass(frozen=True)
class Part:
    """Cells that belong together: some methods with one kernel and one batch size.

    Attributes:
        methods: Of the paper, or ours by its protocol.
        kernel: ``"linear"`` or ``"gaussian"``.
        batch_size: Rows per batch.
        datasets: Tables.
        splits: How many splits: the first is the one that the learning rate is searched on.
        settings: Of every cell, besides the learning rate.
        rates: What is searched.
    """

    methods: tuple[str, ...]
    kernel: str
    batch_size: int
    datasets: tuple[str, ...] = _ALL
    splits: int = 5
    settings: tuple[tuple[str, Any], ...] = tuple(PAPER.items())
    rates: tuple[float, ...] = LEARNING_RATES

    def search(self) -> list[Cell]:
        """All learning rates on the first split."""
        return [
            self._cell(dataset, method, 0, rate)
            for dataset in self.datasets
            for method in self.methods
            for rate in self.rates
        ]

    def others(self, rows: Iterable[dict[str, Any]]) -> list[Cell]:
        """The best rate on the other splits, for what is searched completely."""
        values = {Cell.from_row(row).key: metric_value(row, "nlml") for row in rows}
        found = []
        for dataset in self.datasets:
            for method in self.methods:
                cells = [self._cell(dataset, method, 0, rate) for rate in self.rates]
                if not all(cell.key in values for cell in cells):
                    continue
                scored = [(value, cell) for cell in cells if (value := values[cell.key]) is not None]
                if scored:
                    rate = min(scored, key=lambda pair: pair[0])[1].settings["learning_rate"]
                    found += [self._cell(dataset, method, split, rate) for split in range(1, self.splits)]
        return found

    def _cell(self, dataset: str, method: str, split: int, rate: float) -> Cell:
        settings = dict(self.settings) | {"learning_rate": rate}
        return Cell(dataset, split, method, self.kernel, self.batch_size, EPOCHS, 0, settings)


#: Lagged with its own optimizer.
OWN = (("optimizer", "adam"), ("weight_update", "train"), ("block", 20), ("window", 1000))

#: In this order.
PARTS: tuple[Part, ...] = (
    *(Part(("scgd", "bsgd"), "linear", size) for size in (128, 64, 32)),
    Part(("minimax", "svgp"), "linear", 128),
    *(Part(("svgp",), "linear", size) for size in (64, 32)),
    *(Part(("bsgd",), "gaussian", size, _FOUR, splits=3) for size in (64, 32, 16)),
    Part(("scgd",), "gaussian", 16, _FOUR, splits=3),
    *(Part(("minimax",), "linear", size) for size in (64, 32)),
    Part(("scgd",), "gaussian", 32, _FOUR, splits=3),
    # The paper's larger batches, of which it prints no table.
    *(Part(("scgd", "bsgd", "minimax", "svgp"), "linear", size, ("bike",), splits=3) for size in (256, 512)),
    Part(("svgp",), "gaussian", 64, _FOUR, splits=3),
    Part(("scgd",), "gaussian", 64, _FOUR, splits=3),
    Part(("minimax",), "gaussian", 64, ("pol",), splits=1, rates=(0.3,)),
    # Ours with the same optimizer and number of epochs, and with its own optimizer.
    *(Part(("lagged",), "linear", size) for size in (128, 32)),
    Part(("lagged",), "linear", 32, settings=OWN, rates=(1e-3,)),
    *(Part(("scgd", "bsgd"), "gaussian", size, ("bike",), splits=2) for size in (128, 256)),
    # Ours that settles, beside the paper's Minimax.
    Part(("minimax-stable",), "linear", 128, _FOUR, splits=1),
)


def reproduce(
    processes: Annotated[int, typer.Option("--processes", "-p", min=1, help="Cells at once, one thread each.")] = 2,
    data_dir: Annotated[Path | None, typer.Option(help="Where the datasets are.")] = None,
    results: Annotated[Path, typer.Option(help="Where cells.jsonl is.")] = Path("results"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what is finished of each part.")] = False,
) -> None:
    """Rerun the paper's tables at full length, most useful cells first; days of computing, stopped at any time."""
    console, directory, store = Console(stderr=True), data_dir or default_directory(), ResultStore(results)
    absent = [name for name in _ALL if not is_available(name, directory)]
    if absent:
        raise typer.BadParameter(f"{', '.join(absent)} not in {directory}.", param_hint="--data-dir")
    failed = 0
    for part in PARTS:
        if dry_run:
            typer.echo(progress_line(part, store.rows()))
            continue
        for cells in (part.search, lambda part=part: part.others(store.rows())):
            report = run_grid(cells(), results=results, data_directory=directory, processes=processes, console=console)
            failed += len(report.failed)
    if failed:
        console.print(f"[red]{failed} cells failed[/red]; run again to repeat only these.")
        raise typer.Exit(1)


def progress_line(part: Part, rows: Sequence[dict[str, Any]]) -> str:
    """How much of a part is finished."""
    finished = {Cell.from_row(row).key for row in rows}
    total = len(part.search()) + len(part.datasets) * len(part.methods) * (part.splits - 1)
    done = sum(cell.key in finished for cell in part.search() + part.others(rows))
    return f"{done:4d} of {total:4d}  {part.kernel} {part.batch_size} {', '.join(part.methods)}"
