"""The memory planner against the kernel: planned and measured peak of spooling, training, exact pass and prediction.

    python -m benchmarks.memory            # all settings, about an hour
    python -m benchmarks.memory --fits     # only whole fits
    python -m benchmarks.memory --quick    # two settings and one fit
    python -m benchmarks.memory --tables   # only write the tables of docs/memory.md from the results

Each setting runs in a process of its own, which first uses every library once (``load_libraries``, for whole fits
without the optimizers of torch, which they do not load); peaks are resident memory above that. glibc keeps freed blocks
below a size that it raises as it goes: ``measured`` is after ``return_freed_memory()``, which fixes that size, as a
memory budget asks for; ``measured_default`` is without.

Whole fits within a budget (``fit_source``) are made with few steps: memory does not depend on their number. Up to two
megabytes of what the libraries have freed, more or less by chance, are used again: the peak is the largest of three
runs (``--runs``).

Writes ``benchmarks/results/memory.jsonl``, ``benchmarks/results/memory_fits.jsonl`` and their tables in
``docs/memory.md``; with ``--directory`` the results go there, and the page stays as it is.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pyarrow import csv

from finitegp import SCGD, FeatureGP, Lagged, Minimax, fit_source, train
from finitegp.data import NpySource, spool
from finitegp.features import MLPFeatures
from finitegp.memory import plan_memory, return_freed_memory
from finitegp.prediction_memory import PredictionSetting, plan_prediction
from finitegp.schedules import make_optimizer
from finitegp.tables.reader import TableReader
from finitegp.tables.source import TableSource

from .libraries import load_libraries
from .process_memory import peak_memory_bytes, reset_peak_memory, resident_memory_bytes
from .record import RESULTS, put_into_page, record

# Budget, columns, and what is fixed.
SETTINGS = [
    ("16MB", 16, {}),
    ("64MB", 16, {}),
    ("64MB", 16, {"hidden": (256, 256), "batch_size": 1024}),
    ("64MB", 100, {"hidden": (512, 128), "batch_size": 1024}),
    ("64MB", 16, {"algorithm": "scgd", "hidden": (512, 512)}),
    ("64MB", 16, {"algorithm": "minimax", "hidden": (256, 256)}),
    ("256MB", 16, {"hidden": (512, 512), "batch_size": 1024}),
    ("256MB", 16, {"algorithm": "scgd", "hidden": (1024, 1024), "batch_size": 1024}),
    ("256MB", 16, {"algorithm": "minimax", "hidden": (512, 512), "batch_size": 1024}),
]
QUICK = SETTINGS[1:3]
# Budget, columns, rows, effort, settings, kind of file.
FITS = [
    ("16MB", 16, 200_000, "low", {}, "npy"),
    ("32MB", 16, 200_000, "low", {}, "npy"),
    ("32MB", 4, 100_000, "low", {}, "parquet"),
    ("32MB", 4, 100_000, "low", {}, "csv"),
    ("64MB", 16, 200_000, "low", {}, "npy"),
    ("64MB", 16, 200_000, "medium", {}, "npy"),
    ("64MB", 60, 50_000, "low", {}, "npy"),
    ("128MB", 16, 100_000, "low", {}, "parquet"),
    ("256MB", 16, 200_000, "low", {}, "npy"),
    ("256MB", 16, 200_000, "medium", {}, "npy"),
    ("64MB", 4, 500, "low", {}, "npy"),
    ("256MB", 4, 1_000, "low", {}, "npy"),
]
RUNS, GROUP, BLOCK = 3, 32_768, 1 << 18  # blocks of CSV as the command has them
PAGE = Path(__file__).parents[1] / "docs" / "memory.md"
FEW_STEPS = {"steps": 30, "max_steps": 30, "noise_steps": 20}


class GeneratedRows:
    """Rows made chunk by chunk."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns

    def __iter__(self):
        random = np.random.default_rng(0)
        for start in range(0, self.rows, 1000):
            inputs = random.normal(size=(min(1000, self.rows - start), self.columns)).astype(np.float32)
            yield inputs, np.sin(inputs[:, 0]) + 0.1 * random.normal(size=len(inputs))


