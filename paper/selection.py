"""Which runs count: the best setting of each method on each split by training NLML, then averages over splits.

This is the paper's rule. It never looks at test rows: the test RMSE that is reported is that of the setting with the
lowest NLML on the training rows.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .cells import OUR_METHODS, PAPER_METHODS, Cell

Row = Mapping[str, Any]
#: All for which lower is better.
METRICS = ("nlml", "rmse", "nlpd", "crps")
#: What the paper's methods are run with, besides the learning rate, when its protocol is followed.
PAPER_SETTINGS = {"optimizer": "adadelta"}


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
    num_splits: int


@dataclass(frozen=True)
class Selected:
    """What is shown for one method on one table, with one kernel and batch size.

    Attributes:
        place: Where it belongs.
        epochs: Of all its runs; runs of different lengths are never averaged.
        runs: For each split, the runs of its best setting, one per seed.
        failed_splits: Splits on which no setting gave a finite NLML.
        num_settings: The largest number of settings that a split had to choose from.
        follows_paper: Whether a paper's method was run with the paper's optimizer and nothing else changed.
    """

    place: Place
    epochs: int
    runs: Mapping[int, tuple[Row, ...]]
    failed_splits: tuple[int, ...]
    num_settings: int
    follows_paper: bool

    @property
    def is_bound(self) -> bool:
        """Whether its NLML is an upper bound: SVGP with the Gaussian kernel has nothing exact."""
        return self.place.method == "svgp" and self.place.kernel == "gaussian"

    def average(self, metric: str) -> Average | None:
        """Over the splits that have the figure; None if none has."""
        return average(split_mean for runs in self.runs.values() if (split_mean := _mean(runs, metric)) is not None)


def average(values: Iterable[float]) -> Average | None:
    """Mean and sample deviation; None of nothing.

    Example:
        >>> average([1.0, 3.0])
        Average(mean=2.0, std=1.4142135623730951, num_splits=2)
        >>> average([1.0]), average([])
        (Average(mean=1.0, std=None, num_splits=1), None)
    """
    found = list(values)
    if not found:
        return None
    return Average(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None, len(found))


def metric_value(row: Row, metric: str) -> float | None:
    """A figure of one run; None if it has none.

    The NLML is the one taken in float64. SVGP with the Gaussian kernel has only a bound on it, which is used instead.
    """
    names: tuple[str, ...] = (metric,)
    if metric == "nlml":
        bound = row.get("method") == "svgp" and row.get("kernel") == "gaussian"
        names = ("negative_elbo",) if bound else ("nlml_float64", "nlml")
    for name in names:
        value = row.get(name)
        if isinstance(value, (int, float)) and math.isfinite(value):
            return float(value)
    return None


def unique_rows(rows: Iterable[Row]) -> list[Row]:
    """One row per cell, in an order that does not depend on when the cells were run."""
    found = {Cell.from_row(row).key: row for row in rows}
    return [found[key] for key in sorted(found)]


def select(rows: Iterable[Row]) -> dict[Place, Selected]:
    """For each place in the tables the runs that count.

    Of the paper's methods the runs by its protocol count, others only where there are none. If there are runs of
    different lengths the longest count.
    """
    places: dict[Place, list[Row]] = defaultdict(list)
    for row in unique_rows(rows):
        if row["method"] in PAPER_METHODS + OUR_METHODS and row["kernel"] is not None:
            places[Place(row["kernel"], row["batch_size"], row["dataset"], row["method"])].append(row)
    found = {}
    for place, candidates in sorted(places.items()):
        usual = [row for row in candidates if follows_paper(row)]
        found[place] = _select(place, usual or candidates, follows=bool(usual))
    return found


def select_variants(rows: Iterable[Row]) -> list[tuple[str, Selected]]:
    """The paper's methods with other optimizers or further settings, each variant by its settings in words."""
    variants: dict[tuple[Place, str], list[Row]] = defaultdict(list)
    for row in unique_rows(rows):
        if row["method"] in PAPER_METHODS and not follows_paper(row):
            place = Place(row["kernel"], row["batch_size"], row["dataset"], row["method"])
            variants[place, describe_settings(settings_without_rate(row))].append(row)
    return [(words, _select(place, found, follows=False)) for (place, words), found in sorted(variants.items())]


