"""``docs/results.md``: the paper's tables with what was found here, win counts, the peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .cells import OUR_METHODS, PAPER_METHODS
from .comparison import METHODS, TableRow, Verdict, count_wins, table_rows
from .datasets import PAPER_DATASETS
from .markdown import MISSING, bold, number, shared, spread, table
from .published import PAPER_EPOCHS, PUBLISHED_METRICS
from .selection import Contender, Place, Row, Selected, select_contenders, select_variants

TITLES = {
    "nlml": "NLML",
    "rmse": "test RMSE",
    "nlpd": "test NLPD",
    "crps": "test CRPS",
}
#: Ours, also where it has no kernel: ``auto`` is what ``fit`` does when it is told nothing.
OURS = (*OUR_METHODS, "auto")


def paper_tables(selected: Mapping[Place, Selected], metrics: Sequence[str], kernels: Sequence[str]) -> list[str]:
    """Published, reproduced and ours for each metric and kernel."""
    lines = ["## The paper's tables", "", *_LEGEND, ""]
    for metric in metrics:
        for kernel in kernels:
            lines += _metric_table(table_rows(selected, metric, kernel), metric, kernel)
    return lines


_LEGEND = [
    "Two lines per table: **published** (mean ± standard deviation over five splits, 100 epochs) and **here**: for "
    "each split the setting with the lowest training NLML, then mean ± sample standard deviation over the splits that "
    "were run. In both lines the best figure is bold, equal figures together. Lower is better throughout.",
    "",
    f"Marks: {Verdict.BETTER.value} better by more than one published standard deviation, {Verdict.WITHIN.value} "
    f"within one, {Verdict.WORSE.value} worse by more than one. The paper's methods are marked against their own "
    "published figure, ours (`lagged`, `lagged-input-noise`) against the best published figure of the row. "
    f"{MISSING} has not been run; † is not the paper's protocol (another optimizer or further settings); "
    "‡ is an upper bound on the NLML (the negative evidence lower bound per row: SVGP with the Gaussian kernel has no "
    "exact one); *failed* means that no setting gave a finite NLML. A deviation printed as 0.000 is taken as 0.001.",
]


def _metric_table(rows: Sequence[TableRow], metric: str, kernel: str) -> list[str]:
    in_paper = metric in PUBLISHED_METRICS
    lines = [f"### {TITLES[metric]}, {kernel} kernel", ""]
    if not in_paper:
        lines += ["Not in the paper, so there is nothing published to compare with.", ""]
    for batch_size in sorted({row.batch_size for row in rows}):
        shown = [row for row in rows if row.batch_size == batch_size and (row.published or row.here)]
        if not shown:
            continue
        lines += [f"Batch size {batch_size}:", ""]
        header = ["table", "", *METHODS, "splits", "epochs"]
        body: list[list[str]] = []
        for row in shown:
            if row.published:
                body.append(_published_line(row))
            body.append(_here_line(row))
        lines += [*table(header, body, words=2), ""]
    if not any(row.published or row.here for row in rows):
        lines += ["Nothing has been run yet.", ""]
    return lines


def _published_line(row: TableRow) -> list[str]:
    best = row.best_published
    cells = [
        bold(spread(*cell), best is not None and cell.mean == best.mean) if cell is not None else MISSING
        for cell in (row.published.get(method) for method in PAPER_METHODS)
    ]
    return [row.dataset, "published", *cells, *[""] * len(OUR_METHODS), "5", str(PAPER_EPOCHS)]


def _here_line(row: TableRow) -> list[str]:
    if not row.here and row.dataset == "slice":
        return [row.dataset, "here", *["not run"] * len(METHODS), MISSING, MISSING]
    winners = row.winners()
    cells = [_here_cell(row, method, best=method in winners and len(row.values) > 1) for method in METHODS]
    splits = shared({method: str(len(found.runs)) for method, found in row.here.items()})
    epochs = shared({method: describe_epochs(found.epochs) for method, found in row.here.items()})
    return [row.dataset, "here", *cells, splits, epochs]


def describe_epochs(epochs: int) -> str:
    """The number, with the paper's where it is another.

    Example:
        >>> describe_epochs(100), describe_epochs(20)
        ('100', '20 of 100')
    """
    return str(epochs) if epochs >= PAPER_EPOCHS else f"{epochs} of {PAPER_EPOCHS}"


def _here_cell(row: TableRow, method: str, *, best: bool) -> str:
    selected = row.here.get(method)
    if selected is None:
        return MISSING
    average = selected.average(row.metric)
    if average is None:
        return "*failed*" if selected.failed_splits and not selected.runs else MISSING
    verdict = row.against_own(method) if method in PAPER_METHODS else row.against_best(method)
    marks = "" if verdict is None else f" {verdict.value}"
    if method in PAPER_METHODS and not selected.follows_paper:
        marks += "†"
    if row.metric == "nlml" and selected.is_bound:
        marks += "‡"
    return bold(spread(average.mean, average.std), best) + marks


def win_counts(selected: Mapping[Place, Selected], metrics: Sequence[str], kernels: Sequence[str]) -> list[str]:
    """How often each method is best, and how ours stand against the best published and the best reproduced."""
    published, here, against, reproduced = [], [], [], []
    for metric in metrics:
        for kernel in kernels:
            counts = count_wins(table_rows(selected, metric, kernel))
            name = f"{TITLES[metric]}, {kernel}"
            if counts.published_rows:
                wins = [str(counts.best_published.get(method, 0)) for method in PAPER_METHODS]
                published.append([name, str(counts.published_rows), *wins])
            if counts.rows:
                here.append([name, str(counts.rows), *(str(counts.best_here.get(method, 0)) for method in METHODS)])
            for method in OUR_METHODS:
                verdicts = counts.against_published[method]
                if verdicts:
                    figures = [str(verdicts.get(verdict, 0)) for verdict in Verdict]
                    against.append([name, method, str(sum(verdicts.values())), *figures])
                outcomes = counts.against_reproduced[method]
                if outcomes:
                    figures = [str(outcomes.get(outcome, 0)) for outcome in ("lower", "equal", "higher")]
                    reproduced.append([name, method, str(sum(outcomes.values())), *figures])
    lines = ["## Who is best how often", ""]
    if published:
        lines += ["Published, over all rows of the paper (equal figures count for each):", ""]
        lines += [*table(["", "rows", *PAPER_METHODS], published), ""]
    if here:
        lines += ["Here, over rows in which at least two methods were run:", ""]
        lines += [*table(["", "rows", *METHODS], here), ""]
    if against:
        lines += ["Ours against the best published figure of the row, by one published standard deviation:", ""]
        lines += [*table(["", "", "rows", "better", "within", "worse"], against, words=2), ""]
    if reproduced:
        lines += ["Ours against the best of the paper's methods as run here, to three decimals:", ""]
        lines += [*table(["", "", "rows", "lower", "equal", "higher"], reproduced, words=2), ""]
    return lines


def variants_section(rows: Sequence[Row], metrics: Sequence[str], kernels: Sequence[str]) -> list[str]:
    """The paper's methods with settings that are not its own; empty if there are none."""
    found = [(words, choice) for words, choice in select_variants(rows) if choice.place.kernel in kernels]
    if not found:
        return []
    body = []
    for words, choice in found:
        averages = [choice.average(metric) for metric in metrics]
        figures = [MISSING if average is None else spread(average.mean, average.std) for average in averages]
        place, extent = choice.place, [str(len(choice.runs)), describe_epochs(choice.epochs)]
        body.append([place.dataset, place.kernel, str(place.batch_size), place.method, words, *figures, *extent])
    header = ["table", "kernel", "batch", "method", "settings", *(TITLES[metric] for metric in metrics)]
    return [
        "## The paper's methods with other settings",
        "",
        "Not its protocol: another optimizer, or further settings. The learning rate is selected as above.",
        "",
        *table([*header, "splits", "epochs"], body, words=5),
        "",
    ]


