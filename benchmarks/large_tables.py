"""Real tables of 400,000 and 2,000,000 rows from disk within 256 MB, beside LightGBM and SVGP on the same split.

    python -m benchmarks.large_tables --data-dir DIRECTORY      # with altitude.parquet and haute_borne.parquet
    python -m benchmarks.large_tables --data-dir DIRECTORY --tables haute_borne --methods finitegp lightgbm

Training and test rows are those of the tables' first split (column ``test0``). Every method runs in a process of its
own with one thread. finitegp reads the rows from a Parquet file, as ``finitegp fit --memory 256MB`` does; the peers get
all rows as arrays, in the form that they take, and SVGP (with a network before its kernel) has at most
``--max-seconds`` processor seconds. Peaks are resident memory above the interpreter with its libraries, for the peers
with the arrays. Seconds are processor seconds of reading, fit and prediction. Writes
``benchmarks/results/large_tables.jsonl`` and the table of ``docs/memory.md``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from finitegp import fit_source
from finitegp.error_shape import ErrorShape
from finitegp.memory import return_freed_memory
from finitegp.metrics import score
from finitegp.tables.source import TableSource
from paper.outcome import DatasetSplit
from paper.peers import PEERS

from .libraries import load_libraries
from .process_memory import peak_memory_bytes, reset_peak_memory, resident_memory_bytes
from .record import put_into_page, record

TABLES, METHODS = ("haute_borne", "altitude"), ("finitegp", "lightgbm", "svgp-network")
GROUP, CHUNK = 65_536, 10_000
PAGE = Path(__file__).parents[1] / "docs" / "memory.md"
Predicted = tuple[np.ndarray, np.ndarray, dict[str, Any]]


def write_split(table: Path, directory: Path) -> None:
    """The training and the test rows of the first split in a file each, row group by row group."""
    file = pq.ParquetFile(table)
    columns = [name for name in file.schema_arrow.names if not name.startswith("test")]
    schema = pa.schema([file.schema_arrow.field(name) for name in columns])
    with (
        pq.ParquetWriter(directory / "train.parquet", schema) as training,
        pq.ParquetWriter(directory / "test.parquet", schema) as test,
    ):
        for batch in file.iter_batches(GROUP, columns=[*columns, "test0"]):
            held_out = batch.column("test0")
            rows = batch.select(columns)
            training.write_batch(rows.filter(pc.invert(held_out)), row_group_size=GROUP)
            test.write_batch(rows.filter(held_out), row_group_size=GROUP)


def read_arrays(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of a file."""
    table = pq.read_table(path)
    names = [name for name in table.column_names if name != "y"]
    return np.column_stack([table[name].to_numpy() for name in names]), table["y"].to_numpy()


def finitegp(directory: Path, options: dict[str, Any]) -> Predicted:
    """Rows from disk; predictions piece by piece."""
    source = TableSource(directory / "train.parquet", "y")
    fit = fit_source(source, memory_budget=options["budget"], effort=options["effort"], seed=0)
    means, deviations = [], []
    for piece in pq.ParquetFile(directory / "test.parquet").iter_batches(CHUNK):
        names = [name for name in piece.schema.names if name != "y"]
        prediction = fit.predict(np.column_stack([piece.column(name).to_numpy() for name in names]))
        means.append(prediction.mean.numpy())
        deviations.append(prediction.std.numpy())
    kept = ("memory", "validation_nlpd", "noise_floor", "widened", "degrees_of_freedom", "settings", "rows", "stages")
    details = {name: fit.record.get(name) for name in kept}
    return np.concatenate(means), np.concatenate(deviations), details


def peer(name: str) -> Callable[[Path, dict[str, Any]], Predicted]:
    """One of the peers of the experiments."""

    def run(directory: Path, options: dict[str, Any]) -> Predicted:
        inputs, targets = read_arrays(directory / "train.parquet")
        test_inputs, test_targets = read_arrays(directory / "test.parquet")
        split = DatasetSplit("large", 0, inputs, targets, test_inputs, test_targets)
        settings = {} if name == "lightgbm" else {"max_seconds": options["max_seconds"]}
        outcome = PEERS[name](split, seed=0, settings=settings)
        return outcome.mean, outcome.std, {"settings": settings, **outcome.details}

    return run


