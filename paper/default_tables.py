"""The default fit: what each of its pieces contributes, and how it does on small tables."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from .datasets import PAPER_DATASETS
from .markdown import MISSING, bold, number, table
from .selection import Row, describe_settings, select_contenders, unique_rows

DEFAULT = "auto"
#: A setting that is a preset of its own, not the default with a piece changed.
PRESET = "effort"
SMALL_SPLITS = range(5)
FINAL_SPLITS = range(5, 10)
LEVELS = ("0.5", "0.9", "0.95")


def is_ablation(row: Row) -> bool:
    """Whether this is the default with a piece changed or left out."""
    return row["method"] == DEFAULT and bool(set(row["settings"]) - {PRESET})


def summary_section(rows: Sequence[Row], *, split: int = 0) -> list[str]:
    """The default beside the best other method of each table, and how its intervals hold; empty if it was not run."""
    body, shares = [], []
    for dataset in PAPER_DATASETS:
        contenders = select_contenders(rows, dataset, split=split)
        own = [c.row for c in contenders if c.method == DEFAULT and not c.row["settings"]]
        others = [c for c in contenders if c.method != DEFAULT]
        if not own or not others:
            continue
        row, cells = own[0], []
        for metric, digits in (("rmse", 4), ("nlpd", 3), ("crps", 4)):
            known = [c for c in others if c.row.get(metric) is not None]
            best = min(known, key=lambda c: float(c.row[metric]), default=None)
            value = float(row[metric])
            cells.append(bold(number(value, digits), best is None or value <= float(best.row[metric])))
            cells.append(MISSING if best is None else f"{number(best.row[metric], digits)} ({best.method})")
        share = [float(row["coverage"][level]) for level in LEVELS]
        shares.append(share)
        body.append([dataset, *cells, " / ".join(f"{100 * value:.0f}" for value in share)])
    if not body:
        return []
    means = [statistics.fmean(values) for values in zip(*shares, strict=True)]
    misses = [
        statistics.fmean(abs(v - float(level)) for v in values)
        for level, values in zip(LEVELS, zip(*shares, strict=True), strict=True)
    ]
    levels = ", ".join(f"{100 * float(level):.0f} %" for level in LEVELS)
    held, off = (", ".join(f"{100 * value:.1f}" for value in values) for values in (means, misses))
    return [
        "## The default beside the best of all others",
        "",
        f"Split {split}, test rows, raw units, one default and one seed. The best other is the best of all that the "
        "next section shows, another one for each table and score. Bold: the default is at least as good. Its "
        f"intervals of {levels} hold {held} % of test rows on average over tables; they miss by {off} points on "
        "average.",
        "",
        *table(["table", "RMSE", "best other", "NLPD", "best other", "CRPS", "best other", "% inside"], body),
        "",
    ]


def final_check_section(rows: Sequence[Row]) -> list[str]:
    """The default on splits that nothing was chosen on, beside the split it was developed on; empty if not run."""
    body = []
    for dataset in PAPER_DATASETS:
        found = [
            row
            for row in unique_rows(rows)
            if row["dataset"] == dataset and row["method"] == DEFAULT and not row["settings"]
        ]
        fresh = [row for row in found if row["split"] in FINAL_SPLITS]
        known = next((row for row in found if row["split"] == 0), None)
        if not fresh or known is None:
            continue
        cells = [", ".join(str(row["split"]) for row in sorted(fresh, key=lambda row: int(row["split"])))]
        for metric, digits in (("rmse", 4), ("nlpd", 3)):
            mean = statistics.fmean(float(row[metric]) for row in fresh)
            cells += [number(mean, digits), number(known[metric], digits)]
        inside = [statistics.fmean(float(row["coverage"][level]) for row in fresh) for level in LEVELS]
        body.append([dataset, *cells, " / ".join(f"{100 * share:.0f}" for share in inside)])
    if not body:
        return []
    return [
        "## The default on splits that it was not developed on",
        "",
        f"Splits {FINAL_SPLITS[0]} to {FINAL_SPLITS[-1]} were kept for a final check and run once, as far as they are "
        "listed here.",
        "",
        *table(["table", "splits", "RMSE", "split 0", "NLPD", "split 0", "% inside 50 / 90 / 95"], body),
        "",
    ]


def ablation_section(rows: Sequence[Row], *, split: int = 0) -> list[str]:
    """RMSE and NLPD of the default and of the default with one piece changed; empty if none was changed."""
    found: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in unique_rows(rows):
        if row["method"] == DEFAULT and row["split"] == split:
            found[describe_settings(row["settings"])].setdefault(row["dataset"], row)
    if len(found) < 2:
        return []
    with_changes = {dataset for settings, by_table in found.items() if settings for dataset in by_table}
    datasets = [name for name in PAPER_DATASETS if name in with_changes]
    body = []
    for settings in sorted(found, key=lambda words: (words != "", words)):
        by_table = found[settings]
        if any(dataset in by_table for dataset in datasets):
            body.append([settings or "the default", *(_pair(by_table.get(name)) for name in datasets)])
        if not settings and any("gaussian_nlpd" in row for row in by_table.values()):
            gaussian = {
                name: dict(row) | {"nlpd": row.get("gaussian_nlpd", row["nlpd"])} for name, row in by_table.items()
            }
            body.append(["the same, as Gaussian", *(_pair(gaussian.get(name)) for name in datasets)])
    return [
        "## What each piece of the default contributes",
        "",
        f"Test RMSE / NLPD on split {split}, one seed, the default with one setting changed at a time. The names are "
        'those of `finitegp.automatic.AutoSettings`. "As Gaussian": the same means and standard deviations without '
        "Student's t (`heavy_tails`).",
        "",
        *table(["changed", *datasets], body),
        "",
    ]


def small_tables_section(rows: Sequence[Row]) -> list[str]:
    """Means over five splits of the tables that are not the paper's; empty if the default was not run on any."""
    found: dict[str, dict[str, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in unique_rows(rows):
        if row["dataset"] not in PAPER_DATASETS and row["kernel"] is None and not is_ablation(row):
            name = describe_settings(row["settings"])
            method = f"{row['method']}, {name}" if name else row["method"]
            found[row["dataset"]][method].setdefault(row["split"], row)
    complete = {
        dataset: {
            method: [by_split[split] for split in SMALL_SPLITS]
            for method, by_split in methods.items()
            if all(split in by_split for split in SMALL_SPLITS)
        }
        for dataset, methods in found.items()
    }
    datasets = sorted(dataset for dataset, methods in complete.items() if DEFAULT in methods)
    if not datasets:
        return []
    methods = sorted({method for dataset in datasets for method in complete[dataset]}, key=lambda m: (m != DEFAULT, m))
    lines = [
        "## Small tables",
        "",
        f"Means over splits {SMALL_SPLITS[0]} to {SMALL_SPLITS[-1]}, test rows, raw units. Bold: lowest of the column.",
        "",
    ]
    for metric, title in (("nlpd", "NLPD"), ("rmse", "RMSE"), ("coverage", "share inside 90 % intervals")):
        means = {
            (method, dataset): statistics.fmean(_value(row, metric) for row in complete[dataset][method])
            for method in methods
            for dataset in datasets
            if method in complete[dataset]
        }
        body = []
        for method in methods:
            values = [means.get((method, dataset)) for dataset in datasets]
            cells = [
                bold(number(value), metric != "coverage" and value is not None and value == _lowest(means, dataset))
                for value, dataset in zip(values, datasets, strict=True)
            ]
            known = [value for value in values if value is not None]
            average = number(statistics.fmean(known)) if len(known) == len(datasets) else MISSING
            body.append([f"*{method}*" if method.startswith(DEFAULT) else method, *cells, average])
        lines += [f"### {title}", "", *table(["method", *datasets, "average"], body), ""]
    return lines


def _pair(row: Row | None) -> str:
    return MISSING if row is None else f"{number(row['rmse'], 4)} / {number(row['nlpd'])}"


def _value(row: Row, metric: str) -> float:
    found: Any = row["coverage"]["0.9"] if metric == "coverage" else row[metric]
    return float(found)


def _lowest(means: dict[tuple[str, str], float], dataset: str) -> float:
    return min(value for (_, name), value in means.items() if name == dataset)
