"""Readings of a column of text: as numbers or dates written in one of several ways, tried side by side."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .dates import NOT_A_MOMENT, read_moments
from .sketches import CategoryCounter, MomentSketch, NumberSketch, WordCounter
from .text_values import is_blank, parse_numbers, read_numbers


class DistinctTexts:
    """The different texts of a chunk: each is parsed once however often it occurs.

    Attributes:
        texts: An Arrow array without null.
        spelled: The same in Python.
        counts: How often each occurs.
        filled: Which are more than blanks.
        indices: For each row the number of its text; ``len(texts)`` where it is null.
    """

    def __init__(self, texts: pa.Array) -> None:
        encoded = texts.dictionary_encode()
        self.texts = encoded.dictionary
        self.indices = encoded.indices.fill_null(len(self.texts)).to_numpy(zero_copy_only=False).astype(np.int64)
        self.counts = np.bincount(self.indices, minlength=len(self.texts) + 1)[:-1].tolist()
        self.spelled = self.texts.to_pylist()
        self.filled: npt.NDArray[np.bool_] = ~is_blank(self.texts)

    def count(self, chosen: npt.NDArray[np.bool_], counter: CategoryCounter | WordCounter) -> None:
        """Give those texts that are chosen, with their counts, to a counter."""
        which = np.flatnonzero(chosen).tolist()
        counter.add([self.spelled[number] for number in which], [self.counts[number] for number in which])


class NumberReading:
    """A column of text read as numbers.

    Args:
        decimal: What stands before decimals; None for numbers as programs write them, without units or separators.
    """

    def __init__(self, decimal: str | None) -> None:
        self.decimal = decimal
        self.sketch = NumberSketch()
        self.words = WordCounter()
        self.units: set[str] = set()

    @property
    def is_hopeless(self) -> bool:
        """Whether nothing that may follow can make this a column of numbers."""
        return self.words.is_hopeless or len(self.units) > 1

    def add(self, chunk: DistinctTexts, first_row: int) -> None:
        """One chunk."""
        if self.is_hopeless:
            return
        if self.decimal is None:
            values = parse_numbers(chunk.texts)
        else:
            values, units = read_numbers(chunk.texts, self.decimal)
            self.units |= {*units.filter(pa.array(~np.isnan(values))).unique().to_pylist()} - {""}
        self.sketch.add(np.append(values, np.nan)[chunk.indices], first_row)
        chunk.count(chunk.filled & np.isnan(values), self.words)

    @property
    def unit(self) -> str:
        """The unit that stands beside the numbers, if any does."""
        return next(iter(self.units), "")

    @property
    def holds(self) -> bool:
        """Whether the column is one of numbers written so."""
        return not self.is_hopeless and self.words.are_few(self.sketch.count + self.sketch.gaps.infinite)


class DateReading:
    """A column of text read as dates of one style."""

    def __init__(self, style: str) -> None:
        self.style = style
        self.sketch = MomentSketch()
        self.words = WordCounter()

    @property
    def is_hopeless(self) -> bool:
        """Whether nothing that may follow can make this a column of dates of this style."""
        return self.words.is_hopeless

    def add(self, chunk: DistinctTexts, first_row: int) -> None:
        """One chunk."""
        if self.is_hopeless:
            return
        moments = read_moments(chunk.texts, self.style)
        self.sketch.add(np.append(moments, NOT_A_MOMENT)[chunk.indices], first_row)
        chunk.count(chunk.filled & (moments == NOT_A_MOMENT), self.words)

    @property
    def holds(self) -> bool:
        """Whether the column is one of dates written so."""
        return not self.is_hopeless and self.words.are_few(self.sketch.count)
