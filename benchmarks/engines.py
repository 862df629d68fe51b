"""Spark and Dask with one and two workers, and one process: the exact pass and batch prediction of the same rows.

    python -m benchmarks.engines            # on two quiet cores about five minutes
    python -m benchmarks.engines --quick    # a look that is not for the record

200,000 rows of 8 columns in 8 Parquet files, 256 Fourier features, one thread per worker. Every engine runs in a
process of its own that stays, and they take turns; the others are idle meanwhile. Medians over rounds, after one round
that warms up; how long the first pass takes, with the start of the workers, is given apart. Seconds on the clock depend
on who else uses the machine; processor seconds, of all processes of an engine together, hardly do. Needs the extras
``dask`` and ``spark``, and Java. Writes ``benchmarks/results/engines.jsonl`` and the tables of ``docs/engines.md``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from finitegp import FeatureGP, FourierFeatures

from .record import put_into_page, record

COLUMNS, FEATURES, FILES = 8, 256, 8
ROWS, ROUNDS = 200_000, 5
QUICK_ROWS, QUICK_ROUNDS = 40_000, 1
INPUTS = [f"x{column}" for column in range(COLUMNS)]
CONFIGURATIONS = [("one process", 1), ("Dask", 1), ("Dask", 2), ("Spark", 1), ("Spark", 2)]
WORKS = ("exact pass", "prediction")
BANDWIDTH = 1.25e9  # bytes per second that the estimate supposes: 10 Gbit/s
PAGE = Path(__file__).parents[1] / "docs" / "engines.md"

Works = dict[str, Callable[[], float]]  # each gives a number that must be the same everywhere


def write_rows(folder: Path, rows: int) -> None:
    random = np.random.default_rng(0)
    for part in range(FILES):
        table = pd.DataFrame(random.normal(size=(rows // FILES, COLUMNS)), columns=INPUTS)
        table["y"] = np.sin(table["x0"]) + 0.1 * random.normal(size=len(table))
        table.to_parquet(folder / f"{part}.parquet", index=False)


def make_model() -> FeatureGP:
    return FeatureGP(FourierFeatures(COLUMNS, FEATURES, length_scales=2.0), noise_variance=0.01)


def one_process(folder: str, workers: int) -> Works:
    model = make_model()
    source = ParquetRows(folder)
    fitted = model.condition(source)
    return {
        "exact pass": lambda: model.nlml(source),
        "prediction": lambda: sum(float(part.mean.sum()) for part in fitted.predict_chunks(source)),
    }


class ParquetRows:
    """The rows of the files, chunk by chunk."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __iter__(self) -> Any:
        import pyarrow.parquet as pq

        for path in sorted(Path(self.folder).glob("*.parquet")):
            for batch in pq.ParquetFile(path).iter_batches(4096):
                columns = [batch.column(name).to_numpy() for name in (*INPUTS, "y")]
                yield np.column_stack(columns[:-1]), columns[-1]


def with_dask(folder: str, workers: int) -> Works:
    import dask.dataframe
    import distributed

    from finitegp.engines.dask import DaskRows

    cluster = distributed.LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None)
    distributed.Client(cluster)
    model, rows = make_model(), DaskRows(dask.dataframe.read_parquet(folder), INPUTS, "y")
    fitted = make_model().condition(ParquetRows(folder))
    return {
        "exact pass": lambda: rows.nlml(model),
        "prediction": lambda: float(rows.predict(fitted)["mean"].sum().compute()),
    }


def with_spark(folder: str, workers: int) -> Works:
    from pyspark.sql import SparkSession, functions

    from finitegp.engines.spark import SparkRows

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local-cluster[{workers},1,1024]")
    for name, value in {"spark.ui.enabled": "false", "spark.log.level": "OFF"}.items():
        builder = builder.config(name, value)
    model, rows = make_model(), SparkRows(builder.getOrCreate().read.parquet(folder), INPUTS, "y")
    fitted = make_model().condition(ParquetRows(folder))
    return {
        "exact pass": lambda: rows.nlml(model),
        "prediction": lambda: float(rows.predict(fitted).agg(functions.sum("mean")).collect()[0][0]),
    }


def serve(engine: str, workers: int, folder: str) -> None:
    """Do what the lines of the standard input ask for, and answer with seconds and result."""
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")  # Spark writes to the standard output as well
    os.dup2(2, 1)
    works: Works = {"one process": one_process, "Dask": with_dask, "Spark": with_spark}[engine](folder, workers)
    for line in sys.stdin:
        started = time.perf_counter()
        value = works[line.strip()]()
        print(json.dumps([time.perf_counter() - started, value]), file=answers, flush=True)


