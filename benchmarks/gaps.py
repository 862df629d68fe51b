"""The gap to the exact optimum against the batch size: the paper's point on a small problem, and its plot.

    python -m benchmarks.gaps      # about ten minutes; needs the extra finitegp[plot]

128 rows, ten Fourier features with learned length scale, magnitude and noise; 8000 steps of Adam with cosine decay from
2e-2; the optimum is that of L-BFGS on the exact gradient. Three seeds of the batches. Writes
``benchmarks/results/gaps.jsonl`` and ``docs/figures/gaps.png``.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import matplotlib
import torch

from finitegp import FeatureGP, fit_full_batch
from finitegp.algorithms import BSGD, SCGD, Lagged, Minimax, PaperMinimax
from finitegp.features import FourierFeatures
from finitegp.schedules import cosine_decay, make_optimizer
from finitegp.training import train

from .record import RESULTS, record

ROWS, STEPS, SEEDS, BATCHES = 128, 8000, 3, (4, 16, 64)
METHODS = {
    "BSGD (biased)": lambda model: BSGD(model, ROWS),
    "SCGD, rate 0.9": lambda model: SCGD(model, ROWS),
    "SCGD, rate 0.1": lambda model: SCGD(model, ROWS, tracking_rate=0.1),
    "Minimax": lambda model: Minimax(model, ROWS),
    "PaperMinimax, penalty 1": lambda model: PaperMinimax(model, ROWS),
    "Lagged": lambda model: Lagged(model, ROWS, block=4, window=32),
    "Lagged, trained weights": lambda model: Lagged(model, ROWS, block=4, window=32, weight_update="train"),
}


def make_model() -> FeatureGP:
    return FeatureGP(FourierFeatures(1, 10, sampling="sobol", seed=0), 0.5)


def measure(methods: dict, steps: int) -> list[dict]:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(5)
    inputs = 2 * torch.rand(ROWS, 1, generator=generator) - 1
    data = inputs, torch.sin(4 * inputs[:, 0]) + 0.3 * torch.randn(ROWS, generator=generator)
    optimum = fit_full_batch(make_model().double(), data).nlml
    rows = []
    for name, make in methods.items():
        for batch_size in BATCHES:
            gaps = []
            for seed in range(SEEDS):
                model = make_model()
                algorithm = make(model)
                per_epoch = -(-ROWS // batch_size)
                train(
                    algorithm,
                    make_optimizer(algorithm, learning_rate=2e-2),
                    data,
                    epochs=steps // per_epoch,
                    batch_size=batch_size,
                    seed=seed,
                    schedule=cosine_decay(steps // per_epoch * per_epoch),
                )
                gaps.append(model.nlml(data) - optimum)
            rows.append({"method": name, "batch_size": batch_size, "gaps": gaps, "median": statistics.median(gaps)})
            print(rows[-1], flush=True)
    return [row | {"optimum": optimum, "rows": ROWS, "steps": steps} for row in rows]


def plot() -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [json.loads(line) for line in (RESULTS / "gaps.jsonl").read_text().splitlines()]
    figure, axes = pyplot.subplots(figsize=(7.0, 4.2), layout="constrained")
    for name in dict.fromkeys(row["method"] for row in rows):
        found = [row for row in rows if row["method"] == name]
        sizes, medians = [row["batch_size"] for row in found], [row["median"] for row in found]
        axes.plot(sizes, medians, marker="o", label=name, linewidth=3.0 if "biased" in name else 1.5)
    axes.set(xscale="log", yscale="log", xlabel="batch size", ylabel="NLML per row above the optimum")
    axes.set_xticks(BATCHES, [str(size) for size in BATCHES])
    axes.minorticks_off()
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    path = Path(__file__).parents[1] / "docs" / "figures" / "gaps.png"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=120)
    print("written to", path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", action="store_true", help="only draw the stored results")
    parser.add_argument("--penalty", type=float, help="only print the gaps of Minimax with this penalty")
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    if arguments.penalty is not None:
        penalty = arguments.penalty
        measure({f"Minimax, penalty {penalty}": lambda m: Minimax(m, ROWS, penalty=penalty)}, arguments.steps)
        return
    if not arguments.plot:
        rows = measure(METHODS, arguments.steps)
        record("gaps", rows)
    plot()


if __name__ == "__main__":
    main()
