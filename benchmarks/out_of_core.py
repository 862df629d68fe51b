"""Training from Parquet with more and more rows: peak memory and seconds per row against the number of rows.

    python -m benchmarks.out_of_core                                  # 100,000 and 1,000,000 rows, a few minutes
    python -m benchmarks.out_of_core --rows 100000 1000000 10000000   # ten minutes and two gigabytes of disk
    # One exact pass, straight from the files, of which only the first five are generated and the others are copies.
    python -m benchmarks.out_of_core --exact-only --rows 100000000 --distinct-files 5 --rounds 1

16 columns of generated rows in files of 1,000,000, row groups of 65,536. Each number of rows runs in a process of its
own: after a short training that is not measured, spool, one epoch of ``Lagged`` with uniform batches, exact NLML. Three
rounds, the numbers of rows in turn; times are medians and peaks the largest of the rounds.
Peaks are resident memory, also of that first training, above the interpreter with its libraries (``load_libraries``,
``return_freed_memory``). Writes ``benchmarks/results/out_of_core.jsonl``, the table of ``docs/memory.md`` and
``docs/figures/out_of_core.png``; of exact passes alone ``benchmarks/results/out_of_core_exact.jsonl``.

Copies of files are files of their own, and are dropped from the kernel's cache before the pass: reading and arithmetic
are those of other rows. Sums add, so that the NLML of all files must be the one that follows from the sums of the
generated files times the number of copies, which is compared (``relative_difference``).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from finitegp import FeatureGP, Lagged, train
from finitegp.data import spool
from finitegp.features import MLPFeatures
from finitegp.likelihood import negative_log_marginal_likelihood
from finitegp.memory import plan_memory, return_freed_memory
from finitegp.schedules import make_optimizer
from finitegp.tables.source import TableSource

from .libraries import load_libraries
from .process_memory import peak_memory_bytes, reset_peak_memory, resident_memory_bytes
from .record import put_into_page, record

COLUMNS, GROUP, FILE = 16, 65_536, 1_000_000
BUDGET, HIDDEN, BATCH = "64MB", (64, 64), 1024
PAGE = Path(__file__).parents[1] / "docs" / "memory.md"
FIGURE = PAGE.parent / "figures" / "out_of_core.png"


def write_rows(directory: Path, rows: int, distinct_files: int | None) -> int:
    """Generated rows, sorted by the target within each file, so that only uniform sampling gets them right; bytes."""
    directory.mkdir(parents=True)
    random = np.random.default_rng(0)
    for number, start in enumerate(range(0, rows, FILE)):
        if distinct_files is not None and number >= distinct_files:
            shutil.copy(directory / f"{number % distinct_files:04d}.parquet", directory / f"{number:04d}.parquet")
            continue
        count = min(FILE, rows - start)
        inputs = random.standard_normal((count, COLUMNS), dtype=np.float32)
        targets = np.sin(2.0 * inputs[:, 0]) + 0.5 * inputs[:, 1] * inputs[:, 2]
        targets += 0.1 * random.standard_normal(count, dtype=np.float32)
        order = np.argsort(targets)
        columns = {f"x{column}": inputs[order, column] for column in range(COLUMNS)} | {"y": targets[order]}
        pq.write_table(
            pa.table(columns), directory / f"{number:04d}.parquet", row_group_size=GROUP, use_dictionary=False
        )
    for path in directory.iterdir():
        with path.open("rb") as opened:
            os.fsync(opened.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return sum(path.stat().st_size for path in directory.iterdir())


def warm_up() -> None:
    """A training too short to measure: what is loaded and started once would otherwise count for the fewest rows."""
    random = np.random.default_rng(0)
    rows = random.standard_normal((4 * BATCH, COLUMNS)), random.standard_normal(4 * BATCH)
    model = FeatureGP(MLPFeatures(COLUMNS, HIDDEN, seed=0), noise_variance=0.1)
    algorithm = Lagged(model, num_data=len(rows[1]))
    train(algorithm, make_optimizer(algorithm), rows, epochs=1, batch_size=BATCH)
    model.nlml(rows)


def measure(files: str, scratch: str, exact_only: bool, distinct_files: int | None) -> dict[str, object]:
    """Seconds and peaks of the phases in this process."""
    torch.set_num_threads(1)
    return_freed_memory()
    load_libraries()
    seconds: dict[str, float] = {}
    processor_seconds: dict[str, float] = {}
    peaks: dict[str, int] = {}
    reset_peak_memory()
    baseline = resident_memory_bytes()
    warm_up()
    started = time.perf_counter(), time.process_time()

    def mark(phase: str) -> None:
        nonlocal started
        seconds[phase], processor_seconds[phase] = time.perf_counter() - started[0], time.process_time() - started[1]
        peaks[phase] = peak_memory_bytes() - baseline
        reset_peak_memory()
        started = time.perf_counter(), time.process_time()

    source = TableSource(files, "y")
    plan = plan_memory(BUDGET, COLUMNS, hidden=HIDDEN, batch_size=BATCH, reading_bytes=source.reading_bytes)
    source = source.with_chunks(plan.setting.chunk_size)
    model = FeatureGP(MLPFeatures(COLUMNS, HIDDEN, seed=0), noise_variance=0.1)
    found: dict[str, object] = {"rows": source.num_data, "budget": plan.budget, "planned": plan.total}
    if exact_only:
        found["nlml"] = model.nlml(source)
        mark("exact pass from the files")
        if distinct_files is not None:
            parts = TableSource(sorted(Path(files).iterdir())[:distinct_files], "y")
            parts = parts.with_chunks(plan.setting.chunk_size)
            copies = source.num_data / parts.num_data
            expected = negative_log_marginal_likelihood(model.statistics(parts) * copies, model.noise_variance).nlml
            found |= {"distinct_rows": parts.num_data, "relative_difference": abs(found["nlml"] / expected - 1.0)}
    else:
        data = spool(source, scratch, chunk_size=plan.setting.chunk_size)
        mark("spool")
        algorithm = Lagged(model, num_data=data.num_data)
        train(algorithm, make_optimizer(algorithm), data, epochs=1, **plan.setting.training_arguments())
        mark("training")
        found["nlml"] = model.nlml(data)
        mark("exact pass")
    times = {"seconds": seconds, "processor_seconds": processor_seconds}
    return found | times | {"peak_bytes": peaks, "peak": max(peaks.values())}


def in_the_middle(rounds: Sequence[dict]) -> dict[str, object]:
    """One line out of those of the rounds: medians of times, largest peaks, and the times of each round."""
    found = dict(rounds[0])
    for kind in ("seconds", "processor_seconds"):
        found[kind] = {phase: statistics.median(line[kind][phase] for line in rounds) for phase in found[kind]}
    found["peak_bytes"] = {phase: max(line["peak_bytes"][phase] for line in rounds) for phase in found["peak_bytes"]}
    found["peak"] = max(found["peak_bytes"].values())
    return found | {"seconds_of_rounds": [line["seconds"] for line in rounds]}


def plot(rows: list[dict], path: Path) -> None:
    """Peak memory and seconds per row against the number of rows, both with logarithmic rows."""
    import matplotlib.pyplot as plt

    figure, (memory, speed) = plt.subplots(1, 2, figsize=(9, 3.4))
    numbers = [row["rows"] for row in rows]
    memory.semilogx(numbers, [row["peak"] / 1e6 for row in rows], "o-")
    memory.set(xlabel="rows", ylabel="peak memory above baseline (MB)")
    memory.set_ylim(bottom=0)
    for phase in rows[0]["seconds"]:
        speed.semilogx(numbers, [1e6 * row["seconds"][phase] / row["rows"] for row in rows], "o-", label=phase)
    speed.set(xlabel="rows", ylabel="microseconds per row")
    speed.set_ylim(bottom=0)
    speed.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def render(rows: list[dict]) -> None:
    """Put the table into the page."""
    lines = ["| rows | peak MB | µs per row: spool | training | exact pass |", "|--:|--:|--:|--:|--:|"]
    for row in rows:
        times = " | ".join(f"{1e6 * seconds / row['rows']:.2f}" for seconds in row["seconds"].values())
        lines.append(f"| {row['rows']:,} | {row['peak'] / 1e6:.1f} | {times} |")
    put_into_page(PAGE, __file__, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--exact-only", action="store_true", help="only the NLML, without spool and training")
    parser.add_argument("--distinct-files", type=int, help="with --exact-only: generate so many files and copy them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", help="a directory with room for the files; by default the temporary one")
    parser.add_argument("--directory", type=Path, help="where the results go; without, beside this script")
    parser.add_argument("--worker", nargs=2, metavar=("FILES", "SPOOL"), help="one measurement; used by the above")
    arguments = parser.parse_args()
    distinct = arguments.distinct_files
    if arguments.worker:
        print(json.dumps(measure(*arguments.worker, arguments.exact_only, distinct)))
        return
    if distinct is not None:
        if not arguments.exact_only:
            parser.error("--distinct-files needs --exact-only: training on copies would be on repeated rows.")
        if any(rows % (FILE * distinct) for rows in arguments.rows):
            parser.error(f"with --distinct-files {distinct}, --rows must be multiples of {FILE * distinct}.")
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        sizes = {rows: write_rows(Path(scratch, str(rows)), rows, distinct) for rows in arguments.rows}
        rounds: list[list[dict]] = []
        for _ in range(arguments.rounds):
            rounds.append([])
            for rows in arguments.rows:
                command = [sys.executable, "-m", __spec__.name, "--worker", f"{scratch}/{rows}", f"{scratch}/spool"]
                command += ["--exact-only"] if arguments.exact_only else []
                command += [] if distinct is None else ["--distinct-files", str(distinct)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                shutil.rmtree(Path(scratch, "spool"), ignore_errors=True)
                print(done.stdout, end="", flush=True)
                rounds[-1].append(json.loads(done.stdout))
    setting = {"columns": COLUMNS, "hidden": HIDDEN, "batch_size": BATCH}
    found = [
        in_the_middle(same) | {"file_bytes": sizes[rows]} | setting
        for rows, same in zip(arguments.rows, zip(*rounds, strict=True), strict=True)
    ]
    name = "out_of_core_exact" if arguments.exact_only else "out_of_core"
    options = {} if arguments.directory is None else {"directory": arguments.directory}
    print("written to", record(name, found, **options))
    if not arguments.exact_only:
        plot(found, FIGURE if arguments.directory is None else arguments.directory / FIGURE.name)
        if arguments.directory is None:
            render(found)


if __name__ == "__main__":
    main()
