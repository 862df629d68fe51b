"""The interface of a callback: a few moments of a training run."""

from __future__ import annotations

from ..arguments import check_arguments
from ..run import TrainingRun


@check_arguments
class Callback:
    """Does nothing at every moment; a callback overrides the moments it needs.

    ``on_epoch`` measures (writes ``run.metrics``, may set ``run.stop_reason``), ``on_record`` reads what all callbacks
    have measured for the epoch. ``on_step`` costs time at every step and is only called where it is overridden.
    """

    #: Whether several ranks of a run all have this callback: yes if it measures, as exact passes are shared (give them
    #: ``ranks=run.ranks``), or may stop the run; no if it only reports.
    every_rank: bool = True

    def on_start(self, run: TrainingRun) -> None:
        """Before the first step, also of a resumed run."""

    def on_step(self, run: TrainingRun) -> None:
        """After each step."""

    def on_epoch(self, run: TrainingRun) -> None:
        """After each epoch, to measure."""

    def on_record(self, run: TrainingRun) -> None:
        """After each epoch, when everything has been measured."""

    def on_end(self, run: TrainingRun) -> None:
        """After training, also if it diverged or stopped early."""
