"""Seconds by the clock of the default fit beside LightGBM, on the same rows, one after the other in one run.

    python -m benchmarks.default_fit                       # 2,000, 10,000 and 40,000 rows of 20 columns: three minutes
    python -m benchmarks.default_fit --growth --methods LightGBM low medium    # an hour, for the figure of growth
    python -m benchmarks.default_fit --predict             # what predictions of a fit to 40,000 rows take: a minute

The table is made: a function of six of the columns with interactions, noise whose deviation depends on a column, and
fourteen columns that say nothing. A tenth as many rows are held out, at most 100,000. All cores are used, as
everybody's default does; "LightGBM, honest" has the residual scale and Student's t of five fits without a fold
(``paper/peers``). Run it on an idle machine: the ratios to LightGBM in the same run can be compared with earlier ones,
and are printed beside these. Writes ``benchmarks/results/default_fit.jsonl``; ``python -m benchmarks.render`` makes a
table of it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .honesty import scores_of
from .record import RESULTS, record

Array = npt.NDArray[np.float64]
COLUMNS = 20
LIGHTGBM = "LightGBM"
CATBOOST = "CatBoost"
# Rows whose seconds make the figure of growth; the table has the smaller ones, of which all methods are measured.
GROWTH = (1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)


def make_table(rows: int, seed: int) -> tuple[Array, Array]:
    """Inputs and targets."""
    generator = np.random.default_rng(seed)
    inputs = generator.uniform(size=(rows, COLUMNS))
    mean = 10 * np.sin(np.pi * inputs[:, 0] * inputs[:, 1]) + 20 * (inputs[:, 2] - 0.5) ** 2
    mean += 10 * inputs[:, 3] + 5 * inputs[:, 4]
    deviation = 0.5 + 1.5 * inputs[:, 5]
    return inputs, mean + deviation * generator.normal(size=rows)


def _default(effort: str) -> Callable[[Any], tuple[Any, dict[str, Any]]]:
    def run(split: Any) -> tuple[Any, dict[str, Any]]:
        from finitegp.automatic import fit_auto
        from paper.outcome import Outcome

        expected: list[float] = []
        fit = fit_auto(split.inputs, split.targets, effort=effort, on_expected=expected.append)
        predicted = fit.predict(split.test_inputs)
        outcome = Outcome(predicted.mean.numpy(), predicted.std.numpy(), 0.0, mixture=predicted.mixture)
        return outcome, {"expected_seconds": expected[0], "path": fit.record["path"]}

    return run


def _peer(name: str) -> Callable[[Any], tuple[Any, dict[str, Any]]]:
    def run(split: Any) -> tuple[Any, dict[str, Any]]:
        from paper.peers import DEFAULTS, PEERS

        settings = {**DEFAULTS[name], "threads": len(os.sched_getaffinity(0))}
        return PEERS[name](split, seed=0, settings=settings), {}

    return run


METHODS: dict[str, Callable[[Any], tuple[Any, dict[str, Any]]]] = {
    LIGHTGBM: _peer("lightgbm"),
    "LightGBM, honest": _peer("lightgbm+t"),
    CATBOOST: _peer("catboost"),
    "low": _default("low"),
    "medium": _default("medium"),
}


def measure(rows: int, method: str) -> dict[str, Any]:
    """One fit and its scores on held-out rows; predicting them is part of the seconds."""
    from paper.outcome import DatasetSplit

    inputs, targets = make_table(rows, seed=0)
    test_inputs, test_targets = make_table(min(max(rows // 10, 1000), 100_000), seed=1)
    split = DatasetSplit("made", 0, inputs, targets, test_inputs, test_targets)
    started = time.perf_counter()
    outcome, more = METHODS[method](split)
    seconds = time.perf_counter() - started
    return {"rows": rows, "columns": COLUMNS, "method": method, "seconds": seconds, **more} | scores_of(
        outcome, test_targets, float(targets.std())
    )


def measure_prediction(effort: str, rows: int = 40_000, new: int = 50_000) -> dict[str, Any]:
    """Microseconds per row and thread of what a fit predicts, and milliseconds of a single row, medians of rounds."""
    from finitegp import GPRegressor

    gp = GPRegressor(effort=effort).fit(*make_table(rows, seed=0))
    inputs, _ = make_table(new, seed=1)
    verbs: dict[str, Callable[[Array], object]] = {
        "mean": gp.predict,
        "std": lambda rows: gp.predict(rows, return_std=True),
        "interval": gp.predict_interval,
    }
    found: dict[str, Any] = {"rows": rows, "columns": COLUMNS, "effort": effort, "threads": torch.get_num_threads()}

    def seconds(predict: Callable[[Array], object], chosen: Array, rounds: int) -> float:
        predict(chosen)
        taken = []
        for _ in range(rounds):
            started = time.perf_counter()
            predict(chosen)
            taken.append(time.perf_counter() - started)
        return median(taken)

    for name, predict in verbs.items():
        found[f"{name}_microseconds"] = 1e6 * torch.get_num_threads() * seconds(predict, inputs, 3) / new
        found[f"{name}_of_one_row_milliseconds"] = 1e3 * seconds(predict, inputs[:1], 50)
    return found


def compare(found: list[dict[str, Any]], stored: list[dict[str, Any]]) -> list[str]:
    """Seconds in units of LightGBM's in the same run, beside those of the stored lines."""

    def ratios(lines: list[dict[str, Any]]) -> dict[tuple[int, str], float]:
        seconds: dict[tuple[int, str], list[float]] = {}
        for line in lines:
            seconds.setdefault((line["rows"], line["method"]), []).append(line["seconds"])
        return {
            (rows, method): median(each) / median(seconds[rows, LIGHTGBM])
            for (rows, method), each in seconds.items()
            if method != LIGHTGBM and (rows, LIGHTGBM) in seconds
        }

    now, before = ratios(found), ratios(stored)
    return [
        f"{rows:>8} rows, {method}: {ratio:.1f} times LightGBM's seconds"
        + (f" (stored: {before[rows, method]:.1f})" if (rows, method) in before else "")
        for (rows, method), ratio in now.items()
    ]


