"""Random batches from sources that are not in memory, and which sampler goes with which source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .any_source import as_source
from .permutation import RandomPermutation
from .sampling import GATHERED_BATCHES, BatchSampler, mix_seed, relative_weights
from .shares import WHOLE, Share
from .sources import ArraySource, IndexedSource, IterableSource, Rows, Source
from .spool import spool_temporarily

# Up to so many rows a permutation is drawn and kept: half a mebibyte.
_KEPT_PERMUTATION = 1 << 16


class IndexedSampler:
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

    Attributes:
        data: The source, for exact passes.
        num_data: The number of rows.
        num_targets: The number of target columns.
        target_mean_square: The mean square of the targets.
        batch_size: Rows per batch; the last batch of a shuffled epoch may be smaller.
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
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, but is {batch_size}.")
        self.data = data
        self.num_data, self.num_targets = data.num_data, data.num_targets
        self.target_mean_square = data.target_mean_square
        self.batch_size = min(batch_size, self.num_data)
        self.sampling = sampling
        self.seed = seed
        self.gathered_batches = gathered_batches
        self.share = share
        self._mean_count = data.mean_count
        self._kind: dict[str, Any] = {"dtype": dtype, "device": device}

    def __len__(self) -> int:
        """Batches per epoch."""
        return -(-self.num_data // self.batch_size)

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
            yield from self._batches(self.data.gather(indices), [len(part) for part in own])

    def _batches(self, rows: Rows, sizes: list[int]) -> Iterator[Rows]:
        """Rows cut into batches, in the type of the model; counts become weights, as in :class:`BatchSampler`."""
        inputs, targets = (torch.split(part.to(**self._kind), sizes) for part in (rows.inputs, rows.targets))
        weights = relative_weights(rows, self._mean_count)
        if weights is None:
            yield from map(Rows, inputs, targets)
        else:
            yield from map(Rows, inputs, targets, torch.split(weights.to(**self._kind), sizes))

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
) -> BatchSampler | IndexedSampler:
    """The sampler for a source: in memory for arrays and lists of chunks; from disk for all others.

    A source that can only be read in order (tables, streams) is first spooled into a temporary file;
    ``spooler(source, input_dtype=...)`` does it. Each batch is drawn whole, and of its rows ``share`` is given out.
    """
    source = as_source(data)
    if sampling not in ("shuffle", "independent"):
        raise ValueError(f"sampling must be 'shuffle' or 'independent', but is {sampling!r}.")
    kind: dict[str, Any] = {"seed": seed, "dtype": dtype, "device": device, "share": share}
    if isinstance(source, ArraySource | IterableSource) or not isinstance(source, Source):
        return BatchSampler(source, batch_size, sampling=sampling, **kind)
    if not isinstance(source, IndexedSource):
        source = spooler(source, input_dtype="float64" if dtype == torch.float64 else "float32")
    return IndexedSampler(source, batch_size, sampling=sampling, gathered_batches=gathered_batches, **kind)
