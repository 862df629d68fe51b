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
from .predictions import PairedDifference, paired_nlpd
from .selection import Row, describe_settings, unique_rows

#: A setting of the default that is a preset of its own, not a piece that was changed.
PRESET = "effort"
LEVELS = ("0.5", "0.9", "0.95")


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

    def minus(self, other: Contender, results: Path) -> PairedDifference | None:
        """The paired difference in NLPD on the same test rows; None where predictions of one were not stored."""
        cells = [tuple(Cell.from_row(row) for row in pair) for pair in zip(self.rows, other.rows, strict=True)]
        found = [paired_nlpd(one, two, results) for one, two in cells]
        known = [difference for difference in found if difference is not None]
        if len(known) < len(found):
            return None
        error = math.sqrt(sum(difference.standard_error**2 for difference in known)) / len(known)
        return PairedDifference(statistics.fmean(difference.mean for difference in known), error)


def compared_splits(dataset: str) -> range:
    """Split 0 of the paper's tables; of the small ones, which are cheap, five."""
    return range(1) if dataset in PAPER_DATASETS else range(5)


def is_ablation(row: Row) -> bool:
    """Whether this is the default with a piece changed or left out."""
    return row["method"] == AUTO and bool(set(row["settings"]) - {PRESET})


def find_contenders(rows: Iterable[Row]) -> dict[str, list[Contender]]:
    """By table, the paper's first: the default, then all others that have every split that is compared."""
    found: dict[str, dict[str, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in sorted(unique_rows(rows), key=lambda row: int(row["seed"])):
        if row["kernel"] is None and not is_ablation(row) and row["split"] in compared_splits(row["dataset"]):
            name = ", ".join(filter(None, [row["method"], describe_settings(row["settings"])]))
            found[row["dataset"]][name].setdefault(row["split"], row)
    return {
        dataset: [
            Contender(name, splits[0]["method"], tuple(splits[split] for split in compared_splits(dataset)))
            for name, splits in sorted(found[dataset].items(), key=lambda item: (item[0] != AUTO, item[0]))
            if len(splits) == len(compared_splits(dataset))
        ]
        for dataset in order_tables(found)
    }


def order_tables(names: Iterable[str]) -> list[str]:
    """The paper's in its order, then others."""
    found = set(names)
    return [name for name in PAPER_DATASETS if name in found] + sorted(found - set(PAPER_DATASETS))


def find_default(contenders: Sequence[Contender]) -> Contender | None:
    """The default as it is."""
    return next((contender for contender in contenders if contender.name == AUTO), None)


def best_peer(contenders: Sequence[Contender], metric: str) -> tuple[float, str] | None:
    """The lowest figure of all peers, and whose it is."""
    known = [(value, c.method) for c in contenders if c.method != AUTO and (value := c.mean(metric)) is not None]
    return min(known, default=None)
