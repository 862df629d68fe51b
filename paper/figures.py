"""The figures beside the tables; needs the extra ``plot``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finitegp.errors import DataError

from .cells import OUR_METHODS, PAPER_METHODS
from .comparison import METHODS, TableRow, table_rows
from .datasets import PAPER_DATASETS
from .published import PUBLISHED_METRICS
from .selection import Contender, Place, Row, Selected, select_contenders
from .tables import OURS, TITLES

_COLUMNS = 3
_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "black", "tab:purple")
_COSTS = {"seconds": "seconds to fit", "memory": "memory added by the fit, MB"}
_NO_MATPLOTLIB = (
    "Figures need matplotlib: install it with `pip install 'finitegp[plot]'`, or leave them out with --format markdown."
)


def figure_names(metrics: Sequence[str], kernels: Sequence[str]) -> dict[str, str]:
    """All figures that there can be, by file name, with their captions."""
    found = {}
    for kernel in kernels:
        for metric in metrics:
            if metric in PUBLISHED_METRICS:
                caption = f"{TITLES[metric]} against batch size, {kernel} kernel: solid here, dashed published"
                found[f"batch-size-{metric}-{kernel}.png"] = caption
    for cost, words in _COSTS.items():
        found[f"accuracy-{cost}.png"] = f"Accuracy against {words}, split 0: down and left is better"
    return found


def draw_figures(
    rows: Sequence[Row],
    selected: Mapping[Place, Selected],
    directory: Path,
    *,
    metrics: Sequence[str],
    kernels: Sequence[str],
) -> list[Path]:
    """Draw all figures that the results give something for; returns the files.

    Raises:
        DataError: If matplotlib is not installed.
    """
    pyplot = _pyplot()
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name in figure_names(metrics, kernels):
        kind, _, rest = name.removesuffix(".png").partition("-")
        if kind == "accuracy":
            figure = _draw_accuracy(pyplot, rows, rest)
        else:
            _, metric, kernel = rest.split("-")
            figure = _draw_batch_sizes(pyplot, table_rows(selected, metric, kernel), metric)
        if figure is not None:
            # Without the software's version the same results give the same file.
            figure.savefig(directory / name, dpi=110, metadata={"Software": None})
            pyplot.close(figure)
            written.append(directory / name)
    return written


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise DataError(_NO_MATPLOTLIB) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _panels(pyplot: Any, names: Sequence[str], rows_each: int = 1) -> tuple[Any, Any]:
    columns = min(_COLUMNS, len(names))
    lines = -(-len(names) // columns) * rows_each
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(3.6 * columns, 2.5 * lines + 0.9), layout="constrained", squeeze=False
    )
    return figure, axes


def _draw_batch_sizes(pyplot: Any, rows: Sequence[TableRow], metric: str) -> Any:
    here = {row.dataset for row in rows if row.values}
    names = [name for name in PAPER_DATASETS if name in here] + sorted(here - set(PAPER_DATASETS))
    if not names:
        return None
    figure, axes = _panels(pyplot, names)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, names, strict=False):
        found = [row for row in rows if row.dataset == name]
        for method, colour in zip(METHODS, _COLOURS, strict=True):
            published = [(row.batch_size, row.published[method].mean) for row in found if method in row.published]
            reached = [(row.batch_size, row.values[method]) for row in found if method in row.values]
            if published:
                axis.plot(*zip(*published, strict=True), color=colour, linestyle="--", linewidth=1, alpha=0.6)
            if reached:
                width = 2.2 if method in OUR_METHODS else 1.4
                axis.plot(*zip(*reached, strict=True), color=colour, marker="o", markersize=4, linewidth=width)
        sizes = sorted({row.batch_size for row in found})
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.set_title(name, fontsize=9)
        axis.tick_params(labelsize=8)
    figure.supxlabel("batch size", fontsize=9)
    figure.supylabel(TITLES[metric], fontsize=9)
    lines = [pyplot.Line2D([], [], color=colour, marker="o", markersize=4) for colour in _COLOURS]
    lines.append(pyplot.Line2D([], [], color="grey", linestyle="--"))
    figure.legend(lines, [*METHODS, "published"], loc="outside upper center", ncols=4, fontsize=8)
    return figure


def _draw_accuracy(pyplot: Any, rows: Sequence[Row], cost: str) -> Any:
    datasets = {row["dataset"] for row in rows if row["split"] == 0}
    ordered = [name for name in PAPER_DATASETS if name in datasets] + sorted(datasets - set(PAPER_DATASETS))
    contenders = {name: [c for c in select_contenders(rows, name) if _cost(c, cost) is not None] for name in ordered}
    names = [name for name in ordered if len(contenders[name]) > 1]
    if not names:
        return None
    styles = _styles(pyplot, [contender.method for name in names for contender in contenders[name]])
    figure, axes = _panels(pyplot, names, rows_each=2)
    for axis in axes.flat:
        axis.set_visible(False)
    columns = axes.shape[1]
    for index, name in enumerate(names):
        line, column = index // columns * 2, index % columns
        for axis, metric, title in (
            (axes[line, column], "rmse", "RMSE / best"),
            (axes[line + 1, column], "nlpd", "NLPD − best"),
        ):
            axis.set_visible(True)
            axis.set_title(f"{name}: {title}", fontsize=9)
            axis.set_xscale("log")
            if metric == "rmse":
                axis.set_yscale("log")
            else:
                # Linear up to a tenth of a nat, where differences are small; peers can be far above.
                axis.set_yscale("symlog", linthresh=0.1)
            _scatter(axis, contenders[name], metric, cost, styles)
            axis.set_ylim(bottom=0.95 if metric == "rmse" else -0.02)
            _plain_ticks(axis.xaxis)
            if metric == "rmse":
                _plain_ticks(axis.yaxis)
            axis.grid(alpha=0.3)
            axis.tick_params(labelsize=8, which="both")
    figure.supxlabel(_COSTS[cost], fontsize=9)
    handles = [
        pyplot.Line2D([], [], color=colour, marker=marker, linestyle="", markersize=6)
        for colour, marker in styles.values()
    ]
    figure.legend(handles, list(styles), loc="outside upper center", ncols=6, fontsize=8)
    return figure


def _scatter(
    axis: Any,
    contenders: Sequence[Contender],
    metric: str,
    cost: str,
    styles: Mapping[str, tuple[Any, str]],
) -> None:
    found = [c for c in contenders if c.row.get(metric) is not None]
    if not found:
        return
    best = min(float(contender.row[metric]) for contender in found)
    for contender in found:
        colour, marker = styles[contender.method]
        size = 70 if contender.method in OURS else 30
        # The two kernels of a method share colour and marker; the Gaussian one is hollow.
        face = "none" if contender.row["kernel"] == "gaussian" else colour
        value = float(contender.row[metric])
        height = value / best if metric == "rmse" else value - best
        axis.scatter(_cost(contender, cost), height, s=size, marker=marker, edgecolors=colour, facecolors=face)


def _plain_ticks(axis: Any) -> None:
    """1, 2, 5, 10 ... as plain numbers on a logarithmic axis."""
    from matplotlib import ticker

    axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def _styles(pyplot: Any, methods: Sequence[str]) -> dict[str, tuple[Any, str]]:
    order = [*OURS, *PAPER_METHODS]
    peers = sorted(set(methods) - set(order))
    colours = {**dict(zip(METHODS, _COLOURS, strict=True)), "auto": "tab:pink"}
    shades, markers = pyplot.get_cmap("tab10").colors, "ovD^PX<"
    found: dict[str, tuple[Any, str]] = {}
    for method in order:
        if method in methods:
            found[method] = (colours[method], "*" if method in OURS else "s")
    for index, method in enumerate(peers):
        found[method] = (shades[index % len(shades)], markers[index % len(markers)])
    return found


def _cost(contender: Contender, cost: str) -> float | None:
    row = contender.row
    if cost == "seconds":
        return row.get("seconds")
    peak, before = row.get("peak_memory_bytes"), row.get("memory_before_bytes")
    # A fit that stays below what loading took has no peak of its own: it is drawn at one megabyte.
    return None if peak is None or before is None else max((peak - before) / 1e6, 1.0)
