"""The only place that factorises: Cholesky with a reported jitter policy, symmetric eigenvalues, and Gram sums.

A Cholesky factor is first tried on the matrix as it is. Only if that fails is a small multiple of the mean diagonal
added, and the amount is kept in the result, so that nobody has to guess what was computed.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .errors import NumericalError

Array = npt.NDArray[np.float64]

# Jitter relative to the mean diagonal, in the order tried. Beyond the last one the answer would be another model's.
RELATIVE_JITTERS = {
    torch.float64: (0.0, 1e-14, 1e-12, 1e-10),
    torch.float32: (0.0, 1e-7, 1e-6, 1e-5),
}

# Rows per block when rows are summed in float64: one block stays in a core's cache.
GRAM_BLOCK_ROWS = 512
# Rows of a triangle that are solved at once: products do the rest.
SOLVED_ROWS = 64
# Up to this number of rows the general product is faster: the update has more overhead.
SMALL_BATCH_ROWS = 64
# Below this size the inverse of a float32 factor is solved for.
_SOLVED_INVERSE = 400


@cache
def _lapack() -> ModuleType:
    """SciPy's LAPACK, imported when first needed: SciPy takes several times longer to import than this package."""
    return import_module("scipy.linalg.lapack")


@cache
def _blas() -> ModuleType:
    """SciPy's BLAS, imported when first needed."""
    return import_module("scipy.linalg.blas")


@dataclass(frozen=True, eq=False)
class CholeskyFactor:
    """The lower triangular ``L`` with ``L L' = matrix + jitter * I``, and what can be done with it.

    Attributes:
        lower: ``(d, d)`` lower triangular factor.
        jitter: What was added to the diagonal, in the matrix's own units; 0.0 if nothing was.
    """

    lower: Tensor
    jitter: float

    def solve(self, right_side: Tensor) -> Tensor:
        """``matrix^-1 right_side`` for ``right_side`` of shape ``(d, k)``."""
        return torch.cholesky_solve(right_side, self.lower)

    def half_solve(self, right_side: Tensor) -> Tensor:
        """``L^-1 right_side``; its squared column norms are the quadratic forms ``b' matrix^-1 b``."""
        solution: Tensor = torch.linalg.solve_triangular(self.lower, right_side, upper=False)
        return solution

    def transposed_half_solve(self, right_side: Tensor) -> Tensor:
        """``L^-T right_side``; turns standard normal columns into draws with covariance ``matrix^-1``."""
        solution: Tensor = torch.linalg.solve_triangular(self.lower.mT, right_side, upper=True)
        return solution

    def log_determinant(self) -> Tensor:
        """``log |matrix|``."""
        return 2.0 * self.lower.diagonal().log().sum()

    def inverse(self) -> Tensor:
        """``matrix^-1``, symmetric to the last bit."""
        if self.lower.device.type != "cpu":
            inverse = torch.cholesky_inverse(self.lower)
            return 0.5 * (inverse + inverse.mT)
        potri = _lapack().dpotri if self.lower.dtype == torch.float64 else _lapack().spotri
        # The lower triangle of the inverse; what is above the diagonal of the factor is zero and stays so.
        return mirrored(torch.from_numpy(potri(self.lower.numpy(), lower=1)[0]))


class BlockedTriangle:
    """Forward substitution with a lower triangle on the CPU, by products with blocks of it.

    Products take two thirds of the time of a triangular solve of BLAS. Only the blocks on the diagonal are inverted,
    which loses next to nothing; the inverse of all of a triangle that is nearly singular would lose half of the digits.

    Args:
        lower: ``(d, d)``, float64; what is below the diagonal is copied.

    Example:
        >>> triangle = BlockedTriangle(np.array([[2.0, 0.0], [1.0, 4.0]]))
        >>> triangle.solve(np.array([[2.0], [5.0]])).tolist()
        [[1.0], [1.0]]
    """

    def __init__(self, lower: Array) -> None:
        starts = range(0, len(lower), SOLVED_ROWS)
        rows = [slice(start, min(start + SOLVED_ROWS, len(lower))) for start in starts]
        # Row by row in memory, which is how products take a left side fastest.
        self._blocks = [
            (part, np.ascontiguousarray(lower[part, : part.start]), np.tril(np.linalg.inv(lower[part, part])))
            for part in rows
        ]

    def solve(self, right_side: Array) -> Array:
        """``L^-1 right_side`` for ``right_side`` of shape ``(d, k)``, which is overwritten by it."""
        for rows, before, inverse in self._blocks:
            part = right_side[rows]
            if rows.start:
                part = part - before @ right_side[: rows.start]
            right_side[rows] = inverse @ part
        return right_side


