"""What the tables say, in sentences whose figures are computed, and how the figures were made."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from .cells import KERNELS, OUR_METHODS, PAPER_METHODS
from .comparison import METHODS, TableRow, Verdict, compare, table_rows
from .markdown import bold, number, spread, table
from .published import (
    PAPER_EPOCHS,
    PAPER_SPLITS,
    PUBLISHED_METRICS,
    Published,
    load_published,
    published_batch_sizes,
    published_row,
)
from .selection import Place, Row, Selected, describe_settings, metric_value, settings_without_rate
from .tables import TITLES

#: A difference in NLML, in nats per row, that counts as a change with the batch size.
NOTICEABLE = 0.01
_MOST_LISTED = 12

PROTOCOL = """\
## How the figures were made

- `python -m paper run` ran the cells, one process with one thread each; `python -m paper tables` wrote this page from
  `results/cells.jsonl`, where each line has its settings, versions and commit.
- Datasets and splits are those of `treforevans/uci_datasets` (90 % training rows), checked against known hashes.
  `slice` is not at hand.
- Inputs and target are standardised on the training rows in float64. Figures are in raw units of the target: RMSE and
  CRPS times its scale, NLML (per training row) and NLPD with the logarithm of its scale added.
- The paper's methods: its network (two layers of 128, ReLU) and AdaDelta with a constant learning rate; Minimax with
  penalty 1, SCGD with tracking rate 0.9, SVGP with as many inducing points as rows in a batch. The Gaussian kernel is
  1000 random Fourier features, except in SVGP, which has the kernel itself. Ours: the same network, Adam with cosine
  decay. The noise variance starts at 0.1 of the target's variance for all.
- The exact NLML of all training rows is taken about twenty times in a run, in float64, and the state with the lowest
  one counts; SVGP with the Gaussian kernel has no exact NLML, its last state counts. The paper's methods keep the noise
  that they learned; ours set it to its optimum in closed form.
- The learning rate (for ours: one of a few settings) is the one with the lowest training NLML, split by split. Test
  rows choose nothing.
- Predictions are those of the exact posterior given all training rows, except SVGP with the Gaussian kernel.
- `lagged-input-noise` lets the noise depend on the input: its NLML is that of a richer model and compares with the
  others as models compare, not as optimizers do.
