"""Several ranks against one: exact pass and training, with the same work and with work that grows with the ranks.

    python -m benchmarks.distributed                # two ranks, about six minutes on two quiet cores
    python -m benchmarks.distributed --ranks 2 4 8  # on a machine with eight cores
    python -m benchmarks.distributed --quick        # a look that is not for the record

Starts itself under ``torchrun``, one thread and one core per rank. The first rank measures alone, while the others
sleep, and all of them together, in turn; medians over rounds, and the median of the ratios of a round. 17 columns,
three layers of 128, ``Lagged`` with AdamW at batches of 1024 rows; also three layers of 256, and 512 Fourier features.
Exact passes are NLML in float64 from a spool on disk. *Strong* scaling is the same rows and batches shared out; *weak*
scaling has as many rows and batches as many times as large as there are ranks. Writes
``benchmarks/results/distributed.jsonl`` and the tables of ``docs/distributed.md``.
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

import torch
from torch import nn

from finitegp import FeatureGP, Lagged, train
from finitegp.automatic import EFFORTS
from finitegp.automatic.ensemble import make_network
from finitegp.data import open_spool, spool
from finitegp.distributed import ALONE, Ranks
from finitegp.features import FourierFeatures, MLPFeatures
from finitegp.schedules import make_optimizer
from finitegp.torchrun import join_ranks

from .record import put_into_page, record

COLUMNS, HIDDEN, BATCH, SMALL_BATCH, BLOCK = 17, (128, 128, 128), 1024, 128, 20
ROWS, STEPS, ROUNDS = 60_000, 100, 11
QUICK_ROWS, QUICK_STEPS, QUICK_ROUNDS = 20_000, 20, 3
SPOOLS = ("small", "large", "batches")
PAGE = Path(__file__).parents[1] / "docs" / "distributed.md"
# Of a usual network between machines: seconds per message, bytes per second (10 Gbit/s).
LATENCY, BANDWIDTH = 30e-6, 1.25e9
Line = dict[str, Any]
Work = Callable[[Ranks], float]


def make_rows(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Generated rows, float32."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, COLUMNS, generator=generator)
    noise = 0.1 * torch.randn(rows, generator=generator)
    return inputs, torch.sin(2.0 * inputs[:, 0]) + 0.5 * inputs[:, 1] * inputs[:, 2] + noise


def make_model(features: str = "network") -> FeatureGP:
    """The network of most measurements, which is one of the automatic fit's; or other features."""
    if features == "wide network":
        feature_map: nn.Module = MLPFeatures(COLUMNS, hidden=(256, 256, 256), activation="mish", seed=0)
    elif features == "Fourier features":
        feature_map = FourierFeatures(COLUMNS, 512, length_scales=4.0, seed=0)
    else:
        feature_map = make_network(COLUMNS, EFFORTS["medium"], seed=0)
    return FeatureGP(feature_map, noise_variance=0.1)


def exact_pass(data: Any) -> Work:
    """Seconds of one NLML."""
    model = make_model()

    def work(ranks: Ranks) -> float:
        started = time.perf_counter()
        model.nlml(ranks.shard(data))
        return time.perf_counter() - started

    return work


def training(data: Any, batch_size: int, features: str = "network") -> Work:
    """Seconds per step of one epoch, without what is made before the first step."""

    def work(ranks: Ranks) -> float:
        algorithm = Lagged(make_model(features), len(data[1]) if isinstance(data, tuple) else len(data), block=BLOCK)
        optimizer = make_optimizer(algorithm)
        run = train(algorithm, optimizer, data, epochs=1, batch_size=batch_size, initial_batches=1, ranks=ranks)
        return run.seconds / run.step

    return work


def message(times: int = 50) -> Work:
    """Seconds of the sum of all gradients over ranks, as in every step."""
    parameters = list(make_model().feature_map.parameters())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)

    def work(ranks: Ranks) -> float:
        started = time.perf_counter()
        for _ in range(times):
            ranks.mean_gradients(parameters, torch.ones(()), 1)
        return (time.perf_counter() - started) / times

    return work


