"""Cholesky factors with NumPy alone."""

from __future__ import annotations

import numpy as np

from .program import Array, LiteError

# Relative to the mean diagonal, in the order tried, as in the library.
_JITTERS = (0.0, 1e-14, 1e-12, 1e-10)


def cholesky(matrix: Array) -> Array:
    """The lower factor of a positive definite matrix, with as little added to its diagonal as possible."""
    size = abs(float(np.mean(np.diagonal(matrix))))
    for jitter in _JITTERS:
        try:
            shifted = matrix + jitter * size * np.eye(len(matrix)) if jitter else matrix
            found: Array = np.asarray(np.linalg.cholesky(shifted), np.float64)
        except np.linalg.LinAlgError:
            continue
        if np.isfinite(found).all():
            return found
    raise LiteError("the sums of its rows are not positive definite in floating point: more noise is needed")
