"""Checks of the arguments that feature maps share; errors name the argument, what it is and what it must be."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import DataError


def check_size(name: str, value: int) -> int:
    """``value`` as an int of at least one, or a ValueError that names the argument."""
    try:
        size = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        size = 0
    if size < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, but is {value!r}.")
    return size


def wrong_width(inputs: Tensor, input_dim: int) -> DataError:
    """The error for inputs that are not ``(rows, input_dim)``."""
    return DataError(
        f"inputs must be (rows, {input_dim}), but have shape {tuple(inputs.shape)}: "
        f"give one column for each of the input_dim={input_dim} inputs of this feature map."
    )


def log_of_positive(name: str, value: float | Sequence[float] | Tensor) -> Tensor:
    """The logarithm of positive numbers in the default dtype, or a ValueError that names the argument."""
    try:
        # The logarithm is taken in float64, so that only the result is rounded.
        values = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must be a positive number (or numbers), but is {value!r}.") from error
    if not bool((torch.isfinite(values) & (values > 0)).all()):
        raise ValueError(f"{name} must be positive and finite, but is {value!r}.")
    return values.log().to(device=torch.get_default_device(), dtype=torch.get_default_dtype())


def log_of_number(name: str, value: float) -> Tensor:
    """``log_of_positive`` of a single number."""
    logarithm = log_of_positive(name, value)
    if logarithm.ndim > 0:
        raise ValueError(f"{name} must be one number, but is {value!r}.")
    return logarithm