def processor_seconds(process: int) -> float:
    """What a process and all processes below it have used."""
    import psutil

    top = psutil.Process(process)
    times = [each.cpu_times() for each in (top, *top.children(recursive=True))]
    return sum(time.user + time.system for time in times)


def measure(rows: int, rounds: int) -> list[dict[str, Any]]:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        write_rows(Path(folder), rows)
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        servers, seconds, processor = {}, {}, {}
        for engine, workers in CONFIGURATIONS:
            command = [sys.executable, "-m", __spec__.name, "--serve", engine, str(workers), folder]
            servers[engine, workers] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            )
        values: dict[str, float] = {}
        for number in range(rounds + 1):
            for work in WORKS:
                for name, server in servers.items():
                    assert server.stdin is not None
                    assert server.stdout is not None
                    before = processor_seconds(server.pid)
                    print(work, file=server.stdin, flush=True)
                    taken, value = json.loads(server.stdout.readline())
                    processor.setdefault((*name, work), []).append(processor_seconds(server.pid) - before)
                    expected = values.setdefault(work, value)
                    assert math.isclose(value, expected, rel_tol=1e-10), (name, work, value, expected)
                    seconds.setdefault((*name, work), []).append(taken)
                    print(number, *name, work, f"{taken:.2f} s", flush=True)
        for server in servers.values():
            server.communicate()
    for (engine, workers, work), taken in seconds.items():
        line = {"engine": engine, "workers": workers, "work": work, "rows": rows, "features": FEATURES}
        used = processor[engine, workers, work][1:]
        line |= {"columns": COLUMNS, "seconds_first": taken[0], "seconds": taken[1:], "processor_seconds": used}
        line |= {"median": statistics.median(taken[1:]), "processor_median": statistics.median(used)}
        found.append(line | {"cores": os.cpu_count(), "load_average": os.getloadavg()})
    return found


def estimate(found: list[dict[str, Any]]) -> list[str]:
    """What the page's formula makes of the exact passes, for more workers and rows than there are here."""
    lines = ["| workers | rows | Dask, s | Spark, s |", "|--:|--:|--:|--:|"]
    for workers, rows in ((8, 10**8), (64, 10**8), (64, 10**9), (512, 10**10)):
        shown = []
        for engine in ("Dask", "Spark"):
            alone = next(
                line["processor_median"] / line["rows"]
                for line in found
                if (line["engine"], line["workers"], line["work"]) == (engine, 1, "exact pass")
            )
            partial = 8 * (FEATURES**2 + FEATURES + 3) / BANDWIDTH
            messages = 8 * math.ceil(math.log(4 * workers, 8)) if engine == "Dask" else 4 * workers
            shown.append(f"{alone * rows / workers + messages * partial:,.0f}")
        lines.append(f"| {workers} | {rows:.0e} | {' | '.join(shown)} |")
    return lines


def render(found: list[dict[str, Any]], commit: str) -> None:
    """Put the tables into the page."""
    first = found[0]
    lines = [
        f"`python -m benchmarks.engines` (finitegp {commit}), {first['rows']:,} rows, {COLUMNS} columns, {FEATURES} "
        f"features, medians of {len(first['seconds'])} interleaved rounds, at a load average of "
        f"{first['load_average'][0]:.0f} on {first['cores']} cores (the machine was shared):",
        "",
        "| engine | workers | exact pass: processor s | on the clock, s | one worker / two | prediction: processor s | "
        "on the clock, s | one worker / two | first pass, s |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    by = {(line["engine"], line["workers"], line["work"]): line for line in found}
    for engine, workers in CONFIGURATIONS:
        cells = []
        for work in WORKS:
            line = by[engine, workers, work]
            ratio = ""
            if workers == 2:
                pairs = zip(by[engine, 1, work]["seconds"], line["seconds"], strict=True)
                ratio = f"{statistics.median(one / two for one, two in pairs):.2f}"
            cells += [f"{line['processor_median']:.2f}", f"{line['median']:.2f}", ratio]
        first_pass = by[engine, workers, "exact pass"]["seconds_first"]
        lines.append(f"| {engine} | {workers} | {' | '.join(cells)} | {first_pass:.1f} |")
    lines += ["", "Estimate for exact passes, from the processor seconds per row of one worker:", "", *estimate(found)]
    put_into_page(PAGE, __file__, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds; nothing is recorded")
    parser.add_argument("--serve", nargs=3, metavar=("ENGINE", "WORKERS", "FOLDER"), help="used by the above")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve[0], int(arguments.serve[1]), arguments.serve[2])
        return
    found = measure(QUICK_ROWS, QUICK_ROUNDS) if arguments.quick else measure(ROWS, ROUNDS)
    if not arguments.quick:
        path = record("engines", found)
        print("written to", path)
        render(found, json.loads(path.read_text().splitlines()[0])["commit"])


if __name__ == "__main__":
    main()
