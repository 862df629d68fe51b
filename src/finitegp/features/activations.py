"""Nonlinearities of networks, and their backward passes written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "mish": nn.Mish,
}


class WrittenOut(NamedTuple):
    """An activation without autograd.

    Attributes:
        forward: Takes a tensor, which it may overwrite, to the output and what the backward pass needs.
        backward: Takes the gradient in the output, and that, to the gradient in the input.
    """

    forward: Callable[[Tensor], tuple[Tensor, Tensor]]
    backward: Callable[[Tensor, Tensor], Tensor]


def mish_with_derivative(inputs: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mish, :math:`x \tanh(\log(1 + e^x))`, and its derivative, from one logistic function.

    With :math:`s = 1 / (1 + e^{-x})` and :math:`q = (1 - s)^2` the hyperbolic tangent is
    :math:`t = s (2 - s) / (1 + q)`, without cancellation, and :math:`dt/dx = 4 s q / (1 + q)^2`. Torch's two kernels
    together take twice as long.

    Example:
        >>> output, derivative = mish_with_derivative(torch.tensor([-20.0, 0.0, 200.0]))
        >>> [round(value, 4) for value in output.tolist()], [round(value, 4) for value in derivative.tolist()]
        ([-0.0, 0.0, 200.0], [-0.0, 0.6, 1.0])
    """
    logistic = inputs.sigmoid()
    rest = 1.0 - logistic
    square = rest * rest
    reciprocal = (square + 1.0).reciprocal_()
    logistic = logistic.mul_(reciprocal)
    tangent = rest.add_(1.0).mul_(logistic)
    slope = logistic.mul_(square).mul_(reciprocal).mul_(inputs)
    return tangent * inputs, torch.add(tangent, slope, alpha=4.0)


def _keep_output(activate: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    def forward(inputs: Tensor) -> tuple[Tensor, Tensor]:
        output = activate(inputs)
        return output, output

    return forward


#: The activations whose backward pass is written out.
WRITTEN_OUT: dict[str, WrittenOut] = {
    "relu": WrittenOut(_keep_output(torch.relu_), lambda g, output: torch.ops.aten.threshold_backward(g, output, 0)),
    "tanh": WrittenOut(_keep_output(torch.tanh), torch.ops.aten.tanh_backward),
    "gelu": WrittenOut(lambda inputs: (functional.gelu(inputs), inputs), torch.ops.aten.gelu_backward),
    "silu": WrittenOut(lambda inputs: (functional.silu(inputs), inputs), torch.ops.aten.silu_backward),
    "mish": WrittenOut(mish_with_derivative, torch.mul),
}


def activation_name(module: nn.Module) -> str | None:
    """The name that :func:`make_activation` makes such a module of, or None if there is none."""
    if isinstance(module, nn.GELU) and module.approximate != "none":
        return None
    return next((name for name, made in ACTIVATIONS.items() if type(module) is made), None)


def make_activation(activation: str | Callable[[], nn.Module]) -> nn.Module:
    """The module of that name, or what the callable returns."""
    if isinstance(activation, str):
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {sorted(ACTIVATIONS)}, but is {activation!r}.")
        return ACTIVATIONS[activation]()
    if callable(activation) and not isinstance(activation, nn.Module):
        module = activation()
        if isinstance(module, nn.Module):
            return module
    raise ValueError(
        f"activation must be a name or a callable that returns a new torch.nn.Module, but is {activation!r}: "
        "give a class such as torch.nn.ELU, not an instance or a function of tensors."
    )
