"""Which runs count, and how they compare with the published cells.

For each place in the paper's tables and each set of settings: on every split the run of full length with the lowest
training NLML, then mean and deviation over splits. Test rows choose nothing.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from .cells import KERNELS, Cell
from .protocol import EPOCHS, LEARNING_RATES, PAPER, SPLITS
from .published import Published, PublishedKey, load_published

Row = Mapping[str, Any]


class Place(NamedTuple):
    """Where a figure belongs in the tables."""

    kernel: str
    batch_size: int
    dataset: str
    method: str


class Average(NamedTuple):
    """Mean and sample standard deviation over splits; the deviation is None where there is one split."""

    mean: float
    std: float | None


@dataclass(frozen=True)
class Selected:
    """What counts of one method on one table, with one kernel, one batch size and one set of settings.

    Attributes:
        place: Where it belongs.
        runs: For each split its best run.
        failed_splits: Splits on which no run gave a finite NLML.
        rates: The learning rates that were tried on the first split.
    """

    place: Place
    runs: Mapping[int, Row]
    failed_splits: tuple[int, ...]
    rates: tuple[float, ...]

    @property
    def is_whole(self) -> bool:
        """Whether it has all splits and the whole search of the learning rate."""
        return {*self.runs, *self.failed_splits} >= set(SPLITS) and set(self.rates) >= set(LEARNING_RATES)

    def average(self, metric: str) -> Average | None:
        """Over the splits that have the figure; None if none has."""
        found = [value for row in self.runs.values() if (value := metric_value(row, metric)) is not None]
        if not found:
            return None
        return Average(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None)


class Verdict(Enum):
    """A figure against a published one; the value is the mark in the tables."""

    WITHIN = "≈"
    BETTER = "▲"
    WORSE = "▼"


def metric_value(row: Row, metric: str) -> float | None:
    """A figure of one run; None if it has none.

    The NLML is the one taken in float64. SVGP with the Gaussian kernel has only a bound on it, which is used instead.
    """
    name = metric
    if metric == "nlml":
        bound = row["method"] == "svgp" and row["kernel"] == "gaussian"
        name = "negative_elbo" if bound else "nlml_float64"
    value = row.get(name)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def unique_rows(rows: Iterable[Row]) -> list[Row]:
    """One row per cell, in an order that does not depend on when the cells were run."""
    found = {Cell.from_row(row).key: row for row in rows}
    return [found[key] for key in sorted(found)]


def select(rows: Iterable[Row], settings: Mapping[str, Any] = PAPER) -> dict[Place, Selected]:
    """What counts of the runs with these settings and any learning rate.

    Shorter runs do not count, nor seeds beyond the first: picking the luckiest would be a result of its own making.
    """
    places: dict[Place, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in unique_rows(rows):
        if row["epochs"] == EPOCHS and row["seed"] == 0 and settings_without_rate(row) == dict(settings):
            place = Place(row["kernel"], row["batch_size"], row["dataset"], row["method"])
            places[place][row["split"]].append(row)
    return {place: _select(place, splits) for place, splits in sorted(places.items(), key=_order)}


def _order(item: tuple[Place, Any]) -> tuple[int, Place]:
    return KERNELS.index(item[0].kernel), item[0]


def _select(place: Place, splits: Mapping[int, list[Row]]) -> Selected:
    runs, failed = {}, []
    for split, rows in sorted(splits.items()):
        known = [(value, row) for row in rows if (value := metric_value(row, "nlml")) is not None]
        if known:
            runs[split] = min(known, key=lambda pair: pair[0])[1]
        else:
            failed.append(split)
    rates = sorted(row["settings"]["learning_rate"] for row in splits.get(SPLITS[0], []))
    return Selected(place, runs, tuple(failed), tuple(rates))


def settings_without_rate(row: Row) -> dict[str, Any]:
    """What a run was told besides its learning rate."""
    return {name: value for name, value in row["settings"].items() if name != "learning_rate"}


def describe_settings(settings: Mapping[str, Any]) -> str:
    """Settings in words.

    Example:
        >>> describe_settings({"optimizer": "adam", "block": 20})
        'adam, block 20'
    """
    rest = sorted((name, value) for name, value in settings.items() if name != "optimizer")
    words = [str(settings["optimizer"])] if "optimizer" in settings else []
    return ", ".join(words + [f"{name.replace('_', ' ')} {value}" for name, value in rest])


def compare(value: float, published: Published) -> Verdict:
    """Within two published standard deviations, or better or worse by more; lower is better.

    Example:
        >>> compare(0.5, Published(1.0, 0.1)), compare(1.15, Published(1.0, 0.1))
        (<Verdict.BETTER: '▲'>, <Verdict.WITHIN: '≈'>)
    """
    # To the three decimals of the paper, so that what is printed as two deviations away is within them.
    if abs(round(value, 3) - published.mean) <= 2.0 * published.spread + 1e-9:
        return Verdict.WITHIN
    return Verdict.BETTER if value < published.mean else Verdict.WORSE


def judge(selected: Mapping[Place, Selected]) -> dict[PublishedKey, Verdict]:
    """The verdict on every published cell that was run; where no run gave a finite NLML it is worse."""
    found = {}
    for key, published in load_published().items():
        choice = selected.get(Place(key.kernel, key.batch_size, key.dataset, key.method))
        if choice is not None:
            average = choice.average(key.metric)
            found[key] = Verdict.WORSE if average is None else compare(average.mean, published)
    return found
