"""Does the method converge? Distance to a known optimum over the steps, for Minimax, SCGD and the paper's iteration.

    python -m benchmarks.convergence            # about half an hour; needs the extra finitegp[plot]
    python -m benchmarks.convergence --plot     # only draw the stored results

Fourier features of a kernel with a length scale per column; magnitude, length scales and noise are learned: few
parameters, so that L-BFGS on the exact gradient finds the optimum that all methods, from the same start, should
reach. Four tables and a made one, with 7 to 22 rows per feature, where the complexity term matters. Adam with
cosine decay. Looked at are the relative errors of the estimate A, the trace of P F (d at the saddle point, with P in
place of the inverse of F), the norm of the exact gradient, and the NLML per row above the optimum. Writes
``benchmarks/results/convergence.jsonl`` and ``docs/figures/convergence.png``.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import torch

from finitegp import SCGD, FeatureGP, Minimax, PaperMinimax, exact_gradient, fit_full_batch, train
from finitegp.algorithms import Algorithm
from finitegp.callbacks import Callback
from finitegp.data.scaling import Standardizer
from finitegp.features import FourierFeatures
from finitegp.schedules import cosine_decay, make_optimizer
from paper.datasets import load_split

from .record import RESULTS, record

STEPS, LEARNING_RATE, BATCHES = 20_000, 5e-3, (8, 32, 128)
PROBLEMS = {"made": 64, "forest": 64, "solar": 64, "wine": 64, "concrete": 128}
GROWING = {"penalty": 0.1, "penalty_growth": 1.35, "penalty_steps": STEPS // 20}
METHODS: dict[str, Callable[[FeatureGP, int], Algorithm]] = {
    "SCGD, rate 0.1": lambda model, rows: SCGD(model, rows, tracking_rate=0.1),
    "Minimax, penalty 2": lambda model, rows: Minimax(model, rows),
    "Minimax, penalty 0.1 growing to 2": lambda model, rows: Minimax(model, rows, **GROWING),
    "Minimax, penalty 0.25": lambda model, rows: Minimax(model, rows, penalty=0.25),
    "PaperMinimax, penalty 1": PaperMinimax,
}


def load(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    if name == "made":
        generator = torch.Generator().manual_seed(5)
        inputs = 2 * torch.rand(600, 3, generator=generator) - 1
        smooth = torch.sin(4 * inputs[:, 0]) + inputs[:, 1] * inputs[:, 2]
        return inputs, smooth + 0.3 * torch.randn(600, generator=generator)
    split = load_split(name, 0)
    found = (Standardizer.fit(values).transform(values) for values in (split.inputs, split.targets))
    inputs, targets = (torch.from_numpy(values).float() for values in found)
    return inputs, targets


def make_model(columns: int, features: int) -> FeatureGP:
    scales = math.sqrt(columns)
    return FeatureGP(FourierFeatures(columns, features, length_scales=scales, sampling="sobol", seed=0), 0.5)


class Look(Callback):
    """Measures at about twenty times, evenly in the logarithm of the steps."""

    def __init__(self, data: Any, optimum: float, steps: int) -> None:
        self.data, self.optimum = data, optimum
        self.times = {int(steps ** (k / 20)) for k in range(10, 21)} | {steps * k // 10 for k in range(1, 11)}
        self.seen: list[dict[str, float]] = []

    def on_epoch(self, run: Any) -> None:
        """Measure if it is time."""
        due = [time for time in self.times if time <= run.step]
        if not due:
            return
        self.times -= set(due)
        algorithm, model = run.algorithm, run.algorithm.model
        exact = model.exact_copy()
        gradient = exact_gradient(exact, self.data)
        gap = gradient.likelihood.nlml - self.optimum
        found = {"step": run.step, "gap": gap, "gradient": gradient.gradient_norm / len(self.data[0])}
        if not isinstance(algorithm, SCGD):
            gram = model.statistics(self.data).gram
            gram.diagonal().add_(model.noise_variance)
            found |= estimate_errors(algorithm, gram)
        self.seen.append(found)


def estimate_errors(algorithm: Algorithm, gram: torch.Tensor) -> dict[str, float]:
    """Of ``A`` against ``F`` and of ``P`` against its inverse."""
    rows = algorithm.num_data
    if isinstance(algorithm, PaperMinimax):
        estimate = algorithm.gram_estimate.detach() * rows
        multiplier = -float(algorithm.penalty) / float(estimate.norm()) * algorithm.dual_matrix.detach()
    else:
        assert isinstance(algorithm, Minimax)
        estimate, multiplier = algorithm.gram_estimate, algorithm.inverse_gram.double()
    error = float((estimate - gram).norm() / gram.norm())
    return {"estimate_error": error, "trace": float((multiplier * gram).sum()) / len(gram)}


def measure(problems: list[str], steps: int) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    found = []
    for problem in problems:
        data, features = load(problem), PROBLEMS[problem]
        rows, columns = data[0].shape
        exact = make_model(columns, features).double()
        optimum = fit_full_batch(exact, data).nlml
        for name, make in METHODS.items():
            for batch_size in BATCHES:
                per_epoch = -(-rows // batch_size)
                epochs = steps // per_epoch
                model = make_model(columns, features)
                algorithm, look = make(model, rows), Look(data, optimum, epochs * per_epoch)
                run = train(
                    algorithm,
                    make_optimizer(algorithm, learning_rate=LEARNING_RATE),
                    data,
                    epochs=epochs,
                    batch_size=batch_size,
                    schedule=cosine_decay(epochs * per_epoch),
                    callbacks=[look],
                )
                what = {"problem": problem, "rows": rows, "features": features, "method": name, "batch": batch_size}
                found.append(what | {"optimum": optimum, "seconds": run.seconds, "seen": look.seen})
                print(what, look.seen[-1], flush=True)
    return found


def plot() -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [json.loads(line) for line in (RESULTS / "convergence.jsonl").read_text().splitlines()]
    panels = {
        "gap": "NLML per row above the optimum",
        "gradient": "norm of the exact gradient per row",
        "estimate_error": "|A - F| / |F|",
        "trace": "tr(P F) / d",
    }
    names = list(PROBLEMS)
    figure, axes = pyplot.subplots(len(panels), len(names), figsize=(15.0, 11.0), layout="constrained", sharex=True)
    styles = dict(zip(BATCHES, (":", "--", "-"), strict=True))
    for column, problem in enumerate(names):
        for line, (key, label) in enumerate(panels.items()):
            axis = axes[line, column]
            for row in rows:
                if row["problem"] != problem or key not in row["seen"][-1]:
                    continue
                color = f"C{list(METHODS).index(row['method'])}"
                values = [max(look[key], 1e-6) for look in row["seen"]]
                axis.plot([look["step"] for look in row["seen"]], values, styles[row["batch"]], color=color)
            axis.set(xscale="log", yscale="log")
            axis.grid(alpha=0.3)
            if column == 0:
                axis.set_ylabel(label)
            if line == 0:
                found = next(row for row in rows if row["problem"] == problem)
                axis.set_title(f"{problem}: {found['rows']} rows, {found['features']} features", fontsize=10)
            if key == "trace":
                axis.set_xlabel("step")
    lines = [pyplot.Line2D([], [], color=f"C{index}", label=name) for index, name in enumerate(METHODS)]
    lines += [pyplot.Line2D([], [], color="k", linestyle=s, label=f"batch {b}") for b, s in styles.items()]
    figure.legend(handles=lines, loc="outside lower center", ncols=4, fontsize=9)
    path = Path(__file__).parents[1] / "docs" / "figures" / "convergence.png"
    figure.savefig(path, dpi=90)
    print("written to", path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", action="store_true", help="only draw the stored results")
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    if not arguments.plot:
        record("convergence", measure(arguments.problems, arguments.steps), same=("problem", "method", "batch"))
    plot()


if __name__ == "__main__":
    main()
