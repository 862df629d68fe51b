"""The memory planner against the kernel: planned and measured peak of spooling, training, exact pass and prediction.

    python benchmarks/memory.py            # all settings, about ten minutes
    python benchmarks/memory.py --quick    # two settings

Each setting runs in a process of its own, which first uses every library once (``load_libraries``); peaks are
resident memory above that. glibc keeps freed blocks below a size that it raises as it goes: ``measured`` is after
``return_freed_memory()``, which fixes that size, as a memory budget asks for; ``measured_default`` is without.

Writes ``benchmarks/results/memory.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from record import record

from finitegp import SCGD, FeatureGP, Lagged, Minimax, train
from finitegp.data import spool
from finitegp.experiments.environment import peak_memory_bytes, reset_peak_memory, resident_memory_bytes
from finitegp.features import MLPFeatures
from finitegp.memory import load_libraries, plan_memory, return_freed_memory
from finitegp.schedules import make_optimizer

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
        train(algorithm, optimizer, data, epochs=1, **plan.training_arguments())
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


def run(budget: str, columns: int, fixed: dict[str, object], *, tight: bool) -> dict[str, object]:
    command = [sys.executable, __file__, "--worker", json.dumps([budget, columns, fixed, tight])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", help="one setting, as JSON; used by the above")
    parser.add_argument("--quick", action="store_true", help="only two settings")
    parser.add_argument("--directory", type=Path, help="where the results go")
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(measure(*json.loads(arguments.worker))))
        return
    found = []
    for budget, columns, fixed in QUICK if arguments.quick else SETTINGS:
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
    path = record("memory", found, **({} if arguments.directory is None else {"directory": arguments.directory}))
    print("written to", path)


if __name__ == "__main__":
    main()