def measure(method: str, directory: Path, options: dict[str, Any]) -> dict[str, Any]:
    """One method in this process."""
    torch.set_num_threads(1)
    return_freed_memory()
    load_libraries()
    if method == "lightgbm":
        import lightgbm  # noqa: F401 - so that it counts as a library
    elif method != "finitegp":
        import gpytorch  # noqa: F401
    targets = pq.read_table(directory / "test.parquet", columns=["y"])["y"].to_numpy()
    return_freed_memory()  # what reading left would make room for what is measured
    reset_peak_memory()
    baseline, started, clock = resident_memory_bytes(), time.process_time(), time.perf_counter()
    mean, deviation, details = (finitegp if method == "finitegp" else peer(method))(directory, options)
    found = {"seconds": time.process_time() - started, "wall_seconds": time.perf_counter() - clock}
    found["peak_bytes"] = peak_memory_bytes() - baseline
    predicted = torch.from_numpy(mean), torch.from_numpy(deviation), torch.from_numpy(targets)
    shape = ErrorShape(details.get("degrees_of_freedom"))
    scores = score(*predicted, mixture=shape.around(mean, deviation))
    found["gaussian_nlpd"] = score(*predicted).nlpd
    found |= {"rmse": scores.rmse, "nlpd": scores.nlpd, "crps": scores.crps}
    found |= {"coverage": {str(level): value for level, value in scores.coverage.items()}}
    return found | {"target_std": float(targets.std()), "test_rows": len(targets), "details": details}


def render(path: Path) -> None:
    """Put the table into the page."""
    lines = [
        "| table | method | RMSE | NLPD | CRPS | 90 % covers | processor seconds | peak MB |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in sorted(map(json.loads, path.read_text().splitlines()), key=lambda row: (row["table"], row["method"])):
        name, nlpd = row["method"], f"{row['nlpd']:.3f}"
        if name == "finitegp":
            name += f", effort {row['options']['effort']}"
            nlpd += f" ({row['gaussian_nlpd']:.3f} as Gaussian)"
        elif name != "lightgbm":
            name += f", at most {row['options']['max_seconds']:.0f} s"
        scores = f"{row['rmse']:.2f} | {nlpd} | {row['crps']:.2f} | {100 * row['coverage']['0.9']:.1f} %"
        lines.append(f"| {row['table']} | {name} | {scores} | {row['seconds']:.0f} | {row['peak_bytes'] / 1e6:.0f} |")
    put_into_page(PAGE, __file__, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="where the tables are")
    parser.add_argument("--tables", nargs="+", default=TABLES)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--budget", default="256MB")
    parser.add_argument("--effort", default="medium")
    parser.add_argument("--max-seconds", type=float, default=240.0)
    parser.add_argument("--directory", type=Path, help="where the results go; without, beside this script")
    parser.add_argument("--render", action="store_true", help="only write the page anew")
    parser.add_argument("--worker", nargs=3, metavar=("METHOD", "FILES", "OPTIONS"), help="one run; used by the above")
    arguments = parser.parse_args()
    if arguments.worker:
        method, files, options = arguments.worker
        print(json.dumps(measure(method, Path(files), json.loads(options))))
        return
    if arguments.render:
        render(Path(__file__).parent / "results" / "large_tables.jsonl")
        return
    options = {"budget": arguments.budget, "effort": arguments.effort, "max_seconds": arguments.max_seconds}
    place = {} if arguments.directory is None else {"directory": arguments.directory}
    for table in arguments.tables:
        with tempfile.TemporaryDirectory() as directory:
            write_split(arguments.data_dir / f"{table}.parquet", Path(directory))
            for method in arguments.methods:
                command = [sys.executable, "-m", __spec__.name, "--worker", method, directory, json.dumps(options)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                row = {"table": table, "method": method, "options": options}
                row |= json.loads(done.stdout.splitlines()[-1])
                print(json.dumps(row), flush=True)
                # At once: the next one may take long.
                path = record("large_tables", [row], same=("table", "method", "options"), **place)
                print("written to", path)
                if arguments.directory is None:
                    render(path)


if __name__ == "__main__":
    main()
