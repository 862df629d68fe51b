"""Random permutations of any length, computed entry by entry: nothing of the length of the permutation is kept."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ..lite.hashing import SPLITMIX64_STEP, Words, splitmix64

_ROUNDS = 12
# Positions at a time: what is computed on the way stays in the cache, and is too small to be asked of the kernel.
_PIECE = 4096


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
