"""The rows of a fit in memory, to be split by row numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..data.arrays import ArraySource
from ..data.sampling import RandomPermutation
from ..data.sources import Rows, Source
from ..errors import DataError
from ..lite.hashing import row_codes

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
# Tables with fewer rows without an equal than this share are repetitions of a smaller table.
FEWEST_SINGLE_ROWS = 0.05


@dataclass(frozen=True, eq=False)
class Table:
    """Scaled inputs and targets.

    Attributes:
        inputs: ``(rows, columns)``.
        targets: ``(rows,)``.
        counts: ``(rows,)`` how many equal rows each one stands for, or None: one.

    Example:
        >>> table = Table(np.zeros((4, 2)), np.arange(4.0))
        >>> table.take(np.array([3, 1])).targets.tolist()
        [3.0, 1.0]
    """

    inputs: Array
    targets: Array
    counts: Array | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, index: Index) -> Table:
        """The rows of these numbers."""
        counts = None if self.counts is None else self.counts[index]
        return Table(self.inputs[index], self.targets[index], counts)

    def between(self, start: int, stop: int) -> Table:
        """The rows from one number to another, without a copy."""
        counts = None if self.counts is None else self.counts[start:stop]
        return Table(self.inputs[start:stop], self.targets[start:stop], counts)

    def source(self, weights: Array | None = None) -> ArraySource:
        """The same rows as models take them; a weight divides the noise variance of its row."""
        return ArraySource(self.inputs, self.targets, weights, counts=self.counts)

    @property
    def total(self) -> float:
        """How many rows there are, counts respected."""
        return float(len(self) if self.counts is None else self.counts.sum())

    def mean(self, values: Array) -> float:
        """The mean of one value per row, counts respected."""
        return float(np.average(values, weights=self.counts))

    def shares(self) -> Array:
        """``(rows,)`` what each row is of the whole, counts respected."""
        return np.full(len(self), 1.0 / len(self)) if self.counts is None else self.counts / self.counts.sum()

    def expanded(self, most: int) -> Table:
        """Each row as often as it counts, if counts are whole and add up to at most these; otherwise the same table.

        Where rows repeat by themselves, new rows will repeat old ones, too: rows set aside should show it.

        Example:
            >>> table = Table(np.zeros((2, 1)), np.array([1.0, 2.0]), np.array([1.0, 3.0]))
            >>> table.expanded(10).targets.tolist(), table.expanded(3) is table
            ([1.0, 2.0, 2.0, 2.0], True)
        """
        if self.counts is None or self.total > most or bool((self.counts != np.round(self.counts)).any()):
            return self
        return Table(*(np.repeat(part, self.counts.astype(int), axis=0) for part in (self.inputs, self.targets)))

    def without_copies(self) -> Table | None:
        """Each row once, with its count, if the table looks like one whose rows were all repeated; otherwise None.

        Rows that stand on both sides of a split would let a network pass off memory as foresight. Where rows repeat by
        themselves (counts, codes), many rows have no equal, new rows will repeat old ones too, and nothing is merged.

        Example:
            >>> table = Table(np.arange(6.0).reshape(3, 2), np.zeros(3))
            >>> twice = table.take(np.array([0, 1, 2, 0, 1, 2]))
            >>> table.without_copies() is None, twice.without_copies().counts.tolist()
            (True, [2.0, 2.0, 2.0])
        """
        codes = row_codes((*self.inputs.T, self.targets))
        _, first, inverse, copies = np.unique(codes, return_index=True, return_inverse=True, return_counts=True)
        if np.sum(copies == 1) >= FEWEST_SINGLE_ROWS * len(codes):
            return None
        counts = np.bincount(inverse.reshape(-1), weights=self.counts).astype(np.float64)
        kept = np.argsort(first)  # in the order in which they came
        merged = self.take(first[kept])
        return Table(merged.inputs, merged.targets, counts[kept])


def merge_equal_rows(inputs: Array, targets: Array, counts: Array | None) -> tuple[Array, Array, Array | None]:
    """Rows in a canonical order with equal rows merged into one that counts for all of them.

    A weight of ``k`` and ``k`` equal rows then are the same arrays, and give the same fit to the last bit, in whatever
    order the rows came.

    Args:
        inputs: ``(rows, columns)``.
        targets: ``(rows,)``.
        counts: ``(rows,)`` positive, or None for one.

    Example:
        >>> inputs, targets = np.array([[2.0], [1.0], [2.0]]), np.array([5.0, 6.0, 5.0])
        >>> merged = merge_equal_rows(inputs, targets, None)
        >>> [part.tolist() for part in merged]
        [[[1.0], [2.0]], [6.0, 5.0], [1.0, 2.0]]
    """
    joined, inverse = np.unique(np.column_stack([inputs, targets]), axis=0, return_inverse=True)
    summed = np.bincount(inverse.ravel(), weights=counts, minlength=len(joined)).astype(np.float64)
    rows, values = np.ascontiguousarray(joined[:, :-1]), np.ascontiguousarray(joined[:, -1])
    return rows, values, None if bool((summed == 1.0).all()) else summed


def draw_sample(source: Source, total: int, most: int, *, seed: int) -> Table:
    """At most ``most`` rows in float64 and in random order, each as likely as any other; all if there are no more."""
    # Computed: a permutation of all rows would take memory for each of them.
    wanted = RandomPermutation(total, seed)(np.arange(min(total, most)))
    table: Table | None = None

    def keep(places: Index, rows: Rows) -> None:
        nonlocal table
        if rows.weights is not None:
            raise DataError("Weights of rows cannot be used by the automatic fit: give counts, or leave them out.")
        if rows.observed.shape[1] != 1:
            raise DataError(f"targets must be one column, but are {rows.observed.shape[1]}: fit one model per column.")
        if table is None:
            empty = np.empty((len(wanted), rows.inputs.shape[1])), np.empty(len(wanted))
            table = Table(*empty, None if rows.counts is None else np.empty(len(wanted)))
        table.inputs[places], table.targets[places] = rows.inputs.numpy(), rows.observed[:, 0].numpy()
        if table.counts is not None and rows.counts is not None:
            table.counts[places] = rows.counts.numpy()

    if source.can_take:
        size = source.chunk_size or len(wanted)
        for start in range(0, len(wanted), size):
            places = np.arange(start, min(start + size, len(wanted)))
            keep(places, source.take(wanted[places]))
    else:
        order, first = np.argsort(wanted), 0
        ordered = wanted[order]
        for rows in source:
            low, high = np.searchsorted(ordered, [first, first + len(rows.inputs)])
            if low < high:
                keep(order[low:high], rows.take(torch.from_numpy(ordered[low:high] - first)))
            first += len(rows.inputs)
    assert table is not None
    return table


def with_score(part: str, predicted: Array, targets: Array, counts: Array | None = None) -> str:
    """The name of a finished part with what it explains of rows that it has not seen.

    Example:
        >>> with_score("fold 1 of 5", np.array([0.9, 2.0, 3.1]), np.array([1.0, 2.0, 3.0]))
        'fold 1 of 5, left-out R2 0.990'
    """
    center = np.average(targets, weights=counts)
    variance = float(np.average((targets - center) ** 2, weights=counts))
    error = float(np.average((targets - predicted) ** 2, weights=counts))
    return f"{part}, left-out R2 {1.0 - error / variance:.3f}" if variance > 0.0 else part
