"""Rows from a stream: single rows or chunks, of unknown number, perhaps readable only once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch

from ..errors import DataError
from .sources import Rows, Source, source_of_parts


class StreamSource(Source):
    """Rows from any iterable, such as a torch ``IterableDataset`` or a generator, whose length nobody knows.

    It may yield single rows, ``(inputs (columns,), target)``, or chunks, ``(inputs (rows, columns), targets)``, each
    with a weight or weights as a third part (or None) and a count or counts as a fourth; single rows are collected
    into chunks.

    What can be claimed without knowing the rows beforehand:

    - One pass is all that the *posterior, the NLML and the statistics* of a fixed feature map take: they are exact for
      the rows that the stream yielded. (Where the noise is so small that the NLML needs a second pass, a stream that
      can be read only once cannot give it, and says so.)
    - *Training* needs uniform random batches of all rows, which no stream can give in its own order. ``train``
      therefore spools the stream into a temporary file first (:func:`finitegp.data.spool`), after which all is as exact
      as with arrays. To keep the file, or to read the stream once and both train and condition, spool it yourself.

    A stream that is read again and then yields another number of rows is an error.

    Args:
        rows: The iterable. A generator or other iterator can be read once only.
        chunk_size: How many single rows make a chunk.

    Example:
        >>> stream = ((torch.tensor([float(i), 1.0]), float(i)) for i in range(5))
        >>> [tuple(chunk.inputs.shape) for chunk in StreamSource(stream, chunk_size=2)]
        [(2, 2), (2, 2), (1, 2)]
    """

    def __init__(self, rows: Iterable[Any], *, chunk_size: int = 4096) -> None:
        if chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, but is {chunk_size}.")
        if not isinstance(rows, Iterable):
            raise DataError(f"rows must be an iterable of (inputs, target), but is a {type(rows).__name__}.")
        self._iterable = rows
        self._used_up = False
        self.chunk_size = chunk_size

    @property
    def input_dim(self) -> int:
        """The number of input columns, as the first item has them; no row is lost by looking at it."""
        self._refuse_used_up()
        rows = iter(self._iterable)
        first = next(rows, None)
        if first is None:
            raise DataError("The stream yielded no rows.")
        if isinstance(self._iterable, Iterator):
            self._iterable = chain([first], rows)
        return int(_parts(first, 0)[0].shape[-1])

    def __iter__(self) -> Iterator[Rows]:
        self._refuse_used_up()
        self._used_up = isinstance(self._iterable, Iterator)
        seen = 0
        width: int | None = None
        for first, chunk in self._chunks():
            rows = _checked(chunk, first)
            if width is not None and rows.inputs.shape[1] != width:
                raise DataError(
                    f"Row {first} of the stream has {rows.inputs.shape[1]} columns, rows before had {width}."
                )
            width = rows.inputs.shape[1]
            yield rows
            seen = first + len(rows.inputs)
        if seen == 0:
            raise DataError("The stream yielded no rows.")
        if self.num_data is not None and self.num_data != seen:
            raise DataError(f"The stream changed between passes: {self.num_data} rows before, {seen} rows now.")
        self.num_data = seen

    def _refuse_used_up(self) -> None:
        if self._used_up:
            raise DataError(
                "This stream was an iterator and has been read to its end; a second pass needs the rows again: write "
                "them to disk with finitegp.data.spool(stream, directory) and use the result, or pass an object whose "
                "__iter__ starts anew."
            )

    def _chunks(self) -> Iterator[tuple[int, list[Any]]]:
        """The number of the first row and the parts of each chunk; single rows collected."""
        single: list[list[Any]] = []
        seen = 0
        for item in self._iterable:
            parts = _parts(item, seen + len(single))
            if parts[0].ndim == 2:
                if single:
                    raise DataError(f"The stream mixes single rows and chunks, first at row {seen + len(single)}.")
                yield seen, parts
                seen += len(parts[0])
                continue
            if parts[0].ndim != 1 or (single and _shapes(parts) != _shapes(single[0])):
                shapes = _shapes(parts)
                found = ", ".join(f"{name} of shape {shape}" for name, shape in shapes.items())
                raise DataError(
                    f"Row {seen + len(single)} of the stream has {found} and {len(shapes)} parts: every row must be a "
                    "vector of the same length with the same parts."
                )
            single.append(parts)
            if len(single) == self.chunk_size:
                yield seen, _stacked(single)
                seen += len(single)
                single = []
        if single:
            yield seen, _stacked(single)


def _parts(item: Any, row: int) -> list[Any]:
    """Inputs, targets, weights and counts of an item as tensors; None for those that it has not."""
    if not isinstance(item, tuple | list) or len(item) not in (2, 3, 4) or item[0] is None or item[1] is None:
        raise DataError(
            f"Row {row} of the stream must be (inputs, target), (inputs, target, weight) or (inputs, target, weight, "
            f"count), but is a {type(item).__name__}."
        )
    try:
        return [None if part is None else torch.as_tensor(part) for part in (*item, None, None)[:4]]
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"Row {row} of the stream is not made of numbers: {error}.") from None


def _shapes(parts: list[Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of the parts that there are."""
    return {name: tuple(part.shape) for name, part in zip(Rows._fields, parts, strict=True) if part is not None}


def _stacked(rows: list[list[Any]]) -> list[Any]:
    return [None if part[0] is None else torch.stack(part) for part in zip(*rows, strict=True)]


def _checked(parts: list[Any], first_row: int) -> Rows:
    source = source_of_parts(parts)
    return source.rows(0, source.num_data, first_row=first_row)
