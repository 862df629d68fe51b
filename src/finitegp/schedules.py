"""Optimizers, and learning-rate schedules as plain functions of the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .arguments import check_arguments, check_at_least_one, check_positive

#: Maps the number of a step, from 0, to a factor on the optimizer's learning rates.
Schedule = Callable[[int], float]

OPTIMIZERS = ("adam", "adadelta", "sgd")
# Decay of the averages of gradients and of their squares, and what is added to the root of the latter: as in torch.
_BETAS, _EPSILON = (0.9, 0.999), 1e-8


class Trainable(Protocol):
    """The part of an :class:`~finitegp.algorithms.Algorithm` that an optimizer needs."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        """What is trained."""


@check_arguments
def make_optimizer(
    algorithm: Trainable, name: str = "adam", *, learning_rate: float = 1e-3, weight_decay: float = 0.0
) -> torch.optim.Optimizer:
    """An optimizer for what the algorithm trains; any other torch optimizer works as well.

    Args:
        algorithm: Its :meth:`~finitegp.algorithms.base.Algorithm.parameter_groups` are trained.
        name: ``"adam"`` (fused, with decoupled weight decay), ``"adadelta"`` (the paper's) or ``"sgd"``.
        learning_rate: Step size; about 1e-3 for Adam, 0.1 to 1 for AdaDelta.
        weight_decay: Decay of all parameters, for Adam decoupled from the gradient.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer must be one of {list(OPTIMIZERS)}, but is {name!r}.")
    check_positive(learning_rate=learning_rate)
    if not hasattr(algorithm, "parameter_groups"):
        raise TypeError(f"algorithm must be an Algorithm, but is {algorithm!r:.60}.")
    groups = [
        {"params": group["params"], "lr": learning_rate * group.get("rate", 1.0)}
        for group in algorithm.parameter_groups()
    ]
    options: dict[str, Any] = {"lr": learning_rate, "weight_decay": weight_decay}
    if name == "adam":
        return torch.optim.AdamW(groups, fused=True, **options)
    if name == "adadelta":
        return torch.optim.Adadelta(groups, **options)
    return torch.optim.SGD(groups, **options)


@check_arguments
def cosine_decay(total_steps: int, *, warmup_steps: int = 0) -> Schedule:
    """From one to zero along half a cosine, after a linear rise over ``warmup_steps``.

    Example:
        >>> factor = cosine_decay(100)
        >>> factor(0), round(factor(50), 6), factor(100)
        (1.0, 0.5, 0.0)
    """
    check_at_least_one(total_steps=total_steps)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        share = (step - warmup_steps) / max(total_steps - warmup_steps, 1)
        return 0.5 * (1.0 + math.cos(math.pi * min(share, 1.0)))

    return factor


@check_arguments
def theory_decay() -> Schedule:
    """The learning rate of SCGD's convergence proof, ``t^-3/4`` for steps t = 1, 2, ..."""
    return lambda step: float((step + 1) ** -0.75)


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
        self._count = torch.zeros((), device=self._values.device)

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
        self._count.fill_(float(self._steps))
        # What torch.optim.AdamW(fused=True) calls: one pass over memory instead of eight.
        torch.ops.aten._fused_adamw_(
            [self._values], [gradient], [self._mean], [self._mean_square], [], [self._count], lr=rate, beta1=first,
            beta2=second, weight_decay=self.weight_decay, eps=_EPSILON, amsgrad=False, maximize=False,
        )  # fmt: skip

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
