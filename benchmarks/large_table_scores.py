"""Scores of the automatic fit of large tables, the recipe before and the one after, on the same rows.

    python -m benchmarks.large_table_scores                                    # all tables, split 0; hours
    python -m benchmarks.large_table_scores --tables elevators protein --splits 0 1 2 --most-rows 5000

Scores are on the test rows of each split, in units of the training targets' deviation. Seconds are of the processor.
``--dev`` takes a part of the training rows in the place of the test rows: choices are made on those. Writes
``benchmarks/results/large_table_scores.jsonl``.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import numpy as np
import torch

from finitegp.automatic import AutoFit, fit_auto
from finitegp.automatic.large_table import LargeTableFit, fit_large_table
from finitegp.automatic.settings import EFFORTS
from finitegp.automatic.table import Table
from finitegp.data.scaling import Standardizer, winsorized_standardizer
from finitegp.error_shape import GAUSSIAN, ErrorShape
from paper.datasets import load_split

from .record import record

TABLES = ("bike", "elevators", "keggdirected", "keggundirected", "kin40k", "pol", "protein", "tamielectric", "wine")


def score(mean: np.ndarray, variance: np.ndarray, excess: np.ndarray, targets: np.ndarray, nu: float | None) -> dict:
    """Scores; where the excess is most of the variance, the distribution is a Gaussian."""
    shape = ErrorShape(nu)
    deviation = np.sqrt(variance + excess)
    standardized = torch.from_numpy((targets - mean) / deviation)
    far = excess > variance
    log_density = np.where(far, GAUSSIAN.log_density(standardized), shape.log_density(standardized))
    crps = np.where(far, GAUSSIAN.crps(standardized), shape.crps(standardized))
    half = np.hypot(shape.deviations(0.9) * np.sqrt(variance), GAUSSIAN.deviations(0.9) * np.sqrt(excess))
    return {
        "rmse": float(np.sqrt(np.mean((targets - mean) ** 2))),
        "nlpd": float(np.mean(np.log(deviation) - log_density)),
        "crps": float(np.mean(deviation * crps)),
        "coverage_90": float(np.mean(np.abs(targets - mean) <= half)),
        "mean_square": float(np.mean(standardized.numpy() ** 2)),
        "deviation": float(np.sqrt(np.mean(deviation**2))),
        "median_deviation": float(np.median(deviation)),
    }


class NewFit(NamedTuple):
    """The new recipe with the scaling around it."""

    fit: LargeTableFit
    inputs: Standardizer
    targets: Standardizer

    def scores(self, inputs: np.ndarray, targets: np.ndarray) -> dict:
        """Of these rows, in the target's deviations."""
        rows = self.inputs.transform(inputs)
        found = self.fit.fitted.predict(rows)
        excess = self.fit.excess.variance(rows).numpy()
        observed = self.targets.transform(targets)
        return score(found.mean.numpy(), found.variance.numpy(), excess, observed, self.fit.degrees_of_freedom)


class OldFit(NamedTuple):
    """The recipe before."""

    fit: AutoFit

    def scores(self, inputs: np.ndarray, targets: np.ndarray) -> dict:
        """Of these rows, in the target's deviations."""
        found = self.fit.fitted.predict(self.fit.inputs_scaler.transform(inputs))
        observed = self.fit.target_scaler.transform(targets)
        nu = self.fit.record["degrees_of_freedom"]
        return score(found.mean.numpy(), found.variance.numpy(), np.zeros(len(inputs)), observed, nu)


def fit_new(inputs: np.ndarray, targets: np.ndarray, *, effort: str, seed: int = 0, **changes: Any) -> NewFit:
    inputs_scaler, target_scaler = winsorized_standardizer(inputs), Standardizer.fit(targets)
    table = Table(inputs_scaler.transform(inputs), target_scaler.transform(targets))
    settings = EFFORTS[effort].with_changes(changes)
    return NewFit(fit_large_table(table, table.source(), settings, seed=seed), inputs_scaler, target_scaler)


def fit_old(inputs: np.ndarray, targets: np.ndarray, *, effort: str, seed: int = 0) -> OldFit:
    return OldFit(fit_auto(inputs, targets, effort=effort, seed=seed, processes=1))


def measure(table: str, split: int, recipe: str, effort: str, most_rows: int | None, dev: bool) -> dict:
    data = load_split(table, split)
    order = np.random.default_rng(1234).permutation(len(data.inputs))
    aside = order[: min(len(order) // 5, 3000)] if dev else order[:0]
    kept = order[len(aside) :][:most_rows]
    test_inputs = data.inputs[aside] if dev else data.test_inputs
    test_targets = data.targets[aside] if dev else data.test_targets
    started, cpu = time.perf_counter(), time.process_time()
    make = fit_new if recipe == "new" else fit_old
    fit = make(data.inputs[kept], data.targets[kept], effort=effort, seed=split)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    row = {"table": table, "split": split, "recipe": recipe, "effort": effort, "rows": len(kept), "dev": dev}
    scored = fit.scores(test_inputs, test_targets)
    chosen = {name: fit.fit.record.get(name) for name in ("race", "stages")}
    return row | scored | {"seconds": seconds, "cpu_seconds": cpu} | chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=TABLES, choices=TABLES)
    parser.add_argument("--splits", nargs="+", type=int, default=[0])
    parser.add_argument("--recipes", nargs="+", default=["old", "new"], choices=["old", "new"])
    parser.add_argument("--effort", default="medium", choices=list(EFFORTS))
    parser.add_argument("--most-rows", type=int)
    parser.add_argument("--dev", action="store_true")
    arguments = parser.parse_args()
    same = ("table", "split", "recipe", "effort", "rows", "dev")
    for table in arguments.tables:
        for split in arguments.splits:
            for recipe in arguments.recipes:
                row = measure(table, split, recipe, arguments.effort, arguments.most_rows, arguments.dev)
                print(row, flush=True)
                record("large_table_scores", [row], same=same)


if __name__ == "__main__":
    main()
