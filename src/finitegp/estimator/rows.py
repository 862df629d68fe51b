"""Rows as users have them, and rows that occur more than once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ..errors import DataError

Array = npt.NDArray[np.float64]

_NO_NUMBERS = ("object", "str", "category", "categorical", "enum", "date", "period", "time")
# Up to so many rows, repetitions included, equal rows are merged: sorting them costs nothing there.
_MERGED_ROWS = 1500


def to_numpy(values: Any) -> Any:
    """Torch tensors as NumPy arrays; everything else as it is, for scikit-learn to check."""
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
        return tensor.double().numpy() if tensor.is_floating_point() else tensor.numpy()
    if hasattr(values, "columns") and hasattr(values, "dtypes"):
        _check_numbers(values)
    return values


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


def merge_equal_rows(inputs: Array, targets: Array, counts: Array | None) -> tuple[Array, Array, Array | None]:
    """Small tables in a canonical order with equal rows merged into one that counts for all of them.

    A weight of ``k`` and ``k`` equal rows then are the same arrays, and give the same fit to the last bit, in whatever
    order the rows came. Large tables are returned as they are.

    Args:
        inputs: ``(rows, columns)``.
        targets: ``(rows,)``.
        counts: ``(rows,)`` positive, or None for one.

    Example:
        >>> inputs, targets = np.array([[2.0], [1.0], [2.0]]), np.array([5.0, 6.0, 5.0])
        >>> merged = merge_equal_rows(inputs, targets, None)
        >>> [part.tolist() for part in merged]
        [[[1.0], [2.0]], [6.0, 5.0], [1.0, 2.0]]
    """
    total = len(inputs) if counts is None else float(counts.sum())
    if total > _MERGED_ROWS:
        return inputs, targets, counts
    joined, inverse = np.unique(np.column_stack([inputs, targets]), axis=0, return_inverse=True)
    summed = np.bincount(inverse.ravel(), weights=counts, minlength=len(joined)).astype(np.float64)
    rows, values = np.ascontiguousarray(joined[:, :-1]), np.ascontiguousarray(joined[:, -1])
    return rows, values, None if bool((summed == 1.0).all()) else summed
