"""Seconds and memory of one training step against batch size and feature dimension.

    python -m benchmarks.complexity            # below six minutes, writes results/complexity.jsonl
    python -m benchmarks.complexity --quick    # a rough look, writes nothing unless --results is given

Batch sizes are varied with the paper's network, whose 128 outputs are the features. Feature dimensions are varied with
Fourier features on that network, at batch size 32: a wider network would itself cost the square of its width and hide
what the algorithm adds. All methods have fused Adam. ``lagged`` refreshes every 20 steps, and its figures are means
over whole blocks. SVGP has as many inducing points as rows in a batch, as in the paper.

Time: chunks of steps of all methods are interleaved, each chunk one figure, medians over chunks. Memory: PyTorch's
profiler logs every allocation and release of its CPU allocator from before the method is made; ``held_bytes`` is what
is allocated between two steps (parameters, optimizer state, gradients, tracked matrices), ``peak_bytes`` the most
during steps. It counts tensors and the workspaces that PyTorch allocates, without the data, without what a
linear-algebra library allocates for itself, and it does not depend on how the operating system hands out pages.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from finitegp import FeatureGP
from finitegp.algorithms import BSGD, SCGD, Algorithm, Lagged, Minimax
from finitegp.compiled import CompiledSteps
from finitegp.data.sampling import Sampler
from finitegp.features import ComposedFeatures, FourierFeatures, MLPFeatures
from finitegp.schedules import make_optimizer
from paper.svgp import SVGP

from .record import record

ROWS, INPUTS, WIDTH, BLOCK = 16_000, 17, 128, 20
BATCH_SIZES = (16, 32, 64, 128, 256, 512)
DIMENSIONS = (32, 64, 128, 256, 512, 1024)
BATCH_SIZE = 32  # where the feature dimension is varied
CHUNK_SECONDS = 0.03
RESULTS = Path(__file__).parents[1] / "results"
BY_NETWORK, BY_FOURIER = "outputs of the paper's network", "Fourier features on the paper's network"
Step = Callable[[int], object]


def make_batches(batch_size: int) -> list:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS, INPUTS, generator=generator)
    targets = torch.sin(inputs.sum(dim=1)) + 0.1 * torch.randn(ROWS, generator=generator)
    return list(Sampler((inputs, targets), batch_size, seed=0).epoch(0))


def feature_map(features_by: str, dimension: int) -> nn.Module:
    network = MLPFeatures(INPUTS, hidden=(WIDTH, WIDTH), seed=0)
    if features_by == BY_NETWORK:
        return network
    return ComposedFeatures(network, FourierFeatures(WIDTH, dimension, ard=False, length_scales=5.0))


def plain_step(
    batches: list, body: nn.Module, dimension: int, kind: type[torch.optim.Optimizer] = torch.optim.AdamW
) -> Step:
    """Mean squared error with a linear output: what training costs without a Gaussian process."""
    network = nn.Sequential(body, nn.Linear(dimension, 1))
    optimizer = kind(network.parameters(), lr=1e-3, fused=True)

    def step(index: int) -> object:
        batch = batches[index % len(batches)]
        optimizer.zero_grad()
        loss = F.mse_loss(network(batch.inputs), batch.targets)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def algorithm_step(batches: list, algorithm: Algorithm, *, compiled: bool = False) -> Step:
    optimizer = make_optimizer(algorithm, learning_rate=1e-3)
    algorithm.initialize(batches[-20:])
    count = len(batches)
    take = CompiledSteps(algorithm, optimizer).step if compiled else partial(algorithm.step, optimizer=optimizer)

    def step(index: int) -> object:
        return take((batches[index % count], batches[(index + 7) % count]))

    return step


def make_methods(features_by: str, dimension: int, batches: list) -> dict[str, Callable[[], Step]]:
    """By name, what makes the method; it is made anew for each measurement."""

    def model() -> FeatureGP:
        return FeatureGP(feature_map(features_by, dimension), 0.1)

    rows = batches[0].inputs
    inducing = SVGP.choose_inducing_inputs(torch.cat([batch.inputs for batch in batches]), len(rows))
    makers: dict[str, Callable[[FeatureGP], Algorithm]] = {
        "minimax": lambda m: Minimax(m, ROWS),
        "scgd": lambda m: SCGD(m, ROWS),
        "bsgd": lambda m: BSGD(m, ROWS),
        "svgp": lambda m: SVGP(m, ROWS, inducing_inputs=inducing.clone()),
        "lagged": lambda m: Lagged(m, ROWS, block=BLOCK, window=50 * BLOCK, weight_update="train"),
    }
    found: dict[str, Callable[[], Step]] = {
        "plain network": lambda: plain_step(batches, feature_map(features_by, dimension), dimension)
    }
    for name, make in makers.items():
        found[name] = lambda make=make: algorithm_step(batches, make(model()))
    return found


def time_steps(makers: dict[str, Callable[[], Step]], budget: float, rounds: int) -> dict[str, list[float]]:
    """Seconds per step of each chunk, at least ``rounds`` chunks of each method and then until the budget is spent."""
    steps = {name: make() for name, make in makers.items()}
    chunks, counts = {}, {}
    for name, step in steps.items():
        warm = BLOCK if name == "lagged" else 3
        for index in range(warm):
            step(index)
        started = time.perf_counter()
        step(warm)
        seconds = time.perf_counter() - started
        chunks[name] = max(1, min(BLOCK, round(CHUNK_SECONDS / seconds)))
        counts[name] = warm + 1
    chunks["lagged"] = BLOCK  # never less than a block: one refresh in each
    found: dict[str, list[float]] = {name: [] for name in steps}
    began = time.perf_counter()
    done = 0
    while done < rounds or time.perf_counter() - began < budget:
        for name, step in steps.items():
            started = time.perf_counter()
            for index in range(counts[name], counts[name] + chunks[name]):
                step(index)
            found[name].append((time.perf_counter() - started) / chunks[name])
            counts[name] += chunks[name]
        done += 1
    return found


def measure_memory(make: Callable[[], Step], steps: int, warm: int) -> tuple[int, int]:
    """What is held between steps, and the most that is allocated during ``steps`` steps, in bytes."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step = make()
        for index in range(warm):
            step(index)
        with record_function("measured steps"):
            for index in range(warm, warm + steps):
                step(index)
    # The profiler's tables only have sums by operation; the log itself has each allocation with its time.
    log = profiler.profiler.kineto_results.events()
    begin = next(event.start_ns() for event in log if event.name() == "measured steps")
    sizes = sorted((event.start_ns(), event.nbytes()) for event in log if event.name() == "[memory]")
    allocated, held, peak = 0, 0, 0
    for moment, size in sizes:
        allocated += size
        if moment < begin:
            held = allocated
        else:
            peak = max(peak, allocated)
    return held, max(peak, held)


