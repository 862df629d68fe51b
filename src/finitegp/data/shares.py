"""``Share``: which part of some rows is one's own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """One of ``count`` parts of any number of rows, in order, that differ by at most one row.

    Attributes:
        index: Which part, from 0.
        count: How many there are.

    Example:
        >>> [list(range(5))[Share(index, 3).cut(5)] for index in range(3)]
        [[0], [1, 2], [3, 4]]
    """

    index: int = 0
    count: int = 1

    def cut(self, rows: int) -> slice:
        """The numbers of this part's rows; there may be none."""
        return slice(rows * self.index // self.count, rows * (self.index + 1) // self.count)


WHOLE = Share()
