"""``Share`` and ``Sums``: which rows of a source a process reads, and what makes its sums those of all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor

from ..statistics import FeatureStatistics, sum_statistics

Chunk = TypeVar("Chunk", covariant=True)


@dataclass(frozen=True)
class Share:
    """One of ``count`` shares of any number of rows, in order, that differ by at most one row.

    Attributes:
        index: Which share, from 0.
        count: The number of shares.

    Example:
        >>> [list(range(5))[Share(index, 3).cut(5)] for index in range(3)]
        [[0], [1, 2], [3, 4]]
    """

    index: int = 0
    count: int = 1

    def cut(self, rows: int) -> slice:
        """The numbers of this share's rows; there may be none."""
        return slice(rows * self.index // self.count, rows * (self.index + 1) // self.count)


WHOLE = Share()


class Chunks(Protocol[Chunk]):
    """The part of a source's interface that a pass needs."""

    def __iter__(self) -> Iterator[Chunk]:
        """One pass over all rows."""

    def part(self, share: Share) -> Iterator[Chunk]:
        """One pass over a share of the rows."""


class Sums:
    """How sums over a share of the rows become sums over all rows; here the share is all rows, and nothing is added.

    :class:`~finitegp.distributed.Ranks` adds over processes.

    Attributes:
        share: The rows to sum over.
    """

    share: Share = WHOLE

    def each_chunk(self, source: Chunks[Chunk], use: Callable[[Chunk], object]) -> None:
        """Call a function with each chunk of the share in turn."""
        for rows in source:
            use(rows)
            del rows  # not kept while the next chunk passes

    def sum_statistics(self, parts: Iterable[FeatureStatistics]) -> FeatureStatistics:
        """The sum of all parts of all shares."""
        return sum_statistics(parts)

    def add_number(self, number: float) -> float:
        """The sum of a number over shares."""
        return number

    def largest(self, number: float) -> float:
        """The largest of the shares' numbers."""
        return number

    def add_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Add up gradients that are sums over rows."""


#: All rows are read here.
COMPLETE = Sums()