def measure(directory: str, quick: bool) -> None:
    """One measurement after another, on every rank; the first rank writes what it found."""
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(os.environ["LOCAL_RANK"]) % len(cores)]})
    rows, steps, rounds = (QUICK_ROWS, QUICK_STEPS, QUICK_ROUNDS) if quick else (ROWS, STEPS, ROUNDS)
    found: list[Line] = []
    with join_ranks() as ranks:
        count = ranks.world_size
        small, large, on_disk = (open_spool(Path(directory) / name, verify=False) for name in SPOOLS)
        in_memory, more_in_memory = make_rows(steps * BATCH), make_rows(steps * count * BATCH)
        # What one rank does alone, and what all do together.
        works: dict[str, tuple[Work, Work]] = {
            "exact pass, strong": (exact_pass(small), exact_pass(small)),
            "exact pass, weak": (exact_pass(small), exact_pass(large)),
            "training, strong": (training(in_memory, BATCH), training(in_memory, BATCH)),
            "training from disk, strong": (training(on_disk, BATCH), training(on_disk, BATCH)),
            "training, weak": (training(in_memory, BATCH), training(more_in_memory, count * BATCH)),
            "wide network, strong": 2 * (training(in_memory, BATCH, "wide network"),),
            "Fourier features, strong": 2 * (training(in_memory, BATCH, "Fourier features"),),
            "small batches, strong": (training(in_memory, SMALL_BATCH), training(in_memory, SMALL_BATCH)),
            "message": (message(), message()),
        }
        for name, (one, many) in works.items():
            alone, together = [], []
            for number in range(rounds + 1):
                own = 0.0
                with ranks.working():
                    if ranks.is_first:
                        own = one(ALONE)
                both = many(ranks)
                if number:  # the first round warms up
                    alone.append(own)
                    together.append(both)
            ratio = statistics.median(a / b for a, b in zip(alone, together, strict=True))
            line: Line = {"work": name, "ranks": count, "seconds_alone": alone, "seconds_together": together}
            line |= {"median_alone": statistics.median(alone), "median_together": statistics.median(together)}
            found.append(line | {"ratio": ratio})
        if ranks.is_first:
            parameters = sum(parameter.numel() for parameter in make_model().feature_map.parameters())
            setting = {"columns": COLUMNS, "hidden": HIDDEN, "batch_size": BATCH, "rows": rows, "steps": steps}
            setting |= {"parameters": parameters}
            Path(directory, "found.json").write_text(json.dumps([line | setting for line in found]))


def estimates(found: list[Line]) -> list[Line]:
    """What the formula of the page makes of the measurements, for more ranks than there are here."""
    by_work = {line["work"]: line for line in found if line["ranks"] == found[0]["ranks"]}
    step, small_step = (by_work[name]["median_alone"] for name in ("training, strong", "small batches, strong"))
    per_row = (step - small_step) / (BATCH - SMALL_BATCH)
    fixed = max(step - BATCH * per_row, 0.0)
    exact_per_row = by_work["exact pass, strong"]["median_alone"] / found[0]["rows"]
    features = HIDDEN[-1]
    block_bytes = 8 * (features**2 + features + 3)
    step_bytes = 4 * (found[0]["parameters"] + 2) + block_bytes / BLOCK

    def sending(ranks: int, size: float) -> float:
        return 2.0 * LATENCY * math.ceil(math.log2(ranks)) + 2.0 * (ranks - 1) / ranks * size / BANDWIDTH

    def seconds(ranks: int, batch: int) -> float:
        return fixed + per_row * batch / ranks + (sending(ranks, step_bytes) if ranks > 1 else 0.0)

    lines = []
    for ranks in (8, 64, 512):
        line: Line = {"ranks": ranks, "microseconds_per_row": 1e6 * per_row, "fixed_milliseconds": 1e3 * fixed}
        line["message_milliseconds"] = 1e3 * sending(ranks, step_bytes)
        for batch in (BATCH, 64 * BATCH):
            line[f"speed_up_batch_{batch}"] = seconds(1, batch) / seconds(ranks, batch)
        line["weak_efficiency"] = seconds(1, BATCH) / seconds(ranks, ranks * BATCH)
        exact = 1e7 * exact_per_row
        line["exact_pass_speed_up"] = exact / (exact / ranks + sending(ranks, block_bytes))
        lines.append(line)
    return lines


