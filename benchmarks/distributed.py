"""Several ranks against one: exact pass and training, with the same work and with work that grows with the ranks.

    python benchmarks/distributed.py                # two ranks, about three minutes on two quiet cores
    python benchmarks/distributed.py --ranks 2 4 8  # on a machine with eight cores
    python benchmarks/distributed.py --quick        # a look that is not for the record

Starts itself under ``torchrun``, one thread per rank. The first rank measures alone, while the others sleep, and all
of them together, in turn; medians over rounds, and the median of the ratios of a round. 17 columns, three layers of
128, ``Lagged`` with AdamW at batches of 1024 rows. Exact passes are NLML in float64 from a spool on disk. *Strong*
scaling is the same rows and batches shared out; *weak* scaling has as many rows and batches as many times as large as
there are ranks. The message is the sum of all gradients over ranks, as in every step. Writes
``benchmarks/results/distributed.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from record import record

from finitegp import FeatureGP, Lagged, train
from finitegp.data import open_spool, spool
from finitegp.distributed import ALONE, Ranks, join_ranks
from finitegp.features import MLPFeatures
from finitegp.schedules import make_optimizer

COLUMNS, HIDDEN, BATCH = 17, (128, 128, 128), 1024
ROWS, STEPS, ROUNDS = 60_000, 100, 7
QUICK_ROWS, QUICK_STEPS, QUICK_ROUNDS = 20_000, 20, 3
SPOOLS = ("small", "large", "batches")


def make_rows(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Generated rows, float32."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, COLUMNS, generator=generator)
    noise = 0.1 * torch.randn(rows, generator=generator)
    return inputs, torch.sin(2.0 * inputs[:, 0]) + 0.5 * inputs[:, 1] * inputs[:, 2] + noise


def make_model() -> FeatureGP:
    """The network of all measurements."""
    return FeatureGP(MLPFeatures(COLUMNS, HIDDEN, seed=0), noise_variance=0.1)


def seconds_of(work: Callable[[], object]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def train_steps(data: object, rows: int, batch_size: int, ranks: Ranks) -> float:
    """Seconds per step of one epoch, without what is made before the first step."""
    algorithm = Lagged(make_model(), rows)
    optimizer = make_optimizer(algorithm)
    run = train(algorithm, optimizer, data, epochs=1, batch_size=batch_size, initial_batches=1, ranks=ranks)
    return run.seconds / run.step


def message_seconds(ranks: Ranks, times: int) -> float:
    """Seconds of one sum of all gradients over ranks."""
    algorithm = Lagged(make_model(), ROWS)
    for parameter in algorithm.model.feature_map.parameters():
        parameter.grad = torch.ones_like(parameter)
    loss = torch.ones(())
    started = time.perf_counter()
    for _ in range(times):
        ranks.mean_gradients(algorithm.model.feature_map.parameters(), loss, 1)
    return (time.perf_counter() - started) / times


def measure(directory: str, quick: bool) -> None:
    """One measurement after another, on every rank; the first rank writes what it found."""
    torch.set_num_threads(1)
    rows, steps, rounds = (QUICK_ROWS, QUICK_STEPS, QUICK_ROUNDS) if quick else (ROWS, STEPS, ROUNDS)
    found = []
    with join_ranks() as ranks:
        count = ranks.world_size
        small, large, on_disk = (open_spool(Path(directory) / name, verify=False) for name in SPOOLS)
        in_memory, more_in_memory = make_rows(steps * BATCH), make_rows(steps * count * BATCH)
        model = make_model()

        def exact(data: object) -> Callable[[Ranks], float]:
            return lambda together: seconds_of(lambda: model.nlml(data, ranks=together))

        def training(data: object, batch_size: int) -> Callable[[Ranks], float]:
            return lambda together: train_steps(data, steps * batch_size, batch_size, together)

        works: dict[str, tuple[Callable[[Ranks], float], Callable[[Ranks], float]]] = {
            # What one rank does alone, and what all do together.
            "exact pass, strong": (exact(small), exact(small)),
            "exact pass, weak": (exact(small), exact(large)),
            "training, strong": (training(in_memory, BATCH), training(in_memory, BATCH)),
            "training from disk, strong": (training(on_disk, BATCH), training(on_disk, BATCH)),
            "training, weak": (training(in_memory, BATCH), training(more_in_memory, count * BATCH)),
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
            if ranks.is_first:
                ratio = statistics.median(a / b for a, b in zip(alone, together, strict=True))
                line = {"work": name, "ranks": count, "seconds_alone": alone, "seconds_together": together}
                line |= {"median_alone": statistics.median(alone), "median_together": statistics.median(together)}
                # Strong: how many times as fast. Weak: the share of perfect scaling.
                found.append(line | {"speed_up" if name.endswith("strong") else "efficiency": ratio})
        message = statistics.median(message_seconds(ranks, 50) for _ in range(rounds))
        size = 4 * sum(parameter.numel() for parameter in model.feature_map.parameters())
        found.append({"work": "message", "ranks": count, "bytes": size, "seconds": message})
        if ranks.is_first:
            setting = {"columns": COLUMNS, "hidden": HIDDEN, "batch_size": BATCH, "rows": rows, "steps": steps}
            Path(directory, "found.json").write_text(json.dumps([line | setting for line in found]))


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
    found = []
    for count in arguments.ranks:
        rows, steps = (QUICK_ROWS, QUICK_STEPS) if arguments.quick else (ROWS, STEPS)
        with tempfile.TemporaryDirectory() as directory:
            for name, size in zip(SPOOLS, (rows, count * rows, steps * BATCH), strict=True):
                spool(make_rows(size), Path(directory) / name)
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
            command += [__file__, "--worker", directory, *(["--quick"] if arguments.quick else [])]
            subprocess.run(command, check=True)
            found += json.loads(Path(directory, "found.json").read_text())
    for line in found:
        print(json.dumps({key: value for key, value in line.items() if not key.startswith("seconds_")}))
    if not arguments.quick:
        options = {} if arguments.directory is None else {"directory": arguments.directory}
        print("written to", record("distributed", found, **options))


if __name__ == "__main__":
    main()
