"""Random batches from sources that are not in memory, and which sampler goes with which source."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .any_source import as_source
from .moments import SourceMeasure
from .permutation import RandomPermutation
from .sampling import GATHERED_BATCHES, BatchSampler, check_alike, mix_seed, relative_weights
from .shares import WHOLE, Share
from .sources import ArraySource, IndexedSource, IterableSource, Rows, Source
from .spool import spool_temporarily

# Up to so many rows a permutation is drawn and kept: half a mebibyte.
_KEPT_PERMUTATION = 1 << 16
# Rows read together, and how many such blocks are mixed, in the block shuffle.
_BLOCK_ROWS = 1024
_POOL_BLOCKS = 16


class NotUniformWarning(UserWarning):
    """Batches are not uniform random subsets of the rows: gradients are not unbiased."""


class SourceSampler(ABC):
    """Batches of the rows of a source, reproducible from ``(seed, stream, epoch)`` alone.

    Attributes:
        data: The source, for exact passes.
        num_data: The number of rows.
        num_targets: The number of target columns.
        target_mean_square: The mean square of the targets.
        batch_size: Rows per batch; the last batch of an epoch may be smaller.
        sampling: How the batches are drawn.
        seed: Determines all batches.
        share: Which share of each batch is given out; the batches are drawn as if there were one share.
    """

    def __init__(
        self,
        data: Source,
        batch_size: int,
        sampling: str,
        seed: int,
        dtype: torch.dtype,
        device: torch.device | str,
        share: Share,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, but is {batch_size}.")
        self.data = data
        measured = data if isinstance(data, IndexedSource) else SourceMeasure.of(data)
        self.num_data, self.num_targets = measured.num_data, measured.num_targets
        self.target_mean_square = measured.target_mean_square
        self._mean_count = measured.mean_count
        self.batch_size = min(batch_size, self.num_data)
        self.sampling = sampling
        self.seed = seed
        self.share = share
        self._kind: dict[str, Any] = {"dtype": dtype, "device": device}

    def __len__(self) -> int:
        """Batches per epoch."""
        return -(-self.num_data // self.batch_size)

    @abstractmethod
    def epoch(self, epoch: int, *, stream: int = 0, skip: int = 0, stop: int | None = None) -> Iterator[Rows]:
        """The batches of one epoch from ``skip`` up to ``stop``; ``stream`` tells apart batches drawn side by side."""

    def _batches(self, rows: Rows, sizes: list[int]) -> Iterator[Rows]:
        """Rows cut into batches, in the type of the model; counts become weights, as in :class:`BatchSampler`."""
        inputs, targets = (torch.split(part.to(**self._kind), sizes) for part in (rows.inputs, rows.targets))
        weights = relative_weights(rows, self._mean_count)
        if weights is None:
            yield from map(Rows, inputs, targets)
        else:
            yield from map(Rows, inputs, targets, torch.split(weights.to(**self._kind), sizes))


class IndexedSampler(SourceSampler):
    """Uniform random batches from a source whose rows can be picked by number, without keeping the rows.

    With ``sampling="shuffle"`` the rows of an epoch are permuted and dealt out, so that batches are disjoint; up to
    65 536 rows the permutation is drawn, beyond it is computed (:class:`RandomPermutation`, which says how uniform it
    is). With ``"independent"`` each batch is drawn with replacement from all rows by a counter-based generator
    (Philox) of its own. No other state is kept, so batches depend neither on what was read before nor on who reads.

    Args:
        data: The source.
        batch_size: Rows per batch.
        sampling: ``"shuffle"`` or ``"independent"``.
        seed: Determines all batches.
        dtype: The float type of the batches.
        device: Where the batches are.
        gathered_batches: Batches read from disk at once. Makes no difference to the batches.
        share: Read and give out this share of each batch; the batches are drawn as if there were one share.
    """

    def __init__(
        self,
        data: IndexedSource,
        batch_size: int,
        *,
        sampling: str = "shuffle",
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        gathered_batches: int = GATHERED_BATCHES,
        share: Share = WHOLE,
    ) -> None:
        if sampling not in ("shuffle", "independent"):
            raise ValueError(f"sampling must be 'shuffle' or 'independent', but is {sampling!r}.")
        if gathered_batches < 1:
            raise ValueError(f"gathered_batches must be at least 1, but is {gathered_batches}.")
        super().__init__(data, batch_size, sampling, seed, dtype, device, share)
        self._source = data
        self.gathered_batches = gathered_batches

    def epoch(self, epoch: int, *, stream: int = 0, skip: int = 0, stop: int | None = None) -> Iterator[Rows]:
        """The batches of one epoch from ``skip`` up to ``stop``; ``stream`` tells apart batches drawn side by side."""
        key = mix_seed(self.seed, stream, epoch)
        permutation = self._permutation(key) if self.sampling == "shuffle" else None
        end = len(self) if stop is None else min(stop, len(self))
        for first in range(skip, end, self.gathered_batches):
            numbers = range(first, min(first + self.gathered_batches, end))
            if permutation is None:
                own = [batch[self.share.cut(len(batch))] for batch in (self._independent(key, n) for n in numbers)]
                indices = np.concatenate(own)
            else:
                own = [self._positions(number) for number in numbers]
                indices = permutation(np.concatenate(own))
            yield from self._batches(self._source.gather(indices), [len(part) for part in own])

    def _positions(self, number: int) -> npt.NDArray[np.int64]:
        """Where in the permuted rows the own share of a batch is."""
        start = number * self.batch_size
        own = self.share.cut(min(self.batch_size, self.num_data - start))
        return np.arange(start + own.start, start + own.stop)

    def _permutation(self, key: int) -> Any:
        if self.num_data > _KEPT_PERMUTATION:
            return RandomPermutation(self.num_data, key)
        order = torch.randperm(self.num_data, generator=torch.Generator().manual_seed(key)).numpy()
        return order.__getitem__

    def _independent(self, key: int, number: int) -> npt.NDArray[np.int64]:
        random = np.random.Generator(np.random.Philox(key=np.array([key, number], dtype=np.uint64)))
        return random.integers(self.num_data, size=self.batch_size, dtype=np.int64)


class BlockSampler(SourceSampler):
    """Batches from a moving window of blocks: cheap sequential reading, **not uniform**, and it warns so.

    Blocks of neighbouring rows are read together, 16 at a time are mixed, and batches are dealt from the mixture.
    Where rows can be picked by number the blocks come in random order, otherwise in the order of the source. Rows that
    are far apart in a sorted file, or in different files, rarely or never meet in a batch: gradients are biased by what
    neighbouring rows have in common. Every row comes once per epoch.

    Args:
        data: Any source that can be read again.
        batch_size: Rows per batch.
        seed: Determines all batches.
        dtype: The float type of the batches.
        device: Where the batches are.
        share: Give out this share of each batch; all rows are read nevertheless.
    """

    def __init__(
        self,
        data: Source,
        batch_size: int,
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        share: Share = WHOLE,
    ) -> None:
        super().__init__(data, batch_size, "block", seed, dtype, device, share)
        warnings.warn(
            "sampling='block' does not draw rows uniformly: gradients are not unbiased, and if neighbouring rows are "
            "alike, as in a sorted file, training may go wrong. Use 'shuffle' or 'independent' where that matters.",
            NotUniformWarning,
            stacklevel=3,
        )

    def epoch(self, epoch: int, *, stream: int = 0, skip: int = 0, stop: int | None = None) -> Iterator[Rows]:
        """The batches of one epoch from ``skip`` up to ``stop``; ``stream`` tells apart batches drawn side by side."""
        return islice(self._epoch(mix_seed(self.seed, stream, epoch)), skip, stop)

    def _epoch(self, key: int) -> Iterator[Rows]:
        generator = torch.Generator().manual_seed(key)
        blocks = self._blocks(generator)
        rest: list[Rows] = []
        while pool := list(islice(blocks, _POOL_BLOCKS)):
            rows = _joined(rest + pool)
            order = torch.randperm(len(rows.inputs), generator=generator)
            whole = len(order) - len(order) % self.batch_size
            yield from self._shared(_picked(rows, order[:whole]))
            rest = [_picked(rows, order[whole:])] if whole < len(order) else []
        for rows in rest:
            yield from self._shared(rows)

    def _shared(self, rows: Rows) -> Iterator[Rows]:
        own = [part[self.share.cut(len(part))] for part in torch.split(torch.arange(len(rows.inputs)), self.batch_size)]
        return self._batches(_picked(rows, torch.cat(own)), [len(part) for part in own])

    def _blocks(self, generator: torch.Generator) -> Iterator[Rows]:
        source = self.data
        if not isinstance(source, IndexedSource):
            for rows in source:
                for start in range(0, len(rows.inputs), _BLOCK_ROWS):
                    yield _picked(rows, slice(start, start + _BLOCK_ROWS))
            return
        for block in torch.randperm(-(-self.num_data // _BLOCK_ROWS), generator=generator).tolist():
            yield source.gather(
                np.arange(block * _BLOCK_ROWS, min((block + 1) * _BLOCK_ROWS, self.num_data), dtype=np.int64)
            )


def make_sampler(
    data: Any,
    batch_size: int,
    *,
    sampling: str = "shuffle",
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    gathered_batches: int = GATHERED_BATCHES,
    share: Share = WHOLE,
    spooler: Callable[..., IndexedSource] = spool_temporarily,
) -> BatchSampler | SourceSampler:
    """The sampler for a source: in memory for arrays and lists of chunks; from disk for all others.

    A source that can only be read in order (tables, streams) is first spooled into a temporary file, unless
    ``sampling="block"``; ``spooler(source, input_dtype=...)`` does it. Each batch is drawn whole, and of its rows
    ``share`` is given out.
    """
    source = as_source(data)
    if sampling not in ("shuffle", "independent", "block"):
        raise ValueError(f"sampling must be 'shuffle', 'independent' or 'block', but is {sampling!r}.")
    kind: dict[str, Any] = {"seed": seed, "dtype": dtype, "device": device, "share": share}
    if isinstance(source, ArraySource | IterableSource) or not isinstance(source, Source):
        if sampling == "block":
            raise ValueError(
                "sampling='block' is for rows that are not in memory; arrays and lists of chunks are kept in memory, "
                "where uniform batches cost nothing: use 'shuffle' or 'independent'."
            )
        return BatchSampler(source, batch_size, sampling=sampling, **kind)
    if sampling == "block":
        return BlockSampler(source, batch_size, **kind)
    if not isinstance(source, IndexedSource):
        source = spooler(source, input_dtype="float64" if dtype == torch.float64 else "float32")
    return IndexedSampler(source, batch_size, sampling=sampling, gathered_batches=gathered_batches, **kind)


def _picked(rows: Rows, index: Tensor | slice) -> Rows:
    return Rows(*(None if part is None else part[index] for part in rows))  # type: ignore[arg-type]


def _joined(parts: list[Rows]) -> Rows:
    check_alike(parts)
    return Rows(*(None if part[0] is None else torch.cat(part) for part in zip(*parts, strict=True)))  # type: ignore[arg-type]
