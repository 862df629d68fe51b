"""Inverse factors of matrices and sums of products, for loops that Numba compiles."""

from __future__ import annotations

import numpy as np
from numba import config, njit, types

from ..lapack import routine_address, routine_of

# Sums may be taken in any order, so that they use vector instructions; NaN and infinity keep their meaning.
_SUMS = {"reassoc", "contract", "nsz"}
_BLOCK, _WIDE_BLOCK = 16, 128

if config.DISABLE_JIT:
    _syrk = routine_of("blas", "dsyrk", 10)
else:
    from llvmlite.binding import add_symbol

    # By name, so that what is compiled can be kept in files: the address differs from process to process.
    add_symbol("finitegp_dsyrk", routine_address("blas", "dsyrk", 10) or 0)
    _syrk = types.ExternalFunction("finitegp_dsyrk", types.void(*[types.voidptr] * 10))


@njit(cache=True, error_model="numpy")
def add_gram(total, features, keep, weight):
    """``total <- keep * total + weight * Z'Z`` in float64, by the symmetric update of BLAS; ``total`` stays whole."""
    wide = features.astype(np.float64)
    size, rows = np.array([len(total)], np.int32), np.array([len(wide)], np.int32)
    upper, plain = np.array([85], np.uint8), np.array([78], np.uint8)  # U, N
    factor, before = np.array([weight], np.float64), np.array([keep], np.float64)
    # BLAS sees transposes: what it calls the upper triangle is the lower one here.
    _syrk(
        upper.ctypes, plain.ctypes, size.ctypes, rows.ctypes, factor.ctypes, wide.ctypes, size.ctypes, before.ctypes,
        total.ctypes, size.ctypes,
    )  # fmt: skip
    for start in range(0, len(total), _BLOCK):
        for j in range(min(start + _BLOCK, len(total))):
            for i in range(max(start, j + 1), min(start + _BLOCK, len(total))):
                total[j, i] = total[i, j]


@njit(cache=True, error_model="numpy", fastmath=_SUMS)
def _factorise_block(matrix, inverse, start, stop):
    """Cholesky of a diagonal block in place, and the inverse of its factor; False if it is not positive definite."""
    for i in range(start, stop):
        for j in range(start, i + 1):
            total = matrix[i, j]
            for k in range(start, j):
                total -= matrix[i, k] * matrix[j, k]
            if i == j:
                if not total > 0.0 or total > 1e300:  # NaN is not positive
                    return False
                matrix[i, i] = np.sqrt(total)
            else:
                matrix[i, j] = total / matrix[j, j]
    for i in range(start, stop):
        reciprocal = 1.0 / matrix[i, i]
        for j in range(start, i):
            inverse[i, j] = 0.0
        for k in range(start, i):
            factor = -matrix[i, k] * reciprocal
            for j in range(start, k + 1):
                inverse[i, j] += factor * inverse[k, j]
        inverse[i, i] = reciprocal
    return True


@njit(cache=True, error_model="numpy")
def inverse_factor(matrix, inverse):
    """``L^-1`` into ``inverse`` for ``L L' = matrix``, which is overwritten; False if it is not positive definite."""
    size = len(matrix)
    block = _BLOCK if size <= _WIDE_BLOCK else _WIDE_BLOCK
    inverse[:] = 0.0
    for start in range(0, size, block):
        stop = min(start + block, size)
        if start:
            row = np.ascontiguousarray(matrix[start:stop, :start])
            below = np.ascontiguousarray(matrix[start:, :start])
            matrix[start:, start:stop] -= np.dot(below, row.T)
        if block == _BLOCK:
            if not _factorise_block(matrix, inverse, start, stop):
                return False
        else:
            work, found = matrix[start:stop, start:stop].copy(), np.empty((stop - start, stop - start), matrix.dtype)
            if not inverse_factor(work, found):
                return False
            inverse[start:stop, start:stop] = found
        corner = np.ascontiguousarray(inverse[start:stop, start:stop])
        if stop < size:
            matrix[stop:, start:stop] = np.dot(np.ascontiguousarray(matrix[stop:, start:stop]), corner.T)
        if start:
            earlier = np.ascontiguousarray(inverse[:start, :start])
            inverse[start:stop, :start] = np.dot(corner, np.dot(row, earlier))
            inverse[start:stop, :start] *= -1.0
    return True