def table(lines: list[dict[str, Any]]) -> list[str]:
    """The stored lines as a table of medians."""
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["rows"], line["method"]), []).append(line)
    found = [
        "| rows | method | seconds | expected | RMSE | NLPD | CRPS | 90 % intervals hold |",
        "|--:|---|--:|--:|--:|--:|--:|--:|",
    ]
    order = {name: number for number, name in enumerate(METHODS)}
    for (rows, method), group in sorted(groups.items(), key=lambda both: (both[0][0], order.get(both[0][1], 9))):
        expected = [line["expected_seconds"] for line in group if "expected_seconds" in line]
        first = group[0]
        shown = f"{median(expected):.0f}" if expected else ""
        seconds = median(line["seconds"] for line in group)
        found.append(
            f"| {rows:,} | {method} | {seconds:.1f} | {shown} | {first['rmse']:.4f} | {first['nlpd']:.3f} | "
            f"{first['crps']:.4f} | {first['coverage']['0.9']:.3f} |"
        )
    return found


def draw(lines: list[dict[str, Any]], path: Path) -> list[str]:
    """A figure of seconds against rows, and a table of them with slopes, the power of rows between two sizes."""
    from matplotlib.figure import Figure

    seconds = {(line["rows"], line["method"]): line["seconds"] for line in lines}
    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = figure.add_subplot()
    found = ["| rows | method | seconds | slope |", "|--:|---|--:|--:|"]
    for method in METHODS:
        measured = sorted((rows, taken) for (rows, name), taken in seconds.items() if name == method)
        for number, (rows, taken) in enumerate(measured):
            slope = ""
            if number:
                before = measured[number - 1]
                slope = f"{math.log(taken / before[1]) / math.log(rows / before[0]):.2f}"
            found.append(f"| {rows:,} | {method} | {taken:.1f} | {slope} |")
        if measured:
            axes.loglog(*zip(*measured, strict=True), marker="o", label=method)
    axes.set(xlabel="rows of 20 columns", ylabel="seconds to fit and predict")
    axes.grid(which="both", alpha=0.2)
    axes.legend()
    figure.savefig(path, dpi=120)
    return found


def main() -> None:
    """Measure, compare, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", help="2,000, 10,000 and 40,000 unless given")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--growth", action="store_true", help="for the figure of growth; without --rows its sizes")
    parser.add_argument("--predict", action="store_true", help="what predictions take, instead of fits")
    arguments = parser.parse_args()
    if arguments.predict:
        for effort in ("low", "medium"):
            found = [measure_prediction(effort)]
            record("predict", found, same=("rows", "effort", "threads"))
            print(found[0], flush=True)
        return
    path = RESULTS / "default_fit.jsonl"
    stored = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    torch.zeros(1)  # loaded before anything is timed
    found = []
    for number in range(arguments.rounds):
        for rows in arguments.rows or (GROWTH if arguments.growth else (2000, 10_000, 40_000)):
            for method in arguments.methods:
                found.append(measure(rows, method) | {"round": number, "growth": arguments.growth})
                record("default_fit", found[-1:], same=("rows", "method", "round", "growth"))
                print({name: found[-1][name] for name in ("rows", "method", "seconds", "nlpd", "rmse")}, flush=True)
    print("\n".join(compare(found, [line for line in stored if line["growth"] == arguments.growth])))


if __name__ == "__main__":
    main()
