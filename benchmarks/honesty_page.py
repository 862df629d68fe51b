"""The page and the figure of :mod:`benchmarks.honesty`: claimed against held coverage over all tables and methods."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]
PAGE = Path(__file__).parent.parent / "docs" / "honesty.md"
FIGURE = PAGE.parent / "figures" / "honesty.png"
TITLES = {
    "made": "Made tables of known kinds",
    "uci": "Small tables of the UCI repository",
    "uci20": "The nine standard tables with their usual splits",
    "outside": "Outside of what was seen",
}
LEVELS = ("0.5", "0.9", "0.99")


def by_task(rows: Iterable[Row]) -> dict[tuple[str, str], dict[str, Row]]:
    """Means over splits: for each task, the means of each method."""
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        name = f"finitegp, {row['effort']}" if row["method"] == "finitegp" else row["method"]
        groups[row["kind"], row["task"], name].append(row)
    found: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for (kind, task, method), cells in groups.items():
        mean = {
            name: float(np.mean([cell[name] for cell in cells]))
            for name in ("nlpd", "crps", "rmse", "mean_squared_deviation", "processor_seconds")
        }
        mean |= {level: float(np.mean([cell["coverage"][level] for cell in cells])) for level in LEVELS}
        splits = {int(cell["split"]) for cell in cells}
        found[kind, task][method] = mean | {"splits": splits, "rows": cells[0]["rows"], "columns": cells[0]["columns"]}
    return found


def summary(tasks: Mapping[tuple[str, str], Mapping[str, Row]], kind: str, ours: str) -> list[str]:
    """One line per method, on the tasks and splits that it shares with ours."""
    lines = [
        "| method | tables | 50 % holds | 90 % holds | 99 % holds | mean \\|90 % - 0.9\\| | mean z² (median) | "
        "NLPD, CRPS, RMSE of ours lower on | NLPD ours / its (mean) |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    methods = sorted({name for (each, _), found in tasks.items() if each == kind for name in found})
    for method in [ours, *(name for name in methods if name != ours)]:
        pairs = [
            (found[ours], found[method])
            for (each, _), found in tasks.items()
            if each == kind and ours in found and method in found and found[ours]["splits"] == found[method]["splits"]
        ]
        if not pairs:
            continue
        held = [np.mean([row[level] for _, row in pairs]) for level in LEVELS]
        gap = np.mean([abs(row["0.9"] - 0.9) for _, row in pairs])
        squares = np.median([row["mean_squared_deviation"] for _, row in pairs])
        wins = [sum(mine[name] < row[name] for mine, row in pairs) for name in ("nlpd", "crps", "rmse")]
        both = [np.mean([row["nlpd"] for row in side]) for side in zip(*pairs, strict=True)]
        compared = "" if method == ours else f"{wins[0]}, {wins[1]}, {wins[2]}"
        density = f"{both[0]:.3f}" if method == ours else f"{both[0]:.3f} / {both[1]:.3f}"
        lines.append(
            f"| {method} | {len(pairs)} | {held[0]:.3f} | {held[1]:.3f} | {held[2]:.3f} | {gap:.3f} | {squares:.2f} | "
            f"{compared} | {density} |"
        )
    return lines


def details(tasks: Mapping[tuple[str, str], Mapping[str, Row]], kind: str, ours: str) -> list[str]:
    """Every table by our default."""
    lines = [
        "| table | rows x columns | splits | 50 % | 90 % | 99 % | z² | NLPD | CRPS | RMSE | seconds |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for (each, task), found in tasks.items():
        if each == kind and ours in found:
            row = found[ours]
            held = " | ".join(f"{row[level]:.3f}" for level in LEVELS)
            scores = " | ".join(f"{row[name]:.3f}" for name in ("mean_squared_deviation", "nlpd", "crps", "rmse"))
            size = f"{row['rows']} x {row['columns']} | {len(row['splits'])}"
            lines.append(f"| {task} | {size} | {held} | {scores} | {row['processor_seconds']:.1f} |")
    return lines


def draw(tasks: Mapping[tuple[str, str], Mapping[str, Row]], ours: str) -> None:
    """Claimed against held coverage: one dot per table and method."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    kinds = [kind for kind in TITLES if any(each == kind for each, _ in tasks)]
    figure, axes = plt.subplots(1, len(kinds), figsize=(3.4 * len(kinds), 4.2), sharey=True, squeeze=False)
    for axis, kind in zip(axes[0], kinds, strict=True):
        methods = sorted({name for (each, _), found in tasks.items() if each == kind for name in found})
        methods = [ours, *(name for name in methods if name != ours)]
        for place, method in enumerate(methods):
            held = [found[method]["0.9"] for (each, _), found in tasks.items() if each == kind and method in found]
            shift = np.random.default_rng(0).uniform(-0.22, 0.22, len(held))
            colour = "tab:orange" if method == ours else "tab:blue"
            axis.plot(place + shift, held, ".", color=colour, alpha=0.6, markersize=5)
            axis.plot([place - 0.3, place + 0.3], [np.mean(held)] * 2, color="black", linewidth=1.5)
        axis.axhline(0.9, color="grey", linewidth=1)
        axis.set_xticks(range(len(methods)), methods, rotation=60, ha="right", fontsize=8)
        axis.set_title(TITLES[kind], fontsize=9)
        axis.set_ylim(0.0, 1.02)
    axes[0][0].set_ylabel("share of test rows inside of 90 % intervals")
    figure.tight_layout()
    figure.savefig(FIGURE, dpi=110)


def write_page(cells: Mapping[str, Row]) -> None:
    """``docs/honesty.md`` and its figure from the stored lines."""
    tasks = by_task(cells.values())
    ours = "finitegp, medium"
    lines = [
        "# Do error bars hold what they claim?",
        "",
        "Written by `python -m benchmarks.honesty page` from `benchmarks/results/honesty.jsonl`; each line there has "
        "its settings, versions, processor and commit. NLPD, CRPS and RMSE are in units of the training targets' "
        "standard deviation, seconds are of the processor on a machine that others used as well. z² is the mean "
        "squared error in predicted standard deviations: one if these are right. Methods with `+t` have the same "
        "treatment as ours: a model of their residuals' scale and Student's t, from rows that they had left out. "
        "Methods are compared on the tables and splits that both have.",
        "",
        "![Share of test rows inside of 90 % intervals, each dot one table](figures/honesty.png)",
        "",
    ]
    for kind, title in TITLES.items():
        if any(each == kind for each, _ in tasks):
            lines += [f"## {title}", "", *summary(tasks, kind, ours), "", *details(tasks, kind, ours), ""]
    PAGE.write_text("\n".join(lines))
    draw(tasks, ours)