def cholesky(matrix: Tensor, *, noise_variance: float | None = None) -> CholeskyFactor:
    """Factorise a symmetric positive definite matrix, with as little jitter as possible.

    Args:
        matrix: ``(d, d)``, float32 or float64.
        noise_variance: The noise variance inside the matrix, if any; only used to explain a failure.

    Raises:
        NumericalError: If the matrix is not finite, or not positive definite even with the largest jitter.

    Example:
        >>> factor = cholesky(torch.tensor([[4.0, 2.0], [2.0, 3.0]], dtype=torch.float64))
        >>> factor.jitter
        0.0
        >>> bool(torch.isclose(factor.log_determinant().exp(), torch.tensor(8.0, dtype=torch.float64)))
        True
    """
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise NumericalError(f"matrix must be square to be factorised, but has shape {tuple(matrix.shape)}.")
    scale = float(matrix.diagonal().mean())
    if not math.isfinite(scale):
        raise NumericalError(
            "The matrix to factorise holds NaN or infinity: look for features or targets that are not finite."
        )
    jitters = [abs(scale) * relative for relative in RELATIVE_JITTERS[matrix.dtype]]
    for jitter in jitters:
        shifted = matrix
        if jitter > 0.0:
            shifted = matrix.clone()
            shifted.diagonal().add_(jitter)
        lower, info = _factorise(shifted)
        if info == 0:
            return CholeskyFactor(lower=lower, jitter=jitter)
    raise NumericalError(_failure_message(matrix, jitters, noise_variance))


def inverse_root(matrix: Tensor, dtype: torch.dtype, *, noise_variance: float | None = None) -> Tensor:
    """``L^-1`` for ``L L' = matrix`` of float64, in another float type, with the jitter policy of :func:`cholesky`.

    ``L^-T L^-1`` is the inverse, the squared norm of ``L^-1`` its trace. Factorised in float64, solved in ``dtype``.
    """
    if matrix.device.type != "cpu":
        lower = cholesky(matrix, noise_variance=noise_variance).lower.to(dtype)
        solution: Tensor = torch.linalg.solve_triangular(lower, torch.eye(len(lower)).to(lower), upper=False)
        return solution
    factor, info = _lapack().dpotrf(matrix.numpy().T, lower=1)
    if info != 0 or not math.isfinite(factor.trace()):
        factor = cholesky(matrix, noise_variance=noise_variance).lower.numpy()
    if dtype == torch.float32 and len(factor) < _SOLVED_INVERSE:
        # For small matrices a triangular solve is faster than the triangular inverse, which has less to do.
        identity = np.eye(len(factor), dtype=np.float32, order="F")
        return torch.from_numpy(_blas().strsm(1.0, factor.astype(np.float32), identity, lower=1, overwrite_b=1))
    if dtype == torch.float32:
        return torch.from_numpy(_lapack().strtri(factor.astype(np.float32), lower=1, overwrite_c=1)[0])
    return torch.from_numpy(_lapack().dtrtri(factor, lower=1, overwrite_c=1)[0])


def is_positive_definite(matrix: Tensor) -> bool:
    """Whether a Cholesky factorisation without jitter succeeds: the cheapest test there is."""
    return _factorise(matrix)[1] == 0


def _factorise(matrix: Tensor) -> tuple[Tensor, int]:
    """The lower Cholesky factor and LAPACK's info, which is zero if the matrix is positive definite."""
    if matrix.device.type != "cpu":
        lower, info = torch.linalg.cholesky_ex(matrix)
        return lower, int(info)
    # For the small matrices here SciPy's LAPACK takes a quarter to a half of the time of torch's.
    potrf = _lapack().dpotrf if matrix.dtype == torch.float64 else _lapack().spotrf
    factor, info = potrf(matrix.detach().numpy().T, lower=1)  # symmetric: the transpose is the same matrix
    return torch.from_numpy(factor), int(info)  # a NaN is not positive: LAPACK reports it


