"""``CategoryMeans``: mean targets by category, shrunk, and for training rows without the rows of their own fold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..data.permutation import SPLITMIX64_STEP, splitmix64

Array = npt.NDArray[np.float64]
FOLDS = 10


class ShrunkMeans(NamedTuple):
    """By category, as differences from the mean of all rows: ``(categories,)`` and ``(categories, FOLDS)``."""

    means: Array
    out_of_fold: Array


def fold_of(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The fold of each row of a table: pseudo-random, and the same however the table is cut into chunks."""
    keys: npt.NDArray[np.uint64] = splitmix64(rows.astype(np.uint64) + np.uint64(3 * SPLITMIX64_STEP % 2**64))
    folds: npt.NDArray[np.int64] = (keys % np.uint64(FOLDS)).astype(np.int64)
    return folds


class CategoryMeans:
    """Sums of targets by category and fold.

    A mean that contains a row's own target reveals it, and a model learns to believe it: error bars become far too
    narrow. Leaving out the row alone is no better, because what is missing from the sum is the target. So training rows
    get means over the other folds; new rows get those over all rows.

    Example:
        >>> means = CategoryMeans()
        >>> means.add(["a", "b"], np.array([0, 0, 1, 1]), np.array([1.0, 1.0, 3.0, 3.0]), np.arange(4))
        >>> means.shrunk(["a", "b"]).means.round(2).tolist()
        [-1.0, 1.0]
    """

    def __init__(self) -> None:
        self._sums: dict[str, Array] = {}
        self._rows = 0
        self._total = 0.0
        self._squares = 0.0

    def add(
        self,
        texts: Sequence[str],
        codes: npt.NDArray[np.int64],
        targets: Array,
        rows: npt.NDArray[np.int64],
    ) -> None:
        """Different texts, which of them each row has, the targets and the numbers of the rows."""
        bins = codes * FOLDS + fold_of(rows)
        size = len(texts) * FOLDS
        sums = np.bincount(bins, targets, size).reshape(-1, FOLDS)
        counts = np.bincount(bins, minlength=size).reshape(-1, FOLDS)
        for text, *both in zip(texts, sums, counts, strict=True):
            if text in self._sums:
                self._sums[text] += both
            else:
                self._sums[text] = np.array(both, dtype=np.float64)
        self._rows += len(targets)
        self._total += float(targets.sum())
        self._squares += float(targets @ targets)

    def shrunk(self, categories: Sequence[str]) -> ShrunkMeans:
        """The best linear estimates of the effects of categories, for variances found from the same sums."""
        center = self._total / max(self._rows, 1)
        nothing = np.zeros((2, FOLDS))
        sums, counts = np.stack([self._sums.get(text, nothing) for text in categories], axis=1)
        sums = sums - center * counts
        total, count = sums.sum(axis=1), counts.sum(axis=1)
        rows, groups = float(count.sum()), len(categories)
        between_squares = float((total**2 / np.maximum(count, 1.0)).sum())
        within = max(0.0, self._squares - self._rows * center**2 - between_squares) / max(1.0, rows - groups)
        # The analysis of variance with one random effect.
        typical = (rows - float((count**2).sum()) / max(rows, 1.0)) / max(1, groups - 1)
        between = (between_squares / max(1, groups - 1) - within) / max(typical, 1e-12)
        floor = 1e-6 * within + np.finfo(np.float64).tiny
        prior_rows = within / max(between, floor)
        smallest = np.finfo(np.float64).tiny
        return ShrunkMeans(
            total / (count + prior_rows + smallest),
            (total[:, None] - sums) / (count[:, None] - counts + prior_rows + smallest),
        )