def measure(budget: str, columns: int, fixed: dict[str, object], tight: bool) -> dict[str, object]:
    """Peaks of the phases in this process."""
    if tight:
        return_freed_memory()
    torch.set_num_threads(1)
    plan = plan_memory(budget, columns, **fixed)
    s = plan.setting
    kind = {"lagged": Lagged, "scgd": SCGD, "minimax": Minimax}[s.algorithm]
    with tempfile.TemporaryDirectory() as directory:
        load_libraries()
        # Enough for a few times of everything that comes again and again, and at the end a block that is nearly full.
        steps = max(2 * s.gathered_batches, 2 * s.block, 3 * s.chunk_size // s.batch_size)
        rows = ((steps // s.block + 1) * s.block - 1) * s.batch_size
        data = spool(GeneratedRows(rows, columns), directory, chunk_size=s.chunk_size)
        measured = {}
        reset_peak_memory()
        baseline = resident_memory_bytes()

        def mark(phase: str) -> None:
            measured[phase] = peak_memory_bytes() - baseline
            reset_peak_memory()

        model = FeatureGP(MLPFeatures(columns, s.hidden, seed=0), noise_variance=0.1)
        algorithm = kind(model, num_data=data.num_data)
        optimizer = make_optimizer(algorithm)
        train(algorithm, optimizer, data, epochs=1, **plan.setting.training_arguments())
        mark("training")
        fitted = model.condition(data)
        mark("exact pass")
        for _ in fitted.predict_chunks(data):
            pass
        mark("prediction")
    other = ("spool", "exact pass", "prediction")
    planned = {"training": max(size for phase, size in plan.phases.items() if phase not in other)}
    planned |= {phase: plan.phases[phase] for phase in ("exact pass", "prediction")}
    return {"planned": planned, "planned_total": plan.total, "measured": measured, "setting": asdict(s)}


def measure_fit(
    budget: str, columns: int, rows: int, effort: str, settings: dict[str, object], kind: str
) -> dict[str, object]:
    """Planned and measured peak of a whole fit and of predictions with it, in this process."""
    torch.set_num_threads(1)
    return_freed_memory()
    load_libraries(tables=kind != "npy", optimizers=False)
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as directory:
        inputs = random.normal(size=(rows, columns)).astype(np.float32)
        targets = np.sin(2.0 * inputs[:, 0]) + 0.1 * np.exp(0.5 * inputs[:, 1]) * random.normal(size=rows)
        if kind == "npy":
            np.save(f"{directory}/inputs.npy", inputs)
            np.save(f"{directory}/targets.npy", targets)
        else:
            table = pa.table({f"x{column}": inputs[:, column] for column in range(columns)} | {"y": targets})
            if kind == "parquet":
                pq.write_table(table, f"{directory}/rows.parquet", row_group_size=GROUP)
            else:
                csv.write_csv(table, f"{directory}/rows.csv")
            del table
        del inputs, targets
        gc.collect()
        return_freed_memory()
        plans, measured = [], {}
        reset_peak_memory()
        baseline = resident_memory_bytes()
        if kind == "npy":
            source = NpySource(f"{directory}/inputs.npy", f"{directory}/targets.npy")
        else:
            source = TableSource(TableReader(f"{directory}/rows.{kind}", block_size=BLOCK), "y")

        def mark(stage: str) -> None:
            stage = stage.split()[0]
            measured[stage] = max(measured.get(stage, 0), peak_memory_bytes() - baseline)
            reset_peak_memory()

        mark("opening")
        few = FEW_STEPS | settings
        fit = fit_source(source, memory_budget=budget, effort=effort, settings=few, progress=mark, on_plan=plans.append)
        mark("closing")
        for chunk in fit.predict_chunks(np.zeros((4 * fit.chunk_size, columns), dtype=np.float32)):
            del chunk
        mark("prediction")
    (plan,) = plans
    planned = plan.total
    if fit.record["path"] == "kernel":  # chunks of predictions are planned when the number of kernels is known
        planned = max(planned, plan_prediction(plan.budget, PredictionSetting.of(fit)).total)
    return {
        "planned": plan.phases,
        "planned_total": planned,
        "measured": measured,
        "measured_total": max(measured.values()),
        "ratio": max(measured.values()) / planned,
        "setting": plan.setting.describe(),
        "path": fit.record["path"],
    }


def fits_table() -> list[str]:
    """Lines of Markdown: planned and measured peaks of whole fits."""
    lines = [
        "| budget | rows x columns | file | effort | what fits | planned MB | measured MB | measured / planned |",
        "|--:|--:|---|---|---|--:|--:|--:|",
    ]
    for row in load_rows(RESULTS / "memory_fits.jsonl"):
        what = row["setting"].split("columns, ")[1]
        lines.append(
            f"| {row['budget']} | {row['rows']:,} x {row['columns']} | {row['file']} | {row['effort']} | {what} "
            f"| {row['planned_total'] / 1e6:.1f} | {row['measured_total'] / 1e6:.1f} | {row['ratio']:.2f} |"
        )
    return lines


def networks_table() -> list[str]:
    """Lines of Markdown: planned and measured peaks of single networks."""
    lines = [
        "| budget | columns | layers, algorithm, batch | planned MB | measured MB | measured / planned "
        "| default allocator MB |",
        "|--:|--:|---|--:|--:|--:|--:|",
    ]
    for row in load_rows(RESULTS / "memory.jsonl"):
        s = row["setting"]
        lines.append(
            f"| {row['budget']} | {s['num_columns']} | {' x '.join(map(str, s['hidden']))}, {s['algorithm']}, "
            f"{s['batch_size']} | {row['planned_total'] / 1e6:.1f} | {row['measured_total'] / 1e6:.1f} "
            f"| {row['ratio']:.2f} | {max(row['measured_default'].values()) / 1e6:.1f} |"
        )
    return lines


def write_tables() -> None:
    """The tables of the results, into the page."""
    put_into_page(PAGE, "memory.py, whole fits", fits_table())
    put_into_page(PAGE, "memory.py, single networks", networks_table())
    print("written to", PAGE)


def load_rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(budget: str, columns: int, fixed: dict[str, object], *, tight: bool) -> dict[str, object]:
    return run_worker("--worker", [budget, columns, fixed, tight])


def run_worker(kind: str, arguments: list[object]) -> dict[str, object]:
    command = [sys.executable, "-m", __spec__.name, kind, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", help="one setting, as JSON; used by the above")
    parser.add_argument("--fit-worker", help="one whole fit, as JSON; used by the above")
    parser.add_argument("--fits", action="store_true", help="only whole fits")
    parser.add_argument("--file", choices=("npy", "parquet", "csv"), help="only whole fits from files of this kind")
    parser.add_argument("--runs", type=int, default=RUNS, help="of each whole fit; the largest peak counts")
    parser.add_argument("--tables", action="store_true", help="only write the tables of the results into the page")
    parser.add_argument("--quick", action="store_true", help="only two settings")
    parser.add_argument("--directory", type=Path, help="where the results go, instead of the repository")
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(measure(*json.loads(arguments.worker))))
        return
    if arguments.fit_worker:
        print(json.dumps(measure_fit(*json.loads(arguments.fit_worker))))
        return
    options = {} if arguments.directory is None else {"directory": arguments.directory}
    if arguments.tables:
        write_tables()
        return
    names = ("budget", "columns", "rows", "effort", "fixed", "file")
    for case in FITS[:1] if arguments.quick else FITS:
        if arguments.file not in (None, case[-1]):
            continue
        runs = [run_worker("--fit-worker", list(case)) for _ in range(arguments.runs)]
        row = max(runs, key=lambda run: run["measured_total"]) | dict(zip(names, case, strict=True))
        row["measured_totals"] = [run["measured_total"] for run in runs]
        written = record("memory_fits", [row], same=names, **options)
        planned, measured = row["planned_total"] / 1e6, row["measured_total"] / 1e6
        print(f"{case}: planned {planned:.1f} MB, measured {measured:.1f} MB, {row['ratio']:.2f}", flush=True)
    print("written to", written)
    if not (arguments.fits or arguments.file):
        measure_networks(QUICK if arguments.quick else SETTINGS, options)
    if arguments.directory is None:
        write_tables()


def measure_networks(settings: list[tuple[str, int, dict[str, object]]], options: dict[str, Path]) -> None:
    """Planned and measured peaks of single networks, written to the results."""
    found = []
    for budget, columns, fixed in settings:
        row = run(budget, columns, fixed, tight=True)
        row["measured_default"] = run(budget, columns, fixed, tight=False)["measured"]
        row |= {"budget": budget, "fixed": fixed}
        row["measured_total"] = max(row["measured"].values())
        row["ratio"] = row["measured_total"] / row["planned_total"]
        found.append(row)
        phases = ", ".join(
            f"{phase} {row['planned'][phase] / 1e6:.1f} / {row['measured'][phase] / 1e6:.1f} / "
            f"{row['measured_default'][phase] / 1e6:.1f}"
            for phase in row["measured"]
        )
        print(f"{budget} {columns} {fixed}: planned / measured / by default in MB: {phases}; {row['ratio']:.2f}")
    print("written to", record("memory", found, same=("budget", "fixed"), **options))


if __name__ == "__main__":
    main()
