"""Sources over other data: iterables, streams, and other sources, standardised; ``as_source``, of any data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils.data import IterableDataset

from ..arguments import check_arguments, check_at_least_one
from ..errors import DataError
from ..statistics import Share
from .arrays import source_of_parts
from .row_files import Index
from .scaling import Moments, Standardizer
from .sources import NUMBERS_OF_PARTS, Data, Rows, Source, WrappedSource, cut_rows

_NO_ROWS = "The data have no rows: the iterable yielded no rows."


class _Passes:
    """An iterable and what its passes have shown: shared by sources that yield its rows in chunks of different size."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self.iterable = iterable
        self.used_up = False
        self.num_data: int | None = None

    def begin(self) -> Iterable[Any]:
        """The iterable, for a pass; an error if it was an iterator that has been read."""
        self._refuse_used_up()
        self.used_up = isinstance(self.iterable, Iterator)
        return self.iterable

    def first(self) -> object:
        """The first item, which a later pass yields all the same."""
        self._refuse_used_up()
        items = iter(self.iterable)
        for first in items:
            if isinstance(self.iterable, Iterator):
                self.iterable = chain([first], items)
            return first
        raise DataError(_NO_ROWS)

    def end(self, seen: int) -> None:
        """Note the number of rows; an error if there are none, or not as many as before."""
        if seen == 0:
            raise DataError(_NO_ROWS)
        if self.num_data not in (None, seen):
            raise DataError(f"The data changed between passes: {self.num_data} rows before, {seen} rows now.")
        self.num_data = seen

    def _refuse_used_up(self) -> None:
        if self.used_up:
            raise DataError(
                "This stream was an iterator and has been read to its end; a second pass needs the rows again: write "
                "them to disk with finitegp.data.spool(stream, directory) and use the result, or pass an object whose "
                "__iter__ starts anew."
            )


@check_arguments
class IterableSource(Source):
    """Rows from any iterable of ``(inputs, targets[, weights[, counts]])`` that can be read repeatedly.

    A list of batches, a torch ``DataLoader``, or an object with its own ``__iter__``. All parts but the inputs may be
    None. Every chunk is checked as it passes; a pass that yields another number of rows than the one before is an
    error, because sums would not match.

    Example:
        >>> batches = [(torch.zeros(3, 2), torch.zeros(3)), (torch.zeros(1, 2), torch.zeros(1))]
        >>> sum(len(rows.inputs) for rows in IterableSource(batches))
        4
    """

    fits_memory = True

    def __init__(self, chunks: Iterable[Sequence[ArrayLike | None]]) -> None:
        if isinstance(chunks, Iterator):
            raise DataError(
                "data must be readable more than once, but a generator or iterator is used up after one pass: pass a "
                "list, a DataLoader, or an object whose __iter__ starts anew."
            )
        self._passes = _Passes(chunks)

    @property
    def num_data(self) -> int | None:  # type: ignore[override]
        """The number of rows; None before the first pass."""
        return self._passes.num_data

    @property
    def input_dim(self) -> int:  # type: ignore[override]
        """The number of input columns of the first item; no row is lost by looking at it."""
        return int(np.shape(self._parts(self._passes.first(), 0, 0)[0])[-1])

    def __iter__(self) -> Iterator[Rows]:
        seen = 0
        width: int | None = None
        for rows in self._chunks(self._passes.begin()):
            if width not in (None, rows.inputs.shape[1]):
                raise DataError(f"Row {seen} has {rows.inputs.shape[1]} input columns, rows before had {width}.")
            width = rows.inputs.shape[1]
            yield from cut_rows(rows, self.chunk_size)
            seen += len(rows.inputs)
        self._passes.end(seen)

    def _chunks(self, items: Iterable[Any]) -> Iterator[Rows]:
        """The items of one pass as checked chunks."""
        seen = 0
        for number, item in enumerate(items):
            parts = self._parts(item, number, seen)
            try:
                rows = _checked(parts, seen)
            except DataError as error:
                raise DataError(f"chunk {number}: {error}") from None
            yield rows
            seen += len(rows.inputs)

    def _parts(self, item: object, number: int, row: int) -> Sequence[Any]:
        """The parts of an item; an error if it is not a tuple of them."""
        if not _has_parts(item):
            raise DataError(
                f"chunk {number} of the data must be (inputs, targets), (inputs, targets, weights) or "
                f"(inputs, targets, weights, counts), but is a {type(item).__name__}."
            )
        return item


