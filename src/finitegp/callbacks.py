"""Callbacks: a few moments of a training run, to measure, to report and to write checkpoints."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from .arguments import check_arguments, check_at_least_one
from .data.iterables import as_source
from .data.sources import Data
from .diagnostics import measure_bias
from .run import Callback, TrainingRun, save_checkpoint

__all__ = [
    "BiasMeter",
    "Callback",
    "Checkpoint",
    "ExactNLML",
    "JsonLinesLog",
    "ProgressBar",
    "TensorBoardLog",
    "Validation",
]


def is_time(run: TrainingRun, every: int, *metrics: str) -> bool:
    """Whether to measure in this epoch, which the last one always does; older values of the metrics are forgotten."""
    for name in metrics:
        run.metrics.pop(name, None)
    return run.epoch % every == 0 or run.epoch == run.epochs


@check_arguments
class ExactNLML(Callback):
    """The exact NLML per row of the training rows, every few epochs, in float64: one or two passes over the rows.

    Args:
        every: Epochs between measurements; the last epoch is always measured.
        keep_best: Keep a copy of the state with the lowest NLML (the paper's choice of iterate).
        offset: Added to the value, for example ``log(target scale)`` to report in raw units of the target.
    """

    def __init__(self, every: int = 1, *, keep_best: bool = True, offset: float = 0.0) -> None:
        check_at_least_one(every=every)
        self.every = every
        self.keep_best = keep_best
        self.offset = offset

    def on_epoch(self, run: TrainingRun) -> None:
        """Measure if it is time."""
        if not is_time(run, self.every, "nlml"):
            return
        value = run.algorithm.model.nlml(run.ranks.shard(run.sampler.data)) + self.offset
        run.metrics["nlml"] = value
        if self.keep_best:
            run.record_best("nlml", value)


@check_arguments
class Validation(Callback):
    """The NLPD and RMSE of held-out rows under the exact posterior of the training rows, with early stopping.

    Args:
        data: Held-out ``(inputs, targets)``, scaled like the training rows.
        every: Epochs between measurements, each of which is one pass over the training rows.
        patience: Stop after this number of measurements without improvement; None never stops.
        keep_best: Keep a copy of the state with the lowest NLPD.
    """

    def __init__(self, data: Data, *, every: int = 1, patience: int | None = None, keep_best: bool = True) -> None:
        check_at_least_one(every=every)
        if patience is not None:
            check_at_least_one(patience=patience)
        self.source = as_source(data)
        self.every = every
        self.patience = patience
        self.keep_best = keep_best

    def on_epoch(self, run: TrainingRun) -> None:
        """Measure if it is time; ask to stop when patience has run out."""
        if not is_time(run, self.every, "validation_nlpd", "validation_rmse"):
            return
        fitted = run.algorithm.model.condition(run.ranks.shard(run.sampler.data))
        density, squares, count = 0.0, 0.0, 0
        for rows in self.source:
            prediction = fitted.predict(rows.inputs)
            targets = rows.observed.to(prediction.mean).reshape(prediction.mean.shape)
            density += float(prediction.log_density(targets).sum())
            squares += float((targets - prediction.mean).square().sum())
            count += targets.numel()
        nlpd = -density / count
        run.metrics |= {"validation_nlpd": nlpd, "validation_rmse": (squares / count) ** 0.5}
        # The history holds all earlier measurements, so a resumed run needs no counter of its own.
        earlier = [row["validation_nlpd"] for row in run.history if "validation_nlpd" in row]
        if self.keep_best:
            run.record_best("validation_nlpd", nlpd)
        if self.patience is not None:
            measured = [*earlier, nlpd]
            since_best = len(measured) - 1 - measured.index(min(measured))
            if since_best >= self.patience:
                run.stop_reason = f"no better validation NLPD in {since_best} measurements"


class BiasMeter(Callback):
    """The angle and relative error between the mean stochastic gradient and the exact one (see ``measure_bias``).

    Args:
        every: Epochs between measurements; each costs about two epochs.
    """

    def __init__(self, every: int = 10) -> None:
        check_at_least_one(every=every)
        self.every = every

    def on_start(self, run: TrainingRun) -> None:
        """Refuse several ranks, none of which sees whole batches."""
        if run.ranks.world_size > 1:
            raise ValueError("BiasMeter needs whole batches: use one process, or leave it out on several ranks.")

    def on_epoch(self, run: TrainingRun) -> None:
        """Measure if it is time."""
        names = ("gradient_angle_degrees", "gradient_relative_error", "exact_gradient_norm")
        if not is_time(run, self.every, *names):
            return
        with torch.random.fork_rng(devices=[]):
            found = measure_bias(run.algorithm, run.sampler)
        run.metrics |= zip(names, (found.angle_degrees, found.relative_error, found.exact_norm), strict=True)


@check_arguments
class ProgressBar(Callback):
    """A progress bar with epoch, NLML (or the last loss), rows per second and the time left.

    Args:
        console: Where to draw; standard error by default.
    """

    every_rank = False

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._next_update = 0.0
        self._first_step = 0
        self._started = 0.0

    def on_start(self, run: TrainingRun) -> None:
        """Draw the bar."""
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(),
            TextColumn("{task.fields[measure]}"),
            TextColumn("{task.fields[rate]} rows/s"),
            TimeRemainingColumn(),
            console=self.console,
        )
        total = run.epochs * run.steps_per_epoch
        self._task = self._progress.add_task(
            "train", total=total, completed=run.step, epoch=run.epoch, epochs=run.epochs, measure="", rate="-"
        )
        self._first_step, self._started = run.step, time.perf_counter()
        self._progress.start()

    def on_step(self, run: TrainingRun) -> None:
        """Move the bar, at most ten times a second."""
        now = time.perf_counter()
        if now >= self._next_update:
            self._next_update = now + 0.1
            self._draw(run, now)

    def on_record(self, run: TrainingRun) -> None:
        """Show the measurements of the epoch."""
        self._draw(run, time.perf_counter())

    def on_end(self, run: TrainingRun) -> None:
        """Leave the bar as it is."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _draw(self, run: TrainingRun, now: float) -> None:
        if self._progress is None or self._task is None:
            return
        rows = (run.step - self._first_step) * run.sampler.num_data / run.steps_per_epoch
        shown = {"NLML": "nlml", "validation NLPD": "validation_nlpd", "loss": "loss"}
        latest = [row for row in [run.metrics, *reversed(run.history)] if row]
        measure = ""
        for label, key in shown.items():
            values = [row[key] for row in latest if key in row]
            if values:
                measure = f"{label} {values[0]:.3f}"
                break
        self._progress.update(
            self._task,
            completed=run.step,
            epoch=run.epoch,
            measure=measure,
            rate=f"{rows / max(now - self._started, 1e-9):,.0f}",
        )


@check_arguments
class JsonLinesLog(Callback):
    """Appends one JSON line per epoch: epoch, step, seconds, learning rates and everything measured.

    Args:
        path: The file; its folder is made.
        settings: Written into every line, for example the dataset and the seed.
    """

    every_rank = False

    def __init__(self, path: str | Path, settings: dict[str, object] | None = None) -> None:
        self.path = Path(path)
        self.settings = settings or {}

    def on_start(self, run: TrainingRun) -> None:
        """Make the folder."""
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def on_record(self, run: TrainingRun) -> None:
        """Write the line of the epoch."""
        rates = [group["lr"] for group in run.optimizer.param_groups]
        with self.path.open("a") as file:
            file.write(json.dumps(self.settings | run.history[-1] | {"learning_rates": rates}) + "\n")


class TensorBoardLog(Callback):
    """Writes everything measured to TensorBoard (needs the extra ``finitegp[tensorboard]``).

    Args:
        directory: Where the event files go.
    """

    every_rank = False

    def __init__(self, directory: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError('TensorBoardLog needs TensorBoard: pip install "finitegp[tensorboard]"') from error
        self._writer: Any = SummaryWriter(str(directory))

    def on_record(self, run: TrainingRun) -> None:
        """Write the scalars of the epoch."""
        for name, value in run.history[-1].items():
            self._writer.add_scalar(name, value, run.epoch)

    def on_end(self, run: TrainingRun) -> None:
        """Flush and close."""
        self._writer.close()


@check_arguments
class Checkpoint(Callback):
    """Writes a checkpoint that ``train(..., resume=path)`` goes on from.

    Args:
        path: One file, replaced atomically.
        every_epochs: Epochs between checkpoints.
        every_steps: Also within an epoch, every this many steps; None for ends of epochs only.
        scheduler: The torch scheduler given to ``train``, if any, so that its state is saved.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        every_epochs: int = 1,
        every_steps: int | None = None,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
    ) -> None:
        if every_epochs < 1 or (every_steps is not None and every_steps < 1):
            raise ValueError("every_epochs and every_steps must be at least 1.")
        self.path = Path(path)
        self.every_epochs = every_epochs
        self.every_steps = every_steps
        self.scheduler = scheduler

    def on_step(self, run: TrainingRun) -> None:
        """Write within an epoch if it is time; the end of an epoch writes its own."""
        due = self.every_steps is not None and run.step % self.every_steps == 0
        if due and run.step_in_epoch < run.steps_per_epoch:
            save_checkpoint(self.path, run, self.scheduler)

    def on_record(self, run: TrainingRun) -> None:
        """Write at the end of an epoch if it is time."""
        if run.epoch % self.every_epochs == 0 or run.epoch == run.epochs:
            save_checkpoint(self.path, run, self.scheduler)
