"""The page and the figure of :mod:`benchmarks.honesty`: claimed against held coverage over all tables and methods."""

from __future__ import annotations

import math
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
    "classics": "Seven small tables of R, statsmodels and scikit-learn",
    "outside": "Outside of what was seen",
}
SMALL_UCI20 = ("boston", "concrete", "energy", "wine-red", "yacht")
LEVELS = ("0.5", "0.9", "0.99")


#: Published log densities per row, in the target's units: MC dropout on the same splits, NGBoost on random ones.
PUBLISHED = {
    "boston": (-2.40, -2.43),
    "concrete": (-2.94, -3.04),
    "energy": (-1.21, -0.60),
    "kin8nm": (1.14, 0.49),
    "naval": (4.45, 5.34),
    "power": (-2.81, -2.79),
    "protein": (-2.87, -2.81),
    "wine-red": (-0.93, -0.91),
    "yacht": (-1.25, -0.20),
}

#: For each kind and task, the cells of each method by their split.
Tasks = Mapping[tuple[str, str], Mapping[str, Mapping[int, Row]]]


def by_task(rows: Iterable[Row]) -> Tasks:
    """The cells, sorted."""
    found: dict[tuple[str, str], dict[str, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        name = f"finitegp, {row['effort']}" if row["method"] == "finitegp" else row["method"]
        found[row["kind"], row["task"]][name][int(row["split"])] = row
    return found


def mean_of(cells: Iterable[Row]) -> Row:
    """Means over splits."""
    cells = list(cells)
    names = ("nlpd", "crps", "rmse", "mean_squared_deviation", "processor_seconds")
    found: Row = {name: float(np.mean([cell[name] for cell in cells])) for name in names}
    return found | {level: float(np.mean([cell["coverage"][level] for cell in cells])) for level in LEVELS}


def summary(tasks: Tasks, kind: str, ours: str) -> list[str]:
    """One line per method, on the tasks and splits that it shares with ours."""
    lines = [
        "| method | tables | 50 % holds | 90 % holds | 99 % holds | mean \\|90 % - 0.9\\| | mean z² (median) | "
        "NLPD, CRPS, RMSE of ours lower on | NLPD ours / its (mean) |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    methods = sorted({name for (each, _), found in tasks.items() if each == kind for name in found})
    for method in [ours, *(name for name in methods if name != ours)]:
        pairs = []
        for (each, _), found in tasks.items():
            shared = found.get(ours, {}).keys() & found.get(method, {}).keys() if each == kind else ()
            if shared:
                pairs.append(tuple(mean_of(found[name][split] for split in shared) for name in (ours, method)))
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


def small(tasks: Tasks) -> Tasks:
    """The small real tables of all kinds, as one."""
    chosen = [key for key in tasks if key[0] in ("uci", "classics") or (key[0] == "uci20" and key[1] in SMALL_UCI20)]
    return {("small", " ".join(key)): tasks[key] for key in chosen}


def published(tasks: Tasks, ours: str) -> list[str]:
    """Log densities of the nine standard tables beside published ones."""
    lines = [
        "Log density per row in the target's own units, with the standard error over splits, beside the published ones "
        "of MC dropout (Gal and Ghahramani, the same splits) and NGBoost (Duan and others, other random splits):",
        "",
        "| table | splits | finitegp | MC dropout | NGBoost |",
        "|---|--:|--:|--:|--:|",
    ]
    for table, others in PUBLISHED.items():
        cells = [row for row in tasks.get(("uci20", table), {}).get(ours, {}).values() if "unit" in row]
        if not cells:
            continue
        values = [-row["nlpd"] - math.log(row["unit"]) for row in cells]
        error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        ours_first = f"**{np.mean(values):.2f}**" if np.mean(values) > max(others) else f"{np.mean(values):.2f}"
        lines.append(f"| {table} | {len(cells)} | {ours_first} ± {error:.2f} | {others[0]:.2f} | {others[1]:.2f} |")
    return [*lines, ""] if len(lines) > 4 else []


def families(tasks: Tasks, ours: str) -> list[str]:
    """Coverage of each family of made tables with at least 20 rows: means over sizes, and over seeds before."""
    found: dict[str, list[Row]] = defaultdict(list)
    for (kind, task), methods in tasks.items():
        cells = list(methods.get(ours, {}).values())
        if kind == "made" and cells and cells[0]["rows"] >= 20:
            found[task.rsplit(" ", 1)[0]].append(mean_of(cells))
    lines = ["By family, from 20 rows on:", "", "| family | sizes | 50 % | 90 % | 99 % |", "|---|--:|--:|--:|--:|"]
    for family, rows in found.items():
        held = " | ".join(f"{np.mean([row[level] for row in rows]):.3f}" for level in LEVELS)
        lines.append(f"| {family} | {len(rows)} | {held} |")
    return [*lines, ""]


def conformal(tasks: Tasks, kind: str, ours: str) -> list[str]:
    """What conformal intervals hold, on average over tables."""
    held = []
    for (each, _), found in tasks.items():
        cells = [row["conformal"] for row in found.get(ours, {}).values() if row.get("conformal")]
        if each == kind and cells:
            held.append([np.mean([cell[level] for cell in cells]) for level in ("0.5", "0.9")])
    if not held:
        return []
    half, most = np.mean(held, axis=0)
    gap = np.mean([abs(row[1] - 0.9) for row in held])
    return [
        f'`method="conformal"`: 50 % intervals hold {half:.3f}, 90 % intervals {most:.3f}, '
        f"means over {len(held)} tables (mean \\|90 % - 0.9\\| {gap:.3f}).",
        "",
    ]


def details(tasks: Tasks, kind: str, ours: str) -> list[str]:
    """Every table by our default."""
    lines = [
        "| table | rows x columns | splits | 50 % | 90 % | 99 % | z² | NLPD | CRPS | RMSE | seconds |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for (each, task), found in tasks.items():
        if each == kind and ours in found:
            cells = found[ours]
            row, first = mean_of(cells.values()), next(iter(cells.values()))
            held = " | ".join(f"{row[level]:.3f}" for level in LEVELS)
            scores = " | ".join(f"{row[name]:.3f}" for name in ("mean_squared_deviation", "nlpd", "crps", "rmse"))
            size = f"{first['rows']} x {first['columns']} | {len(cells)}"
            lines.append(f"| {task} | {size} | {held} | {scores} | {row['processor_seconds']:.1f} |")
    return lines


def draw(tasks: Tasks, ours: str) -> None:
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
            held = [
                mean_of(found[method].values())["0.9"]
                for (each, _), found in tasks.items()
                if each == kind and method in found
            ]
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
        "In wine, wine-red, concrete, power and protein some test rows are training rows, target included. Since lines "
        "of commit 179a26c the default [knows such rows](default.md#rows-that-come-again), as do kernels of GPR that "
        "fall off at once; NLPD of these tables is dominated by them and says little, CRPS says more, and the NLPD of "
        "rows that are new is on that page.",
        "",
        "![Share of test rows inside of 90 % intervals, each dot one table](figures/honesty.png)",
        "",
    ]
    together = small(tasks)
    lines += [
        "## All small tables together",
        "",
        f"The {len(together)} small tables of the three collections below, with up to ten splits; boston, concrete, "
        "energy and yacht of the standard ones are housing, concrete, energy and yacht of the others, split otherwise.",
        "",
        *summary(together, "small", ours),
        "",
        *conformal(together, "small", ours),
    ]
    for kind, title in TITLES.items():
        if any(each == kind for each, _ in tasks):
            more = published(tasks, ours) if kind == "uci20" else families(tasks, ours) if kind == "made" else []
            own = [row for (each, _), found in tasks.items() if each == kind for row in found.get(ours, {}).values()]
            commits = f"Our lines are of commit {', '.join(sorted({row['commit'] for row in own}))}."
            lines += [
                f"## {title}",
                "",
                commits,
                "",
                *summary(tasks, kind, ours),
                "",
                *conformal(tasks, kind, ours),
                *more,
                *details(tasks, kind, ours),
                "",
            ]
    PAGE.write_text("\n".join(lines))
    draw(tasks, ours)
