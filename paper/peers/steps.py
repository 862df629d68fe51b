"""Mini-batch training of the torch peers: cosine decay over the steps that the time limit leaves room for."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .contract import Index, Stopwatch

# The first steps are left out of the pace, because they also warm up; it is known after so many steps and this share of
# the limit.
_WARM, _KNOWN, _KNOWN_SHARE = 20, 60, 0.05


class StepPlan:
    """How many steps there will be, so that the learning rate has decayed when they end.

    A time limit that cuts training short would leave it at a high learning rate. So the plan is shortened once, near
    its start, to what fits by the pace of its first steps, and then kept, whatever the clock says. While all steps fit,
    nothing depends on the clock and runs are reproducible.

    Args:
        steps: The steps wanted.
        max_seconds: The time that they may take by that pace; None for no limit.
        stopwatch: When the limit's time began.

    Attributes:
        steps: The steps planned now.
        step: The steps taken.
    """

    def __init__(self, steps: int, max_seconds: float | None, stopwatch: Stopwatch) -> None:
        if steps < 1:
            raise ValueError(f"There must be at least one step, but there are {steps}: raise epochs.")
        self.steps = steps
        self.step = 0
        self._wanted = steps
        self._max_seconds = max_seconds
        self._stopwatch = stopwatch
        self._warm_seconds = 0.0
        self._is_settled = max_seconds is None

    @property
    def finished(self) -> bool:
        """Whether all planned steps are taken."""
        return self.step >= self.steps

    @property
    def shortened(self) -> bool:
        """Whether the time limit takes steps away."""
        return self.steps < self._wanted

    @property
    def factor(self) -> float:
        """The factor of this step on the learning rate: half a cosine from one to zero."""
        return 0.5 * (1.0 + math.cos(math.pi * min(self.step / self.steps, 1.0)))

    def advance(self) -> None:
        """Count a step, and shorten the plan if it does not fit."""
        self.step += 1
        if self._max_seconds is None or self._is_settled or self.step < _WARM:
            return
        seconds = self._stopwatch.seconds
        if self.step == _WARM:
            self._warm_seconds = seconds
        elif self.step >= _KNOWN and seconds >= _KNOWN_SHARE * self._max_seconds:
            pace = max((seconds - self._warm_seconds) / (self.step - _WARM), 1e-9)
            fitting = int(max(self._max_seconds - seconds, 0.0) / pace)
            self.steps = min(self._wanted, self.step + fitting)
            self._is_settled = True


def count_steps(rows: int, batch_size: int, epochs: int, min_steps: int = 0) -> int:
    """The steps of so many epochs, or ``min_steps`` where a small table would get fewer."""
    return max(epochs * batches_per_epoch(rows, batch_size), min_steps)


def batches_per_epoch(rows: int, batch_size: int) -> int:
    """The batches that one pass over the rows takes."""
    return -(-rows // batch_size)


def shuffled_batches(rows: int, batch_size: int, seed: int) -> Iterator[Tensor]:
    """Row numbers of one batch after the other, shuffled anew for every pass, without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.split(torch.randperm(rows, generator=generator), batch_size)


def as_tensors(inputs: Any, targets: Any, index: Index | None = None) -> tuple[Tensor, Tensor]:
    """Inputs ``(rows, columns)`` and targets ``(rows, 1)`` in float32, of all rows or of those in ``index``."""
    if index is not None:
        inputs, targets = inputs[index], targets[index]
    return torch.tensor(inputs, dtype=torch.float32), torch.tensor(targets, dtype=torch.float32)[:, None]


def make_network(columns: int, hidden: Iterable[int], outputs: int) -> nn.Sequential:
    """ReLU layers of the widths in ``hidden`` and a linear layer on top; no layer on top if ``outputs`` is zero."""
    layers: list[nn.Module] = []
    width = columns
    for next_width in hidden:
        layers += [nn.Linear(width, next_width), nn.ReLU()]
        width = next_width
    if outputs:
        layers.append(nn.Linear(width, outputs))
    return nn.Sequential(*layers)


def train_with_validation(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[Tensor, Tensor], Tensor],
    validation_loss: Callable[[], float],
    data: tuple[Tensor, Tensor],
    *,
    plan: StepPlan,
    batch_size: int,
    seed: int,
    clip_norm: float | None = None,
    patience: int | None = None,
) -> dict[str, Any]:
    """Train a module in place and leave it as it was when the validation loss was lowest.

    Args:
        module: What is trained.
        optimizer: Over the module's parameters; its learning rates decay along the plan.
        loss: Of inputs and targets of a batch.
        validation_loss: Called after every epoch, in evaluation mode and without gradients.
        data: Training inputs and targets.
        plan: The steps.
        batch_size: Rows per batch.
        seed: Determines the batches.
        clip_norm: Gradients longer than this are shortened to it.
        patience: Stop after so many epochs without a better validation loss.

    Returns:
        ``steps``, ``epochs``, ``best_epoch`` and ``shortened`` for the record.
    """
    inputs, targets = data
    per_epoch = batches_per_epoch(len(inputs), batch_size)
    learning_rates = [float(group["lr"]) for group in optimizer.param_groups]
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    best_loss, best_epoch, epoch = math.inf, 0, 0
    best_state = copy.deepcopy(module.state_dict())
    for index in shuffled_batches(len(inputs), batch_size, seed):
        for group, learning_rate in zip(optimizer.param_groups, learning_rates, strict=True):
            group["lr"] = learning_rate * plan.factor
        optimizer.zero_grad()
        loss(inputs[index], targets[index]).backward()  # type: ignore[no-untyped-call]
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, clip_norm)
        optimizer.step()
        plan.advance()
        if plan.step % per_epoch and not plan.finished:
            continue
        epoch += 1
        module.eval()
        with torch.no_grad():
            now = validation_loss()
        module.train()
        if now < best_loss:  # never true of a loss that is not a number
            best_loss, best_epoch, best_state = now, epoch, copy.deepcopy(module.state_dict())
        if plan.finished or (patience is not None and epoch - best_epoch >= patience):
            break
    module.load_state_dict(best_state)
    module.eval()
    return {
        "steps": plan.step,
        "epochs": epoch,
        "best_epoch": best_epoch,
        "shortened": plan.shortened,
    }
