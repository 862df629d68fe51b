"""Built-in optimizers, and learning-rate schedules as plain functions of the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from .algorithms.base import Algorithm
from .arguments import check_arguments, check_at_least_one, check_positive

#: Maps the number of a step, from 0, to a factor on the optimizer's learning rates.
Schedule = Callable[[int], float]

OPTIMIZERS = ("adam", "adadelta", "sgd")


@check_arguments
def make_optimizer(
    algorithm: Algorithm, name: str = "adam", *, learning_rate: float = 1e-3, weight_decay: float = 0.0
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
