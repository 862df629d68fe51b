"""``CategoryColumn``: texts out of a known set, as numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .arrow_values import family, plain, text_values
from .columns import MOST_REPRESENTATIVES, Cells, FittedColumn, is_blank, wrong_family
from .text_values import parse_numbers


@dataclass(frozen=True)
class CategoryColumn(FittedColumn):
    """Texts out of a known set.

    With few categories each has an output column that is one in its rows (``one-hot``). With many there are two numbers
    instead (``target mean``): the mean target of the category, shrunk towards that of all rows the more, the fewer and
    noisier its rows are, and the logarithm of its frequency (of the count plus one): how far that mean is to
    be trusted. Training rows get the mean over the other folds, so that it does not contain their own target. Where no
    targets are known, and in files of earlier versions, the first number is the rank by frequency (``rank``).

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
    out_of_fold: npt.NDArray[np.float64] | None = field(default=None, kw_only=True, compare=False)

    type_name: ClassVar[str] = "category"
    kinds: ClassVar[tuple[str, ...]] = ("category",)
    encodings: ClassVar[tuple[str, ...]] = ("one-hot", "target mean", "rank", "missing or not")

    @property
    def value_names(self) -> list[str]:
        """``column=category``, or mean target (rank) and frequency."""
        if self.encoding == "one-hot":
            return [f"{self.name}={category}" for category in self.categories]
        if self.encoding in ("rank", "target mean"):
            first = f"{self.name} {self.encoding}"
            return [first, *([f"{self.name} log frequency"] if self._frequencies_differ else [])]
        return []

    @cached_property
    def _means(self) -> npt.NDArray[np.float64]:
        # The last entry is that of new categories: index -1 finds it.
        return np.array([*self.means, 0.0])

    @cached_property
    def _value_set(self) -> pa.Array:
        return pa.array(self.categories, pa.large_string())

    @property
    def _frequencies_differ(self) -> bool:
        # From the most to the least frequent.
        return self.counts[0] > self.counts[-1]

    @cached_property
    def _log_frequencies(self) -> npt.NDArray[np.float64]:
        # The last entry is that of new categories: index -1 finds it.
        return np.log1p(np.array([*self.counts, 0], dtype=np.float64))

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
            for item in pc.value_counts(texts.filter(pa.array(new))).to_pylist():
                unseen[item["values"]] = item["counts"]
        return Cells(codes, missing, None, unseen)

    def _codes(self, texts: pa.Array) -> npt.NDArray[np.int64]:
        found = pc.fill_null(pc.index_in(texts, value_set=self._value_set), -1)
        return np.array(found.to_numpy(zero_copy_only=False), dtype=np.int64)

    def fill(self, cells: Cells) -> None:
        """The most frequent category."""
        cells.values[cells.missing] = 0

    def encode(self, cells: Cells) -> npt.NDArray[np.float64]:
        """One column per category, or rank and frequency."""
        codes = cells.values
        if self.encoding == "one-hot":
            one_hot: npt.NDArray[np.float64] = (codes[:, None] == np.arange(len(self.categories))).astype(np.float64)
            return one_hot
        if self.encoding in ("rank", "target mean"):
            if self.encoding == "rank":
                first = np.where(codes < 0, len(self.categories), codes).astype(np.float64)
            elif cells.folds is not None and self.out_of_fold is not None:
                first = np.where(codes < 0, 0.0, self.out_of_fold[codes, cells.folds])
            else:
                first = self._means[codes]
            return np.stack([first, *([self._log_frequencies[codes]] if self._frequencies_differ else [])], axis=1)
        return np.empty((len(codes), 0))

    def is_unknown(self, cells: Cells) -> npt.NDArray[np.bool_]:
        """New categories, and gaps where the fit had none."""
        return (cells.values < 0) & ~(cells.missing & self.indicator)

    def representatives(self) -> npt.NDArray[np.float64]:
        """All categories, or some from the lowest to the highest mean target, or from the commonest to the rarest."""
        order = np.argsort(self.means) if self.means else np.arange(len(self.categories))
        places = np.linspace(0, len(order) - 1, min(len(order), MOST_REPRESENTATIVES - 2)).astype(np.int64)
        codes = np.unique(np.append(order[places], [0, len(order) - 1]))
        return self._with_indicator(self.encode(Cells(codes, np.zeros(len(codes), dtype=bool))))
