"""``docs/results-cells.md``: every cell that was run, the peers, the pieces of the default, the cost of a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .cells import AUTO, KERNELS, OUR_METHODS, PAPER_METHODS
from .complexity import complexity_section
from .contenders import order_tables
from .datasets import PAPER_DATASETS
from .markdown import MISSING, number, spread, table
from .page import HEADER
from .peer_tables import peer_section
from .published import PUBLISHED_METRICS, find_published, load_published
from .selection import (
    Place,
    Row,
    Selected,
    Verdict,
    compare,
    describe_settings,
    select,
    settings_without_rate,
    unique_rows,
)


def render_appendix(rows: Sequence[Row], *, complexity: Sequence[dict[str, Any]] = (), results: Path) -> str:
    """The Markdown of the appendix; the same rows in any order give the same text.

    Args:
        rows: Lines of ``cells.jsonl``.
        complexity: Lines of ``complexity.jsonl``.
        results: The directory of results, for the stored predictions.
    """
    lines = [HEADER, "", "# Results, cell by cell", "", "The page that reads them: [results](results.md).", ""]
    lines += [*_paper(select(rows)), *_ours(rows), *peer_section(rows, results), *_pieces(rows)]
    return "\n".join(lines + complexity_section(complexity))


def _paper(selected: Mapping[Place, Selected]) -> list[str]:
    found = [choice for place, choice in selected.items() if place.method in PAPER_METHODS]
    printed = {Place(*key[1:]) for key in load_published()}
    missing = len(printed - set(selected))
    lines = [
        "## The paper's methods",
        "",
        "By the paper's protocol: for each split the learning rate with the lowest training NLML, then mean ± sample "
        f"standard deviation over splits. {Verdict.WITHIN.value} within two published standard deviations (at least "
        f"0.001, to three decimals), {Verdict.BETTER.value} better, {Verdict.WORSE.value} worse. ‡ an upper bound: "
        "SVGP with the Gaussian kernel has no exact NLML. *failed*: no run with a finite NLML. Rate: the best one of "
        f"split 0 and, in brackets, how many were tried there. Not yet run: {missing} of {len(printed)} places "
        "(`paper/published.csv` has their figures).",
        "",
    ]
    header = ["kernel", "batch", "table", "method", "NLML published", "NLML here", "RMSE published", "RMSE here"]
    return [*lines, *table([*header, "splits", "rate"], map(_paper_line, found), words=4), ""] if found else lines


def _paper_line(choice: Selected) -> list[str]:
    cells = []
    for metric in PUBLISHED_METRICS:
        average, published = choice.average(metric), find_published(metric, *choice.place)
        text = "*failed*" if average is None else spread(*average)
        if average is not None and published is not None:
            text += f" {compare(average.mean, published).value}"
        if metric == "nlml" and choice.place[0] == "gaussian" and choice.place.method == "svgp":
            text += "‡"
        cells += [MISSING if published is None else spread(*published), text]
    return [*map(str, choice.place), *cells, str(len(choice.runs)), _rate(choice)]


def _rate(choice: Selected) -> str:
    best = choice.runs.get(0)
    return MISSING if best is None else f"{best['settings']['learning_rate']:g} ({len(choice.rates)})"


def _ours(rows: Sequence[Row]) -> list[str]:
    mine = [row for row in rows if row["method"] in OUR_METHODS]
    body = []
    for settings in {
        describe_settings(found): found for found in map(settings_without_rate, unique_rows(mine))
    }.values():
        for place, choice in select(mine, settings).items():
            averages = [choice.average(metric) for metric in PUBLISHED_METRICS]
            cells = ["*failed*" if average is None else spread(*average) for average in averages]
            words = describe_settings(settings)
            body.append([*map(str, place), words, *cells, str(len(choice.runs)), _rate(choice)])
    if not body:
        return []
    body.sort(key=lambda line: (KERNELS.index(line[0]), int(line[1]), line[2:5]))
    header = ["kernel", "batch", "table", "method", "settings", "NLML", "RMSE", "splits", "rate"]
    return [
        "## Ours",
        "",
        "100 epochs; `protocol paper` as above, otherwise standardised targets and cosine decay. `minimax-stable` is "
        "`Minimax`; `lagged-input-noise` has noise that depends on the input, a richer model. Settings and rates of "
        "Lagged with Adam come from trials on split 0 of five tables in which test RMSE was looked at.",
        "",
        *table(header, body, words=5),
        "",
    ]


def _pieces(rows: Sequence[Row]) -> list[str]:
    """RMSE and NLPD of the default and of the default with one piece changed; empty if none was changed."""
    found: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in unique_rows(rows):
        if row["method"] == AUTO and row["split"] == 0 and row["dataset"] in PAPER_DATASETS:
            found[describe_settings(row["settings"])].setdefault(row["dataset"], row)
    datasets = order_tables(dataset for settings, by_table in found.items() if settings for dataset in by_table)
    if not datasets:
        return []
    body = []
    for settings, by_table in sorted(found.items()):
        body.append([settings or "the default", *(_pair(by_table.get(name), "nlpd") for name in datasets)])
        if not settings and any("gaussian_nlpd" in row for row in by_table.values()):
            body.append(["the same, as Gaussian", *(_pair(by_table.get(n), "gaussian_nlpd") for n in datasets)])
    return [
        "## Pieces of the default",
        "",
        "Test RMSE / NLPD on split 0, one seed, the default with one setting changed at a time. The names are those of "
        '`finitegp.automatic.AutoSettings`. "As Gaussian": the same means and deviations without Student\'s t.',
        "",
        *table(["changed", *datasets], body),
        "",
    ]


def _pair(row: Row | None, density: str) -> str:
    return MISSING if row is None else f"{number(row['rmse'], 4)} / {number(row.get(density, row['nlpd']))}"
