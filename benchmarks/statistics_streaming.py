"""Streaming statistics: cost against the bare ``Z.T @ Z`` on the same chunks, and peak memory against rows.

    python -m benchmarks.statistics_streaming            # both measurements, about two minutes
    python -m benchmarks.statistics_streaming --memory 100000   # one memory measurement, used by the above

Writes ``benchmarks/results/statistics_streaming.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import torch
from torch import nn

from finitegp import FeatureGP, FeatureStatistics
from finitegp.statistics import sum_statistics

from .process_memory import peak_memory_bytes, reset_peak_memory, resident_memory_bytes
from .record import record

CHUNK, WIDTH, ROWS, REPEATS = 4096, 128, 1_000_000, 5


def time_against_bare_product(dtype: torch.dtype) -> dict[str, object]:
    """Passes over 1,000,000 rows, the two methods interleaved chunk list by chunk list; medians over repeats."""
    generator = torch.Generator().manual_seed(0)
    # A few different chunks in turn: as many rows as the real pass, without holding them all.
    chunks = [torch.randn(CHUNK, WIDTH, generator=generator).to(dtype) for _ in range(8)]
    targets = [torch.randn(CHUNK, generator=generator).to(dtype) for _ in range(8)]
    passes = ROWS // (CHUNK * 8)

    def bare() -> None:
        total = torch.zeros(WIDTH, WIDTH, dtype=dtype)
        for _ in range(passes):
            for chunk in chunks:
                total += chunk.T @ chunk

    def ours() -> None:
        sum_statistics(
            FeatureStatistics.from_batch(chunk, target)
            for _ in range(passes)
            for chunk, target in zip(chunks, targets, strict=True)
        )

    seconds: dict[str, list[float]] = {"bare": [], "statistics": []}
    for repeat in range(REPEATS + 1):
        for name, function in (("bare", bare), ("statistics", ours)):
            started = time.perf_counter()
            function()
            if repeat:  # the first round warms up
                seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "measurement": "time",
        "dtype": str(dtype)[6:],
        "rows": passes * 8 * CHUNK,
        "features": WIDTH,
        "chunk": CHUNK,
        "seconds_bare": medians["bare"],
        "seconds_statistics": medians["statistics"],
        "ratio": medians["statistics"] / medians["bare"],
    }


class GeneratedRows:
    """Rows that are made chunk by chunk, so that only the pass itself needs memory."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        for start in range(0, self.rows, CHUNK):
            size = min(CHUNK, self.rows - start)
            yield torch.randn(size, WIDTH, generator=generator), torch.randn(size, generator=generator)


def memory_of_a_pass(rows: int) -> dict[str, object]:
    reset_peak_memory()
    baseline = resident_memory_bytes()
    value = FeatureGP(nn.Identity(), 1.0).nlml(GeneratedRows(rows))
    peak = peak_memory_bytes()
    return {
        "measurement": "memory",
        "rows": rows,
        "features": WIDTH,
        "chunk": CHUNK,
        "nlml": value,
        "peak_bytes_above_interpreter": peak - baseline,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", type=int, help="measure only the peak memory of a pass over so many rows")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.memory:
        print(json.dumps(memory_of_a_pass(arguments.memory)))
        return
    found = [time_against_bare_product(dtype) for dtype in (torch.float64, torch.float32)]
    # glibc by default moves the size from which blocks go back to the kernel, and so keeps a varying amount of freed
    # memory: measured once with that size fixed (what the pass itself needs) and five times as users run it.
    for threshold, repeats in (("131072", 1), ("", 5)):
        for rows in (100_000, 1_000_000):
            command = [sys.executable, "-m", __spec__.name, "--memory", str(rows)]
            environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": threshold}
            runs = [
                json.loads(subprocess.run(command, capture_output=True, check=True, env=environment).stdout)
                for _ in range(repeats)
            ]
            runs.sort(key=lambda run: run["peak_bytes_above_interpreter"])
            found.append(runs[repeats // 2] | {"mmap_threshold": threshold or "default", "runs": repeats})
    for row in found:
        print(json.dumps(row))
    print("written to", record("statistics_streaming", found))


if __name__ == "__main__":
    main()