class StreamSource(IterableSource):
    """Rows from any iterable of unknown length, such as a torch ``IterableDataset`` or a generator.

    It may yield single rows, ``(inputs (columns,), target)``, or chunks, ``(inputs (rows, columns), targets)``, each
    with a weight or weights as a third part (or None) and a count or counts as a fourth; single rows are collected
    into chunks.

    What can be claimed without knowing the rows beforehand:

    - One pass is all that the *posterior, the NLML and the statistics* of a fixed feature map take: they are exact for
      the rows that the stream yielded. (Where the noise is so small that the NLML needs a second pass, a stream that
      can be read only once is an error.)
    - *Training* needs uniform random batches of all rows, which no stream can give in its own order. ``train``
      therefore spools the stream into a temporary file first (:func:`finitegp.data.spool`), after which all is as exact
      as with arrays. To keep the file, or to read the stream once and both train and condition, spool it yourself.

    A stream that is read again and then yields another number of rows is an error.

    Args:
        rows: The iterable. A generator or other iterator can be read once only.
        chunk_size: The most rows of a chunk.

    Example:
        >>> stream = ((torch.tensor([float(i), 1.0]), float(i)) for i in range(5))
        >>> [tuple(chunk.inputs.shape) for chunk in StreamSource(stream, chunk_size=2)]
        [(2, 2), (2, 2), (1, 2)]
    """

    fits_memory = False
    chunk_size: int

    def __init__(self, rows: Iterable[Sequence[ArrayLike | None]], *, chunk_size: int = 4096) -> None:
        check_at_least_one(chunk_size=chunk_size)
        self.chunk_size = chunk_size
        if not isinstance(rows, Iterable):
            raise DataError(f"rows must be an iterable of (inputs, target), but is a {type(rows).__name__}.")
        self._passes = _Passes(rows)
        self.can_reread = not isinstance(rows, Iterator)

    def _chunks(self, items: Iterable[Any]) -> Iterator[Rows]:
        single: list[list[Any]] = []
        seen = 0
        for item in items:
            row = seen + len(single)
            parts = self._parts(item, row, row)
            if parts[0].ndim == 2:
                if single:
                    raise DataError(f"The stream mixes single rows and chunks, first at row {row}.")
                yield _checked(parts, seen)
                seen += len(parts[0])
                continue
            if parts[0].ndim != 1 or (single and _shapes(parts) != _shapes(single[0])):
                shapes = _shapes(parts)
                found = ", ".join(f"{name} of shape {shape}" for name, shape in shapes.items())
                raise DataError(
                    f"Row {row} of the stream has {found} and {len(shapes)} parts: every row must be a "
                    "vector of the same length with the same parts."
                )
            single.append(parts)
            if len(single) == self.chunk_size:
                yield _checked(_stacked(single), seen)
                seen += len(single)
                single = []
        if single:
            yield _checked(_stacked(single), seen)

    def _parts(self, item: object, number: int, row: int) -> list[Any]:
        """Inputs, targets, weights and counts of an item as tensors; None for those that it does not have."""
        if not _has_parts(item) or item[0] is None:
            raise DataError(
                f"Row {row} of the stream must be (inputs, target), (inputs, target, weight) or (inputs, target, "
                f"weight, count), but is a {type(item).__name__}."
            )
        try:
            return [None if part is None else torch.as_tensor(part) for part in (*item, None, None)[:4]]
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"Row {row} of the stream is not made of numbers: {error}.") from None


def as_source(data: Data, *, chunk_size: int = 4096) -> Source:
    """A source from data of any kind: a source, ``(inputs, targets[, weights[, counts]])``, or a re-iterable."""
    if isinstance(data, Source):
        return data
    if isinstance(data, IterableDataset):
        return StreamSource(data, chunk_size=chunk_size)
    # A tuple is arrays, unless it holds tuples; a list is chunks, unless it holds arrays.
    chunk_types = tuple if isinstance(data, tuple) else tuple | list
    if _has_parts(data) and not isinstance(data[0], chunk_types):
        return source_of_parts(data, chunk_size=chunk_size)
    if isinstance(data, Iterable) and not isinstance(data, str | bytes | dict | Tensor | np.ndarray):
        chunks: Iterable[Any] = data  # each of which is checked as it is read
        return IterableSource(chunks)
    raise DataError(f"data must be (inputs, targets) or an iterable of such chunks, but is a {type(data).__name__}.")


