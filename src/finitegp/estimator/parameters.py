"""The parameters of ``GPRegressor`` and the rows that it is given: what they may be, what ``"auto"`` stands for."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeGuard, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from ..arguments import MOST_SEED
from ..automatic.settings import EFFORTS
from ..data import ArraySource
from ..data.naming import check_unique, column_label
from ..devices import as_device, exact_device
from ..errors import DataError, warn_caller
from ..formatting import parse_seconds
from ..memory import parse_bytes

_Value = TypeVar("_Value")

ALGORITHMS = ("exact", "lagged", "scgd", "minimax", "bsgd")
FEATURE_MAPS = ("mlp", "fourier")
_NO_NUMBERS = ("object", "str", "category", "categorical", "enum", "date", "period", "time")
_PIECE = 65_536
#: Sorting or copying this number of rows takes no time.
FEW_ROWS = 10_000

Array = npt.NDArray[np.float64]
Checked = tuple[Array, Array, Array | None]

# What scikit-learn takes as the source of random numbers.
RandomState = int | np.random.RandomState | None


@dataclass(eq=False, repr=False)
class Parameters(BaseEstimator):  # type: ignore[misc]
    """The parameters of :class:`GPRegressor`; they are described there."""

    feature_map: str | nn.Module = "auto"
    _: KW_ONLY
    algorithm: str = "auto"
    noise: str = "auto"
    effort: str = "medium"
    batch_size: int | str = "auto"
    epochs: int | str = "auto"
    learning_rate: float | str = "auto"
    validation_fraction: float = 0.1
    early_stopping: bool | str = "auto"
    normalize_y: bool = True
    random_state: RandomState = None
    device: str | torch.device = "cpu"
    verbose: bool | int = False
    warm_start: bool = False
    memory_budget: str | int | None = None
    time_budget: str | float | None = None
    keep_rows: bool = True
    repeated_rows: bool = True


def is_automatic(regressor: Parameters) -> bool:
    """Whether neither features nor algorithm were chosen."""
    return isinstance(regressor.feature_map, str) and regressor.feature_map == regressor.algorithm == "auto"


def seed_of(random_state: RandomState) -> int:
    """The seed that a ``random_state`` of scikit-learn stands for."""
    if isinstance(random_state, numbers.Integral):
        if not 0 <= random_state <= MOST_SEED:
            raise ValueError(f"random_state must be from 0 to {MOST_SEED}, but is {random_state}.")
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def check_parameters(regressor: Parameters) -> None:
    """Raise an error with the first parameter that cannot be used, and the remedy."""
    if not isinstance(regressor.feature_map, nn.Module) and regressor.feature_map not in ("auto", *FEATURE_MAPS):
        raise ValueError(
            f"feature_map must be one of {['auto', *FEATURE_MAPS]} or a torch nn.Module, but is "
            f"{regressor.feature_map!r}."
        )
    choices: dict[str, list[Any]] = {
        "algorithm": ["auto", *ALGORITHMS],
        "noise": ["auto", "constant", "input"],
        "effort": list(EFFORTS),
        "early_stopping": ["auto", True, False],
    }
    for name, allowed in choices.items():
        if getattr(regressor, name) not in allowed:
            raise ValueError(f"{name} must be one of {allowed}, but is {getattr(regressor, name)!r}.")
    for name, kind in {
        "batch_size": numbers.Integral,
        "epochs": numbers.Integral,
        "learning_rate": numbers.Real,
    }.items():
        value = getattr(regressor, name)
        if not is_auto(value) and not (isinstance(value, kind) and not isinstance(value, bool) and value > 0):  # type: ignore[operator]
            article = "a positive number" if kind is numbers.Real else "a positive whole number"
            raise ValueError(f"{name} must be 'auto' or {article}, but is {value!r}.")
    fraction: object = regressor.validation_fraction
    if not (isinstance(fraction, numbers.Real) and 0.0 < float(fraction) < 0.5):
        raise ValueError(f"validation_fraction must lie between 0 and 0.5, but is {fraction!r}.")
    for name in ("keep_rows", "repeated_rows"):
        if not isinstance(getattr(regressor, name), bool):
            raise ValueError(f"{name} must be True or False, but is {getattr(regressor, name)!r}.")
    if regressor.memory_budget is not None:
        try:
            parse_bytes(regressor.memory_budget)
        except (TypeError, ValueError) as error:
            raise ValueError(f"memory_budget must be None or a size: {error}") from None
    _check_combinations(regressor)


def _check_combinations(regressor: Parameters) -> None:
    automatic, exact = is_automatic(regressor), regressor.algorithm == "exact"
    if regressor.time_budget is not None:
        parse_seconds(regressor.time_budget)
    device = as_device(regressor.device)
    steps = next((name for name in ("batch_size", "learning_rate") if not is_auto(getattr(regressor, name))), None)
    refused = (
        (
            regressor.time_budget is not None and not automatic,
            "time_budget is for the automatic fit: leave feature_map and algorithm at 'auto', or set epochs.",
        ),
        (
            regressor.memory_budget is not None and not automatic,
            "memory_budget is for the automatic fit: leave feature_map and algorithm at 'auto', or plan the memory of "
            "a given network with finitegp.memory.plan_memory and train it with finitegp.train.",
        ),
        (
            automatic and regressor.early_stopping is True,
            "early_stopping=True needs a given feature_map or algorithm, such as feature_map='mlp': the automatic fit "
            "decides by itself when to stop.",
        ),
        (
            not automatic and exact_device(device) != device,
            f"A given feature map or algorithm needs float64, which the device {str(device)!r} has not: train it on "
            "'cpu', or leave feature_map and algorithm at 'auto'.",
        ),
        (
            exact and steps,
            f"algorithm='exact' uses all rows in every step and finds its own steps: leave {steps} at 'auto'.",
        ),
        (
            exact and regressor.early_stopping is True,
            "algorithm='exact' runs until it converges: leave early_stopping at 'auto'.",
        ),
    )
    for wrong, message in refused:
        if wrong:
            raise ValueError(message)


def automatic_options(regressor: Parameters, rows: int, seed: int) -> dict[str, Any]:
    """Arguments of ``fit_source`` from the parameters, for this number of rows."""
    return {
        "effort": regressor.effort,
        "noise": regressor.noise,
        "center": regressor.normalize_y,
        "settings": _chosen_settings(regressor, rows),
        "keep_rows": regressor.keep_rows,
        "seed": seed,
        "memory_budget": regressor.memory_budget,
        "time_budget": regressor.time_budget,
        "device": regressor.device,
    }


def _chosen_settings(regressor: Parameters, rows: int) -> dict[str, Any]:
    """The changes to the automatic fit's settings that the parameters ask for."""
    changes = {name: chosen(getattr(regressor, name)) for name in ("batch_size", "learning_rate")}
    changes |= {"validation_fraction": regressor.validation_fraction, "repeated_rows": regressor.repeated_rows}
    epochs = chosen(regressor.epochs)
    if epochs is not None:
        # This number of epochs was asked for, whatever an effort's own steps.
        batch_size = changes["batch_size"] or EFFORTS[regressor.effort].batch_size
        changes["steps"] = changes["max_steps"] = max(1, epochs * -(-rows // batch_size))
    return {name: value for name, value in changes.items() if value is not None}


def is_auto(value: object) -> bool:
    """Whether a value is the text ``"auto"``."""
    return isinstance(value, str) and value == "auto"


def chosen(value: _Value | str) -> _Value | None:
    """The value; None for ``"auto"``, the only text that there may be."""
    return None if isinstance(value, str) else value


# Rows


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


def checked_levels(level: float | Sequence[float]) -> list[float]:
    """Probabilities of quantiles, one or several."""
    levels: list[float] = np.ravel(level).tolist()
    if not levels or not all(0.0 < each < 1.0 for each in levels):
        raise ValueError(f"level must be a number between 0 and 1, or several, but is {level!r}.")
    return levels
