"""The demonstration: predict diamond prices with error bars, next to a constant and a linear baseline."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .data.diamonds import load_diamonds
from .data.scaling import Standardizer
from .features import LinearFeatures, MLPFeatures
from .full_batch import fit_full_batch
from .metrics import Scores, score
from .model import FeatureGP


@dataclass(frozen=True)
class DemoResult:
    """Test scores of each model on the logarithm of the price, and the seconds the GP took."""

    scores: dict[str, Scores]
    seconds: float


def run_demo(
    *, max_rows: int | None = None, iterations: int = 80, seed: int = 0, console: Console | None = None
) -> DemoResult:
    """Fit the diamonds table and print test RMSE, NLPD and the coverage of 90 % intervals.

    The target is the natural logarithm of the price, so an error of 0.1 is about 10 %. One row in ten is held out.

    Args:
        max_rows: Use only so many rows, for a quick look.
        iterations: L-BFGS iterations, each two passes over the training rows.
        seed: Of the split and of the network.
        console: Where to print; standard output by default.
    """
    console = console or Console()
    diamonds = load_diamonds()
    order = np.random.default_rng(seed).permutation(len(diamonds.prices))[:max_rows]
    test, train = np.split(order, [len(order) // 10])
    targets = np.log(diamonds.prices)
    inputs_scaler = Standardizer.fit(diamonds.inputs[train])
    target_scaler = Standardizer.fit(targets[train])
    train_data = (inputs_scaler.transform(diamonds.inputs[train]), target_scaler.transform(targets[train]))
    test_inputs, test_targets = (
        inputs_scaler.transform(diamonds.inputs[test]),
        torch.from_numpy(targets[test]),
    )
    console.print(
        f"diamonds: {len(train)} training rows, {len(test)} test rows, {diamonds.inputs.shape[1]} inputs; "
        "target: log of the price in US dollars"
    )

    def evaluate(model: FeatureGP) -> Scores:
        prediction = model.condition(train_data).predict(test_inputs)
        mean = torch.from_numpy(target_scaler.inverse(prediction.mean.numpy()))
        return score(mean, prediction.std * float(target_scaler.scale), test_targets)

    scores = {
        "constant": score(
            torch.full((len(test),), float(target_scaler.mean)),
            torch.full((len(test),), float(target_scaler.scale)),
            test_targets,
        )
    }
    linear = FeatureGP(LinearFeatures(diamonds.inputs.shape[1]), 0.1)
    linear.optimize_noise(train_data)
    scores["linear"] = evaluate(linear)

    started = time.perf_counter()
    model = FeatureGP(MLPFeatures(diamonds.inputs.shape[1], hidden=(64, 64), seed=seed), 0.1)
    with Progress(
        TextColumn("exact GP on a network's features"),
        BarColumn(),
        TextColumn("NLML {task.fields[nlml]:.3f}"),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        task = progress.add_task("fit", total=iterations, nlml=float("nan"))
        fit_full_batch(
            model,
            train_data,
            max_iterations=iterations,
            progress=lambda iteration, nlml: progress.update(task, completed=iteration, nlml=nlml),
        )
    scores["finitegp"] = evaluate(model)
    seconds = time.perf_counter() - started

    table = Table(title="held-out rows")
    for heading in ("model", "RMSE", "NLPD", "90 % interval covers"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for name, found in scores.items():
        table.add_row(name, f"{found.rmse:.4f}", f"{found.nlpd:.3f}", f"{100 * found.coverage[0.9]:.1f} %")
    console.print(table)
    console.print(f"finitegp: {seconds:.0f} seconds to fit and predict")
    return DemoResult(scores=scores, seconds=seconds)
