"""Callbacks that report: progress bar, JSON-lines log, TensorBoard, checkpoints."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ..arguments import check_arguments
from ..checkpoint import save_checkpoint
from ..run import TrainingRun
from .base import Callback


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
