"""The charts of a report, each from its part of the contents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from .charts import Axis, Chart
from .contents import Calibration, Curve, HeldOutPoints, ImportanceTable, Outliers, ResidualPanel
from .markup import figure, key, table
from .numbers import cut, distinct_cuts, log_ticks, percent, shown

_TABLE_ROWS = 20
# Three of these side by side have letters of the same size as two of the usual ones.
_SMALL: dict[str, Any] = {"width": 340, "height": 270}


def predictions_figure(points: HeldOutPoints, target_name: str) -> str:
    """Predicted against actual, with 90 % intervals."""
    half_width = points.deviations * points.std
    low, high = points.mean - half_width, points.mean + half_width
    missed = (points.targets < low) | (points.targets > high)
    both = np.concatenate([points.targets, points.mean])
    horizontal = Axis.around(both, f"actual {target_name}")
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
    chart.line([horizontal.low, horizontal.high], [horizontal.low, horizontal.high], "reference")
    for chosen, style in ((~missed, ""), (missed, "second")):
        chart.points(points.targets[chosen], points.mean[chosen], f"small {style}" if len(missed) > 200 else style)
    sample = (
        f"A random sample of {len(points.targets)} of {shown(points.total)} held-out rows."
        if len(points.targets) < points.total
        else f"All {points.total} held-out rows."
    )
    caption = (
        f"{sample} Vertical bars are 90 % intervals of a new observation. "
        f"{key('blue', 'interval holds the actual value')} &nbsp; {key('orange', 'interval misses it')} "
        f"({percent(float(missed.mean()), 0)}; 10 % expected) &nbsp; {key('dash', 'perfect prediction')}"
    )
    order = np.argsort(points.targets)[np.linspace(0, len(points.targets) - 1, _TABLE_ROWS).astype(int)]
    order = order[: len(points.targets)] if len(points.targets) < _TABLE_ROWS else order
    rows = [[shown(float(v), 4) for v in (points.targets[i], points.mean[i], low[i], high[i])] for i in order]
    fallback = table(
        ["actual", "predicted", "5 %", "95 %"], rows, "Some of these rows, from low to high", text_columns=()
    )
    return figure(chart.render("predictions"), caption, fallback)


def pit_figure(found: Calibration) -> str:
    """The PIT histogram with the band of a calibrated model."""
    low, high = found.bin_band
    top = max(float(found.bin_counts.max()), high) * 1.08
    rows = int(found.bin_counts.sum())
    chart = Chart(
        Axis(0.0, 1.0, "probability of a lower value"),
        Axis(0.0, top, "held-out rows"),
        "PIT histogram",
        f"{len(found.bin_counts)} bins of the probability integral transform; flat if calibrated. Counts from "
        f"{int(found.bin_counts.min())} to {int(found.bin_counts.max())}, expected {low:.0f} to {high:.0f}.",
        **_SMALL,
    )
    chart.steps(found.bin_edges.tolist(), found.bin_counts.tolist())
    chart.band([0.0, 1.0], [low, low], [high, high])
    chart.line([0.0, 1.0], [rows / len(found.bin_counts)] * 2, "reference")
    caption = (
        "Where actual values fall in their predicted distributions (PIT): flat if calibrated, a hump if error bars are "
        f"too wide, a bowl if too narrow. {key('band', '95 % of calibrated models')}"
    )
    edges = found.bin_edges
    body = [
        [f"{shown(float(a), 2)} to {shown(float(b), 2)}", shown(int(count))]
        for a, b, count in zip(edges[:-1], edges[1:], found.bin_counts, strict=True)
    ]
    return figure(chart.render("pit"), caption, table(["PIT", "rows"], body, "Counts"), title="PIT histogram")


def coverage_figure(found: Calibration) -> str:
    """Observed against nominal coverage of central intervals."""
    nominal = np.concatenate([[0.0], found.nominal, [1.0]])
    chart = Chart(
        Axis(0.0, 1.0, "nominal coverage", (0, 0.25, 0.5, 0.75, 1), ("0", "25 %", "50 %", "75 %", "100 %")),
        Axis(0.0, 1.0, "observed coverage", (0, 0.25, 0.5, 0.75, 1), ("0", "25 %", "50 %", "75 %", "100 %")),
        "Coverage of intervals",
        "Share of held-out values inside central intervals: "
        + ", ".join(
            f"{percent(float(n), 0)} interval {percent(float(o))}"
            for n, o in zip(found.nominal, found.observed, strict=True)
            if round(float(n), 2) in (0.5, 0.9, 0.95)
        ),
        vertical_grid=True,
        **_SMALL,
    )
    chart.band(nominal.tolist(), [0.0, *found.nominal_low.tolist(), 1.0], [0.0, *found.nominal_high.tolist(), 1.0])
    chart.line([0.0, 1.0], [0.0, 1.0], "reference")
    chart.line(nominal, [0.0, *found.observed.tolist(), 1.0])
    chart.points(found.nominal, found.observed)
    caption = (
        "How many actual values central intervals hold. Above the diagonal: too wide; below: too narrow. "
        f"{key('band', '95 % of calibrated models')}"
    )
    body = [
        [percent(float(n), 0), percent(float(o)), f"{percent(float(a))} to {percent(float(b))}"]
        for n, o, a, b in zip(found.nominal, found.observed, found.nominal_low, found.nominal_high, strict=True)
    ]
    fallback = table(["nominal", "observed", "if calibrated"], body, "Coverage of central intervals")
    return figure(chart.render("coverage"), caption, fallback, title="Coverage of intervals")


def spread_figure(found: Calibration, target_name: str) -> str:
    """Observed error against predicted standard deviation, by groups of rows."""
    everything = np.concatenate([found.predicted_spread, found.observed_spread, found.spread_low, found.spread_high])
    low, high = float(everything.min()), float(everything.max())
    # Spreads of different size crowd in a corner of linear axes.
    logarithmic = low > 0.0 and high > 4.0 * low
    transform = np.log10 if logarithmic else np.asarray
    limits, across = (
        Axis.around(transform(everything), ""),
        Axis.around(transform(found.predicted_spread), "", margin=0.1),
    )
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
    chart.line([across.low, across.high], [across.low, across.high], "reference")
    places = transform(found.predicted_spread)
    chart.vertical_bars(places, transform(found.spread_low), transform(found.spread_high), "strong")
    chart.points(places, transform(found.observed_spread), "large")
    groups = f"Rows in {len(found.spread_rows)} groups" if len(found.spread_rows) > 1 else "Rows in one group"
    unit = escape(cut(target_name, 40)) + (", on logarithmic scales" if logarithmic else "")
    caption = (
        f"{groups} from sure to unsure, in units of {unit}: dots on the diagonal mean that wide error bars are where "
        "errors are large. Thin bars: 95 % of calibrated models."
    )
    body = [
        [shown(float(p)), shown(float(o)), f"{shown(float(a))} to {shown(float(b))}", shown(int(n))]
        for p, o, a, b, n in zip(
            found.predicted_spread,
            found.observed_spread,
            found.spread_low,
            found.spread_high,
            found.spread_rows,
            strict=True,
        )
    ]
    fallback = table(["predicted", "observed", "if calibrated", "rows"], body, "Groups of rows", text_columns=())
    return figure(chart.render("spread"), caption, fallback, title="Error against predicted spread")


def importance_figure(found: ImportanceTable) -> str:
    """Bars of permutation importance, the largest on top."""
    entries = found.entries[:15]
    positions = [float(len(entries) - number) for number in range(len(entries))]
    increases, spreads = (np.array([getattr(e, name) for e in entries]) for name in ("increase", "spread"))
    vertical = Axis(0.4, len(entries) + 0.6, "", positions, distinct_cuts([entry.name for entry in entries], 22))
    limits = Axis.around(
        np.concatenate([increases - spreads, increases + spreads]), "increase of the RMSE", include=(0.0,)
    )
    chart = Chart(
        limits if limits.low < -0.05 * limits.high else Axis(0.0, limits.high, limits.label),
        vertical,
        "Permutation importance",
        "Increase of the held-out RMSE when one input is shuffled. Largest: "
        + ", ".join(f"{entry.name} {shown(entry.increase)}" for entry in entries[:3]),
        height=52 + max(24 * len(entries), 40),
        horizontal_grid=False,
        vertical_grid=True,
    )
    chart.bars(positions, increases.tolist())
    chart.horizontal_bars(positions, increases - spreads, increases + spreads, "strong")
    left = len(found.entries) - len(entries)
    rows = (
        f"{shown(found.rows)} of {shown(found.rows_of)}" if found.rows < found.rows_of else f"all {shown(found.rows)}"
    )
    caption = (
        f"How much the RMSE grows from {shown(found.base_rmse)} when an input is shuffled between {rows} held-out "
        f"rows: mean of {found.repeats} shuffles, thin bars one standard deviation."
    )
    if found.inputs_of > len(found.entries):
        others = found.inputs_of - len(found.entries)
        caption += f" A quick look left out the {others} least important of {found.inputs_of} inputs."
    if left > 0:
        caption += f" The table has {left} more."
    body = [[entry.name, shown(entry.increase), shown(entry.spread, 2)] for entry in found.entries]
    fallback = table(["input", "increase of the RMSE", "spread"], body, "Permutation importance")
    return figure(chart.render("importance"), caption, fallback)


def residual_figure(panel: ResidualPanel, number: int) -> str:
    """Standardized residuals against one input, with local means."""
    thinned = f"{len(panel.values)} of {shown(panel.total)} rows" if len(panel.values) < panel.total else "all rows"
    return _residuals(panel, f"residuals{number}", escape(f"Dots: {thinned}."), title=panel.name, size=_SMALL)


def level_figure(panel: ResidualPanel) -> str:
    """Standardized residuals against the predicted mean."""
    thinned = (
        f"a random sample of {len(panel.values)} of {shown(panel.total)}"
        if len(panel.values) < panel.total
        else f"all {panel.total}"
    )
    caption = (
        "Actual minus predicted, in units of the predicted standard deviation, against the prediction "
        f"({thinned} rows). {key('orange', 'local means with two standard errors')} &nbsp; "
        f"{key('band', 'nine of ten residuals should lie here')}"
    )
    return _residuals(panel, "level", caption, title="", size={"height": 372})


def _residuals(panel: ResidualPanel, name: str, caption: str, *, title: str, size: dict[str, Any]) -> str:
    label = "" if title else panel.name  # the heading says it already
    if panel.categories is None:
        horizontal = Axis.around(panel.values, label)
    else:
        count = len(panel.categories)
        room = max(4, int(36 / count))
        labels = tuple(cut(category, room) for category in panel.categories)
        horizontal = Axis(-0.5, count - 0.5, label, tuple(range(count)), labels)
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
    low, high = panel.local_mean - 2 * panel.local_error, panel.local_mean + 2 * panel.local_error
    chart.vertical_bars(panel.centers, low, high, "mean")
    if panel.categories is None:
        chart.line(panel.centers, panel.local_mean, "second")
    chart.points(panel.centers, panel.local_mean, "large second")
    names = panel.categories or [shown(float(center), 4) for center in panel.centers]
    body = [
        [name, shown(float(mean), 2), shown(float(error), 2)]
        for name, mean, error in zip(names, panel.local_mean, panel.local_error, strict=True)
    ]
    fallback = table([cut(panel.name, 30), "mean residual", "standard error"], body, "Local means over all rows")
    return figure(chart.render(name), caption, fallback, title=title)


def outliers_figure(found: Outliers) -> str:
    """Sorted standardized residuals against the quantiles of the predictive distribution."""
    both = np.concatenate([found.expected, found.standardized])
    horizontal = Axis.around(found.expected, f"expected of {found.distribution}")
    vertical = Axis.around(both, "standardized residual")
    chart = Chart(
        horizontal,
        vertical,
        "Quantile plot",
        f"Sorted standardized residuals of {found.rows} rows; {found.beyond_three} lie beyond three.",
        height=300,
        vertical_grid=True,
    )
    chart.line([horizontal.low, horizontal.high], [horizontal.low, horizontal.high], "reference")
    far = np.abs(found.standardized) > 3.0
    chart.points(found.expected[~far], found.standardized[~far])
    chart.points(found.expected[far], found.standardized[far], "second")
    caption = (
        f"Residuals over their predicted standard deviations, sorted, {shown(found.rows)} rows (the middle of many is "
        f"thinned). On the dashed line: {found.distribution}. {key('orange', 'beyond three')}: {found.beyond_three} "
        f"rows, {shown(found.expected_beyond_three, 2)} expected."
    )
    chosen = np.unique(np.linspace(0, len(found.expected) - 1, _TABLE_ROWS).astype(int))
    body = [[shown(float(found.expected[i]), 3), shown(float(found.standardized[i]), 3)] for i in chosen]
    fallback = table(["expected", "standardized residual"], body, "Quantiles", text_columns=())
    return figure(chart.render("outliers-chart"), caption, fallback)


def curve_figure(panel: str, curves: Sequence[Curve], number: int) -> str:
    """Lines of one measurement by epoch."""
    values = [value for curve in curves for value in curve.values]
    epochs = [epoch for curve in curves for epoch in curve.epochs]
    chart = Chart(
        Axis(min(epochs), max(epochs), "epoch"),
        Axis.around(values, panel),
        f"Training curve: {panel}",
        "; ".join(f"{c.name} from {shown(c.values[0])} to {shown(c.values[-1])}" for c in curves),
        height=260,
    )
    for curve in curves:
        chart.line(curve.epochs, curve.values, "many" if len(curves) > 1 else "")
    body = [[c.name, shown(c.values[0]), shown(min(c.values)), shown(c.values[-1])] for c in curves]
    names = ", ".join(curve.name for curve in curves) if len(curves) <= 4 else f"{len(curves)} runs"
    fallback = table(["run", "first", "lowest", "last"], body, panel)
    return figure(chart.render(f"curve{number}"), escape(f"By epoch: {names}."), fallback, title=panel)
