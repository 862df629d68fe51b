"""The demonstration: predict diamond prices with error bars, next to a constant and a linear baseline."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from .estimator import GPRegressor
from .metrics import Scores
from .report import encoded_columns, evaluate, gather_contents, write_report
from .table_model import TableModel
from .tables.encoder import TableEncoder
from .tables.reader import TableReader
from .tables.targets import target_values

Array = npt.NDArray[np.float64]
TARGET = "log_price"


@dataclass(frozen=True)
class DemoResult:
    """Test scores of each model on the logarithm of the price, and the seconds the GP took.

    Attributes:
        scores: By model.
        seconds: To fit and predict.
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
    epochs: int = 20,
    seed: int = 0,
    console: Console | None = None,
    directory: Path | None = None,
) -> DemoResult:
    """Fit the diamonds table and print test RMSE, NLPD and the coverage of 90 % intervals.

    The target is the natural logarithm of the price, so an error of 0.1 is about 10 %. One row in ten is held out.

    Args:
        max_rows: Use at most this many rows, for a quick look.
        epochs: Passes over the training rows, of which one in ten validates.
        seed: Of the split and of the network.
        console: Where to print; standard output by default.
        directory: Where to leave the model and a report; made if it is not there.
    """
    console = console or Console()
    with as_file(files("finitegp.data") / "bundled" / "diamonds.csv.gz") as path:
        table = TableReader(path)
        encoder = TableEncoder.fit(table, exclude="price")
        inputs, targets = encoder.transform(table), np.log(target_values(table, "price"))
    order = np.random.default_rng(seed).permutation(len(targets))[:max_rows]
    test, rows = np.split(order, [len(order) // 10])
    training, truth = (inputs[rows], targets[rows]), targets[test]
    console.print(
        f"diamonds: {len(rows)} training rows, {len(test)} test rows, {inputs.shape[1]} inputs; "
        "target: log of the price in US dollars"
    )
    started = time.perf_counter()
    regressor = GPRegressor(
        "mlp", algorithm="lagged", batch_size=64, epochs=epochs, learning_rate=2e-3, random_state=seed, verbose=True
    ).fit(*training)
    seconds = time.perf_counter() - started
    evaluation = evaluate(regressor, inputs[test], truth, training=training, seed=seed)
    seconds += evaluation.seconds
    own, linear, constant = evaluation.scores
    scores = {"constant": constant, "linear": linear, "finitegp": own}

    shown = Table(title="held-out rows")
    for heading in ("model", "RMSE", "NLPD", "90 % interval covers"):
        shown.add_column(heading, justify="left" if heading == "model" else "right")
    for name, found in scores.items():
        shown.add_row(name, f"{found.rmse:.4f}", f"{found.nlpd:.3f}", f"{100 * found.coverage[0.9]:.1f} %")
    console.print(shown)
    console.print(f"finitegp: {seconds:.0f} seconds to fit and predict")
    if directory is None:
        return DemoResult(scores, seconds)
    directory.mkdir(parents=True, exist_ok=True)
    model_path, report_path = directory / "diamonds.finitegp", directory / "diamonds.html"
    regressor.verbose = False
    TableModel(regressor, encoder, TARGET, {"rows": len(order)}).save(model_path)
    contents = gather_contents(
        regressor,
        inputs[test],
        truth,
        training_inputs=training[0],
        training_targets=training[1],
        **encoded_columns(encoder),
        target_name="the logarithm of the price",
        training_row_numbers=[int(row) for row in rows],
        seed=seed,
        evaluation=evaluation,
    )
    write_report(contents, report_path, force=True)
    console.print(f"model:  {model_path} (try: finitegp info {model_path})", soft_wrap=True, highlight=False)
    console.print(f"report: {report_path} (open it in a browser)", soft_wrap=True, highlight=False)
    return DemoResult(scores, seconds, model_path, report_path)
