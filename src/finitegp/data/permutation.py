"""Random permutations of any length, computed entry by entry: nothing of the length of the permutation is kept."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_ROUNDS = 12
_Words = npt.NDArray[np.uint64]


class RandomPermutation:
    r"""A pseudo-random permutation of ``0 .. size - 1`` that is a function of the position.

    A permutation of :math:`10^8` rows kept as an array takes 800 MB; this one takes a hundred bytes. It is a Feistel
    network: a position is written as two halves :math:`(l, r)` of its bits, and twelve rounds replace them by
    :math:`(r, l \oplus h_k(r))`, where :math:`h_k` is the finaliser of splitmix64 with the key of the round. Each round
    can be undone, so that different positions go to different places. Places beyond ``size`` are sent through the
    network again until they fall below it (cycle walking; there are fewer than four times as many places as rows, so
    this happens fewer than three times in the mean). Last, a shift drawn uniformly is added modulo ``size``.

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

    def __init__(self, size: int, seed: int | _Words) -> None:
        if not 1 <= size <= 2**62:
            raise ValueError(f"size must lie from 1 to 2**62, but is {size}.")
        self.size = size
        self._half = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))
        self._mask = np.uint64((1 << int(self._half)) - 1)
        keys = np.array(seed, dtype=np.uint64, ndmin=1)
        # Multiples of the step of splitmix64, modulo 2^64.
        steps = [np.uint64(number * _STEP % 2**64) for number in range(1, _ROUNDS + 2)]
        self._keys = [_mix(keys + step) for step in steps]

    def __call__(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The rows at these positions."""
        size = np.uint64(self.size)
        keys = [np.broadcast_to(key, positions.shape) for key in self._keys]
        places = self._network(positions.astype(np.uint64), keys)
        beyond = np.flatnonzero(places >= size)
        while len(beyond):
            places[beyond] = self._network(places[beyond], [key[beyond] for key in keys])
            beyond = beyond[places[beyond] >= size]
        # Both terms are below 2^62: the sum does not overflow.
        rows: npt.NDArray[np.int64] = ((places + keys[-1] % size) % size).astype(np.int64)
        return rows

    def _network(self, places: _Words, keys: list[_Words]) -> _Words:
        left, right = places >> self._half, places & self._mask
        for key in keys[:_ROUNDS]:
            left, right = right, left ^ (_mix(right + key) & self._mask)
        joined: _Words = (left << self._half) | right
        return joined


_STEP = 0x9E3779B97F4A7C15


def _mix(words: _Words) -> _Words:
    """The finaliser of splitmix64; arithmetic modulo 2^64 is meant."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: _Words = words ^ (words >> np.uint64(31))
    return mixed