def follows_paper(row: Row) -> bool:
    """Whether a run of one of the paper's methods has its optimizer and nothing else changed but the learning rate."""
    return row["method"] in PAPER_METHODS and settings_without_rate(row) == PAPER_SETTINGS


def settings_without_rate(row: Row) -> dict[str, Any]:
    """What a run was told besides its learning rate."""
    return {name: value for name, value in row["settings"].items() if name != "learning_rate"}


def describe_settings(settings: Mapping[str, Any]) -> str:
    """Settings in words.

    Example:
        >>> describe_settings({"optimizer": "adam", "projection_steps": 4})
        'adam, projection steps 4'
    """
    rest = sorted((name, value) for name, value in settings.items() if name != "optimizer")
    words = [str(settings["optimizer"])] if "optimizer" in settings else []
    return ", ".join(words + [f"{name.replace('_', ' ')} {value}" for name, value in rest])


@dataclass(frozen=True)
class Contender:
    """One method in the comparison with the peers, on one split.

    Attributes:
        name: Of the method, with kernel, batch size or settings where it needs them.
        method: The bare method.
        row: Its figures.
    """

    name: str
    method: str
    row: Row


def select_contenders(rows: Sequence[Row], dataset: str, *, split: int = 0, batch_size: int = 32) -> list[Contender]:
    """Ours, the paper's and the peers on one split of one table.

    Methods with a kernel are shown with ``batch_size``, or with the nearest that was run. Peers have nothing to select
    settings by, so each of their settings is a contender of its own; seeds beyond the first are left out.
    """
    here = [row for row in unique_rows(rows) if row["dataset"] == dataset and row["split"] == split]
    by_kernel: dict[tuple[str, str], list[Selected]] = defaultdict(list)
    for place, selected in select(here).items():
        if split in selected.runs:
            by_kernel[place.method, place.kernel].append(selected)
    found = []
    for (method, kernel), choices in sorted(by_kernel.items(), key=_order):
        chosen = min(choices, key=lambda choice: (abs(choice.place.batch_size - batch_size), choice.place.batch_size))
        name = f"{method}, {kernel}, batch {chosen.place.batch_size}"
        found.append(Contender(name, method, chosen.runs[split][0]))
    peers: dict[tuple[str, str], Row] = {}
    for row in sorted((row for row in here if row["kernel"] is None), key=lambda row: int(row["seed"])):
        peers.setdefault((row["method"], describe_settings(row["settings"])), row)
    for (method, settings), row in sorted(peers.items()):
        found.append(Contender(f"{method}, {settings}" if settings else method, method, row))
    return found


def _order(item: tuple[tuple[str, str], Any]) -> tuple[int, str]:
    (method, kernel), _ = item
    return (*OUR_METHODS, *PAPER_METHODS).index(method), kernel


def _select(place: Place, candidates: Sequence[Row], *, follows: bool) -> Selected:
    epochs = max(row["epochs"] or 0 for row in candidates)
    splits: dict[int, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in candidates:
        if (row["epochs"] or 0) == epochs:
            splits[row["split"]][json.dumps(row["settings"], sort_keys=True)].append(row)
    runs: dict[int, tuple[Row, ...]] = {}
    failed = []
    for split, settings in sorted(splits.items()):
        # Seeds are averaged, never selected from: picking the luckiest would be a result of its own making.
        objectives = {name: _objective(found) for name, found in sorted(settings.items())}
        best = min(objectives, key=objectives.__getitem__)
        if math.isfinite(objectives[best]):
            runs[split] = tuple(settings[best])
        else:
            failed.append(split)
    tried = max(len(settings) for settings in splits.values())
    return Selected(place, epochs, runs, tuple(failed), tried, follows)


def _objective(runs: Sequence[Row]) -> float:
    values = [metric_value(run, "nlml") for run in runs]
    return statistics.fmean(math.inf if value is None else value for value in values)


def _mean(runs: Sequence[Row], metric: str) -> float | None:
    values = [value for run in runs if (value := metric_value(run, metric)) is not None]
    return statistics.fmean(values) if values else None
