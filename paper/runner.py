"""Runs a grid of cells, each in a process of its own with one thread, and can be stopped and started at any time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from .cells import OUR_METHODS, PAPER_METHODS, Cell
from .datasets import checksums
from .peers import TREATED
from .store import ResultStore

ELSEWHERE = 3  # a worker's exit code: another process has the cell
#: Rough costs of one step, relative to a plain network's; only the estimate of the time left depends on them.
_STEP_COST = {
    "minimax": 6.5,
    "minimax-stable": 2.9,
    "scgd": 1.8,
    "svgp": 8.5,
    "bsgd": 2.0,
    "lagged": 1.1,
    "lagged-input-noise": 1.6,
}
_POLL_SECONDS = 0.2
_ROOT = Path(__file__).resolve().parents[1]


@dataclass
class GridReport:
    """What became of a grid.

    Attributes:
        finished: Cells that were there before or ran now.
        ran: How many ran now.
        elsewhere: Cells that another process is running.
        failed: Cells that failed, with the end of what they said.
    """

    finished: int = 0
    ran: int = 0
    elsewhere: list[Cell] = field(default_factory=list)
    failed: dict[Cell, str] = field(default_factory=dict)


@dataclass
class _Job:
    cell: Cell
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    started: float


def run_grid(
    cells: Sequence[Cell],
    *,
    results: Path,
    data_directory: Path,
    processes: int = 1,
    console: Console | None = None,
) -> GridReport:
    """Run all cells that have no result yet, in their order.

    A stop (Ctrl-C, a kill, a power cut) loses at most the cells that were running. Two calls may run side by side,
    also on the same grid: no cell is run twice and every line is written whole.

    Args:
        cells: What to run.
        results: Directory of ``cells.jsonl``.
        data_directory: Directory of the datasets.
        processes: How many cells at once.
        console: Where progress goes; standard error by default.
    """
    if processes < 1:
        raise ValueError(f"processes must be at least 1, but is {processes}.")
    console = console or Console(stderr=True)
    store = ResultStore(results)
    done = store.finished()
    waiting = [cell for cell in cells if cell.key not in done]
    report = GridReport(finished=len(cells) - len(waiting))
    total = sum(_work(cell) for cell in waiting)
    spent, used = 0.0, 0.0  # work done and process-seconds it took
    jobs: list[_Job] = []
    columns = (TextColumn("cells"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("cells", total=len(cells), completed=report.finished, note="")
        try:
            while waiting or jobs:
                while waiting and len(jobs) < processes:
                    jobs.append(_start(waiting.pop(0), results, data_directory))
                time.sleep(_POLL_SECONDS)
                for job in [job for job in jobs if job.process.poll() is not None]:
                    jobs.remove(job)
                    spent += _work(job.cell)
                    used += time.perf_counter() - job.started
                    _close(job, report, console)
                    progress.update(task, completed=report.finished)
                left = _time_left(total - spent, spent, used, processes)
                progress.update(task, note=f"{left} left · " + ", ".join(str(job.cell) for job in jobs))
        finally:
            for job in jobs:  # stopped: what is finished is stored, what runs is given up
                job.process.terminate()
            for job in jobs:
                job.process.wait()
    # What another process had may be finished by now, or may have been finished just before it was our turn.
    done = store.finished() if report.elsewhere else set()
    report.finished += sum(cell.key in done for cell in report.elsewhere)
    report.elsewhere = [cell for cell in report.elsewhere if cell.key not in done]
    return report


def _start(cell: Cell, results: Path, data_directory: Path) -> _Job:
    worker = [sys.executable, "-m", "paper.worker"]
    command = [*worker, json.dumps(cell.to_row()), str(results), str(data_directory)]
    # The package is not installed: workers find it from wherever the command was started.
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    one_thread = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    variables = os.environ | one_thread | {"PYTHONPATH": path}
    errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the job
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=errors,
        stderr=errors,
        env=variables,
    )
    return _Job(cell, process, errors, time.perf_counter())


def _close(job: _Job, report: GridReport, console: Console) -> None:
    job.errors.seek(0)
    said = job.errors.read().decode(errors="replace").strip()
    job.errors.close()
    code = job.process.returncode
    if code == 0:
        report.ran += 1
        report.finished += 1
        console.print(f"[green]done[/green] {job.cell} in {time.perf_counter() - job.started:.0f} s")
    elif code == ELSEWHERE:
        report.elsewhere.append(job.cell)
    else:
        message = "\n".join(said.splitlines()[-5:]) or f"exit code {code}"
        report.failed[job.cell] = message
        # Escaped: rich would take a part such as finitegp[peers] for markup and leave it out.
        console.print(f"[red]failed[/red] {job.cell}: {escape(message)}", highlight=False)


def _work(cell: Cell) -> float:
    rows = checksums()[cell.dataset].rows if cell.dataset in checksums() else 1000
    if cell.method not in PAPER_METHODS + OUR_METHODS:
        # Of the order of three passes at batch size one, for each of five fits with the treatment: peers differ widely.
        return rows * (15.0 if cell.method.endswith(TREATED) else 3.0)
    size = 8.0 if cell.kernel == "gaussian" else 1.0
    return _STEP_COST[cell.method] * size * rows * (cell.epochs or 1) / (cell.batch_size or 1)


def _time_left(left: float, spent: float, used: float, processes: int) -> str:
    if not spent:
        return "time unknown"
    minutes = left * used / spent / processes / 60.0
    return f"about {minutes / 60:.1f} h" if minutes > 90 else f"about {minutes:.0f} min"
