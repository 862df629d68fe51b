"""Seconds of one training step of each algorithm against a plain network step, interleaved in one run.

    python -m benchmarks.steps                          # about nine minutes
    python -m benchmarks.steps --quick                  # a rough look
    python -m benchmarks.steps --settings gaussian-16   # one of the settings; lines of the others stay

The plain step is a PyTorch MLP with a linear output, mean squared error and fused Adam: same network body, same
batches, same optimizer settings. Each measurement is the mean over a chunk of steps, so that the refreshes of Lagged
are in it; the chunks of all methods are interleaved, and medians over chunks are compared. The first two chunks, in
which libraries load and Numba compiles, are not counted. Torch and BLAS have one thread. Writes
``benchmarks/results/steps.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from threadpoolctl import threadpool_limits
from torch import nn

from finitegp import FeatureGP
from finitegp.algorithms import BSGD, SCGD, Algorithm, Lagged, Minimax, PaperMinimax
from finitegp.data.sampling import Sampler
from finitegp.features import ComposedFeatures, FourierFeatures, MLPFeatures
from paper.svgp import SVGP

from .complexity import Step, algorithm_step, plain_step
from .record import record

ROWS, INPUTS, CHUNK = 16_000, 17, 40
# Kernel, batch size, rounds.
SETTINGS = {"linear-32": ("linear", 32, 200), "linear-256": ("linear", 256, 60), "gaussian-16": ("gaussian", 16, 30)}


def make_data(batch_size: int) -> list:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS, INPUTS, generator=generator)
    targets = torch.sin(inputs.sum(dim=1)) + 0.1 * torch.randn(ROWS, generator=generator)
    return list(Sampler((inputs, targets), batch_size, seed=0).epoch(0))


def feature_map(kernel: str) -> nn.Module:
    network = MLPFeatures(INPUTS, seed=0)
    if kernel == "linear":
        return network
    return ComposedFeatures(network, FourierFeatures(128, 1000, ard=False, length_scales=5.0))


def autograd_scgd_step(batches: list, body: nn.Module, width: int, dtype: torch.dtype = torch.float32) -> Step:
    """SCGD as one would write it without the analytic gradient: the loss by autograd, the inverse at every step.

    ``dtype`` is that of the tracked matrix and its inverse: float32 as the paper's code would have it, or float64 as
    this library tracks it.
    """
    weights = nn.Parameter(torch.zeros(width, 1))
    log_noise = nn.Parameter(torch.tensor(-2.0))
    optimizer = torch.optim.Adam([*body.parameters(), weights, log_noise], lr=1e-3, fused=True)
    tracked = torch.eye(width, dtype=dtype) * ROWS

    def step(index: int) -> object:
        nonlocal tracked
        batch = batches[index % len(batches)]
        optimizer.zero_grad()
        features = body(batch.inputs)
        noise, scale = log_noise.exp(), ROWS / len(features)
        gram = scale * features.T @ features + noise * torch.eye(width)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(tracked)).float()
        residuals = features @ weights - batch.targets
        loss = scale * residuals.square().sum() / noise + weights.square().sum() + (ROWS - width) * log_noise
        loss = (loss + (inverse * gram).sum()) / (2 * ROWS)
        loss.backward()
        optimizer.step()
        tracked = 0.1 * tracked + 0.9 * gram.detach().to(dtype)
        return loss

    return step


def methods(kernel: str, batch_size: int) -> dict[str, Step]:
    batches = make_data(batch_size)

    def model() -> FeatureGP:
        return FeatureGP(feature_map(kernel), 0.1)

    width = model().count_features()
    lagged = {"block": 80, "window": 400} if kernel == "gaussian" else {"block": 20, "window": 200}
    algorithms: dict[str, Callable[[], Algorithm]] = {
        "Lagged": lambda: Lagged(model(), ROWS, **lagged),
        "Lagged, trained weights": lambda: Lagged(model(), ROWS, weight_update="train", **lagged),
        "SCGD": lambda: SCGD(model(), ROWS),
        "BSGD": lambda: BSGD(model(), ROWS),
    }
    if kernel == "linear":
        algorithms["Minimax"] = lambda: Minimax(model(), ROWS)
    found = {
        "plain network": plain_step(batches, feature_map(kernel), width, torch.optim.Adam),
    }
    for name, make in algorithms.items():
        found[name] = algorithm_step(batches, make())
        if kernel == "linear" or name != "SCGD":  # which keeps few rows there, without a matrix
            found[f"{name}, compiled"] = algorithm_step(batches, make(), compiled=True)
    found["SCGD by autograd"] = autograd_scgd_step(batches, feature_map(kernel), width)
    found["SCGD by autograd, float64 inverse"] = autograd_scgd_step(batches, feature_map(kernel), width, torch.float64)
    if kernel == "gaussian":
        found["Lagged, block 160"] = algorithm_step(batches, Lagged(model(), ROWS, block=160, window=400))
    if kernel == "linear":
        found["PaperMinimax"] = algorithm_step(batches, PaperMinimax(model(), ROWS))
        svgp = model()
        inducing = SVGP.choose_inducing_inputs(torch.cat([b.inputs for b in batches]), batch_size)
        found["SVGP (GPyTorch)"] = algorithm_step(batches, SVGP(svgp, ROWS, inducing_inputs=inducing))
    return found


def arithmetic(
    method: str, batch_size: int, *, hidden: int = 128, features: int = 128, block: int = 20
) -> float | None:
    """Multiply-adds of one step with the linear kernel over those of a plain one, float64 counted twice, if known.

    What no implementation can leave out: the network's two passes; the features times the inverse (``b d^2``); the
    symmetric sums of the batch (``b d^2 / 2``) and a Cholesky factor with its inverse (``d^3 / 2``), both in float64.
    """
    forward = batch_size * (INPUTS * hidden + hidden * features)
    plain = 2 * forward + batch_size * hidden * features
    factors = {"plain network": None, "Lagged": 1.0 / block, "SCGD": 1.0}
    method = method.removesuffix(", compiled")
    if method not in factors:
        return None
    per_step = factors[method]
    extra = 0.0 if per_step is None else 2.0 * batch_size * features**2 + per_step * features**3
    return (plain + extra) / plain


def measure(kernel: str, batch_size: int, rounds: int) -> list[dict]:
    steps = methods(kernel, batch_size)
    # Slow steps are measured over fewer, and never over less than one refresh of Lagged.
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    counts = {name: 0 for name in steps}
    for round_number in range(rounds + 2):
        for name, step in steps.items():
            chunk = CHUNK if kernel == "linear" else 160 if name.startswith(("Lagged", "plain")) else 4
            started = time.perf_counter()
            for index in range(counts[name], counts[name] + chunk):
                step(index)
            elapsed = (time.perf_counter() - started) / chunk
            counts[name] += chunk
            if round_number >= 2:
                seconds[name].append(elapsed)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return [
        {
            "kernel": kernel,
            "batch_size": batch_size,
            "features": 128 if kernel == "linear" else 1000,
            "method": name,
            "milliseconds": 1e3 * median,
            "ratio_to_plain": median / medians["plain network"],
            "rounds": rounds,
        }
        for name, median in medians.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing written")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS, help="kernel and batch size")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    with threadpool_limits(1):
        for kernel, batch_size, rounds in (SETTINGS[name] for name in arguments.settings):
            found += measure(kernel, batch_size, max(rounds // 10, 3) if arguments.quick else rounds)
        for row in found:
            print(json.dumps(row))
        if not arguments.quick:
            print("written to", record("steps", found, same=("kernel", "batch_size")))


if __name__ == "__main__":
    main()
