"""Callbacks that measure: exact NLML, held-out predictive density with early stopping, the bias of the gradient."""

from __future__ import annotations

import torch

from ..arguments import check_arguments, check_at_least_one
from ..data import as_source
from ..data.sources import Data
from ..diagnostics import measure_bias
from ..run import TrainingRun
from .base import Callback


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
        if run.epoch % self.every and run.epoch != run.epochs:
            run.metrics.pop("nlml", None)
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
        if run.epoch % self.every and run.epoch != run.epochs:
            run.metrics.pop("validation_nlpd", None)
            run.metrics.pop("validation_rmse", None)
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
        for name in ("gradient_angle_degrees", "gradient_relative_error", "exact_gradient_norm"):
            run.metrics.pop(name, None)
        if run.epoch % self.every and run.epoch != run.epochs:
            return
        with torch.random.fork_rng(devices=[]):
            found = measure_bias(run.algorithm, run.sampler)
        run.metrics |= {
            "gradient_angle_degrees": found.angle_degrees,
            "gradient_relative_error": found.relative_error,
            "exact_gradient_norm": found.exact_norm,
        }