def render(found: list[Line], commit: str) -> None:
    """Put the tables into the page."""
    lines = [
        f"`python -m benchmarks.distributed` ({commit}), one thread per rank, medians of {ROUNDS} interleaved rounds:",
        "",
        "| work | ranks | alone, ms | together, ms | alone / together |",
        "|---|--:|--:|--:|--:|",
    ]
    for line in found:
        alone, together = 1e3 * line["median_alone"], 1e3 * line["median_together"]
        shown = f"| {line['work']} | {line['ranks']} | {alone:.3g} | {together:.3g} | {line['ratio']:.2f} |"
        lines.append(shown if line["work"] != "message" else f"| message | {line['ranks']} | | {together:.3g} | |")
    rows = estimates(found)
    lines += [
        "",
        f"Estimate with {rows[0]['microseconds_per_row']:.1f} µs per row, {rows[0]['fixed_milliseconds']:.2f} ms fixed "
        f"per step, {found[0]['parameters']:,} parameters, {1e6 * LATENCY:.0f} µs per message and "
        f"{BANDWIDTH / 1e9:g} GB/s:",
        "",
        f"| ranks | message, ms | speed-up, batch {BATCH} | speed-up, batch {64 * BATCH} | "
        f"efficiency, {BATCH} rows per rank | speed-up, exact pass of 10⁷ rows |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        shown = [row[f"speed_up_batch_{batch}"] for batch in (BATCH, 64 * BATCH)]
        lines.append(
            f"| {row['ranks']} | {row['message_milliseconds']:.2f} | {shown[0]:.1f} | {shown[1]:.0f} | "
            f"{row['weak_efficiency']:.2f} | {row['exact_pass_speed_up']:.0f} |"
        )
    put_into_page(PAGE, __file__, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2], help="numbers of ranks")
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds; nothing is recorded")
    parser.add_argument("--directory", type=Path, help="where the results go; without, beside this script")
    parser.add_argument("--worker", metavar="SCRATCH", help="one rank; used by the above")
    arguments = parser.parse_args()
    if arguments.worker:
        measure(arguments.worker, arguments.quick)
        return
    rows, steps = (QUICK_ROWS, QUICK_STEPS) if arguments.quick else (ROWS, STEPS)
    found: list[Line] = []
    for count in arguments.ranks:
        with tempfile.TemporaryDirectory() as directory:
            for name, size in zip(SPOOLS, (rows, count * rows, steps * BATCH), strict=True):
                spool(make_rows(size), Path(directory) / name)
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
            command += ["-m", __spec__.name, "--worker", directory, *(["--quick"] if arguments.quick else [])]
            subprocess.run(command, check=True)
            found += json.loads(Path(directory, "found.json").read_text())
    for line in [*found, *estimates(found)]:
        print(json.dumps({key: value for key, value in line.items() if not key.startswith("seconds_")}))
    if not arguments.quick:
        options = {} if arguments.directory is None else {"directory": arguments.directory}
        path = record("distributed", found, **options)
        print("written to", path)
        if arguments.directory is None:
            render(found, f"finitegp {json.loads(path.read_text().splitlines()[0])['commit']}")


if __name__ == "__main__":
    main()