def _failure_message(matrix: Tensor, jitters: list[float], noise_variance: float | None) -> str:
    if not bool(torch.isfinite(matrix).all()):
        return "The matrix to factorise holds NaN or infinity: look for features or targets that are not finite."
    eigenvalues = torch.linalg.eigvalsh(matrix.double())
    smallest, largest = float(eigenvalues[0]), float(eigenvalues[-1])
    condition = largest / smallest if smallest > 0 else math.inf
    noise = "" if noise_variance is None else f", noise variance {noise_variance:.3g}"
    tried = ", ".join(f"{jitter:.3g}" for jitter in jitters)
    return (
        f"The {len(matrix)} x {len(matrix)} matrix is not positive definite in {str(matrix.dtype)[6:]}: eigenvalues "
        f"from {smallest:.3g} to {largest:.3g}, condition number {condition:.3g}{noise}, jitter tried: {tried}. "
        "Raise the noise variance, scale the features to order one, or use float64."
    )


def symmetric_eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (ascending) and eigenvectors (columns) of a symmetric matrix; only its lower triangle is read."""
    eigenvalues, eigenvectors = torch.linalg.eigh(_decomposable(matrix))
    return eigenvalues, eigenvectors


def symmetric_eigenvalues(matrix: Tensor) -> Tensor:
    """Those of :func:`symmetric_eigen`, at a fraction of the cost."""
    eigenvalues: Tensor = torch.linalg.eigvalsh(_decomposable(matrix))
    return eigenvalues


def _decomposable(matrix: Tensor) -> Tensor:
    if not bool(torch.isfinite(matrix.sum())):
        raise NumericalError("The matrix to decompose holds NaN or infinity.")
    return matrix


def from_eigen(eigenvalues: Tensor, eigenvectors: Tensor) -> Tensor:
    """``V diag(e) V'`` for positive eigenvalues, float64, symmetric to the last bit."""
    root = eigenvectors * eigenvalues.sqrt()
    if root.device.type != "cpu":
        product = root @ root.mT
        return 0.5 * (product + product.mT)
    lower_half = torch.from_numpy(_blas().dsyrk(1.0, root.numpy(), lower=1))
    return mirrored(lower_half)


def update_gram(
    total: Tensor, features: Tensor, *, keep: float, weight: float, row_scale: Tensor | None = None
) -> None:
    """``total <- keep * total + weight * Z'Z`` in place and in float64, for ``features`` of any float type."""
    if features.device.type == "cpu" and len(features) > SMALL_BATCH_ROWS:
        total.mul_(keep).add_(gram_float64(features, row_scale=row_scale), alpha=weight)
        return
    wide = features.to(torch.float64)
    if row_scale is not None:
        wide = wide * row_scale[:, None]
    total.addmm_(wide.mT, wide, beta=keep, alpha=weight)


def gram_float64(*columns: Tensor, row_scale: Tensor | None = None) -> Tensor:
    """``C'C`` in float64, where ``C`` is the given ``(rows, k)`` tensors side by side, of any float type.

    On the CPU by :func:`add_gram`. Elsewhere, and for few rows, it is a float64 product.

    Args:
        columns: Tensors with the same number of rows.
        row_scale: ``(rows,)``, multiplied onto each row first.
    """
    if columns[0].device.type != "cpu" or len(columns[0]) <= SMALL_BATCH_ROWS:
        stacked = _side_by_side(columns, row_scale)
        return stacked.mT @ stacked
    width = sum(tensor.shape[1] for tensor in columns)
    total = torch.zeros(width, width, dtype=torch.float64, device=columns[0].device)
    add_gram(total, *columns, row_scale=row_scale)
    return mirrored(total)


def add_gram(total: Tensor, *columns: Tensor, row_scale: Tensor | None = None) -> None:
    """Add the lower triangle of ``C'C`` to a contiguous float64 matrix.

    On the CPU this uses the symmetric rank-k update of BLAS on blocks of rows that fit in a core's cache, which does
    half the work of a general product. Elsewhere it is a float64 product.

    Args:
        total: ``(k, k)`` for all columns together; changed in place.
        columns: ``C`` in parts: tensors ``(rows, ...)`` side by side, of any float type.
        row_scale: ``(rows,)``, multiplied onto each row first.
    """
    if total.device.type != "cpu":
        stacked = _side_by_side(columns, row_scale)
        total += (stacked.mT @ stacked).tril_()
        return
    # BLAS sees the transposes of row-major memory: it fills the Fortran upper triangle, our lower one, in place.
    fortran_total, rows = total.numpy().T, len(columns[0])
    block = torch.empty(min(rows, GRAM_BLOCK_ROWS), len(total), dtype=torch.float64)
    for start in range(0, rows, GRAM_BLOCK_ROWS):
        part = block[: min(GRAM_BLOCK_ROWS, rows - start)]
        offset = 0
        for tensor in columns:
            part[:, offset : offset + tensor.shape[1]] = tensor.detach()[start : start + len(part)]
            offset += tensor.shape[1]
        if row_scale is not None:
            part *= row_scale[start : start + len(part), None]
        add_products(fortran_total, part.numpy().T)


