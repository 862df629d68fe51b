"""A quick look at speed, as ratios to a plain network, a bare product and LightGBM, kept run by run.

    make benchmark               # python -m benchmarks.quick: under five minutes on two idle cores

What is compared is measured in turn in one run, so a ratio can be compared with that of another day or machine, and
seconds cannot. Every run is added to ``benchmarks/results/history.jsonl``, printed beside the one before, and shown in
``docs/performance.md`` under "History" (``python -m benchmarks.render``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch

from finitegp import GPRegressor
from finitegp.features import MLPFeatures
from paper.environment import environment

from . import default_fit, statistics_streaming, steps
from .record import RESULTS

STORE = RESULTS / "history.jsonl"
# A ratio that has grown by more than this is pointed out: less is what the same code shows on a quiet machine.
_GROWN = 1.2
_RUNS_SHOWN = 6
_PREDICTED = 50_000


def in_turn(rounds: int, **functions: Callable[[], object]) -> dict[str, float]:
    """Median seconds of each, in turn in every round; the first round, in which things load, is left out."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(rounds + 1):
        for name, function in functions.items():
            started = time.perf_counter()
            function()
            if number:
                seconds[name].append(time.perf_counter() - started)
    return {name: median(each) for name, each in seconds.items()}


def ratios() -> Iterator[dict[str, Any]]:
    """What was measured, what it is compared with, seconds of both."""
    for rows, effort, rounds in ((2000, "medium", 3), (10_000, "low", 3), (10_000, "medium", 1)):
        found = in_turn(
            rounds,
            ours=lambda rows=rows, effort=effort: default_fit.measure(rows, effort),  # type: ignore[misc]
            other=lambda rows=rows: default_fit.measure(rows, default_fit.LIGHTGBM),  # type: ignore[misc]
        )
        yield {"what": f"fit of {rows:,} rows, effort {effort}", "than": "LightGBM", **found}
    torch.set_num_threads(1)
    for batch_size in (32, 256):
        lines = {line["method"]: line["milliseconds"] / 1e3 for line in steps.measure("linear", batch_size, rounds=20)}
        for name in ("Lagged", "SCGD", "Minimax"):
            plain = lines["plain network"]
            what = f"step of {name}, batch {batch_size}"
            yield {"what": what, "than": "plain step", "ours": lines[name], "other": plain}
    sums = statistics_streaming.time_against_bare_product(torch.float64)
    pair = {"ours": sums["seconds_statistics"], "other": sums["seconds_bare"]}
    yield {"what": "exact sums of 128 features, float64", "than": "bare product", **pair}
    gp = GPRegressor(effort="low", random_state=0).fit(*default_fit.make_table(10_000, seed=0))
    inputs, _ = default_fit.make_table(_PREDICTED, seed=1)
    network, rows = MLPFeatures(default_fit.COLUMNS, seed=0), torch.from_numpy(inputs).float()
    with torch.no_grad():
        found = in_turn(
            3,
            mean=lambda: gp.predict(inputs),
            std=lambda: gp.predict(inputs, return_std=True),
            other=lambda: network(rows),
        )
    for name in ("mean", "std"):
        what = f"predicting {_PREDICTED:,} rows, {name}, effort low"
        yield {"what": what, "than": "plain network", "ours": found[name], "other": found["other"]}


def runs() -> list[dict[str, Any]]:
    """All runs so far, oldest first: ``ratios`` by what was measured, and what they were measured with."""
    if not STORE.exists():
        return []
    return [json.loads(line) for line in STORE.read_text().splitlines()]


def table(stored: list[dict[str, Any]]) -> list[str]:
    """The last runs side by side."""
    shown = stored[-_RUNS_SHOWN:]
    names = list(dict.fromkeys(name for run in shown for name in run["ratios"]))
    heads = [f"{run['date']} ({run['commit']})" for run in shown]
    lines = ["| ratio of seconds | " + " | ".join(heads) + " |", "|---|" + "--:|" * len(shown)]
    for name in names:
        values = [f"{run['ratios'][name]:.2f}" if name in run["ratios"] else "" for run in shown]
        lines.append(f"| {name} | " + " | ".join(values) + " |")
    return lines


def main() -> None:
    """Measure, compare with the run before, store."""
    before = runs()
    last = before[-1]["ratios"] if before else {}
    started, found, seconds = time.perf_counter(), {}, {}
    for line in ratios():
        name = f"{line['what']}, than {line['than']}"
        found[name] = line["ours"] / line["other"]
        seconds[name] = [line["ours"], line["other"]]
        compared = f" (before: {last[name]:.2f})" if name in last else ""
        grown = "  <- has grown" if name in last and found[name] > _GROWN * last[name] else ""
        print(f"{found[name]:8.2f} {name}{compared}{grown}", flush=True)
    row = {"ratios": found, "seconds": seconds, "took": time.perf_counter() - started} | environment()
    with STORE.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(f"{row['took']:.0f} s; added to {STORE.name}. python -m benchmarks.render puts it into docs/performance.md.")


if __name__ == "__main__":
    main()
