"""The demonstration: predict diamond prices with error bars, next to a constant and a linear baseline."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
from rich.console import Console

from .commands.console import scores_table, verdict
from .metrics import Scores
from .tables.judging import fit_and_judge
from .tables.model import TableRegressor
from .tables.reader import TableReader
from .tables.rows import TableRows

TARGET = "price"


@dataclass(frozen=True)
class DemoResult:
    """Test scores of each model, in dollars, and the seconds that training took.

    Attributes:
        scores: By model.
        seconds: To fit.
        model_path: The model file, if one was written.
        report_path: The report, if one was written.
    """

    scores: dict[str, Scores]
    seconds: float
    model_path: Path | None = None
    report_path: Path | None = None


def run_demo(
    *,
    max_rows: int | None = None,
    effort: str = "low",
    seed: int = 0,
    console: Console | None = None,
    directory: Path | None = None,
) -> DemoResult:
    """Fit the diamonds table as ``finitegp fit`` does, and print scores on held-out rows.

    Args:
        max_rows: Use at most this many rows, for a quick look.
        effort: How much time to spend.
        seed: Of the split and of the fit.
        console: Where to print; standard output by default.
        directory: Where to leave the model and a report; made if it is not there.
    """
    console = console or Console()
    with as_file(files("finitegp.data") / "bundled" / "diamonds.csv.gz") as path:
        rows = TableRows.read(TableReader(path))
    rows = rows.take(np.sort(np.random.default_rng(seed).permutation(rows.num_rows)[:max_rows]))
    model_path = report_path = None
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        model_path, report_path = directory / "diamonds.finitegp", directory / "diamonds.html"
    console.print(f"diamonds: {rows.num_rows} rows, {len(rows.column_names) - 1} columns; target: price in US dollars")
    model = TableRegressor(effort=effort, random_state=seed, verbose=True)
    fit = fit_and_judge(model, rows, TARGET, seed=seed, report=report_path)
    model.verbose = False
    scores = [each.to_dict() for each in fit.scores]
    console.print(f"the target is modelled on the scale: {model.scale_.name}")
    console.print(scores_table(f"{fit.held_out_rows} held-out rows", scores))
    console.print(verdict(scores, fit.width), soft_wrap=True, highlight=False)
    console.print(f"{fit.seconds:.0f} seconds of training")
    found = {each.name: each for each in fit.scores}
    if model_path is not None:
        model.summary_ = fit.summary() | {"seed": seed}
        model.save(model_path)
        console.print(f"model:  {model_path} (try: finitegp info {model_path})", soft_wrap=True, highlight=False)
        console.print(f"report: {report_path} (open it in a browser)", soft_wrap=True, highlight=False)
    return DemoResult(found, fit.seconds, model_path, report_path)