def measure(sweep: str, features_by: str, dimension: int, batch_size: int, budget: float, rounds: int) -> list[dict]:
    makers = make_methods(features_by, dimension, make_batches(batch_size))
    seconds = time_steps(makers, budget, rounds)
    rows = []
    for name, make in makers.items():
        whole = 2 * BLOCK if name == "lagged" else 3
        held, peak = measure_memory(make, steps=whole, warm=BLOCK if name == "lagged" else 3)
        low, median, high = statistics.quantiles(seconds[name], n=4)
        rows.append(
            {
                "sweep": sweep,
                "method": name,
                "batch_size": batch_size,
                "features": dimension,
                "features_by": features_by,
                "milliseconds": 1e3 * median,
                "milliseconds_quartiles": [1e3 * low, 1e3 * high],
                "chunks": len(seconds[name]),
                "held_bytes": held,
                "peak_bytes": peak,
                "optimizer": "adam",
                "block": BLOCK if name == "lagged" else None,
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three sizes each, few rounds")
    parser.add_argument(
        "--results", type=Path, help="where complexity.jsonl goes; default results/, for --quick nowhere"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    budget, rounds, sizes = (0.5, 3, slice(0, 5, 2)) if arguments.quick else (17.0, 7, slice(None))
    found = []
    for batch_size in BATCH_SIZES[sizes]:
        found += measure("batch_size", BY_NETWORK, WIDTH, batch_size, budget, rounds)
    for dimension in DIMENSIONS[sizes]:
        found += measure("features", BY_FOURIER, dimension, BATCH_SIZE, budget, rounds)
    print(f"{time.perf_counter() - started:.0f} s")
    directory = arguments.results or (None if arguments.quick else RESULTS)
    if directory is not None:
        print("written to", record("complexity", found, directory=directory))


if __name__ == "__main__":
    main()
