"""The charts and tables of a report, each from its part of the contents; the template has their captions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formatting import cut, distinct_cuts, percent, shown
from ..metrics import Scores
from .charts import Axis, Chart, log_ticks
from .contents import Calibration, ColumnFacts, Curve, HeldOutPoints, ImportanceTable, Outliers, ResidualPanel

_TABLE_ROWS = 20
_MOST_COLUMNS = 100
# Three of these side by side have letters of the same size as two of the usual ones.
_SMALL: dict[str, Any] = {"width": 340, "height": 270}
# A cell: text, or a value and its standard error.
Cell = str | tuple[str, str]


@dataclass(frozen=True)
class Table:
    """A table of the page.

    Attributes:
        caption: Above it.
        headings: Of the columns.
        rows: Their cells.
        text_columns: Numbers of the columns that are aligned left.
        own_row: Whether the first row stands out.
    """

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    text_columns: Sequence[int] = (0,)
    own_row: bool = False


@dataclass(frozen=True, eq=False)
class Figure:
    """A chart of the page, and the same numbers as a table.

    Attributes:
        name: Unique on the page.
        chart: What is drawn.
        table: For readers who cannot see it.
        facts: Values for the caption.
    """

    name: str
    chart: Chart
    table: Table
    facts: dict[str, object] = field(default_factory=dict)


def predictions_figure(points: HeldOutPoints, target_name: str) -> Figure:
    """Predicted against actual, with 90 % intervals."""
    low, high = points.low, points.high
    missed = (points.targets < low) | (points.targets > high)
    horizontal = Axis.around(np.concatenate([points.targets, points.mean]), f"actual {target_name}")
    chart = Chart(
        horizontal,
        Axis(horizontal.low, horizontal.high, f"predicted {target_name}"),
        f"Predicted against actual {target_name}",
        f"{len(points.targets)} held-out rows with 90 % intervals; {int(missed.sum())} intervals miss the actual value",
        height=372,
        vertical_grid=True,
    )
    for chosen, style in ((~missed, ""), (missed, "second")):
        chart.vertical_bars(points.targets[chosen], low[chosen], high[chosen], style)
    _diagonal(chart)
    for chosen, style in ((~missed, ""), (missed, "second")):
        chart.points(points.targets[chosen], points.mean[chosen], f"small {style}" if len(missed) > 200 else style)
    order = np.argsort(points.targets)[_spaced(len(points.targets))]
    rows = _numbers(4, *(values[order] for values in (points.targets, points.mean, low, high)))
    table = Table("Some of these rows, from low to high", ["actual", "predicted", "5 %", "95 %"], rows, ())
    return Figure("predictions", chart, table, {"missed": float(missed.mean())})


def pit_figure(found: Calibration) -> Figure:
    """The PIT histogram with the band of a calibrated model."""
    low, high = found.bin_band
    counts, edges = found.bin_counts, found.bin_edges
    chart = Chart(
        Axis(0.0, 1.0, "probability of a lower value"),
        Axis(0.0, max(float(counts.max()), high) * 1.08, "held-out rows"),
        "PIT histogram",
        f"{len(counts)} bins of the probability integral transform; flat if calibrated. Counts from "
        f"{int(counts.min())} to {int(counts.max())}, expected {low:.0f} to {high:.0f}.",
        **_SMALL,
    )
    chart.steps(edges.tolist(), counts.tolist())
    chart.band([0.0, 1.0], [low, low], [high, high])
    chart.line([0.0, 1.0], [int(counts.sum()) / len(counts)] * 2, "reference")
    bins = _ranges(edges[:-1], edges[1:], lambda edge: shown(edge, 2))
    rows = [[each, shown(int(count))] for each, count in zip(bins, counts, strict=True)]
    return Figure("pit", chart, Table("Counts", ["PIT", "rows"], rows))


def coverage_figure(found: Calibration) -> Figure:
    """Observed against nominal coverage of central intervals."""
    marks = (0, 0.25, 0.5, 0.75, 1), ("0", "25 %", "50 %", "75 %", "100 %")
    pairs = list(zip(found.nominal.tolist(), found.observed.tolist(), strict=True))
    chart = Chart(
        Axis(0.0, 1.0, "nominal coverage", *marks),
        Axis(0.0, 1.0, "observed coverage", *marks),
        "Coverage of intervals",
        "Share of held-out values inside central intervals: "
        + ", ".join(f"{percent(n, 0)} interval {percent(o)}" for n, o in pairs if round(n, 2) in (0.5, 0.9, 0.95)),
        vertical_grid=True,
        **_SMALL,
    )
    nominal, observed, low, high = (
        [0.0, *each.tolist(), 1.0] for each in (found.nominal, found.observed, found.nominal_low, found.nominal_high)
    )
    chart.band(nominal, low, high)
    _diagonal(chart)
    chart.line(nominal, observed)
    chart.points(found.nominal, found.observed)
    bands = _ranges(found.nominal_low, found.nominal_high, percent)
    rows = [[percent(n, 0), percent(o), band] for (n, o), band in zip(pairs, bands, strict=True)]
    return Figure(
        "coverage", chart, Table("Coverage of central intervals", ["nominal", "observed", "if calibrated"], rows)
    )


def spread_figure(found: Calibration) -> Figure:
    """Observed error against predicted standard deviation, by groups of rows."""
    everything = np.concatenate([found.predicted_spread, found.observed_spread, found.spread_low, found.spread_high])
    low, high = float(everything.min()), float(everything.max())
    # Spreads of different size crowd in a corner of linear axes.
    logarithmic = low > 0.0 and high > 4.0 * low
    transform = np.log10 if logarithmic else np.asarray
    limits = Axis.around(transform(everything), "")
    across = Axis.around(transform(found.predicted_spread), "", margin=0.1)
    marks: dict[str, Any] = {}
    if logarithmic:
        values = log_ticks(10.0 ** min(limits.low, across.low), 10.0 ** max(limits.high, across.high))
        marks = {"tick_values": [math.log10(value) for value in values], "tick_names": [shown(v, 2) for v in values]}
    chart = Chart(
        Axis(across.low, across.high, "predicted standard deviation", **marks),
        Axis(limits.low, limits.high, "observed RMSE", **marks),
        "Error against predicted spread",
        f"{len(found.spread_rows)} groups of held-out rows sorted by their predicted standard deviation; on the "
        "diagonal if error bars are right for both sure and unsure predictions.",
        vertical_grid=True,
        **_SMALL,
    )
    _diagonal(chart)
    places = transform(found.predicted_spread)
    chart.vertical_bars(places, transform(found.spread_low), transform(found.spread_high), "strong")
    chart.points(places, transform(found.observed_spread), "large")
    spreads = _numbers(3, found.predicted_spread, found.observed_spread)
    bands = _ranges(found.spread_low, found.spread_high, shown)
    rows = [
        [*spread, band, shown(int(count))]
        for spread, band, count in zip(spreads, bands, found.spread_rows, strict=True)
    ]
    table = Table("Groups of rows", ["predicted", "observed", "if calibrated", "rows"], rows, ())
    return Figure("spread", chart, table, {"logarithmic": logarithmic, "groups": len(found.spread_rows)})


def importance_figure(found: ImportanceTable) -> Figure:
    """Bars of permutation importance, the largest on top."""
    entries = found.entries[:15]
    positions = [float(len(entries) - number) for number in range(len(entries))]
    increases, spreads = (np.array([getattr(e, name) for e in entries]) for name in ("increase", "spread"))
    low, high = increases - spreads, increases + spreads
    limits = Axis.around(np.concatenate([low, high]), "increase of the RMSE", include=(0.0,))
    chart = Chart(
        limits if limits.low < -0.05 * limits.high else Axis(0.0, limits.high, limits.label),
        Axis(0.4, len(entries) + 0.6, "", positions, distinct_cuts([entry.name for entry in entries], 22)),
        "Permutation importance",
        "Increase of the held-out RMSE when one input is shuffled. Largest: "
        + ", ".join(f"{entry.name} {shown(entry.increase)}" for entry in entries[:3]),
        height=52 + max(24 * len(entries), 40),
        horizontal_grid=False,
        vertical_grid=True,
    )
    chart.bars(positions, increases.tolist())
    chart.horizontal_bars(positions, low, high, "strong")
    rows = [[entry.name, shown(entry.increase), shown(entry.spread, 2)] for entry in found.entries]
    table = Table("Permutation importance", ["input", "increase of the RMSE", "spread"], rows)
    return Figure("importance", chart, table, {"drawn": len(entries)})


def residual_figure(panel: ResidualPanel, name: str, *, label: str = "", height: int | None = None) -> Figure:
    """Standardized residuals against one input, or the predicted mean, with local means; small without a height."""
    size: dict[str, Any] = _SMALL if height is None else {"height": height}
    if panel.categories is None:
        horizontal = Axis.around(panel.values, label)
    else:
        count = len(panel.categories)
        labels = [cut(category, max(4, int(36 / count))) for category in panel.categories]
        horizontal = Axis(-0.5, count - 0.5, label, range(count), labels)
    extent = max(3.2, float(np.abs(panel.residuals).max()) * 1.05)
    chart = Chart(
        horizontal,
        Axis(-extent, extent, "standardized residual"),
        f"Residuals by {panel.name}",
        f"Local means between {shown(float(panel.local_mean.min()), 2)} and {shown(float(panel.local_mean.max()), 2)} "
        "standard deviations.",
        **size,
    )
    span = [horizontal.low, horizontal.high]
    chart.band(span, [-panel.deviations] * 2, [panel.deviations] * 2)
    chart.line(span, [0.0, 0.0], "reference")
    chart.points(panel.values, panel.residuals, "small")
    chart.vertical_bars(
        panel.centers, panel.local_mean - 2.0 * panel.local_error, panel.local_mean + 2.0 * panel.local_error, "mean"
    )
    if panel.categories is None:
        chart.line(panel.centers, panel.local_mean, "second")
    chart.points(panel.centers, panel.local_mean, "large second")
    names = panel.categories or [shown(float(center), 4) for center in panel.centers]
    means = _numbers(2, panel.local_mean, panel.local_error)
    rows = [[name, *mean] for name, mean in zip(names, means, strict=True)]
    return Figure(
        name,
        chart,
        Table("Local means over all rows", [cut(panel.name, 30), "mean residual", "standard error"], rows),
        {"rows": len(panel.values), "total": panel.total},
    )


def outliers_figure(found: Outliers) -> Figure:
    """Sorted standardized residuals against the quantiles of the predictive distribution."""
    chart = Chart(
        Axis.around(found.expected, f"expected of {found.distribution}"),
        Axis.around(np.concatenate([found.expected, found.standardized]), "standardized residual"),
        "Quantile plot",
        f"Sorted standardized residuals of {found.rows} rows; {found.beyond_three} lie beyond three.",
        height=300,
        vertical_grid=True,
    )
    _diagonal(chart)
    far = np.abs(found.standardized) > 3.0
    chart.points(found.expected[~far], found.standardized[~far])
    chart.points(found.expected[far], found.standardized[far], "second")
    chosen = _spaced(len(found.expected))
    rows = _numbers(3, found.expected[chosen], found.standardized[chosen])
    return Figure("outliers-chart", chart, Table("Quantiles", ["expected", "standardized residual"], rows, ()))


def outliers_table(found: Outliers) -> Table:
    """The least expected rows."""
    rows = [
        [
            str(row),
            *(shown(float(value), digits) for value, digits in ((target, 4), (mean, 4), (std, 3))),
            f"{shown(float((target - mean) / std), 2)} σ",
            *(cut(value, 24) for value in values),
        ]
        for row, target, mean, std, values in zip(
            found.row_numbers, found.targets, found.mean, found.std, found.values, strict=True
        )
    ]
    headings = ["row", "actual", "expected", "deviation", "off by", *distinct_cuts(found.value_names, 24)]
    return Table(f"The {len(rows)} least expected rows", headings, rows, ())


def curve_figure(panel: str, curves: Sequence[Curve], number: int) -> Figure:
    """Lines of one measurement by epoch."""
    epochs = [epoch for curve in curves for epoch in curve.epochs]
    chart = Chart(
        Axis(min(epochs), max(epochs), "epoch"),
        Axis.around([value for curve in curves for value in curve.values], panel),
        f"Training curve: {panel}",
        "; ".join(f"{c.name} from {shown(c.values[0])} to {shown(c.values[-1])}" for c in curves),
        height=260,
    )
    for curve in curves:
        chart.line(curve.epochs, curve.values, "many" if len(curves) > 1 else "")
    rows = [[c.name, shown(c.values[0]), shown(min(c.values)), shown(c.values[-1])] for c in curves]
    names = ", ".join(curve.name for curve in curves) if len(curves) <= 4 else f"{len(curves)} runs"
    table = Table(panel, ["run", "first", "lowest", "last"], rows)
    return Figure(f"curve{number}", chart, table, {"panel": panel, "names": names})


def columns_table(columns: Sequence[ColumnFacts]) -> Table:
    """A table of the columns and their encodings, the most relevant first."""
    ordered = sorted(columns, key=lambda each: -1.0 if each.relevance is None else each.relevance, reverse=True)
    body = [
        [
            cut(each.name, 40) or "(no name)",
            each.kind,
            each.encoding,
            "–" if each.relevance is None else percent(each.relevance),
            shown(each.gaps),
            shown(each.distinct) if each.distinct else "–",
            cut(each.note, 120),
        ]
        for each in ordered[:_MOST_COLUMNS]
    ]
    more = f", the {_MOST_COLUMNS} most relevant" if len(ordered) > _MOST_COLUMNS else ""
    headings = ["column", "kind", "encoding", "relevance", "gaps", "distinct", "note"]
    return Table(f"{shown(len(columns))} columns of the table{more}", headings, body, (0, 1, 2, 6))


def scores_table(scores: Sequence[Scores], rows: str, target_name: str) -> Table:
    """The model and its baselines side by side."""
    levels = [f"{percent(level, 0)} holds" for level in scores[0].coverage]
    body: list[list[Cell]] = [
        [
            each.name,
            (shown(each.rmse, 4), shown(each.rmse_error, 2)),
            (shown(each.mae, 4), shown(each.mae_error, 2)),
            "–" if each.r_squared is None else f"{round(each.r_squared, 3) + 0.0:.3f}".replace("-", "−"),
            (shown(each.nlpd, 4), shown(each.nlpd_error, 2)),
            shown(each.crps, 4),
            *(percent(share) for share in each.coverage.values()),
        ]
        for each in scores
    ]
    caption = f"{rows}; errors in units of {cut(target_name, 40)}"
    return Table(caption, ["model", "RMSE", "MAE", "R²", "NLPD", "CRPS", *levels], body, own_row=True)


def _diagonal(chart: Chart) -> None:
    """The dashed line on which both axes have the same value, as long as the x axis."""
    ends = [chart.horizontal.low, chart.horizontal.high]
    chart.line(ends, ends, "reference")


def _spaced(rows: int) -> npt.NDArray[np.int64]:
    """Row numbers from the first to the last, evenly, at most 20."""
    return np.unique(np.linspace(0, rows - 1, _TABLE_ROWS).astype(int))


def _numbers(digits: int, *columns: Iterable[float]) -> list[list[str]]:
    return [[shown(float(value), digits) for value in row] for row in zip(*columns, strict=True)]


def _ranges(low: Iterable[float], high: Iterable[float], text: Callable[[float], str]) -> list[str]:
    return [f"{text(float(a))} to {text(float(b))}" for a, b in zip(low, high, strict=True)]
