"""Features from a neural network, with backward passes written out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..arguments import check_arguments
from .composition import Pullback, check_size, check_width

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


@check_arguments
class MLPFeatures(nn.Module):
    r"""A fully connected network, :math:`\phi(x) = a(W_2\, a(W_1 x + b_1) + b_2)` with activation ``a``.

    The default is the network of the paper: two layers of 128, ReLU after both. The kernel is linear in its
    output, :math:`k(x, x') = \phi(x)'\phi(x')`. Maps ``(rows, input_dim)`` to ``(rows, hidden[-1])``.

    Args:
        input_dim: Number of input columns.
        hidden: Width of each layer; the last one is ``num_features``.
        activation: ``"relu"``, ``"tanh"``, ``"gelu"``, ``"silu"``, ``"mish"``, or a callable that returns a new module.
        final_activation: Whether the activation also follows the last layer.
        initialization: ``"torch"`` is that of ``nn.Linear``; ``"he"`` draws weights with variance ``2 / fan-in`` and
            sets biases to zero, so that ReLU features keep the scale of the inputs (He et al., 2015).
        seed: None draws the initial weights from torch's global random state; a number makes them
            reproducible and leaves that state alone.

    Example:
        >>> feature_map = MLPFeatures(input_dim=3, hidden=(64, 32), seed=0)
        >>> features = feature_map(torch.ones(5, 3))
        >>> features.shape == (5, feature_map.num_features) and bool((features >= 0).all())
        True
        >>> again = MLPFeatures(input_dim=3, hidden=(64, 32), seed=0)(torch.ones(5, 3))
        >>> bool((again == features).all())
        True
    """

    input_dim: int
    num_features: int

    def __init__(
        self,
        input_dim: int,
        hidden: Sequence[int] = (128, 128),
        activation: str | Callable[[], nn.Module] = "relu",
        final_activation: bool = True,
        initialization: str = "torch",
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.input_dim = check_size("input_dim", input_dim)
        if isinstance(hidden, (str, int)) or len(hidden) == 0:
            raise ValueError(f"hidden must list at least one layer width, such as (128, 128), but is {hidden!r}.")
        widths = [check_size(f"hidden[{index}]", width) for index, width in enumerate(hidden)]
        self.num_features = widths[-1]
        if initialization not in ("torch", "he"):
            raise ValueError(f"initialization must be 'torch' or 'he', but is {initialization!r}.")
        with ExitStack() as stack:
            if seed is not None and torch.get_default_device().type != "meta":
                # The generator of the CPU alone: torch.manual_seed would also reseed every accelerator.
                stack.enter_context(torch.random.fork_rng(devices=[]))
                stack.enter_context(torch.device("cpu"))
                torch.default_generator.manual_seed(int(seed))
            layers: list[nn.Module] = []
            for width_in, width_out in zip([self.input_dim, *widths], widths, strict=False):
                linear = nn.Linear(width_in, width_out)
                if initialization == "he":
                    nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
                    nn.init.zeros_(linear.bias)
                layers += [linear, make_activation(activation)]
        if not final_activation:
            layers.pop()
        self.layers = nn.Sequential(*layers).to(torch.get_default_device())
        self.activation = activation if isinstance(activation, str) else None
        self.has_pullback = self.activation is not None and final_activation

    def config(self) -> dict[str, object] | None:
        """The arguments that make this map again, but for the values of its tensors; None if JSON has no such."""
        layers = list(self.layers)
        activations = {activation_name(layer) for layer in layers[1::2]}
        if len(activations) > 1 or None in activations:
            return None
        return {
            "input_dim": self.input_dim,
            "hidden": [layer.out_features for layer in layers if isinstance(layer, nn.Linear)],
            "activation": activations.pop() if activations else "relu",
            "final_activation": len(layers) % 2 == 0,
        }

    def forward_with_pullback(self, inputs: Tensor, *, inputs_need_gradient: bool = False) -> tuple[Tensor, Pullback]:
        """The same features without autograd, with the backward pass written out (only if ``has_pullback``)."""
        check_width(inputs, self.input_dim)
        assert self.activation is not None, "has_pullback is False"
        linears = [layer for layer in self.layers if isinstance(layer, nn.Linear)]
        activate, activation_backward = WRITTEN_OUT[self.activation]
        kept: list[Tensor] = []
        with torch.no_grad():
            outputs = [inputs]
            for linear in linears:
                output, needed = activate(torch.addmm(linear.bias, outputs[-1], linear.weight.t()))
                outputs.append(output)
                kept.append(needed)

        @torch.no_grad()
        def pullback(gradient: Tensor) -> Tensor | None:
            for index in range(len(linears) - 1, -1, -1):
                linear = linears[index]
                gradient = activation_backward(gradient, kept[index])
                for parameter, found in (
                    (linear.weight, gradient.t() @ outputs[index]),
                    (linear.bias, gradient.sum(0)),
                ):
                    if parameter.requires_grad:  # as `accumulate`, without a call for every tensor of every step
                        parameter.grad = found if parameter.grad is None else parameter.grad + found
                if index or inputs_need_gradient:
                    gradient = gradient @ linear.weight
            return gradient if inputs_need_gradient else None

        return outputs[-1], pullback

    def forward(self, inputs: Tensor) -> Tensor:
        """Features ``(rows, num_features)`` of inputs ``(rows, input_dim)``."""
        check_width(inputs, self.input_dim)
        features: Tensor = self.layers(inputs)
        return features