- Seconds and memory are rough: cells ran side by side on a shared machine.
"""


def extent_section(rows: Sequence[Row], selected: Mapping[Place, Selected]) -> list[str]:
    """What was run, and with which versions."""
    total = len(load_published()) // len(PUBLISHED_METRICS)
    by_method = {place: choice for place, choice in selected.items() if place.method in PAPER_METHODS}
    rerun = {
        place: choice
        for place, choice in by_method.items()
        if place.method in published_row("nlml", place.kernel, place.batch_size, place.dataset) and choice.runs
    }
    whole = [c for c in rerun.values() if c.epochs >= PAPER_EPOCHS and len(c.runs) >= PAPER_SPLITS and c.follows_paper]
    short = sum(choice.epochs < PAPER_EPOCHS for choice in rerun.values())
    single = sum(len(choice.runs) == 1 for choice in rerun.values())
    return [
        "## What was run",
        "",
        f"{len(rows)} runs. Of the paper's {total} combinations of table, method, kernel and batch size {len(rerun)} "
        f"were rerun at least in part: {len(whole)} as the paper says ({PAPER_SPLITS} splits, {PAPER_EPOCHS} epochs), "
        f"{short} with fewer epochs, {single} on one split only. "
        f"(finitegp {_distinct(rows, 'commit')}; torch {_distinct(rows, 'torch')}; Python {_distinct(rows, 'python')}; "
        f"{_dates(rows)}.)",
        "",
    ]


def reading_section(
    selected: Mapping[Place, Selected], metrics: Sequence[str], kernels: Sequence[str], rows: Sequence[Row]
) -> list[str]:
    """Reproduced or not, ours against the published, small batches, what to be careful about."""
    tables = {
        (metric, kernel): table_rows(selected, metric, kernel)
        for metric in metrics
        if metric in PUBLISHED_METRICS
        for kernel in kernels
    }
    return [
        "## Reading",
        "",
        *_reproduction(tables),
        *_ours(tables),
        *_batch_sizes(selected, metrics, kernels),
        *_cautions(selected, kernels, rows),
    ]


def count_reproduced(cells: Iterable[tuple[float, Published]]) -> Counter[str]:
    """How many figures lie within one and two published deviations, and beyond two on either side.

    Example:
        >>> sorted(count_reproduced([(1.0, Published(1.0, 0.1)), (1.15, Published(1.0, 0.1))]).items())
        [('cells', 2), ('one', 1), ('two', 2)]
    """
    counts: Counter[str] = Counter()
    for value, published in cells:
        counts["cells"] += 1
        counts["one"] += compare(value, published) is Verdict.WITHIN
        wide = compare(value, published, deviations=2.0)
        counts[{Verdict.WITHIN: "two", Verdict.BETTER: "better", Verdict.WORSE: "worse"}[wide]] += 1
    return +counts


def _reproduced_cells(rows: Iterable[TableRow], method: str) -> list[tuple[TableRow, float, Published]]:
    found = []
    for row in rows:
        value, published = row.values.get(method), row.published.get(method)
        if value is not None and published is not None and row.here[method].follows_paper:
            found.append((row, value, published))
    return found


def _reproduction(tables: Mapping[tuple[str, str], Sequence[TableRow]]) -> list[str]:
    body, sentences = [], []
    for (metric, kernel), rows in tables.items():
        everything = []
        for method in PAPER_METHODS:
            cells = _reproduced_cells(rows, method)
            everything += cells
            if cells:
                body.append([f"{TITLES[metric]}, {kernel}", method, *_counts(cells)])
        if not everything:
            continue
        counts = count_reproduced((value, published) for _, value, published in everything)
        sentences.append(
            f"- {TITLES[metric]}, {kernel} kernel: of {counts['cells']} cells {counts['one']} lie within one published "
            f"standard deviation and {counts['two']} within two; better by more than two: {counts['better']}, worse by "
            f"more than two: {counts['worse']}." + _listed(everything)
        )
    if not body:
        return ["No cell of the paper has been rerun by its protocol yet.", ""]
    header = ["", "", "cells", "within one", "within two", "better by more than two", "worse by more than two"]
    return [
        "**Reproduced?** Cells rerun with the paper's optimizer, in published standard deviations:",
        "",
        *table(header, body, words=2),
        "",
        *sentences,
        "",
    ]


def _counts(cells: Sequence[tuple[TableRow, float, Published]]) -> list[str]:
    counts = count_reproduced((value, published) for _, value, published in cells)
    return [str(counts[name]) for name in ("cells", "one", "two", "better", "worse")]


def _listed(cells: Sequence[tuple[TableRow, float, Published]]) -> str:
    worse = [cell for cell in cells if compare(cell[1], cell[2], deviations=2.0) is Verdict.WORSE]
    worse.sort(key=lambda cell: (cell[1] - cell[2].mean) / cell[2].spread, reverse=True)
    if not worse:
        return ""
    names = []
    for row, value, published in worse[:_MOST_LISTED]:
        method = next(name for name, cell in row.published.items() if cell is published)
        names.append(
            f"{method} on {row.dataset} at {row.batch_size} ({number(value)} against "
            f"{spread(published.mean, published.std)})"
        )
    more = f" and {len(worse) - len(names)} more" if len(worse) > len(names) else ""
    return " The worse ones: " + ", ".join(names) + more + "."


def _ours(tables: Mapping[tuple[str, str], Sequence[TableRow]]) -> list[str]:
    sentences = []
    for (metric, kernel), rows in tables.items():
        for method in OUR_METHODS:
            verdicts = [(row, verdict) for row in rows if (verdict := row.against_best(method)) is not None]
            if not verdicts:
                continue
            counts = Counter(verdict for _, verdict in verdicts)
            worse = [f"{row.dataset} at {row.batch_size}" for row, verdict in verdicts if verdict is Verdict.WORSE]
            sentence = (
                f"- {TITLES[metric]}, {kernel} kernel, `{method}`: better than the best published figure by more than "
                f"one of its standard deviations in {counts[Verdict.BETTER]} of {len(verdicts)} rows, within one in "
                f"{counts[Verdict.WITHIN]}, worse in {counts[Verdict.WORSE]}"
            )
            sentences.append(sentence + (f" ({', '.join(worse)})." if worse else "."))
        sentences += _reached(rows, TITLES[metric], kernel)
    if not sentences:
        return []
    return ["**Ours against the paper.** The best of four published figures is a high bar:", "", *sentences, ""]


def _reached(rows: Sequence[TableRow], title: str, kernel: str) -> list[str]:
    """At the smallest batch: where any method of this library is at or below the best published mean."""
    smallest = [row for row in rows if row.batch_size == min(row.batch_size for row in rows)]
    known = [(row, best.mean) for row in smallest if (best := row.best_published) is not None and row.values]
    reached = []
    for row, mean in known:
        method = min(row.values, key=lambda name: row.values[name])
        if row.values[method] <= mean:
            reached.append(f"{row.dataset} ({method} {number(row.values[method])} against {number(mean)})")
    if not reached:
        return []
    return [
        f"- {title}, {kernel} kernel, batch {smallest[0].batch_size}: the best of all methods as run here, the "
        "paper's and ours, each with the settings that its NLML chose, is at or below the best published mean in "
        f"{len(reached)} of {len(known)} tables: {', '.join(reached)}."
    ]


def _batch_sizes(selected: Mapping[Place, Selected], metrics: Sequence[str], kernels: Sequence[str]) -> list[str]:
    """The paper's claim: no degradation of its methods with smaller batches."""
    if "nlml" not in metrics:
        return []
    body = []
    for kernel in kernels:
        sizes = published_batch_sizes(kernel)
        rows = {(row.dataset, row.batch_size): row for row in table_rows(selected, "nlml", kernel)}
        datasets = sorted({dataset for dataset, _ in rows})
        for method in METHODS:
            for source in ("published", "here"):
                changes, ends = [], set()
                for dataset in datasets:
                    found = {size: _figure(rows.get((dataset, size)), method, source) for size in sizes}
                    known = [(size, value) for size, value in found.items() if value is not None]
                    if len(known) > 1:
                        changes.append(known[0][1] - known[-1][1])
                        ends.add(f"{known[-1][0]} to {known[0][0]}")
                if changes:
                    rises = sum(change > NOTICEABLE for change in changes)
                    falls = sum(change < -NOTICEABLE for change in changes)
                    figures = [str(len(changes)), str(rises), str(falls), number(statistics.median(changes))]
                    batch = ", ".join(sorted(ends))
                    body.append([f"{kernel}, {batch}", method, bold(source, source == "here"), *figures])
    header = ["kernel, batch", "method", "", "tables", "NLML rises", "NLML falls", "median change"]
    return [
        "**Small batches.** The paper claims that its methods do not degrade as batches shrink. Change of the NLML "
        "from the largest to the smallest of its batch sizes that a method has a figure for; a change counts from "
        f"{NOTICEABLE} nats per row. (A smaller batch also means more steps in as many epochs.)",
        "",
        *table(header, body, words=3),
        "",
    ]


