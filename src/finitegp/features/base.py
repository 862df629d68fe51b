"""Common to feature maps: checks of their arguments, and the interface of backward passes that are written out.

For small batches most of the time of a backward pass is the overhead of autograd's engine. A feature map that knows its
own derivative may have an attribute ``has_pullback`` and a method ``forward_with_pullback``; training uses them where
nothing else needs a gradient through the features, and autograd otherwise.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..errors import DataError

#: Takes the gradient in the features, adds to ``.grad`` of the parameters, and returns the gradient in the inputs if
#: the features were made with ``inputs_need_gradient``, else None.
Pullback = Callable[[Tensor], Tensor | None]


class PullbackMap(Protocol):
    """A feature map with an attribute ``has_pullback`` that is true."""

    def forward_with_pullback(self, inputs: Tensor, *, inputs_need_gradient: bool = False) -> tuple[Tensor, Pullback]:
        """Features without autograd, and their pullback."""


def accumulate(parameter: Tensor | None, gradient: Tensor) -> None:
    """Add to ``parameter.grad`` as autograd would."""
    if parameter is not None and parameter.requires_grad:
        gradient = gradient.reshape(parameter.shape)
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


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
