"""Exact values: row sums, Cholesky factors and the NLML."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.linalg import blas, lapack

from .network import Parameters, features
from .settings import WIDTH


def sums(p: Parameters, x: np.ndarray, y: np.ndarray, o: dict[str, Any], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """``Z'Z`` (lower triangle, Fortran order) and ``Z'y`` over all rows, summed in float64."""
    gram, cross = np.zeros((WIDTH, WIDTH), order="F"), np.zeros(WIDTH)
    for start in range(0, len(x), 1024):
        z = features(p, x[start : start + 1024].astype(dtype, copy=False), o["last_relu"], o["output_scale"])[1]
        z = z.astype(np.float64, copy=False)
        gram = blas.dsyrk(1.0, z.T, beta=1.0, c=gram, lower=1, overwrite_c=1)
        cross += y[start : start + 1024] @ z
    return gram, cross


def factorise(matrix: np.ndarray) -> np.ndarray | None:
    """Lower Cholesky factor of a matrix given by its lower triangle, or None."""
    factor, info = lapack.dpotrf(matrix, lower=1, clean=0)
    if info == 0 and math.isfinite(factor.trace()):
        return factor
    mean = matrix.trace() / len(matrix)
    if not math.isfinite(mean):
        return None
    for relative in (1e-14, 1e-12, 1e-10):
        factor, info = lapack.dpotrf(matrix + relative * mean * np.eye(len(matrix)), lower=1, clean=0)
        if info == 0 and math.isfinite(factor.trace()):
            return factor
    return None


def exact_nlml(gram: np.ndarray, cross: np.ndarray, q: float, s: float, n: int) -> tuple[float, np.ndarray | None]:
    """NLML per row in the targets' units of training, and the posterior mean of the weights."""
    f = gram.copy(order="F")
    f[np.diag_indices(WIDTH)] += s
    factor = factorise(f)
    if factor is None:
        return math.inf, None
    w = lapack.dpotrs(factor, cross, lower=1)[0]
    half_log = np.log(factor.diagonal()).sum()
    value = (q - cross @ w) / s + 2 * half_log + (n - WIDTH) * math.log(s) + n * math.log(2 * math.pi)
    value /= 2 * n
    return (value if math.isfinite(value) else math.inf), w
