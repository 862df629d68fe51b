"""The figure beside the page of results: NLML against batch size; needs the extra ``plot``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finitegp.errors import DataError

from .cells import PAPER_METHODS
from .contenders import order_tables
from .page import figure_name, kernels_run
from .published import find_published, load_published
from .selection import Place, Selected

_COLOURS = dict(zip(PAPER_METHODS, ("tab:blue", "tab:orange", "tab:green", "tab:red"), strict=True))
_NO_MATPLOTLIB = (
    "Figures need matplotlib: install it with `pip install 'finitegp[plot]'`, or leave them out with --no-figures."
)


def draw_figures(selected: Mapping[Place, Selected], directory: Path) -> list[Path]:
    """Draw the figure of each kernel that has cells; returns the files.

    Raises:
        DataError: If matplotlib is not installed.
    """
    theirs = {place: choice for place, choice in selected.items() if place.method in PAPER_METHODS}
    kernels = kernels_run(theirs)
    if not kernels:
        return []
    pyplot = _pyplot()
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for kernel in kernels:
        figure = _draw(pyplot, {p: choice for p, choice in theirs.items() if p.kernel == kernel}, kernel)
        path = directory / figure_name(kernel)
        # Without the software's version the same results give the same file.
        figure.savefig(path, dpi=110, metadata={"Software": None})
        pyplot.close(figure)
        written.append(path)
    return written


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise DataError(_NO_MATPLOTLIB) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _draw(pyplot: Any, selected: Mapping[Place, Selected], kernel: str) -> Any:
    names = order_tables(place.dataset for place in selected)
    columns = min(len(names), 2 if len(names) == 4 else 3)
    lines = -(-len(names) // columns)
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(max(3.7 * columns, 7.4), 2.7 * lines + 0.8), layout="constrained", squeeze=False
    )
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, names, strict=False):
        _draw_table(axis, {place: c for place, c in selected.items() if place.dataset == name}, kernel, name)
    figure.supxlabel("batch size", fontsize=10)
    figure.supylabel("NLML per row (lower is better)", fontsize=10)
    handles = [pyplot.Line2D([], [], color=colour, linewidth=2) for colour in _COLOURS.values()]
    handles.append(pyplot.Line2D([], [], color="0.3", linestyle="--", marker="o", markerfacecolor="white"))
    handles.append(pyplot.Line2D([], [], color="0.3", marker="o"))
    labels = [*_COLOURS, "published", "ours"]
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=10, frameon=False)
    return figure


def _draw_table(axis: Any, selected: Mapping[Place, Selected], kernel: str, dataset: str) -> None:
    printed = sorted({key.batch_size for key in load_published() if key.kernel == kernel})
    sizes = sorted({*printed, *(place.batch_size for place in selected)})
    for index, (method, colour) in enumerate(_COLOURS.items()):
        published, ours = [], []
        for size in sizes:
            cell = find_published("nlml", kernel, size, dataset, method)
            choice = selected.get(Place(kernel, size, dataset, method))
            average = None if choice is None else choice.average("nlml")
            if cell is not None:
                published.append((size, cell.mean, cell.std))
            if average is not None:
                ours.append((size, average.mean, average.std or 0.0))
        # Side by side: methods beside each other at each batch size, of each method the published one on the left.
        left = 2.0 ** (0.16 * (index - 1.5) - 0.03)
        style = {"color": colour, "capsize": 2, "elinewidth": 1}
        _bars(axis, published, left, linestyle="--", linewidth=1, markerfacecolor="white", alpha=0.75, **style)
        _bars(axis, ours, left * 2.0**0.06, linewidth=1.7, **style)
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.minorticks_off()
    axis.grid(alpha=0.25)
    axis.set_title(dataset, fontsize=10)
    axis.tick_params(labelsize=9)


def _bars(axis: Any, points: Sequence[tuple[int, float, float]], shift: float, **style: Any) -> None:
    if points:
        sizes, means, deviations = zip(*points, strict=True)
        axis.errorbar([size * shift for size in sizes], means, yerr=deviations, marker="o", markersize=4, **style)