def _side_by_side(columns: Sequence[Tensor], row_scale: Tensor | None) -> Tensor:
    wide = [tensor.detach().to(torch.float64) for tensor in columns]
    stacked = wide[0] if len(wide) == 1 else torch.cat(wide, dim=1)
    return stacked if row_scale is None else stacked * row_scale[:, None]


def mirrored(lower_half: Tensor) -> Tensor:
    """The symmetric matrix whose lower triangle is given; above the diagonal there are zeros."""
    symmetric = lower_half + lower_half.mT
    symmetric.diagonal().mul_(0.5)
    return symmetric


# Routines of BLAS and LAPACK that threads call side by side, without Python's lock. SciPy's own wrappers hold it: two
# threads that factorise would take turns. Its modules for Cython publish the addresses of the same routines; where they
# do not, or count in other integers, the wrappers are called.


@cache
def _routine(library: str, name: str, arguments: int) -> Callable[..., None] | None:
    """A routine, all of whose arguments are addresses; None if it cannot be had in this form."""
    capsule = getattr(import_module(f"scipy.linalg.cython_{library}"), "__pyx_capi__", {}).get(name)
    if capsule is None:
        return None
    get_name, get_pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    signature = get_name(capsule)
    # The capsule's name is the C signature; sizes of 64 bits would have another type.
    if signature is None or signature.count(b",") + 1 != arguments or b" int *" not in signature:
        return None
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(get_pointer(capsule, signature))


def _integer(value: int) -> object:
    return ctypes.byref(ctypes.c_int(value))


def _number(value: float) -> object:
    return ctypes.byref(ctypes.c_double(value))


def _check(matrix: Array) -> Array:
    if matrix.dtype != np.float64 or not matrix.flags.f_contiguous or not matrix.flags.writeable:
        raise ValueError("The matrix must be float64, writeable and in Fortran's order.")
    return matrix


def add_products(total: Array, columns: Array) -> None:
    """Add ``C C'`` for ``C`` ``(k, rows)`` to the upper triangle of ``(k, k)``, both in Fortran's order."""
    size, rows = _check(columns).shape
    routine = _routine("blas", "dsyrk", 10)
    if routine is None:
        from scipy.linalg.blas import dsyrk

        dsyrk(1.0, columns, beta=1.0, c=_check(total), overwrite_c=1)
        return
    n, one = _integer(size), _number(1.0)
    routine(b"U", b"N", n, _integer(rows), one, columns.ctypes.data, n, one, _check(total).ctypes.data, n)


def factorise_in_place(matrix: Array) -> int:
    """The lower Cholesky factor in place of a symmetric matrix in Fortran's order, zeros above it; LAPACK's info."""
    routine = _routine("lapack", "dpotrf", 5)
    if routine is None:
        from scipy.linalg.lapack import dpotrf

        info = int(dpotrf(_check(matrix), lower=1, clean=1, overwrite_a=1)[1])
    else:
        found, n = ctypes.c_int(), _integer(len(_check(matrix)))
        routine(b"L", n, matrix.ctypes.data, n, ctypes.byref(found))
        info = found.value
    if info == 0:
        torch.from_numpy(matrix.T).triu_()
    return info


def invert_in_place(factor: Array) -> None:
    """The lower triangle of the inverse in place of a factor of :func:`factorise_in_place`."""
    routine = _routine("lapack", "dpotri", 5)
    if routine is None:
        from scipy.linalg.lapack import dpotri

        dpotri(_check(factor), lower=1, overwrite_c=1)
        return
    n = _integer(len(_check(factor)))
    routine(b"L", n, factor.ctypes.data, n, ctypes.byref(ctypes.c_int()))
