"""Wall-clock seconds of the default fit through GPRegressor, with its held-out scores.

    python -m benchmarks.default_fit                       # 40,000 and 50,000 rows of 20 columns, low and medium effort
    python -m benchmarks.default_fit --rows 40000 --effort low

The table is made: a function of six of the columns with interactions, noise whose deviation depends on a column, and
fourteen columns that say nothing. A tenth as many rows are held out. Run it on an idle machine; all cores are used, as
the default does. Writes ``benchmarks/results/default_fit.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import numpy as np

from finitegp import GPRegressor

from .record import record

COLUMNS = 20


def make_table(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    inputs = generator.uniform(size=(rows, COLUMNS))
    mean = 10 * np.sin(np.pi * inputs[:, 0] * inputs[:, 1]) + 20 * (inputs[:, 2] - 0.5) ** 2
    mean += 10 * inputs[:, 3] + 5 * inputs[:, 4]
    deviation = 0.5 + 1.5 * inputs[:, 5]
    return inputs, mean + deviation * generator.normal(size=rows)


def measure(rows: int, effort: str) -> dict:
    inputs, targets = make_table(rows, seed=0)
    test_inputs, test_targets = make_table(rows // 10, seed=1)
    started = time.perf_counter()
    model = GPRegressor(effort=effort, random_state=0, verbose=True).fit(inputs, targets)
    seconds = time.perf_counter() - started
    mean, deviation = model.predict(test_inputs, return_std=True)
    lower, upper = model.predict_interval(test_inputs, coverage=0.9)
    standardized = (test_targets - mean) / deviation
    return {
        "rows": rows,
        "columns": COLUMNS,
        "effort": effort,
        "cores": len(os.sched_getaffinity(0)),
        "seconds": seconds,
        "rmse": float(np.sqrt(np.mean((test_targets - mean) ** 2))),
        "nlpd": float(np.mean(0.5 * np.log(2 * np.pi * deviation**2) + 0.5 * standardized**2)),
        "coverage_90": float(np.mean((lower < test_targets) & (test_targets < upper))),
        "race": model.training_summary_["fits"][0].get("race"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[40_000, 50_000])
    parser.add_argument("--effort", nargs="+", default=["low", "medium"])
    arguments = parser.parse_args()
    found = []
    for rows in arguments.rows:
        for effort in arguments.effort:
            found.append(measure(rows, effort))
            print(json.dumps(found[-1]), flush=True)
    print("written to", record("default_fit", found, same=("rows", "effort")))


if __name__ == "__main__":
    main()
