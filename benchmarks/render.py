"""Writes ``docs/performance.md`` from ``benchmarks/results/*.jsonl``: no figure on that page is typed by hand.

python -m benchmarks.render
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paper.published import load_published

from .default_fit import draw, table
from .quick import runs
from .quick import table as table_of_runs
from .record import RESULTS
from .steps import arithmetic

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"


def load(name: str) -> list[dict[str, Any]]:
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def provenance(rows: list[dict[str, Any]]) -> str:
    row = rows[0]
    commits = ", ".join(dict.fromkeys(str(row["commit"]) for row in rows))
    return f"(finitegp {commits}, torch {row['torch']}, {row['threads']} thread, {row['date']})"


def streaming() -> list[str]:
    rows = load("statistics_streaming")
    if not rows:
        return []
    lines = [
        "## Streaming the statistics",
        "",
        f"`python -m benchmarks.statistics_streaming` {provenance(rows)}.",
        "",
        "About 1,000,000 rows of 128 features in chunks of 4096, interleaved with the bare `Z.T @ Z` on the same "
        "chunks, medians of 5. The sums are float64 in both rows; the bare product is in the features' own type. "
        "Exact passes run the feature map in float64, so the first row is what they pay.",
        "",
        "| features | bare product, s | statistics, s | ratio |",
        "|---|--:|--:|--:|",
    ]
    lines += [
        f"| {r['dtype']} | {r['seconds_bare']:.2f} | {r['seconds_statistics']:.2f} | {r['ratio']:.2f} |"
        for r in rows
        if r["measurement"] == "time"
    ]
    lines += [
        "",
        "Peak memory of one exact NLML above the interpreter with torch loaded. glibc keeps a varying amount of freed "
        "memory; with `MALLOC_MMAP_THRESHOLD_=131072` it returns it, and what is left is what the pass needs.",
        "",
        "| rows | allocator | peak, MB |",
        "|--:|---|--:|",
    ]
    lines += [
        f"| {r['rows']:,} | {'default, median of 5' if r['mmap_threshold'] == 'default' else 'threshold fixed'} "
        f"| {r['peak_bytes_above_interpreter'] / 1e6:.1f} |"
        for r in rows
        if r["measurement"] == "memory"
    ]
    return [*lines, ""]


def steps() -> list[str]:
    rows = load("steps")
    if not rows:
        return []
    lines = [
        "## One training step",
        "",
        f"`python -m benchmarks.steps` {provenance(rows)}.",
        "",
        "Milliseconds per step and ratio to a plain PyTorch network step (same network, mean squared error, fused "
        "Adam); means over chunks of 40 or 160 steps with all refreshes, chunks of all methods interleaved, ratios of "
        "medians. *Arithmetic* is the ratio of the multiplications alone (`benchmarks.steps.arithmetic`; float64 "
        "counted twice), which is what the other ratio would be without any overhead of the framework on either side: "
        "Lagged stays below it because its backward pass is written out and a plain step's is not. *Compiled*: "
        "`train(compiled=True)`, whole steps by Numba.",
    ]
    for kernel, batch_size, features in sorted({(r["kernel"], r["batch_size"], r["features"]) for r in rows})[::-1]:
        lines += [
            "",
            f"{kernel.capitalize()} kernel, {features} features, batch {batch_size}:",
            "",
            "| method | ms | ratio to plain | arithmetic |",
            "|---|--:|--:|--:|",
        ]
        lines += [
            f"| {r['method']} | {r['milliseconds']:.2f} | {r['ratio_to_plain']:.2f} | {floor(r)} |"
            for r in rows
            if (r["kernel"], r["batch_size"]) == (kernel, batch_size)
        ]
    return [*lines, ""]


def floor(row: dict[str, Any]) -> str:
    """What arithmetic alone would cost, if known."""
    found = arithmetic(row["method"], row["batch_size"]) if row["kernel"] == "linear" else None
    return "" if found is None else f"{found:.2f}"


def quality() -> list[str]:
    rows = load("quality")
    if not rows:
        return []
    published = {
        (key.metric, key.dataset, key.method): f"{cell.mean:.3f} ± {cell.std:.3f}"
        for key, cell in load_published().items()
        if (key.kernel, key.batch_size) == ("linear", 32)
    }
    lines = [
        "## Quality on real tables",
        "",
        f"`python -m benchmarks.quality` {provenance(rows)}.",
        "",
        "Split 0, batch 32, the paper's network, raw units. Published: mean and deviation over five splits, AdaDelta "
        "with the learning rate by grid search. Ours: one run each. SCGD and Minimax with Adam at 1e-3, and where it "
        "was run with AdaDelta at 1, neither searched; best iterate by exact NLML; minimax is the paper's "
        "iteration (PaperMinimax), projecting every fourth step. "
        "Lagged has settings chosen per table on this split: its rows show what it can reach, not what a "
        "default gives. Seconds were taken with other runs on the same two cores and do not compare.",
        "",
        "| table | method | setting | NLML | test RMSE | test NLPD | 90 % covers | s |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for dataset in ("bike", "elevators", "kin40k", "pol", "protein"):
        for method in ("minimax", "scgd", "bsgd", "svgp"):
            nlml, rmse = (published[metric, dataset, method] for metric in ("nlml", "rmse"))
            lines.append(f"| {dataset} | {method} | published | {nlml} | {rmse} | | | |")
        for r in sorted((r for r in rows if r["dataset"] == dataset), key=lambda r: (r["method"], r["optimizer"])):
            names = ("window", "block", "weight_update", "weight_decay")
            extra = "".join(f", {name.replace('_', ' ')} {r[name]}" for name in names if r.get(name))
            setting = f"{r['optimizer']} {r['learning_rate']:g}, {r['epochs']} epochs{extra}"
            if r["diverged"]:
                setting += ", **diverged**"
            lines.append(
                f"| {dataset} | **{r['method']}** | {setting} | {r['nlml']:.3f} | {r['rmse']:.4g} | {r['nlpd']:.3f} "
                f"| {100 * r['coverage']['0.9']:.0f} % | {r['seconds']:.0f} |"
            )
    return [*lines, ""]


def default_fit() -> list[str]:
    """The default beside LightGBM."""
    lines = load("default_fit")
    rows = [line for line in lines if not line["growth"]]
    return [
        "## The default fit",
        "",
        f"`python -m benchmarks.default_fit` {provenance(rows)}.",
        "",
        "Seconds by the clock with predictions of the held-out rows, medians of rounds; what the fit was expected to",
        "take; and scores in units of the target's deviation. Up to 2,000 rows kernels are fitted, beyond 4,000",
        'networks. "LightGBM, honest" has a residual scale and Student\'s t from five fits without a fold.',
        "The first fit of a package includes the time that it takes to load.",
        "",
        *table(rows),
        "",
        *earlier_default(),
        *growth([line for line in lines if line["growth"]]),
    ]


def earlier_default() -> list[str]:
    """The default of an earlier commit on such a table, and the present one."""
    rows = [line for line in load("before") if line["table"].startswith("rows/")]
    names = ("wall_seconds", "rmse", "nlpd", "crps", "held_90")
    found = {(line["tag"], line["table"]): [line[name] for name in names] for line in rows}
    lines = []
    for tag, table_name in found:
        if tag == "now" and ("before", table_name) in found:
            pairs = zip(found["before", table_name], found["now", table_name], strict=True)
            cells = " | ".join(f"{before:.3g} / {now:.3g}" for before, now in pairs)
            lines.append(f"| {int(table_name.split('/')[1]):,} | {cells} |")
    if not lines:
        return []
    return [
        f"`python -m benchmarks.before run --sizes rows --effort medium` {provenance(rows)}: before is commit 07bfc74,",
        "seconds by the clock without predictions, one fit each, one after the other.",
        "",
        "| rows | seconds, before / now | RMSE | NLPD | CRPS | 90 % intervals hold |",
        "|--:|--:|--:|--:|--:|--:|",
        *lines,
        "",
    ]


def growth(rows: list[dict[str, Any]]) -> list[str]:
    """Seconds against rows."""
    if not rows:
        return []
    return [
        "### Growth with rows",
        "",
        f"`python -m benchmarks.default_fit --growth` {provenance(rows)}, one fit each. From about 40,000 rows on,",
        "networks and their noise are learned from a sample; the exact pass takes in every row. A slope of one is time",
        "in proportion to rows.",
        "",
        "![Seconds against rows, both on logarithmic scales](figures/growth.png)",
        "",
        *draw(rows, PAGE.parent / "figures" / "growth.png"),
        "",
    ]


def predictions() -> list[str]:
    rows = load("predict")
    if not rows:
        return []
    lines = [
        "## Predictions",
        "",
        f"`python -m benchmarks.default_fit --predict` {provenance(rows)}.",
        "",
        "Of a fit to 40,000 rows of 20 columns: seconds by the clock for a million rows (from 50,000; medians), "
        "and milliseconds for a single row. "
        f"OpenBLAS has its kernels for {rows[-1]['blas'][0]['architecture']}.",
        "",
        "| effort | mean, s | standard deviation, s | interval, s | one row: mean, ms | standard deviation, ms |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        million = [f"{row[f'{name}_microseconds'] / row['threads']:.1f}" for name in ("mean", "std", "interval")]
        single = [f"{row[f'{name}_of_one_row_milliseconds']:.2f}" for name in ("mean", "std")]
        lines.append(f"| {row['effort']} | {' | '.join([*million, *single])} |")
    return [*lines, ""]


def history() -> list[str]:
    found = runs()
    if not found:
        return []
    return [
        "## History",
        "",
        "`make benchmark` measures each in turn with what it is compared with, in one run, and adds a column; seconds "
        f"of both are in `benchmarks/results/history.jsonl`. The last run is of a {found[-1]['processor']}.",
        "",
        *table_of_runs(found),
        "",
    ]


def main() -> None:
    head = ["# Performance", "", "Written by `benchmarks/render.py` from `benchmarks/results/`; do not edit.", ""]
    PAGE.write_text("\n".join([*head, *default_fit(), *predictions(), *steps(), *quality(), *streaming(), *history()]))
    print("written to", PAGE)


if __name__ == "__main__":
    main()
