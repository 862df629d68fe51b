"""Training and predicting under a hard limit of memory: SCGD, BSGD and SVGP on batches of 16 rows from disk.

    python -m benchmarks.small_device            # about ten minutes of processor time
    python -m benchmarks.small_device --quick    # a look that is not for the record

The rows, the network and the limit are those of ``examples/edge_device.py``: 16 MB of address space beyond what a
process has after it has trained and predicted once on a few rows. SCGD and BSGD end with an exact pass over all rows
from disk; SVGP (GPyTorch, extra ``peers``) has 16 inducing points, as many as rows in a batch, and predicts from its
variational posterior, whose factors are made for each call. Each run is a process of its own; methods take turns;
medians over rounds, processor time, one thread. Then the limit is halved until a method no longer gets through. Writes
``benchmarks/results/small_device.jsonl`` and the table of ``docs/export.md``.
"""

from __future__ import annotations

import argparse
import json
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.record import made_with, publish
from finitegp import BSGD, SCGD, FeatureGP, MLPFeatures, NpySource, ScaledSource, make_optimizer, train
from finitegp.data import Scaling
from finitegp.data.scaling import Standardizer

from .process_memory import peak_memory_bytes, reset_peak_memory, resident_memory_bytes

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "export.md"
EXAMPLE = runpy.run_path(str(ROOT / "examples" / "edge_device.py"))
COLUMNS, BATCH, LIMIT = (EXAMPLE[name] for name in ("COLUMNS", "BATCH", "LIMIT"))
METHODS = ("SCGD", "BSGD", "SVGP")
LEARNING_RATE, PREDICTIONS = 2e-3, 300
# Rows that pass at once where nothing is trained.
CHUNK = 256
# Halved from that of the example, in bytes.
LIMITS = [LIMIT // 2**power for power in range(8)]


def make_algorithm(method: str, rows: int, inducing: torch.Tensor) -> Any:
    model = FeatureGP(MLPFeatures(COLUMNS, hidden=(32, 32), activation="tanh", seed=0), noise_variance=0.1)
    if method == "SVGP":
        from paper.svgp import SVGP

        return SVGP(model, rows, inducing_inputs=inducing)
    return {"SCGD": SCGD, "BSGD": BSGD}[method](model, num_data=rows)


def run(method: str, data: Any, rows: int, steps: int, few: torch.Tensor) -> dict[str, Any]:
    """Train for so many steps, and predict single rows: bytes and milliseconds, and the predictor."""
    algorithm = make_algorithm(method, rows, few[:BATCH].float())
    optimizer = make_optimizer(algorithm, learning_rate=LEARNING_RATE)
    epochs = max(1, steps * BATCH // rows)
    before = start_peak()
    started = time.process_time()
    train(algorithm, optimizer, data, epochs=epochs, batch_size=BATCH)
    seconds = time.process_time() - started
    peaks = [peak_since(before)]
    before = start_peak()
    held = count_bytes(algorithm.state_dict()) + count_bytes(optimizer.state_dict())
    if method == "SVGP":
        exact = algorithm._exact_copy()  # once: its predict makes one at every call

        def predict(inputs: torch.Tensor) -> Any:
            return exact._marginals(inputs, None)

        kept = count_bytes(exact.state_dict())
    else:
        fitted = algorithm.model.condition(data, optimize_noise=True)
        predict = fitted.predict
        posterior = {"weights": fitted.posterior.weight_mean, "factor": fitted.posterior.factor.lower}
        kept = count_bytes(fitted.model.state_dict()) + count_bytes(posterior)
    with torch.no_grad():
        started = time.process_time()
        for row in few[:PREDICTIONS, None]:
            predict(row)
        prediction = (time.process_time() - started) / len(few[:PREDICTIONS])
    return {
        "milliseconds_per_step": 1e3 * seconds / (epochs * rows / BATCH),
        "milliseconds_per_prediction": 1e3 * prediction,
        "bytes_in_training": held,
        "bytes_for_predictions": kept,
        "peak_bytes_of_training": peaks[0],
        "peak_bytes_afterwards": peak_since(before),
        "predict": predict,
    }


def start_peak() -> int:
    reset_peak_memory()
    return resident_memory_bytes() or 0


def peak_since(before: int) -> int:
    return (peak_memory_bytes() or 0) - before


def count_bytes(state: Any) -> int:
    """The bytes of all tensors inside."""
    if isinstance(state, torch.Tensor):
        return state.nbytes
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    return sum(count_bytes(part) for part in parts)


def measure(method: str, directory: Path, steps: int, limit: int) -> dict[str, Any]:
    """What one process measures, under its limit."""
    torch.set_num_threads(1)
    first = EXAMPLE["make_rows"](500, seed=0)
    scaling = Scaling(*(Standardizer.fit(each) for each in first))
    scalers = (scaling.inputs, scaling.targets)
    few = [torch.from_numpy(scaler.transform(each)) for scaler, each in zip(scalers, first, strict=True)]
    files = NpySource(directory / "inputs.npy", directory / "targets.npy", chunk_size=CHUNK)
    source = ScaledSource(files, scaling)
    check, truth = EXAMPLE["make_rows"](2000, seed=10**6)
    # Once on a few rows: what libraries load when they are first used is no part of the limit.
    run(method, tuple(few), len(few[1]), 40, few[0])
    if not EXAMPLE["_limit_memory"](limit):
        raise SystemExit("This system has no limit of address space.")
    found = run(method, source, source.num_data, steps, few[0])
    predict, parts = found.pop("predict"), []
    with torch.no_grad():
        for part in torch.split(torch.from_numpy(scaling.inputs.transform(check)), CHUNK):
            one = predict(part)
            variance = one.noise_variance + (one.variance if method == "SVGP" else one.epistemic_variance)
            parts.append(torch.stack([one.mean, variance]))
    mean, variance = torch.cat(parts, dim=1).numpy()
    errors = mean - scaling.targets.transform(truth)
    unit = float(scaling.targets.scale)
    found["rmse"] = unit * float(np.sqrt(np.mean(errors**2)))
    found["nlpd"] = float(np.mean(0.5 * (np.log(2 * np.pi * variance * unit**2) + errors**2 / variance)))
    return found


def in_a_process(method: str, directory: Path, steps: int, limit: int) -> dict[str, Any] | None:
    """What such a process says; None if it did not get through."""
    command = [sys.executable, "-m", "benchmarks.small_device", "--one", method, str(directory), str(steps), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        print(method, limit, (done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1], file=sys.stderr)
        return None
    return json.loads(done.stdout)


def smallest_limit(method: str, directory: Path, steps: int) -> int | None:
    """The smallest limit under which the method gets through."""
    smallest = None
    for limit in LIMITS:
        if in_a_process(method, directory, steps, limit) is None:
            break
        smallest = limit
    return smallest


def table(rows: list[dict[str, Any]]) -> list[str]:
    facts = rows[0]
    lines = [
        f"`python -m benchmarks.small_device` ({made_with(facts)}). {facts['rows']:,} rows on disk, "
        f"{facts['steps']:,} steps, {facts['limit'] / 2**20:.0f} MB of address space beyond the libraries for all, "
        f"{facts['chunk_size']} rows at once in the exact pass:",
        "",
        "| | SCGD | BSGD | SVGP, 16 inducing points |",
        "|---|--:|--:|--:|",
    ]
    names = {
        "milliseconds_per_step": ("ms of processor time per step", "{:.2f}"),
        "milliseconds_per_prediction": ("ms per prediction of one row", "{:.2f}"),
        "bytes_in_training": ("bytes of parameters, state and optimizer", "{:,.0f}"),
        "bytes_for_predictions": ("bytes of the model that predicts, 64 bits", "{:,.0f}"),
        "peak_bytes_of_training": ("most resident bytes beyond those before training", "{:,.0f}"),
        "peak_bytes_afterwards": ("the same of exact pass (not SVGP) and predictions", "{:,.0f}"),
        "smallest_limit": ("smallest limit tried that it gets through, MB", "{:.3g}"),
        "rmse": ("RMSE on 2,000 new rows, kW (noise: 0.30)", "{:.3f}"),
        "nlpd": ("NLPD", "{:.3f}"),
    }
    by_method = {row["method"]: row for row in rows}
    for name, (shown, form) in names.items():
        unit = 2**20 if name == "smallest_limit" else 1
        cells = [by_method[method][name] for method in METHODS]
        lines.append(f"| {shown} | " + " | ".join("–" if c is None else form.format(c / unit) for c in cells) + " |")
    return lines


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        method, directory, steps, limit = sys.argv[2:]
        print(json.dumps(measure(method, Path(directory), int(steps), int(limit))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    rows, steps, rounds = (2000, 250, 1) if quick else (100_000, 12_500, 3)
    found: dict[str, list[dict[str, Any]]] = {method: [] for method in METHODS}
    limits: dict[str, int | None] = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        EXAMPLE["write_rows"](directory, rows)
        for _ in range(rounds):
            for method in METHODS:
                got = in_a_process(method, directory, steps, LIMIT)
                if got is None:
                    raise SystemExit(f"{method} did not get through with {LIMIT} bytes.")
                found[method].append(got)
                print(method, json.dumps(got), flush=True)
        EXAMPLE["write_rows"](directory, 2000)
        for method in METHODS:
            limits[method] = smallest_limit(method, directory, 250)
            print(method, limits[method], flush=True)
    settings = {"rows": rows, "steps": steps, "batch_size": BATCH, "limit": LIMIT, "rounds": rounds, "inducing": BATCH}
    settings |= {"chunk_size": CHUNK}
    medians = [
        {"method": method, **{key: statistics.median(each[key] for each in runs) for key in runs[0]}}
        | {"smallest_limit": limits[method]}
        | settings
        for method, runs in found.items()
    ]
    if not quick:
        publish("small_device", medians, PAGE, __file__, table)


if __name__ == "__main__":
    main()
