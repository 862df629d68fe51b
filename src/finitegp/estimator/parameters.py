"""The parameters of ``GPRegressor``: what they may be, and what ``"auto"`` stands for."""

from __future__ import annotations

import numbers
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from torch import nn

from ..arguments import MOST_SEED
from ..automatic.settings import EFFORTS
from ..devices import as_device, exact_device
from ..formatting import parse_seconds
from ..memory import parse_bytes

_Value = TypeVar("_Value")

ALGORITHMS = ("exact", "lagged", "scgd", "minimax", "bsgd")
FEATURE_MAPS = ("mlp", "fourier")


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
