"""The demonstration: predict diamond prices with error bars, next to a constant and a linear baseline."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from .algorithms import Lagged
from .callbacks import ProgressBar, Validation
from .data.diamonds import load_diamonds
from .data.scaling import Standardizer
from .features import LinearFeatures, MLPFeatures
from .metrics import Scores, score
from .model import FeatureGP
from .schedules import cosine_decay, make_optimizer
from .training import train


@dataclass(frozen=True)
class DemoResult:
    """Test scores of each model on the logarithm of the price, and the seconds the GP took."""

    scores: dict[str, Scores]
    seconds: float


def run_demo(
    *, max_rows: int | None = None, epochs: int = 20, seed: int = 0, console: Console | None = None
) -> DemoResult:
    """Fit the diamonds table and print test RMSE, NLPD and the coverage of 90 % intervals.

    The target is the natural logarithm of the price, so an error of 0.1 is about 10 %. One row in ten is held out.

    Args:
        max_rows: Use only so many rows, for a quick look.
        epochs: Passes over the training rows, of which one in ten validates.
        seed: Of the split and of the network.
        console: Where to print; standard output by default.
    """
    console = console or Console()
    diamonds = load_diamonds()
    order = np.random.default_rng(seed).permutation(len(diamonds.prices))[:max_rows]
    test, train_rows = np.split(order, [len(order) // 10])
    targets = np.log(diamonds.prices)
    inputs_scaler = Standardizer.fit(diamonds.inputs[train_rows])
    target_scaler = Standardizer.fit(targets[train_rows])
    train_data = (inputs_scaler.transform(diamonds.inputs[train_rows]), target_scaler.transform(targets[train_rows]))
    test_inputs, test_targets = (
        inputs_scaler.transform(diamonds.inputs[test]),
        torch.from_numpy(targets[test]),
    )
    console.print(
        f"diamonds: {len(train_rows)} training rows, {len(test)} test rows, {diamonds.inputs.shape[1]} inputs; "
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
    model = FeatureGP(MLPFeatures(diamonds.inputs.shape[1], seed=seed), 0.1)
    batch_size, held_out = 64, len(train_rows) // 10
    validation, rest = (
        tuple(values[part] for values in train_data) for part in (slice(held_out), slice(held_out, None))
    )
    algorithm = Lagged(model, len(rest[0]))
    train(
        algorithm,
        make_optimizer(algorithm, learning_rate=2e-3),
        rest,
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
        schedule=cosine_decay(epochs * -(-len(rest[0]) // batch_size)),
        callbacks=[Validation(validation, every=2), ProgressBar(console)],
    )
    model.optimize_noise(train_data)
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
