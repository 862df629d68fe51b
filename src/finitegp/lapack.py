"""Routines of BLAS and LAPACK that threads call side by side, without Python's lock.

SciPy's own wrappers hold it: two threads that factorise would take turns. Its modules for Cython publish the addresses
of the same routines; where they do not, or count in other integers, the wrappers are called.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from importlib import import_module

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[np.float64]


@cache
def routine_address(library: str, name: str, arguments: int) -> int | None:
    """The address of a routine, all of whose arguments are addresses; None if it cannot be had in this form."""
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
    return int(get_pointer(capsule, signature))


@cache
def routine_of(library: str, name: str, arguments: int) -> Callable[..., None] | None:
    """The routine at this address, to be called from Python."""
    address = routine_address(library, name, arguments)
    return None if address is None else ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(address)


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
    routine = routine_of("blas", "dsyrk", 10)
    if routine is None:
        from scipy.linalg.blas import dsyrk

        dsyrk(1.0, columns, beta=1.0, c=_check(total), overwrite_c=1)
        return
    n, one = _integer(size), _number(1.0)
    routine(b"U", b"N", n, _integer(rows), one, columns.ctypes.data, n, one, _check(total).ctypes.data, n)


def factorise_in_place(matrix: Array) -> int:
    """The lower Cholesky factor in place of a symmetric matrix in Fortran's order, zeros above it; LAPACK's info."""
    routine = routine_of("lapack", "dpotrf", 5)
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
    routine = routine_of("lapack", "dpotri", 5)
    if routine is None:
        from scipy.linalg.lapack import dpotri

        dpotri(_check(factor), lower=1, overwrite_c=1)
        return
    n = _integer(len(_check(factor)))
    routine(b"L", n, factor.ctypes.data, n, ctypes.byref(ctypes.c_int()))
