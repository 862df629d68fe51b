"""Hashes of words and of rows: the same rows have the same, wherever they are computed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

Words = npt.NDArray[np.uint64]

# The step between the states of splitmix64.
SPLITMIX64_STEP = 0x9E3779B97F4A7C15


def splitmix64(words: Words) -> Words:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014): a bijection of 64-bit words that looks random.

    Example:
        >>> int(splitmix64(np.array([SPLITMIX64_STEP], dtype=np.uint64))[0])  # the first output for the seed 0
        16294208416658607535
    """
    # Arithmetic modulo 2^64 is meant.
    mixed: Words = words ^ (words >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def row_codes(columns: Iterable[npt.NDArray[np.float64]]) -> Words:
    """``(rows,)`` a number of 64 bits that equal rows share, and others but by an accident that never happens.

    Example:
        >>> first, second = row_codes([np.array([0.0, -0.0]), np.array([1.5, 1.5])])
        >>> bool(first == second)
        True
    """
    codes: Words | None = None
    for column in columns:
        words = (np.ascontiguousarray(column) + 0.0).view(np.uint64)  # zero and minus zero are equal
        codes = np.zeros(len(words), dtype=np.uint64) if codes is None else codes
        codes = splitmix64((codes + np.uint64(SPLITMIX64_STEP)) ^ words)
    assert codes is not None
    return codes


def row_hashes(inputs: ArrayLike, targets: ArrayLike) -> list[str]:
    """A name for each row and its target, in the user's units: to recognise a row by, not to read it from.

    Example:
        >>> row_hashes([[1.0, 2.0], [1.0, 2.0]], [0.0, -0.0]) == 2 * row_hashes([[1, 2]], [0])
        True
    """
    rows = np.column_stack([np.asarray(inputs, np.float64), np.asarray(targets, np.float64)]) + 0.0  # no minus zero
    return [hashlib.sha256(row.astype("<f8").tobytes()).hexdigest()[:32] for row in rows]
