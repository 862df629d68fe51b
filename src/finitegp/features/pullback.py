"""Backward passes written out: what a feature map offers to training steps that can do without autograd's engine.

For small batches most of the time of a backward pass is the overhead of the engine. A feature map that knows its own
derivative may have an attribute ``has_pullback`` and a method ``forward_with_pullback``; training uses them where
nothing else needs a gradient through the features, and autograd otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

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
