"""Texts out of a known set, as numbers: ``CategoryColumn``, and the mean targets that it may use, ``CategoryMeans``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import DataError
from ..lite.hashing import SPLITMIX64_STEP, splitmix64
from ..lite.tables import MEAN, MEAN_AND_PLACE, PLACED_ROWS, encode_values
from .arrow_values import family, plain, text_values
from .columns import Cells, FittedColumn, wrong_family
from .sketches import MAX_CATEGORY_BYTES
from .text_values import is_blank, parse_numbers

Array = npt.NDArray[np.float64]
FOLDS = 10


@dataclass(frozen=True)
class CategoryColumn(FittedColumn):
    """Texts out of a known set.

    With few categories each has an output column that is one in its rows (``one-hot``). With many there are two numbers
    instead (``target mean``): the mean target of the category, shrunk towards that of all rows the more, the fewer and
    noisier its rows are, and the logarithm of its frequency (of the count plus one): how far that mean is to
    be trusted. Training rows of categories with fewer than 30 rows get the mean over the other folds, so that it does
    not contain their own target, and the frequency without themselves: the only row of a category is told from it what
    a row of a new category is told. Others get what new rows get: their own target is a thirtieth of it at most, and
    ten slightly different means would be ten names of the category, none of which a new row has.
    Where no targets are known, and in files of earlier versions, the first number is the rank by frequency (``rank``).

    Categories with nearly the same mean may act differently, as stations or products do over the years. Where at least
    half of the rows are of categories with 30 rows and more, there is a third number: the place of a category by
    frequency and alphabet, for which no target is used (``target mean and place``).

    A new category has zeros in all columns of a one-hot encoding, the mean of all rows and the frequency zero.

    Attributes:
        categories: The most frequent first; it is put in where values are missing.
        counts: Their frequencies.
        means: Their mean targets, as differences from the mean of all rows.
        out_of_fold: The same without the rows of each fold, ``(categories, folds)``; known after the fit only.
    """

    categories: tuple[str, ...]
    counts: tuple[int, ...]
    means: tuple[float, ...] = field(default=(), kw_only=True)
    out_of_fold: Array | None = field(default=None, kw_only=True, compare=False)

    type_name: ClassVar[str] = "category"
    kinds: ClassVar[tuple[str, ...]] = ("category",)
    encodings: ClassVar[tuple[str, ...]] = ("one-hot", MEAN, MEAN_AND_PLACE, "rank", "missing or not")

    def check_stored(self) -> None:
        """An error if categories, counts and means do not fit together."""
        if (
            len(self.categories) != len(self.counts)
            or not self.categories
            or len({*self.categories}) != len(self.counts)
        ):
            raise DataError("the categories of a stored column are empty, repeated, or do not match their counts")
        if sum(map(len, self.categories)) > MAX_CATEGORY_BYTES:
            raise DataError("the categories of a stored column are too long")
        if list(self.counts) != sorted(self.counts, reverse=True):
            raise DataError("the categories of a stored column are not in the order of their counts")
        if len(self.means) != (len(self.categories) if self.learns_effects else 0):
            raise DataError("the mean targets of a stored column do not match its categories")

    @property
    def value_names(self) -> list[str]:
        """``column=category``, or mean target (rank), frequency and place."""
        if self.encoding == "one-hot":
            return [f"{self.name}={category}" for category in self.categories]
        if self.encoding == "missing or not":
            return []
        first = "rank" if self.encoding == "rank" else MEAN
        more = ["log frequency"] * self._frequencies_differ + ["place"] * (self.encoding == MEAN_AND_PLACE)
        return [f"{self.name} {each}" for each in (first, *more)]

    @property
    def learns_effects(self) -> bool:
        """Whether mean targets are in its numbers."""
        return self.encoding in (MEAN, MEAN_AND_PLACE)

    # The last entries of these two are those of new categories: index -1 finds them.
    @cached_property
    def _encoded(self) -> Array:
        return encode_values(self._stored, np.append(np.arange(len(self.categories)), -1))

    @cached_property
    def _counts(self) -> npt.NDArray[np.int64]:
        return np.array([*self.counts, PLACED_ROWS], dtype=np.int64)

    @cached_property
    def _value_set(self) -> pa.Array:
        return pa.array(self.categories, pa.large_string())

    @property
    def _frequencies_differ(self) -> bool:
        # From the most to the least frequent.
        return self.counts[0] > self.counts[-1]

    def read(self, array: pa.Array) -> Cells:
        """Texts, or anything that is a text when written out."""
        array = plain(array)
        found = family(array.type)
        if found == "other":
            raise wrong_family(self, array, found)
        texts = text_values(array)
        missing = is_blank(texts)
        codes = self._codes(texts)
        codes[missing] = -1
        if found == "text" and bool((codes < 0).any()):
            # Codes that were whole numbers in the fit may come as text, such as 7 or 7.0.
            numbers = parse_numbers(texts)
            whole = (codes < 0) & np.isfinite(numbers) & (numbers == np.floor(numbers))
            if whole.any():
                codes[whole] = self._codes(pa.array([f"{value:.0f}" for value in numbers[whole]], pa.large_string()))
        unseen: dict[str, int] = {}
        new = (codes < 0) & ~missing
        if new.any():
            counted = pc.value_counts(texts.filter(pa.array(new)))
            unseen = dict(zip(*(counted.field(number).to_pylist() for number in (0, 1)), strict=True))
        return Cells(codes, missing, None, unseen)

    def _codes(self, texts: pa.Array) -> npt.NDArray[np.int64]:
        found = pc.fill_null(pc.index_in(texts, value_set=self._value_set), -1)
        return np.array(found, dtype=np.int64)

    def encode(self, cells: Cells) -> Array:
        """One column per category, or rank (mean target), frequency and place."""
        if self.encoding == "one-hot":
            return super().encode(cells)
        numbers: Array = self._encoded[cells.values]
        if cells.folds is not None and self.out_of_fold is not None:
            counts = self._counts[cells.values]
            rare = np.flatnonzero(counts < PLACED_ROWS)
            numbers[rare, 0] = self.out_of_fold[cells.values[rare], cells.folds[rare]]
            if self._frequencies_differ:
                numbers[rare, 1] = np.log1p(counts[rare] - 1.0)
        return numbers

    def is_unknown(self, cells: Cells) -> npt.NDArray[np.bool_]:
        """New categories, and gaps where the fit had none."""
        return (cells.values < 0) & ~(cells.missing & self.indicator)


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
