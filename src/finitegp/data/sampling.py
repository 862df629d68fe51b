"""Uniform random batches of rows for training; permutations computed entry by entry, of which nothing is kept."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..arguments import check_at_least_one
from ..errors import DataError
from ..lite.hashing import SPLITMIX64_STEP, Words, splitmix64
from ..statistics import WHOLE, Share
from .iterables import as_source
from .row_files import Index
from .sources import Data, Rows, Source, no_targets
from .spool import spool_temporarily

_ROUNDS = 12
# Positions at a time: what is computed on the way stays in the cache, and is too small to be asked of the kernel.
_PIECE = 4096
# Batches read at once: large enough that indexing costs nothing per step, small enough to stay in cache.
GATHERED_BATCHES = 32
# Up to this many rows on disk, the permutation of an epoch is drawn and kept: half a mebibyte.
_KEPT_PERMUTATION = 1 << 16
_HASHED_ROWS = 1024


class RandomPermutation:
    r"""A pseudo-random permutation of ``0 .. size - 1`` that is a function of the position.

    A permutation of :math:`10^8` rows kept as an array takes 800 MB; this one takes two hundred bytes. It is a Feistel
    network: a position is written as two digits :math:`(l, r)`, :math:`l < a` and :math:`r < b`, with
    :math:`a \approx b \approx \sqrt{\mathrm{size}}`, and in twelve rounds one digit moves by a hash of the other,
    :math:`l \leftarrow l + h_k(r) \bmod a` and :math:`r \leftarrow r + h_k(l) \bmod b` in turn, where :math:`h_k` is
    the finaliser of splitmix64 with the key of the round. Each round can be undone, so that different positions go to
    different places. There are only about :math:`2\sqrt{\mathrm{size}}` more places than rows; a position that is sent
    to one of these goes through the network again until it falls on a row (cycle walking). Last, a shift drawn
    uniformly is added modulo ``size``.

    What can be claimed: if the keys were independent and uniform, the shift alone would make *every position hold
    every row with the same probability* (to one part in :math:`2^{64} / \mathrm{size}`), and that is all it takes for
    the mean over a batch to be an unbiased estimate of the mean over all rows. The keys are hashes of one seed of 64
    bits, so this and the uniformity of pairs and larger sets of rows are pseudo-random statements, like those about any
    generator; the tests find no difference from uniform. Not all ``size!`` permutations can occur, and it is not
    cryptography.

    Args:
        size: How many rows are permuted.
        seed: Any integer from 0 to 2^64 - 1; determines the permutation. An array of seeds with the shape of the
            positions makes each position part of a permutation of its own.

    Example:
        >>> permutation = RandomPermutation(10, seed=1)
        >>> sorted(permutation(np.arange(10)).tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
        >>> int(RandomPermutation(10**15, seed=1)(np.array([3]))[0]) < 10**15
        True
    """

    def __init__(self, size: int, seed: int | Words) -> None:
        if not 1 <= size <= 2**62:
            raise ValueError(f"size must lie from 1 to 2**62, but is {size}.")
        self.size = size
        root = math.isqrt(size - 1) + 1
        self._digits = np.uint64(-(-size // root)), np.uint64(root)  # both at most 2^31
        keys = np.array(seed, dtype=np.uint64, ndmin=1)
        # Multiples of the step of splitmix64, modulo 2^64.
        steps = [np.uint64(number * SPLITMIX64_STEP % 2**64) for number in range(1, _ROUNDS + 2)]
        self._keys = [splitmix64(keys + step) for step in steps]

    def __call__(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The rows at these positions."""
        rows = np.empty(len(positions), dtype=np.int64)
        keys = [np.broadcast_to(key, positions.shape) for key in self._keys]
        for start in range(0, len(positions), _PIECE):
            piece = slice(start, start + _PIECE)
            rows[piece] = self._rows(positions[piece], [key[piece] for key in keys])
        return rows

    def _rows(self, positions: npt.NDArray[np.int64], keys: list[Words]) -> Words:
        size = np.uint64(self.size)
        places = self._network(positions.astype(np.uint64), keys)
        beyond = np.flatnonzero(places >= size)
        while len(beyond):
            places[beyond] = self._network(places[beyond], [key[beyond] for key in keys])
            beyond = beyond[places[beyond] >= size]
        # Both terms are below 2^62: the sum does not overflow.
        rows: Words = (places + keys[-1] % size) % size
        return rows

    def _network(self, places: Words, keys: list[Words]) -> Words:
        high, low = self._digits
        left, right = np.divmod(places, low)
        for number in range(0, _ROUNDS, 2):
            _move(left, high, right + keys[number])
            _move(right, low, left + keys[number + 1])
        joined: Words = left * low + right
        return joined


def _move(digits: Words, base: np.uint64, words: Words) -> None:
    """Add to each digit a hash of the word beside it, modulo the base, in place."""
    hashed = splitmix64(words)
    # The upper 32 bits as a fraction of the base: like a remainder, but without a division.
    hashed >>= np.uint64(32)
    hashed *= base
    hashed >>= np.uint64(32)
    digits += hashed
    # Below the base the difference wraps around to something huge.
    np.minimum(digits, digits - base, out=digits)


class Sampler:
    """Uniform random batches of the rows of any source, reproducible from ``(seed, stream, epoch)`` alone.

    With ``sampling="shuffle"`` the rows are shuffled for each epoch and dealt out: every batch is a uniform random
    subset of the rows, and the batches of one epoch are disjoint. With ``"independent"`` every batch is drawn from
    all rows whatever was drawn before, with replacement: batches are independent, as the theory of the stochastic
    algorithms assumes. In both cases a batch gives an unbiased estimate of any sum over rows.

    Arrays and lists of chunks are read once, checked, and kept in memory in the type of the model. Rows that can be
    taken by number (:attr:`Source.can_take <finitegp.data.Source>`) stay on disk; of more than 65,536 rows on disk the
    permutation is computed instead of drawn (:class:`RandomPermutation`, whose documentation states how uniform it is),
    and independent batches come from a counter-based generator (Philox), so that nothing of the length of the data is
    kept. Rows that can only be read in order (tables, streams) are spooled into a temporary file first.

    Counts of rows (:class:`~finitegp.data.ArraySource`) reach the batches as weights relative to the mean count, so
    that a rare row is not drawn more often but steers more; exact passes use the counts themselves.

    Args:
        data: Arrays, or any source with targets.
        batch_size: Rows per batch; the last batch of a shuffled epoch may be smaller.
        sampling: ``"shuffle"`` or ``"independent"``.
        seed: Determines all batches.
        dtype: The float type of the batches.
        device: Where the batches are.
        gathered_batches: Batches read at once. Makes no difference to the batches.
        share: Yield this share of each batch; the batches are drawn as if there were one share.
        spooler: ``spooler(source, input_dtype=...)`` writes rows to disk that can only be read in order.

    Attributes:
        data: The rows for exact passes: as they were given, or spooled.
        kept: The rows in memory in the type of the model; None if they stay on disk.
        num_data: The number of rows.
        num_targets: The number of target columns.
        target_mean_square: The mean square of the targets.
        batch_size: Rows per batch, at most the number of rows.

    Example:
        >>> data = torch.arange(6.0)[:, None], torch.zeros(6)
        >>> sampler = Sampler(data, batch_size=4, seed=0)
        >>> rows = torch.cat([batch.inputs for batch in sampler.epoch(0)])
        >>> len(sampler), sorted(rows[:, 0].tolist())
        (2, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    """

    def __init__(
        self,
        data: Data,
        batch_size: int,
        *,
        sampling: str = "shuffle",
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        gathered_batches: int = GATHERED_BATCHES,
        share: Share = WHOLE,
        spooler: Callable[..., Source] = spool_temporarily,
    ) -> None:
        check_at_least_one(batch_size=batch_size, gathered_batches=gathered_batches)
        if sampling not in ("shuffle", "independent"):
            raise ValueError(f"sampling must be 'shuffle' or 'independent', but is {sampling!r}.")
        self.data = as_source(data)
        self._kind: dict[str, Any] = {"dtype": dtype, "device": device}
        self._mean_count: float | None = None
        self.kept: Rows | None = None
        if self.data.fits_memory:
            self.kept, targets = self._joined(list(self.data))
            self.num_data, self.num_targets = targets.shape
            self.target_mean_square = float(targets.double().square().mean())
        else:
            if not self.data.can_take:
                self.data = spooler(self.data, input_dtype="float64" if dtype == torch.float64 else "float32")
            measured = self.data.measure()
            self.num_data, self.num_targets = measured.num_data, measured.num_targets
            self.target_mean_square, self._mean_count = measured.target_mean_square, measured.mean_count
        self.batch_size = min(batch_size, self.num_data)
        self.sampling = sampling
        self.seed = int(seed)
        self.gathered_batches = gathered_batches
        last = batch_size if sampling == "independent" else self.num_data - (len(self) - 1) * self.batch_size
        # The rows of a batch, and of the last one, that are of the own share.
        self._own, self._own_of_last = share.cut(self.batch_size), share.cut(min(last, self.batch_size))

    def fingerprint(self) -> str:
        """A hash of up to 1,024 rows, evenly spaced, in float32: to see whether the rows are the same."""
        chosen = np.unique(np.linspace(0, self.num_data - 1, min(self.num_data, _HASHED_ROWS)).astype(np.int64))
        digest = hashlib.sha256()
        for part in self._take(chosen):
            if part is not None:
                digest.update(part.cpu().float().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def __len__(self) -> int:
        """Batches per epoch."""
        return -(-self.num_data // self.batch_size)

    def epoch(self, epoch: int, *, stream: int = 0, skip: int = 0, stop: int | None = None) -> Iterator[Rows]:
        """The batches of one epoch from ``skip`` up to ``stop``; ``stream`` separates batches drawn side by side."""
        return chain.from_iterable(self._gathered(epoch, stream, skip, len(self) if stop is None else stop))

    def _gathered(self, epoch: int, stream: int, skip: int, stop: int) -> Iterator[Iterator[Rows]]:
        """The batches of an epoch, as many at once as are read at once."""
        numbers_at = self._order(mix_seed(self.seed, stream, epoch))
        end = min(stop, len(self))
        for first in range(skip, end, self.gathered_batches):
            own = [self._positions(number) for number in range(first, min(first + self.gathered_batches, end))]
            sizes = [len(positions) for positions in own]
            positions = np.concatenate([np.arange(each.start, each.stop) for each in own])
            inputs, targets, weights = self._take(numbers_at(positions))
            if weights is None:
                yield map(Rows, torch.split(inputs, sizes), torch.split(targets, sizes))
            else:
                yield map(Rows, *(torch.split(part, sizes) for part in (inputs, targets, weights)))

    def _joined(self, rows: list[Rows]) -> tuple[Rows, Tensor]:
        """All chunks in the type of the model, and their targets; counts become weights."""
        for name in ("weights", "counts"):
            if len({getattr(part, name) is None for part in rows}) > 1:
                raise DataError(f"Some chunks of the data have {name} and some do not.")
        inputs = torch.cat([part.inputs.to(**self._kind) for part in rows])
        known = [part.targets.to(**self._kind) for part in rows if part.targets is not None]
        if len(known) < len(rows):
            raise no_targets()
        targets = torch.cat(known)
        counts = [part.counts for part in rows if part.counts is not None]
        mean_count = float(torch.cat(counts).mean()) if counts else None
        relative = (_relative_weights(part, mean_count) for part in rows)
        weights = [weight.to(**self._kind) for weight in relative if weight is not None]
        return Rows(inputs, targets, torch.cat(weights) if weights else None), targets

    def _take(self, numbers: Index) -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs, targets and weights of these rows in the type of the model."""
        if self.kept is not None:
            inputs, targets, weights, _ = self.kept
            assert targets is not None
            index = torch.from_numpy(numbers).to(inputs.device)
            return inputs[index], targets[index], None if weights is None else weights[index]
        rows = self.data.take(numbers)
        relative = _relative_weights(rows, self._mean_count)
        inputs, targets = (part.to(**self._kind) for part in (rows.inputs, rows.observed))
        return inputs, targets, None if relative is None else relative.to(**self._kind)

    def _positions(self, number: int) -> range:
        """The positions of the own share of a batch in the order of the epoch."""
        start = number * self.batch_size
        own = self._own_of_last if number == len(self) - 1 else self._own
        return range(start + own.start, start + own.stop)

    def _order(self, key: int) -> Callable[[Index], Index]:
        """The function from positions in the order of an epoch to numbers of rows."""
        generator = torch.Generator().manual_seed(key)
        if self.sampling == "independent":
            if self.kept is None:
                return lambda positions: self._independent(key, positions)
            order = torch.randint(self.num_data, (len(self) * self.batch_size,), generator=generator)
        elif self.kept is None and self.num_data > _KEPT_PERMUTATION:
            return RandomPermutation(self.num_data, key)
        else:
            order = torch.randperm(self.num_data, generator=generator)
        return order.numpy().__getitem__

    def _independent(self, key: int, positions: Index) -> Index:
        """Numbers of rows, from a generator of its own for each batch."""
        batches, first, sizes = np.unique(positions // self.batch_size, return_index=True, return_counts=True)
        parts = []
        for batch, start, size in zip(batches, first, sizes, strict=True):
            random = np.random.Generator(np.random.Philox(key=np.array([key, batch], dtype=np.uint64)))
            drawn = random.integers(self.num_data, size=self.batch_size, dtype=np.int64)
            parts.append(drawn[positions[start : start + size] - batch * self.batch_size])
        return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def _relative_weights(rows: Rows, mean_count: float | None) -> Tensor | None:
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
        value = (value * SPLITMIX64_STEP + part + 0x632BE59BD9B4E019) % 2**64
        value = int(splitmix64(np.array([value], dtype=np.uint64))[0])
    return value % 2**63
