"""Rows as users have them."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike
from torch import Tensor

from ..data import ArraySource
from ..data.naming import check_unique
from ..errors import DataError

_NO_NUMBERS = ("object", "str", "category", "categorical", "enum", "date", "period", "time")
_PIECE = 65_536

Array = npt.NDArray[np.float64]


def to_numpy(values: ArrayLike) -> Any:
    """Torch tensors as NumPy arrays; everything else as it is, for scikit-learn to check."""
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
        return tensor.double().numpy() if tensor.is_floating_point() else tensor.numpy()
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise DataError("The rows have masked values, which would be used as they are: fill or remove them first.")
    if hasattr(values, "columns") and hasattr(values, "dtypes"):
        check_unique([str(name) for name in values.columns], "The data frame")
        _check_numbers(values)
    return values


def stays_in_place(values: object, dimensions: tuple[int, ...]) -> TypeGuard[npt.NDArray[np.float64]]:
    """Whether rows are numbers in an array, in memory or mapped from a file, that can be read where they are."""
    return isinstance(values, np.ndarray) and values.dtype.kind in "fiu" and values.ndim in dimensions


def _check_numbers(frame: Any) -> None:
    """An error that names the estimator for tables if a data frame has columns of text or dates."""
    for name, kind in zip(frame.columns, list(frame.dtypes), strict=True):
        words = str(kind).lower()
        # Objects may be numbers.
        first = next((value for value in frame[name] if value is not None), None) if words == "object" else ""
        if isinstance(first, str) and words.startswith(_NO_NUMBERS):
            raise DataError(
                f"Column {str(name)!r} holds text or dates ({kind}), but GPRegressor takes numbers: "
                "finitegp.TableRegressor takes tables with text, dates and gaps."
            )


def check_in_place(inputs: Array, targets: Array | None = None, counts: Array | None = None) -> ArraySource:
    """The rows as a source, every value checked in one pass, chunk by chunk; nothing is copied as a whole."""
    if targets is not None and len(targets) != len(inputs):
        raise DataError(f"X has {len(inputs)} rows, but y has {len(targets)}.")
    source = ArraySource(inputs, targets, counts=counts)
    source.measure()
    return source


def is_constant(targets: Array) -> bool:
    """Whether all targets are equal; read in pieces, which may be in a file."""
    first = targets[:1]
    return all(bool((targets[start : start + _PIECE] == first).all()) for start in range(0, targets.shape[0], _PIECE))
