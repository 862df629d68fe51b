"""The default and the peers on the test rows of each table: means over the splits that are compared."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .cells import AUTO, Cell
from .datasets import PAPER_DATASETS
from .peers import TREATED
from .predictions import PairedDifference, paired_difference
from .selection import Row, describe_settings, unique_rows

#: Settings of the default that are shown beside the peers: a preset of its own, and the networks without the GP.
SHOWN = {"effort", "gp"}
LEVELS = ("0.5", "0.9", "0.95")
#: The splits that are compared, as far as the default has them.
SPLITS = range(5)


@dataclass(frozen=True)
class Contender:
    """One method with one set of settings on one table.

    Attributes:
        name: The method, with its settings where it has some.
        method: The bare method.
        rows: Its lines, one per split.
    """

    name: str
    method: str
    rows: tuple[Row, ...]

    def values(self, name: str) -> list[float]:
        """One figure of every split; none if one of them does not have it."""
        found = [row.get(name) for row in self.rows]
        return [] if None in found else [float(value) for value in found if value is not None]

    def mean(self, metric: str) -> float | None:
        """Over splits; None where a split has no such figure."""
        values = self.values(metric)
        return statistics.fmean(values) if values else None

    def gaussian_nlpd(self) -> float | None:
        """With a Gaussian of the same means and standard deviations; None where that is what was predicted."""
        if not any("gaussian_nlpd" in row for row in self.rows):
            return None
        return statistics.fmean(row.get("gaussian_nlpd", row["nlpd"]) for row in self.rows)

    def coverage(self, level: str) -> float | None:
        """The share of test targets inside the interval; None where the method has no error bars."""
        shares = [row["coverage"][level] for row in self.rows if row.get("coverage")]
        return statistics.fmean(shares) if len(shares) == len(self.rows) else None

    @property
    def is_treated(self) -> bool:
        """Whether its error bars and tails come from left-out rows, by the treatment that all peers can get."""
        return self.method.endswith(TREATED)

    @property
    def is_shortened(self) -> bool:
        """Whether a run had fewer steps, epochs or trees than asked for."""
        return any(row.get("shortened") or row.get("stopped_at_time_limit") for row in self.rows)

    @property
    def splits(self) -> list[int]:
        """The splits of its lines."""
        return [int(row["split"]) for row in self.rows]

    def minus(self, other: Contender, results: Path, metric: str = "nlpd") -> PairedDifference | None:
        """The paired difference on the same test rows; None where predictions of one were not stored.

        Over splits the mean of their differences; their test rows are disjoint, so that squared errors add.
        """
        cells = [tuple(Cell.from_row(row) for row in pair) for pair in zip(self.rows, other.rows, strict=True)]
        found = [paired_difference(one, two, results, metric) for one, two in cells]
        known = [difference for difference in found if difference is not None]
        if len(known) < len(found):
            return None
        error = math.sqrt(sum(difference.standard_error**2 for difference in known)) / len(known)
        return PairedDifference(statistics.fmean(difference.mean for difference in known), error)


def is_ablation(row: Row) -> bool:
    """Whether this is the default with a piece changed that is only shown among its pieces."""
    return row["method"] == AUTO and bool(set(row["settings"]) - SHOWN)


def find_contenders(rows: Iterable[Row]) -> dict[str, list[Contender]]:
    """By table, the paper's first: the default, then all others that have every split that is compared.

    These are the first five, as far as the default has them; without it, those that anything has.
    """
    found: dict[str, dict[str, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in sorted(unique_rows(rows), key=lambda row: int(row["seed"])):
        if row["kernel"] is None and not is_ablation(row) and row["split"] in SPLITS:
            name = ", ".join(filter(None, [row["method"], describe_settings(row["settings"])]))
            found[row["dataset"]][name].setdefault(row["split"], row)
    return {dataset: _compared(found[dataset]) for dataset in order_tables(found)}


def _compared(found: dict[str, dict[int, Row]]) -> list[Contender]:
    compared = sorted(found[AUTO] if AUTO in found else {split for splits in found.values() for split in splits})
    return [
        Contender(name, splits[compared[0]]["method"], tuple(splits[split] for split in compared))
        for name, splits in sorted(found.items(), key=lambda item: (item[0] != AUTO, item[0]))
        if all(split in splits for split in compared)
    ]


def order_tables(names: Iterable[str]) -> list[str]:
    """The paper's in its order, then others."""
    found = set(names)
    return [name for name in PAPER_DATASETS if name in found] + sorted(found - set(PAPER_DATASETS))


def find_default(contenders: Sequence[Contender]) -> Contender | None:
    """The default as it is."""
    return next((contender for contender in contenders if contender.name == AUTO), None)


def best_peer(contenders: Iterable[Contender], metric: str) -> tuple[float, str] | None:
    """The lowest figure of all peers, and whose it is."""
    known = [(value, c.method) for c in contenders if c.method != AUTO and (value := c.mean(metric)) is not None]
    return min(known, default=None)
