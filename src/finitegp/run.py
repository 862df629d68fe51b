"""``TrainingRun``: the state of a training run, as the loop, the callbacks and the checkpoints share it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .algorithms.base import Algorithm
from .arguments import check_arguments
from .data.sampling import Sampler
from .distributed import ALONE, Ranks
from .schedules import Schedule


@dataclass
class BestIterate:
    """The best state so far, as a copy.

    Attributes:
        metric: What was compared, such as ``"nlml"`` or ``"validation_nlpd"``.
        value: Its value; lower is better.
        epoch: After how many epochs.
        state: A copy of the algorithm's state.
    """

    metric: str
    value: float
    epoch: int
    state: dict[str, Tensor]


@check_arguments
@dataclass
class TrainingRun:
    """The state of a run, as callbacks see it.

    Attributes:
        algorithm: What is trained.
        optimizer: Any torch optimizer.
        sampler: Draws the batches; ``sampler.data`` are the rows for exact passes.
        epochs: How many epochs were asked for.
        schedule: Factor on the learning rates, or None.
        epoch: Epochs finished.
        step: Steps made.
        step_in_epoch: Steps made in the present epoch.
        loss: The last step's mean squared residual in units of the noise.
        metrics: The latest value of everything measured, by name.
        history: One dictionary per epoch.
        best: The best state so far, or None if nothing compares states.
        stop_reason: Set by a callback to end training after this epoch.
        seconds: Training time, over all resumed parts.
        diverged: Whether training met numbers it could not use.
        ranks: The processes that share the run; for exact passes in callbacks.
        learning_rates: Of the optimizer's groups, before any schedule.
    """

    algorithm: Algorithm
    optimizer: torch.optim.Optimizer
    sampler: Sampler
    epochs: int
    schedule: Schedule | None = None
    epoch: int = 0
    step: int = 0
    step_in_epoch: int = 0
    loss: float = math.nan
    metrics: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    best: BestIterate | None = None
    stop_reason: str | None = None
    seconds: float = 0.0
    diverged: bool = False
    ranks: Ranks = ALONE
    learning_rates: list[float] = field(default_factory=list)

    @property
    def steps_per_epoch(self) -> int:
        """Steps in one epoch: one for an algorithm that reads all rows at every step."""
        return len(self.sampler) if self.algorithm.batches_per_step else 1

    def record_best(self, metric: str, value: float) -> bool:
        """Keep a copy of the state if ``value`` is lower than the best so far; True if it was."""
        if self.best is not None and self.best.metric == metric and not value < self.best.value:
            return False
        if not math.isfinite(value):
            return False
        self.best = BestIterate(metric, value, self.epoch, copy_state(self.algorithm))
        return True


def copy_state(algorithm: Algorithm) -> dict[str, Tensor]:
    """A copy of all tensors of an algorithm: later steps do not reach it."""
    return {name: tensor.detach().clone() for name, tensor in algorithm.state_dict().items()}