def _figure(row: TableRow | None, method: str, source: str) -> float | None:
    if row is None:
        return None
    if source == "here":
        return row.values.get(method)
    return row.published[method].mean if method in row.published else None


def _cautions(selected: Mapping[Place, Selected], kernels: Sequence[str], rows: Sequence[Row]) -> list[str]:
    chosen = [
        (place, run)
        for place, choice in selected.items()
        if place.kernel in kernels
        for runs in choice.runs.values()
        for run in runs
    ]
    if not chosen:
        return []
    lines = ["**To be careful about.**", "", *_rates_at_edge(selected, kernels, rows)]
    gains = defaultdict(list)
    for place, run in chosen:
        trained, optimal = metric_value(run, "nlml"), run.get("nlml_optimal_noise")
        if place.method in PAPER_METHODS and optimal is not None and trained is not None:
            gains[place.method].append(trained - optimal)
    if gains:
        medians = ", ".join(
            f"{method} {number(statistics.median(gains[method]))}" for method in PAPER_METHODS if method in gains
        )
        lines.append(
            f"- The noise that the paper's methods learn is not the best one for their features: at its optimum their "
            f"NLML would be lower by (median) {medians} nats per row. Ours have it by construction."
        )
    rounding = [abs(run["nlml"] - run["nlml_float64"]) for _, run in chosen if _has(run, "nlml", "nlml_float64")]
    if rounding:
        lines.append(
            f"- Taking the NLML in float32 instead of float64 would move a figure by up to {max(rounding):.2g}."
        )
    diverged = sum(bool(run.get("diverged")) for _, run in chosen)
    failed = sum(len(choice.failed_splits) for place, choice in selected.items() if place.kernel in kernels)
    lines.append(
        f"- Of the {len(chosen)} runs that count {diverged} diverged at some step and were set back to their best "
        f"state; {failed} splits have no setting with a finite NLML."
    )
    return [*lines, ""]


def _rates_at_edge(selected: Mapping[Place, Selected], kernels: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """A best learning rate at the edge of the grid says that the grid may be too narrow."""
    tried: dict[tuple[Place, int, int, str], set[float]] = defaultdict(set)
    for row in rows:
        if row["method"] in PAPER_METHODS and row["kernel"] in KERNELS:
            place = Place(row["kernel"], row["batch_size"], row["dataset"], row["method"])
            # Rates of different optimizers are different grids.
            others = describe_settings(settings_without_rate(row))
            tried[place, row["split"], row["epochs"], others].add(row["settings"]["learning_rate"])
    edges: Counter[str] = Counter()
    rates: set[float] = set()
    for place, choice in selected.items():
        if place.kernel not in kernels or place.method not in PAPER_METHODS:
            continue
        for split, runs in choice.runs.items():
            grid = tried[place, split, choice.epochs, describe_settings(settings_without_rate(runs[0]))]
            rate = runs[0]["settings"]["learning_rate"]
            if len(grid) > 1:
                rates |= grid
                edges["lowest" if rate == min(grid) else "highest" if rate == max(grid) else "inside"] += 1
    total = sum(edges.values())
    if not total:
        return []
    return [
        f"- Learning rates tried for the paper's methods: {', '.join(f'{rate:g}' for rate in sorted(rates))}. "
        f"The best one is the lowest of its grid in {edges['lowest']} and the highest in "
        f"{edges['highest']} of {total} searches: the paper does not give its grid, and a wider one might do "
        "better there."
    ]


def _has(run: Row, *names: str) -> bool:
    return all(run.get(name) is not None for name in names)


def _distinct(rows: Sequence[Row], name: str) -> str:
    return ", ".join(sorted({str(row[name]) for row in rows if row.get(name)})) or "unknown"


def _dates(rows: Sequence[Row]) -> str:
    dates = sorted({str(row["date"]) for row in rows if row.get("date")})
    if not dates:
        return "date unknown"
    return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
