"""Random batches of rows for training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError
from .any_source import as_source
from .shares import WHOLE, Share
from .sources import Rows

# Batches gathered at once: large enough that indexing costs nothing per step, small enough to stay in cache.
GATHERED_BATCHES = 32


class BatchSampler:
    """Uniform random batches of in-memory rows, reproducible from ``(seed, stream, epoch)`` alone.

    With ``sampling="shuffle"`` the rows are shuffled for each epoch and dealt out: every batch is a uniform random
    subset of the rows, and the batches of one epoch are disjoint. With ``"independent"`` every batch is drawn from
    all rows whatever was drawn before, with replacement: batches are independent, as the theory of the stochastic
    algorithms assumes. In both cases a batch gives an unbiased estimate of any sum over rows.

    Counts of rows (:class:`~finitegp.data.ArraySource`) reach the batches as weights relative to the mean count, so
    that a rare row is not drawn more often but steers more; exact passes use the counts themselves.

    Args:
        data: Arrays, or any source; it is read once, checked, and kept in memory in the type of the model.
        batch_size: Rows per batch; the last batch of a shuffled epoch may be smaller.
        sampling: ``"shuffle"`` or ``"independent"``.
        seed: Determines all batches.
        dtype: The float type of the batches.
        device: Where the batches are.
        share: Give out this share of each batch; the batches are drawn as if there were one share.

    Attributes:
        data: The rows as they were given, for exact passes.

    Example:
        >>> data = torch.arange(6.0)[:, None], torch.zeros(6)
        >>> sampler = BatchSampler(data, batch_size=4, seed=0)
        >>> rows = torch.cat([batch.inputs for batch in sampler.epoch(0)])
        >>> len(sampler), sorted(rows[:, 0].tolist())
        (2, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    """

    def __init__(
        self,
        data: Any,
        batch_size: int,
        *,
        sampling: str = "shuffle",
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        share: Share = WHOLE,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, but is {batch_size}.")
        if sampling not in ("shuffle", "independent"):
            raise ValueError(f"sampling must be 'shuffle' or 'independent', but is {sampling!r}.")
        self.data = as_source(data)
        rows = list(self.data)
        self.inputs = torch.cat([part.inputs.to(dtype=dtype, device=device) for part in rows])
        self.targets = torch.cat([part.targets.to(dtype=dtype, device=device) for part in rows])
        check_alike(rows)
        counts = [part.counts for part in rows if part.counts is not None]
        mean_count = float(torch.cat(counts).mean()) if counts else None
        relative = (relative_weights(part, mean_count) for part in rows)
        weights = [weight.to(dtype=dtype, device=device) for weight in relative if weight is not None]
        self.weights: Tensor | None = torch.cat(weights) if weights else None
        self.num_data = len(self.inputs)
        self.batch_size = min(batch_size, self.num_data)
        self.sampling = sampling
        self.seed = seed
        self.share = share

    def __len__(self) -> int:
        """Batches per epoch."""
        return -(-self.num_data // self.batch_size)

    @property
    def target_mean_square(self) -> float:
        """The mean square of the targets."""
        return float(self.targets.double().square().mean())

    @property
    def num_targets(self) -> int:
        """The number of target columns."""
        return int(self.targets.shape[1])

    def epoch(self, epoch: int, *, stream: int = 0, skip: int = 0, stop: int | None = None) -> Iterator[Rows]:
        """The batches of one epoch from ``skip`` up to ``stop``; ``stream`` tells apart batches drawn side by side."""
        generator = torch.Generator().manual_seed(mix_seed(self.seed, stream, epoch))
        if self.sampling == "shuffle":
            order = torch.randperm(self.num_data, generator=generator)
        else:
            order = torch.randint(self.num_data, (len(self) * self.batch_size,), generator=generator)
        size = self.batch_size
        gathered = size * GATHERED_BATCHES
        if stop is not None:
            order = order[: stop * size]
        for start in range(skip * size, len(order), gathered):
            own = [part[self.share.cut(len(part))] for part in torch.split(order[start : start + gathered], size)]
            index, sizes = torch.cat(own).to(self.inputs.device), [len(part) for part in own]
            inputs = torch.split(self.inputs[index], sizes)
            targets = torch.split(self.targets[index], sizes)
            if self.weights is None:
                yield from map(Rows, inputs, targets)
            else:
                yield from map(Rows, inputs, targets, torch.split(self.weights[index], sizes))


def check_alike(parts: Sequence[Rows]) -> None:
    """An error if only some chunks have weights, or only some have counts."""
    for name in ("weights", "counts"):
        if len({getattr(part, name) is None for part in parts}) > 1:
            raise DataError(f"Some chunks of the data have {name} and some do not.")


def relative_weights(rows: Rows, mean_count: float | None) -> Tensor | None:
    """The weights of rows in a batch: their own, times their counts relative to the mean count of all rows."""
    if (rows.counts is None) != (mean_count is None):
        raise DataError("Some rows of the data have counts and some do not, or their source gives no mean_count.")
    if rows.counts is None or mean_count is None:
        return rows.weights
    relative = rows.counts / mean_count
    return relative if rows.weights is None else relative * rows.weights


def mix_seed(seed: int, stream: int, epoch: int) -> int:
    """One 63-bit seed out of three small numbers, far apart for neighbouring ones."""
    value = seed
    for part in (stream, epoch):
        # The finaliser of splitmix64.
        value = (value * 0x9E3779B97F4A7C15 + part + 0x632BE59BD9B4E019) % 2**64
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
        value ^= value >> 31
    return value % 2**63