def peers_section(rows: Sequence[Row], *, split: int = 0) -> list[str]:
    """All methods and peers, table by table; empty if no peer was run."""
    datasets = {row["dataset"] for row in rows if row["kernel"] is None and row["split"] == split}
    if not datasets:
        return []
    ordered = [name for name in PAPER_DATASETS if name in datasets] + sorted(datasets - set(PAPER_DATASETS))
    lines = [
        "## Beside the peers",
        "",
        f"Split {split}, test rows, raw units of the target. Ours are in italics. Methods with a kernel are shown with "
        "batch size 32 or the nearest that was run, with the setting of lowest training NLML; peers with their own "
        "defaults or searches. Bold: lowest RMSE, NLPD and CRPS, and coverage nearest to 90 %. A large standardised "
        "residual is a point that the method was sure of and wrong about. Seconds are to fit, one thread, roughly: "
        "cells ran side by side. Peak memory is that of the process; what the fit added to interpreter, libraries and "
        "data is in brackets, and includes libraries that a peer loads late. Where a predictive distribution is "
        "Student's t, the NLPD in brackets is that of a Gaussian with the same mean and standard deviation.",
        "",
    ]
    for dataset in ordered:
        contenders = select_contenders(rows, dataset, split=split)
        lines += [f"### {dataset}", ""]
        header = ["method", "RMSE", "NLPD", "CRPS", "90 % covers", "largest residual", "s", "peak MB (added)"]
        best = _best(contenders)
        lines += [*table(header, [_peer_line(contender, best) for contender in contenders]), ""]
    return lines


def coverage(row: Row, level: str = "0.9") -> float | None:
    """The share of test targets inside the interval; None where the method has no error bars."""
    found: Any = (row.get("coverage") or {}).get(level)
    return None if found is None else float(found)


def _best(contenders: Sequence[Contender]) -> dict[str, float]:
    found = {}
    for metric in ("rmse", "nlpd", "crps"):
        values = [value for c in contenders if (value := c.row.get(metric)) is not None]
        if values:
            found[metric] = round(min(values), 3)
    misses = [abs(share - 0.9) for c in contenders if (share := coverage(c.row)) is not None]
    if misses:
        found["coverage"] = round(min(misses), 3)
    return found


def _peer_line(contender: Contender, best: Mapping[str, float]) -> list[str]:
    row = contender.row
    name = f"*{contender.name}*" if contender.method in OURS else contender.name
    if row.get("diverged"):
        name += " (diverged)"
    cells = []
    for metric in ("rmse", "nlpd", "crps"):
        value = row.get(metric)
        cells.append(bold(number(value), value is not None and round(value, 3) == best[metric]))
        if metric == "nlpd" and row.get("gaussian_nlpd") is not None:
            cells[-1] += f" ({number(row['gaussian_nlpd'])})"
    share = coverage(row)
    if share is None:
        cells.append(MISSING)
    else:
        cells.append(bold(f"{100 * share:.1f} %", round(abs(share - 0.9), 3) == best["coverage"]))
    cells += [number(row.get("largest_standardized_residual"), 1), number(row.get("seconds"), 1), _memory(row)]
    return [name, *cells]


def _memory(row: Row) -> str:
    peak, before = row.get("peak_memory_bytes"), row.get("memory_before_bytes")
    if peak is None:
        return MISSING
    return f"{peak / 1e6:.0f}" if before is None else f"{peak / 1e6:.0f} ({(peak - before) / 1e6:.0f})"
