"""AdamW over all parameters as one vector: for small networks, whose steps are mostly the overhead of many tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

# Decay of the averages of gradients and of their squares, and what is added to the root of the latter: as in torch.
_BETAS, _EPSILON = (0.9, 0.999), 1e-8


class FlatAdamW:
    """AdamW with one learning rate and one decay, as ``torch.optim.AdamW`` computes it, in a few operations.

    The values of all parameters are moved into one vector, of which they become views; :meth:`release` gives each its
    own memory again. The first torch optimizer in a process loads torch's compiler, which takes seconds and 100 MB;
    this one does not. It has what :func:`~finitegp.train` and checkpoints need of an optimizer.

    Args:
        parameters: What to train; all of one type and on one device.
        learning_rate: The step size, kept in ``param_groups`` where schedules change it.
        weight_decay: Decoupled from the gradient.
        max_gradient_norm: A longer gradient, over all parameters together, is scaled down to this length.

    Example:
        >>> parameter = nn.Parameter(torch.tensor([1.0, -2.0]))
        >>> optimizer = FlatAdamW([parameter], learning_rate=0.1)
        >>> parameter.grad = torch.tensor([3.0, -0.1])
        >>> optimizer.step()
        >>> [round(value, 6) for value in parameter.tolist()]
        [0.9, -1.9]
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        learning_rate: float,
        weight_decay: float = 0.0,
        max_gradient_norm: float | None = None,
    ) -> None:
        self._parameters = list(parameters)
        if not self._parameters:
            raise ValueError("parameters must hold at least one parameter.")
        self.param_groups: list[dict[str, Any]] = [{"params": self._parameters, "lr": learning_rate}]
        self.weight_decay, self.max_gradient_norm = weight_decay, max_gradient_norm
        with torch.no_grad():
            self._values = torch.cat([parameter.reshape(-1) for parameter in self._parameters])
            sizes = [parameter.numel() for parameter in self._parameters]
            for parameter, part in zip(self._parameters, torch.split(self._values, sizes), strict=True):
                parameter.data = part.view(parameter.shape)
        self._mean = torch.zeros_like(self._values)
        self._mean_square = torch.zeros_like(self._values)
        self._steps = 0

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move all parameters; one without a gradient is an error."""
        gradient = torch.cat([self._gradient(parameter) for parameter in self._parameters])
        if self.max_gradient_norm is not None:
            gradient.mul_((self.max_gradient_norm / (gradient.norm() + 1e-6)).clamp_(max=1.0))
        self._steps += 1
        rate, (first, second) = float(self.param_groups[0]["lr"]), _BETAS
        self._mean.lerp_(gradient, 1.0 - first)
        self._mean_square.mul_(second).addcmul_(gradient, gradient, value=1.0 - second)
        root = self._mean_square.sqrt().div_(math.sqrt(1.0 - second**self._steps)).add_(_EPSILON)
        if self.weight_decay != 0.0:
            self._values.mul_(1.0 - rate * self.weight_decay)
        self._values.addcdiv_(self._mean, root, value=-rate / (1.0 - first**self._steps))

    def state_dict(self) -> dict[str, Any]:
        """The state of a checkpoint, in the form of torch's optimizers."""
        state = {"mean": self._mean, "mean_square": self._mean_square, "steps": self._steps}
        return {"state": {0: state}, "param_groups": [{"lr": self.param_groups[0]["lr"], "params": [0]}]}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        kept = state["state"][0]
        self._mean.copy_(kept["mean"])
        self._mean_square.copy_(kept["mean_square"])
        self._steps = int(kept["steps"])
        self.param_groups[0]["lr"] = state["param_groups"][0]["lr"]

    def release(self) -> None:
        """Give each parameter its own memory again, so that copies and files hold only what they need."""
        for parameter in self._parameters:
            parameter.data = parameter.data.clone()

    @staticmethod
    def _gradient(parameter: nn.Parameter) -> Tensor:
        if parameter.grad is None:
            raise ValueError(f"A parameter of shape {tuple(parameter.shape)} has no gradient.")
        return parameter.grad.reshape(-1)