def _has_parts(item: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(item, tuple | list) and len(item) in NUMBERS_OF_PARTS


def _checked(parts: Sequence[Any], first_row: int) -> Rows:
    source = source_of_parts(parts)
    return source.rows(0, source.num_data, first_row=first_row)


def _shapes(parts: list[Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of the parts that there are."""
    return {name: tuple(part.shape) for name, part in zip(Rows._fields, parts, strict=True) if part is not None}


def _stacked(rows: list[list[Any]]) -> list[Any]:
    return [None if part[0] is None else torch.stack(part) for part in zip(*rows, strict=True)]


@check_arguments
@dataclass(frozen=True, eq=False)
class Scaling:
    """The standardisers of the inputs and the targets of a source.

    Attributes:
        inputs: Of the inputs.
        targets: Of the targets.

    Example:
        >>> import numpy as np
        >>> scaling = Scaling.measure((np.array([[1.0], [3.0]]), np.array([10.0, 30.0])))
        >>> scaling.inputs.mean.tolist(), scaling.targets.scale.tolist()
        ([2.0], [10.0])
    """

    inputs: Standardizer
    targets: Standardizer

    @classmethod
    def measure(cls, data: Data) -> Scaling:
        """One pass over any source, in float64 and in memory that does not depend on the number of rows.

        A row of count ``k`` enters ``k`` times; weights make no difference.
        """
        inputs: Moments | int = 0
        targets: Moments | int = 0
        for rows in as_source(data):
            counts = None if rows.counts is None else rows.counts.numpy()
            inputs += Moments.of(rows.inputs.numpy(), counts)
            targets += Moments.of(rows.observed.numpy(), counts)
        if not isinstance(inputs, Moments) or not isinstance(targets, Moments):
            raise DataError("There are no rows to standardise.")
        return cls(inputs.standardizer(), targets.standardizer())


@check_arguments
class ScaledSource(WrappedSource):
    """The rows of another source, standardised in float64.

    Standardise *before* spooling: the spool keeps inputs in float32, which has no room for the variation of a column
    such as a time in microseconds since 1970, and standardised ones have.

    Args:
        data: Data source.
        scaling: From :meth:`Scaling.measure`, of these or of other rows.

    Example:
        >>> import numpy as np
        >>> data = np.array([[1.0], [3.0]]), np.array([10.0, 30.0])
        >>> [rows.inputs.tolist() for rows in ScaledSource(data, Scaling.measure(data))]
        [[[-1.0], [1.0]]]
    """

    def __init__(self, data: Data, scaling: Scaling) -> None:
        super().__init__(as_source(data))
        self.scaling = scaling
        self.fits_memory = False  # the rows are computed as they are read

    def part(self, share: Share) -> Iterator[Rows]:
        """One pass over a share of the rows, as the other source divides them."""
        return map(self._scaled, self._source.part(share))

    def take(self, indices: Index) -> Rows:
        """The rows of these numbers, in this order, if the other source can take them."""
        return self._scaled(self._source.take(indices))

    def with_chunks(self, chunk_size: int) -> ScaledSource:
        """The same rows in chunks of at most ``chunk_size`` rows; this source stays as it is."""
        return ScaledSource(self._source.with_chunks(chunk_size), self.scaling)

    def fingerprint(self) -> dict[str, object] | None:
        """The fingerprint of the source, with the scaling."""
        inner = self._source.fingerprint()
        if inner is None:
            return None
        both = (self.scaling.inputs, self.scaling.targets)
        parts = [[s.mean, s.scale, *(s.logarithms or ())] for s in both]
        limits = self.scaling.targets.limits
        found: dict[str, object] = {} if limits is None else {"limits": list(limits)}
        return found | {"kind": "scaled", "of": inner, "scaling": [[part.tolist() for part in each] for each in parts]}

    def _scaled(self, rows: Rows) -> Rows:
        width = self.scaling.inputs.num_columns
        if rows.inputs.shape[1] != width:
            raise DataError(f"The scaling is for {width} input columns, but there are {rows.inputs.shape[1]}.")
        targets = None if rows.targets is None else self.scaling.targets.transform(rows.targets.numpy())
        return rows._replace(
            inputs=torch.from_numpy(self.scaling.inputs.transform(rows.inputs.numpy())),
            targets=None if targets is None else torch.from_numpy(targets),
        )
