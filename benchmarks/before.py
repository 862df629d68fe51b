"""The default of an earlier commit and the present one, on the same splits of small and large tables.

    git worktree add ../before 07bfc74
    PYTHONPATH=../before/src python -m benchmarks.before run --tag before --effort low
    python -m benchmarks.before run --tag now --effort low
    python -m benchmarks.before compare              # paired differences

Only what both have of ``GPRegressor`` is used. Scores are on test rows, in units of the training targets' deviation;
CRPS is the mean pinball loss of 18 quantiles. Each fit is a line of ``benchmarks/results/before.jsonl``; a line that is
there is not made again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from .default_fit import make_table
from .honesty import CLASSICS, KINDS, SMALL_UCI
from .honesty_page import SMALL_UCI20

STORE = Path(__file__).parent / "results" / "before.jsonl"
LARGE = ["bike", "elevators", "keggdirected", "keggundirected", "kin40k", "pol", "protein", "tamielectric"]
NAMES = ("nlpd", "crps", "rmse", "held_90", "processor_seconds")
TABLES = {"small": [f"uci/{name}" for name in SMALL_UCI], "large": [f"uci/{name}" for name in LARGE]}
TABLES["small"] += [f"uci20/{name}" for name in SMALL_UCI20]
TABLES["small"] += [f"classics/{name}" for name in CLASSICS]
TABLES["rows"] = [f"rows/{rows}" for rows in (2000, 10_000, 40_000)]


def scores(table: str, split: int, effort: str) -> dict:
    from finitegp import GPRegressor

    kind, name = table.split("/")
    if kind == "rows":  # of the table whose seconds are on the page of performance
        rows = int(name)
        inputs, targets = make_table(rows + rows // 10, split)
        inputs, asked, targets, held = inputs[:rows], inputs[rows:], targets[:rows], targets[rows:]
    else:
        inputs, targets, asked, held = KINDS[kind][1](name, split)
    unit, started, clock = float(targets.std()), time.process_time(), time.perf_counter()
    gp = GPRegressor(effort=effort, random_state=split).fit(inputs, targets)
    seconds, wall = time.process_time() - started, time.perf_counter() - clock
    losses = []
    for coverage in np.arange(1, 10) / 10:
        ends = gp.predict_interval(asked, coverage=float(coverage))
        for level, end in zip((0.5 - coverage / 2, 0.5 + coverage / 2), ends, strict=True):
            losses.append(np.mean(np.maximum(level * (held - end), (level - 1.0) * (held - end))))
    lower, upper = gp.predict_interval(asked, coverage=0.9)
    return {
        "rmse": float(np.sqrt(np.mean(np.square(gp.predict(asked) - held)))) / unit,
        "nlpd": -float(np.mean(gp.log_density(asked, held)) + np.log(unit)),
        "crps": 2.0 * float(np.mean(losses)) / unit,
        "held_90": float(np.mean((lower <= held) & (held <= upper))),
        "processor_seconds": seconds,
        "wall_seconds": wall,
    }


def stored() -> list[dict]:
    return [json.loads(line) for line in STORE.read_text().splitlines()] if STORE.exists() else []


def run(options: argparse.Namespace) -> None:
    from paper.environment import environment

    if "rows" not in options.sizes:  # whose seconds are by the clock, on all cores
        torch.set_num_threads(1)
    done = {(row["tag"], row["effort"], row["table"], row["split"]) for row in stored()}
    for split in range(options.splits):
        for table in [table for size in options.sizes for table in TABLES[size]]:
            if (options.tag, options.effort, table, split) in done:
                continue
            cell = {"tag": options.tag, "effort": options.effort, "table": table, "split": split}
            row = cell | scores(table, split, options.effort) | environment()
            with STORE.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(*cell.values(), {name: round(row[name], 3) for name in ("nlpd", "rmse", "processor_seconds")})


def compare(options: argparse.Namespace) -> None:
    rows = {(row["tag"], row["effort"], row["table"], row["split"]): row for row in stored()}
    for size, tables in TABLES.items():
        differences, lines = [], []
        for table in tables:
            pairs = [
                (rows["before", options.effort, table, split], rows["now", options.effort, table, split])
                for split in range(20)
                if all((tag, options.effort, table, split) in rows for tag in ("before", "now"))
            ]
            if not pairs:
                continue
            means = [[np.mean([pair[side][name] for pair in pairs]) for side in (0, 1)] for name in NAMES]
            differences.append([now - before for before, now in means])
            lines.append(f"| {table} | {len(pairs)} | " + " | ".join(f"{b:.3f} / {n:.3f}" for b, n in means) + " |")
        if not lines:
            continue
        found = np.array(differences)
        print(f"\n{size}: lower now on {(found[:, :3] < 0).sum(axis=0)} of {len(found)} in {NAMES[:3]}")
        print(f"mean difference {dict(zip(NAMES, found.mean(axis=0).round(3).tolist(), strict=True))}\n")
        print("| table | splits | " + " | ".join(f"{name}, before / now" for name in NAMES) + " |")
        print("|---|--:|" + "--:|" * len(NAMES))
        print("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "compare"))
    parser.add_argument("--tag", default="now", choices=("before", "now"))
    parser.add_argument("--effort", default="low")
    parser.add_argument("--sizes", nargs="+", default=["small", "large"], choices=TABLES)
    parser.add_argument("--splits", type=int, default=3)
    options = parser.parse_args()
    {"run": run, "compare": compare}[options.what](options)


if __name__ == "__main__":
    main()
