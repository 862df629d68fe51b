"""Published, reproduced and ours in one row; who is best; who is better than what was published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from .cells import OUR_METHODS, PAPER_METHODS
from .datasets import PAPER_DATASETS
from .published import Published, published_batch_sizes, published_row
from .selection import Place, Selected

METHODS = (*PAPER_METHODS, *OUR_METHODS)


class Verdict(Enum):
    """A figure against a published one; the value is the mark in the tables."""

    BETTER = "▲"
    WITHIN = "≈"
    WORSE = "▼"


def compare(value: float, published: Published, *, deviations: float = 1.0) -> Verdict:
    """Better or worse by more than so many published standard deviations, or within them; lower is better.

    Example:
        >>> compare(0.5, Published(1.0, 0.1)), compare(1.05, Published(1.0, 0.1))
        (<Verdict.BETTER: '▲'>, <Verdict.WITHIN: '≈'>)
    """
    # To the three decimals of the paper, so that what is printed as one deviation away is within it.
    if abs(round(value, 3) - published.mean) <= deviations * published.spread + 1e-9:
        return Verdict.WITHIN
    return Verdict.BETTER if value < published.mean else Verdict.WORSE


@dataclass(frozen=True)
class TableRow:
    """One row of one of the paper's tables, with what was found here.

    Attributes:
        metric: What is compared.
        kernel: Of the table.
        batch_size: Of the row.
        dataset: Of the row.
        published: By method; empty where the paper has no such row.
        here: By method, the paper's reproduced and ours; only methods that were run.
    """

    metric: str
    kernel: str
    batch_size: int
    dataset: str
    published: Mapping[str, Published]
    here: Mapping[str, Selected]

    @property
    def values(self) -> dict[str, float]:
        """What was found here by method, where there is a figure."""
        found = {method: selected.average(self.metric) for method, selected in self.here.items()}
        return {method: average.mean for method, average in found.items() if average is not None}

    @property
    def best_published(self) -> Published | None:
        """The lowest published figure of the row."""
        return min(self.published.values(), default=None)

    @property
    def best_reproduced(self) -> float | None:
        """The lowest figure that one of the paper's methods reached here."""
        return min((value for method, value in self.values.items() if method in PAPER_METHODS), default=None)

    def winners(self) -> list[str]:
        """Who is best here; several if equal in the three decimals that the paper prints."""
        return lowest(self.values)

    def against_own(self, method: str) -> Verdict | None:
        """One of the paper's methods as reproduced, against its published figure."""
        value, published = self.values.get(method), self.published.get(method)
        return None if value is None or published is None else compare(value, published)

    def against_best(self, method: str) -> Verdict | None:
        """One method against the best published figure of the row."""
        value, best = self.values.get(method), self.best_published
        return None if value is None or best is None else compare(value, best)


def lowest(values: Mapping[str, float]) -> list[str]:
    """The names with the lowest value, equal to three decimals.

    Example:
        >>> lowest({"a": 1.0001, "b": 1.0, "c": 2.0})
        ['a', 'b']
    """
    best = min((round(value, 3) for value in values.values()), default=None)
    return [name for name, value in values.items() if round(value, 3) == best]


def table_rows(selected: Mapping[Place, Selected], metric: str, kernel: str) -> list[TableRow]:
    """The rows of one table: all that the paper has, then other tables and batch sizes that were run."""
    sizes = {place.batch_size for place in selected if place.kernel == kernel}
    rows = []
    for batch_size in sorted(sizes | set(published_batch_sizes(kernel))):
        run = {place.dataset for place in selected if (place.kernel, place.batch_size) == (kernel, batch_size)}
        in_paper = [name for name in PAPER_DATASETS if name in run or batch_size in published_batch_sizes(kernel)]
        for dataset in (*in_paper, *sorted(run - set(PAPER_DATASETS))):
            places = {method: Place(kernel, batch_size, dataset, method) for method in METHODS}
            here = {method: selected[place] for method, place in places.items() if place in selected}
            published = published_row(metric, kernel, batch_size, dataset)
            rows.append(TableRow(metric, kernel, batch_size, dataset, published, here))
    return rows


@dataclass(frozen=True)
class WinCounts:
    """Counts over the rows of one table.

    Attributes:
        rows: Rows in which at least two methods were run here.
        best_here: By method, how many of these rows it is best in; equal figures count for each.
        best_published: The same of the paper's figures, over all its rows.
        published_rows: How many rows that is.
        against_published: By method of ours, its verdicts against the best published figure of each row.
        against_reproduced: By method of ours, in how many rows it is lower than, equal to or higher than the best of
            the paper's methods here.
    """

    rows: int
    best_here: Mapping[str, int]
    best_published: Mapping[str, int]
    published_rows: int
    against_published: Mapping[str, Mapping[Verdict, int]]
    against_reproduced: Mapping[str, Mapping[str, int]]


def count_wins(rows: Sequence[TableRow]) -> WinCounts:
    """How often each method is best."""
    contested = [row for row in rows if len(row.values) > 1]
    printed = [{method: cell.mean for method, cell in row.published.items()} for row in rows if row.published]
    return WinCounts(
        rows=len(contested),
        best_here=Counter(name for row in contested for name in row.winners()),
        best_published=Counter(name for values in printed for name in lowest(values)),
        published_rows=len(printed),
        against_published={
            method: Counter(verdict for row in rows if (verdict := row.against_best(method)) is not None)
            for method in OUR_METHODS
        },
        against_reproduced={method: Counter(_against_reproduced(rows, method)) for method in OUR_METHODS},
    )


def _against_reproduced(rows: Iterable[TableRow], method: str) -> Iterable[str]:
    for row in rows:
        value, best = row.values.get(method), row.best_reproduced
        if value is not None and best is not None:
            difference = round(value, 3) - round(best, 3)
            yield "lower" if difference < 0 else "higher" if difference > 0 else "equal"
