"""How honest predictions are where no row was seen: outside of the range, within gaps, in empty corners.

    python -m benchmarks.extrapolation                              # every task, medium effort; about an hour
    python -m benchmarks.extrapolation --tasks synthetic bike:top --effort low

``synthetic`` is sin(2 x0) + 0.3 x1^2 + x2 of eight uniform columns with noise of deviation 0.1. In tables of the UCI
collection, rows of the training split are left out by the column that matters most to a forest of randomised trees:
``top`` leaves out its upper 15 %, ``gap`` its middle 20 %, ``corner`` the rows above the 70 % quantile of both of the
two that matter most. What is left out is predicted. Errors and deviations are in units of the target's deviation.
Writes ``benchmarks/results/extrapolation.jsonl``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from sklearn.ensemble import ExtraTreesRegressor

from finitegp.automatic.settings import EFFORTS
from paper.datasets import load_split

from .large_table_scores import fit_new, fit_old
from .record import record

REAL = (
    *("bike:top", "bike:gap", "bike:corner", "pol:top", "elevators:top", "protein:top", "kin40k:top"),
    *("kin40k:corner", "keggdirected:top", "tamielectric:gap"),
)
TASKS = ("synthetic", "synthetic:gap", "synthetic:corner", *REAL)
MOST_ROWS, MOST_SHIFTED = 5000, 3000


class Task(NamedTuple):
    """Training rows, and sets of rows by name that lie inside or outside of these."""

    inputs: np.ndarray
    targets: np.ndarray
    shifted: dict[str, tuple[np.ndarray, np.ndarray]]


def make_task(name: str, *, seed: int = 0) -> Task:
    table, _, kind = name.partition(":")
    if table == "synthetic":
        return _synthetic(kind, seed)
    split = load_split(table, 0)
    # Test rows stay out: tasks are made of training rows alone.
    rng = np.random.default_rng(1234 + seed)
    order = rng.permutation(len(split.inputs))
    inputs, targets = split.inputs[order], split.targets[order]
    few = slice(0, min(5000, len(inputs)))
    forest = ExtraTreesRegressor(50, min_samples_leaf=5, random_state=0).fit(inputs[few], targets[few])
    best = np.argsort(-forest.feature_importances_)
    outside = _outside(inputs[:, best[0]], inputs[:, best[1]], kind)
    inside = np.flatnonzero(~outside)
    kept, within = inside[:MOST_ROWS], inside[MOST_ROWS : MOST_ROWS + MOST_SHIFTED]
    out = np.flatnonzero(outside)[:MOST_SHIFTED]
    shifted = {kind: (inputs[out], targets[out])}
    if len(within) >= 200:
        shifted["in range"] = inputs[within], targets[within]
    return Task(inputs[kept], targets[kept], shifted)


def _outside(first: np.ndarray, second: np.ndarray, kind: str) -> np.ndarray:
    if kind == "top":
        return first > np.quantile(first, 0.85)
    if kind == "gap":
        return (first > np.quantile(first, 0.4)) & (first < np.quantile(first, 0.6))
    return (first > np.quantile(first, 0.7)) & (second > np.quantile(second, 0.7))


def _synthetic(kind: str, seed: int) -> Task:
    rng = np.random.default_rng(seed)

    def observe(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean = np.sin(2.0 * rows[:, 0]) + 0.3 * rows[:, 1] ** 2 + rows[:, 2]
        return rows, mean + 0.1 * rng.normal(size=len(rows))

    def draw(count: int) -> np.ndarray:
        return rng.uniform(-2.0, 2.0, size=(count, 8))

    if kind == "gap":
        keep, far = (lambda rows: np.abs(rows[:, 1] - 0.5) > 0.5), (lambda rows: np.abs(rows[:, 1] - 0.5) <= 0.5)
    elif kind == "corner":
        keep = lambda rows: (rows[:, 0] < 0.8) | (rows[:, 1] < 0.8)  # noqa: E731
        far = lambda rows: (rows[:, 0] >= 0.8) & (rows[:, 1] >= 0.8)  # noqa: E731
    else:
        keep = far = lambda rows: np.ones(len(rows), dtype=bool)
    drawn = draw(8000)
    inputs, targets = observe(drawn[keep(drawn)][:4000])
    fresh = draw(1000)
    shifted = {"in range": observe(fresh[keep(fresh)])}
    if kind:
        drawn = draw(20_000)
        return Task(inputs, targets, shifted | {kind: observe(drawn[far(drawn)][:1000])})
    for factor in (1.5, 2.0, 3.0, 10.0):
        shifted[f"all x {factor:g}"] = observe(fresh * factor)
    for column, value in ((1, 3.0), (1, 4.0), (1, 6.0), (1, 20.0), (0, 4.0), (2, 6.0), (7, 6.0)):
        moved = fresh.copy()
        moved[:, column] = value
        shifted[f"x{column} = {value:g}"] = observe(moved)
    return Task(inputs, targets, shifted)


def measure(task: str, effort: str, recipe: str) -> Iterator[dict]:
    made = make_task(task)
    started = time.process_time()
    fit = (fit_new if recipe == "new" else fit_old)(made.inputs, made.targets, effort=effort)
    seconds = time.process_time() - started
    for name, (inputs, targets) in made.shifted.items():
        row = {"task": task, "set": name, "recipe": recipe, "effort": effort, "rows": len(made.inputs)}
        yield row | fit.scores(inputs, targets) | {"fit_cpu_seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--effort", default="medium", choices=list(EFFORTS))
    parser.add_argument("--recipes", nargs="+", default=["new"], choices=["old", "new"])
    arguments = parser.parse_args()
    rows = []
    for task in arguments.tasks:
        for recipe in arguments.recipes:
            for row in measure(task, arguments.effort, recipe):
                rows.append(row)
                print(row, flush=True)
    record("extrapolation", rows, same=("task", "recipe", "effort"))


if __name__ == "__main__":
    main()
