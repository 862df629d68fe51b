"""Rows as users have them, checked for an estimator."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from ..data import ArraySource
from ..data.naming import check_unique, column_label
from ..errors import DataError, warn_caller

_NO_NUMBERS = ("object", "str", "category", "categorical", "enum", "date", "period", "time")
_PIECE = 65_536
#: Sorting or copying this number of rows takes no time.
FEW_ROWS = 10_000

Array = npt.NDArray[np.float64]
Checked = tuple[Array, Array, Array | None]


def checked_rows(
    estimator: BaseEstimator, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, *, reset: bool, fewest: int
) -> Checked:
    """Inputs, targets ``(rows, targets)`` and counts, without rows of weight zero."""
    check_labels(X, y)
    inputs, targets = validate_data(
        estimator,
        _to_numpy(X),
        _to_numpy(y),
        reset=reset,
        dtype=np.float64,
        multi_output=True,
        y_numeric=True,
        ensure_min_samples=fewest,
        ensure_all_finite="allow-nan",
    )
    _check_no_gaps(estimator, inputs)
    try:
        targets = np.asarray(targets, dtype=np.float64).reshape(len(inputs), -1)
    except ValueError as error:
        raise DataError(f"y must be numbers: {error}.") from None
    if sample_weight is None:
        return inputs, targets, None
    counts = _check_sample_weight(_to_numpy(sample_weight), inputs, dtype=np.float64, ensure_non_negative=True)
    kept = counts > 0.0
    if int(kept.sum()) < fewest:
        raise ValueError(f"sample_weight is zero in all but {int(kept.sum())} rows, but {fewest} are needed.")
    return inputs[kept], targets[kept], counts[kept]


def check_labels(X: object, y: object) -> None:
    """A warning if pandas has the rows of both under the same labels in another order: they are paired by position."""
    labels: Any = getattr(X, "index", None)
    others: Any = getattr(y, "index", None)
    if not (hasattr(labels, "equals") and hasattr(others, "equals")) or labels.equals(others):
        return
    if len(labels) == len(others) and labels.is_unique and others.is_unique and labels.isin(others).all():
        warn_caller(
            "y has the row labels of X in another order, but rows are paired by position, as everywhere in scikit-"
            "learn: pass y.loc[X.index] if the labels are meant."
        )


def more_rows(estimator: BaseEstimator, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Checked:
    """:func:`checked_rows` for an estimator that has been fitted, with as many targets."""
    check_is_fitted(estimator, "fits_")
    inputs, targets, counts = checked_rows(estimator, X, y, sample_weight, reset=False, fewest=1)
    if targets.shape[1] != len(estimator.fits_):
        raise ValueError(f"y has {targets.shape[1]} target columns, but the fit has {len(estimator.fits_)}.")
    return inputs, targets, counts


def rows_in_place(
    estimator: BaseEstimator, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None
) -> Checked | None:
    """:func:`checked_rows` of large arrays without a copy of all rows; None if they are others.

    scikit-learn's checks would copy rows to float64, and those of a file into memory.
    """
    if not (_stays_in_place(X, (2,)) and _stays_in_place(y, (1, 2)) and len(X) > FEW_ROWS):
        return None
    counts = None
    if sample_weight is not None:
        counts = _check_sample_weight(_to_numpy(sample_weight), X[:, :1], dtype=np.float64, ensure_non_negative=True)
        if not bool((counts > 0.0).all()):
            return None  # without these rows the others would have to be copied
    validate_data(estimator, X, reset=True, skip_check_array=True)
    source = _check_in_place(X, y, counts)
    return source.inputs, source.targets, counts


def checked_inputs(estimator: BaseEstimator, X: ArrayLike) -> Array:
    """New rows for an estimator that has been fitted."""
    check_is_fitted(estimator, "fits_")
    if _stays_in_place(X, (2,)) and len(X) > FEW_ROWS:
        validate_data(estimator, X, reset=False, skip_check_array=True)
        found: Array = _check_in_place(X).inputs
        return found
    inputs: Array = validate_data(estimator, _to_numpy(X), reset=False, dtype=np.float64, ensure_all_finite="allow-nan")
    _check_no_gaps(estimator, inputs)
    return inputs


def _check_no_gaps(estimator: BaseEstimator, inputs: Array) -> None:
    """scikit-learn's own error would advise another of its estimators."""
    gaps = np.isnan(inputs)
    if gaps.any():
        row, column = np.argwhere(gaps)[0].tolist()
        raise DataError(
            f"X is NaN in row {row}, {column_label(column, getattr(estimator, 'feature_names_in_', None))}, but "
            "GPRegressor does not take missing values: use TableRegressor(missing='impute'), or impute first."
        )


def _to_numpy(values: ArrayLike) -> ArrayLike:
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


def _stays_in_place(values: object, dimensions: tuple[int, ...]) -> TypeGuard[npt.NDArray[np.float64]]:
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


def _check_in_place(inputs: Array, targets: Array | None = None, counts: Array | None = None) -> ArraySource:
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
