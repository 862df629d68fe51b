"""The only training loop."""

from __future__ import annotations

import math
import numbers
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .algorithms.base import Algorithm
from .arguments import check_arguments, check_at_least_one
from .data.sampling import GATHERED_BATCHES, Sampler
from .data.sources import Data, Rows
from .distributed import ALONE, Ranks
from .errors import ArgumentError, DataError, NumericalError, warn_caller
from .model import FeatureGP
from .processes import one_thread
from .run import Callback, TrainingRun, copy_state, load_checkpoint
from .schedules import Schedule

if TYPE_CHECKING:
    from .compiled import CompiledSteps


class TrainingDivergedWarning(UserWarning):
    """Training met numbers that are not finite or a noise that exploded, and went back to the best state."""


@check_arguments
def train(
    algorithm: Algorithm,
    optimizer: torch.optim.Optimizer,
    data: Data,
    *,
    epochs: int,
    batch_size: int = 256,
    micro_batch_size: int | None = None,
    gathered_batches: int = GATHERED_BATCHES,
    sampling: str = "shuffle",
    seed: int = 0,
    schedule: Schedule | torch.optim.lr_scheduler.LRScheduler | None = None,
    callbacks: Sequence[Callback] = (),
    initial_batches: int = 20,
    resume: str | Path | None = None,
    restore_best: bool = True,
    ranks: Ranks = ALONE,
    compiled: bool | type[CompiledSteps] = False,
) -> TrainingRun:
    """Train a model with any algorithm and any torch optimizer.

    Args:
        algorithm: What sets the gradients.
        optimizer: What takes the steps, over ``algorithm.parameter_groups()``.
        data: Training rows. Arrays and lists of chunks are kept in memory; ``.npy`` files and spools stay on disk;
            rows of tables and streams are spooled into a temporary file first (:class:`~finitegp.data.Source`).
        epochs: Passes over the rows.
        batch_size: Rows per batch.
        micro_batch_size: Pass at most this many rows through the feature map at once and accumulate the gradient of the
            batch: less memory, the same result to rounding. None passes the whole batch.
        gathered_batches: Batches that are read from disk at once; makes no difference to the batches.
        sampling: ``"shuffle"`` or ``"independent"``, both uniform.
        seed: Determines the batches.
        schedule: A function from the step to a factor on the learning rates (:mod:`finitegp.schedules`), or a torch
            scheduler, stepped after every step.
        callbacks: See :mod:`finitegp.callbacks`.
        initial_batches: Batches that start what the algorithm tracks, before the first step.
        resume: A checkpoint written by :class:`~finitegp.callbacks.Checkpoint` with the same arguments and rows (rates
            and a sample of up to 1,024 rows are compared); if the file does not exist, training starts from the
            beginning. On the CPU the resumed run equals the uninterrupted one to the bit.
        restore_best: At the end, go back to the best state that a callback recorded.
        ranks: The processes that make each step together (:func:`~finitegp.torchrun.join_ranks`), each with its
            part of every batch: the same run to rounding, whatever their number. All of them call ``train`` with the
            same arguments, and all of them end with the same model.
        compiled: Take each step in one function compiled by Numba (:class:`~finitegp.compiled.CompiledSteps`): the same
            run to rounding, for small networks in half the time. An error says why where it is not possible. A
            subclass adds other steps.

    Returns:
        The finished :class:`TrainingRun`, with its history.

    Example:
        >>> from finitegp import FeatureGP
        >>> from finitegp.algorithms import Lagged
        >>> from finitegp.features import MLPFeatures
        >>> from finitegp.schedules import make_optimizer
        >>> inputs = torch.linspace(-1, 1, 200)[:, None]
        >>> data = inputs, torch.sin(3 * inputs[:, 0])
        >>> model = FeatureGP(MLPFeatures(1, hidden=(16, 16), seed=0), noise_variance=0.1)
        >>> before = model.nlml(data)
        >>> algorithm = Lagged(model, num_data=200)
        >>> run = train(algorithm, make_optimizer(algorithm), data, epochs=10, batch_size=20)
        >>> run.step, model.nlml(data) < before
        (100, True)
    """
    check_at_least_one(epochs=epochs, initial_batches=initial_batches)
    if not isinstance(epochs, numbers.Integral):
        raise ArgumentError(f"epochs must be a whole number, but is {epochs!r}.")
    if micro_batch_size is not None:
        check_at_least_one(micro_batch_size=micro_batch_size)
        if not algorithm.has_mean_gradient:
            raise ValueError(
                f"micro_batch_size cannot be used with {type(algorithm).__name__} as it is set: its gradient is not a "
                "mean over the rows of a batch."
            )
    _check_optimizer(algorithm, optimizer)
    algorithm.micro_batch_size = micro_batch_size
    algorithm.share_steps(ranks)
    model = algorithm.model
    sampler = Sampler(
        data,
        batch_size,
        sampling=sampling,
        seed=seed,
        dtype=model.dtype,
        device=model.device,
        gathered_batches=gathered_batches,
        share=ranks.share,
        spooler=ranks.spool,
    )
    if sampler.num_data != algorithm.num_data:
        raise DataError(f"The algorithm was made for {algorithm.num_data} rows, but the data have {sampler.num_data}.")
    if sampler.num_targets != algorithm.num_targets:
        raise DataError(
            f"The algorithm was made for {algorithm.num_targets} target columns, but the data have "
            f"{sampler.num_targets}: pass num_targets={sampler.num_targets} when making it."
        )
    torch_scheduler = schedule if isinstance(schedule, torch.optim.lr_scheduler.LRScheduler) else None
    factor = None if schedule is None or isinstance(schedule, torch.optim.lr_scheduler.LRScheduler) else schedule
    run = TrainingRun(algorithm, optimizer, sampler, epochs, factor, ranks=ranks)
    log_noise_limit = math.log(1e4 * (sampler.target_mean_square + 1e-300))

    ranks.copy_from_first(algorithm.state_dict().values())
    resumed = resume is not None and Path(resume).exists()
    if resumed:
        load_checkpoint(Path(str(resume)), run, torch_scheduler)
    ranks.check_same(
        "What is trained (step of the checkpoint, rows, batch size, seed)",
        [run.step, sampler.num_data, sampler.batch_size, seed],
    )
    if not resumed:
        # Stream -1 is read by no step.
        first = list(sampler.epoch(0, stream=-1, stop=initial_batches))
        try:
            algorithm.initialize(first)
        except (RuntimeError, ValueError):
            _explain(model, first)
            raise
    take_step: Callable[[Sequence[Rows]], float] = partial(algorithm.step, optimizer=optimizer)
    if compiled:
        from .compiled import CompiledSteps

        take_step = (compiled if isinstance(compiled, type) else CompiledSteps)(algorithm, optimizer).step
    initial_state = copy_state(algorithm)
    started = time.perf_counter() - run.seconds
    callbacks = [callback for callback in callbacks if callback.every_rank or ranks.is_first]
    each_step = [callback for callback in callbacks if type(callback).on_step is not Callback.on_step]
    threads = ExitStack()
    try:
        if compiled:  # on so few numbers threads of BLAS wait longer than they work
            threads.enter_context(one_thread())
        for callback in callbacks:
            callback.on_start(run)
        while run.epoch < epochs and run.stop_reason is None:
            streams = [
                sampler.epoch(run.epoch, stream=stream, skip=run.step_in_epoch)
                for stream in range(algorithm.batches_per_step)
            ]
            for batches in zip(*streams, strict=True) if streams else [()]:
                if factor is not None:
                    for group, learning_rate in zip(optimizer.param_groups, run.learning_rates, strict=True):
                        group["lr"] = learning_rate * _checked_factor(factor(run.step), run.step)
                problem = ""
                try:
                    run.loss = take_step(batches)
                    # Also where they are NaN.
                    if not (run.loss < 1e12 and model.noise.log_variance.item() < log_noise_limit):
                        problem = f"loss {run.loss:.3g}, noise variance {model.noise_variance:.3g}"
                except NumericalError as error:
                    problem = str(error)
                except (RuntimeError, ValueError):
                    _explain(model, batches)
                    raise
                if problem:
                    _recover(run, initial_state, problem)
                    break
                if torch_scheduler is not None:
                    torch_scheduler.step()
                run.step += 1
                run.step_in_epoch += 1
                for callback in each_step:
                    run.seconds = time.perf_counter() - started
                    callback.on_step(run)
            if run.diverged:
                break
            run.epoch += 1
            run.step_in_epoch = 0
            run.seconds = time.perf_counter() - started
            run.metrics |= {"loss": run.loss, "noise_variance": model.noise.variance}
            for callback in callbacks:
                callback.on_epoch(run)
            run.seconds = time.perf_counter() - started
            run.history.append({"epoch": run.epoch, "step": run.step, "seconds": run.seconds} | run.metrics)
            for callback in callbacks:
                callback.on_record(run)
        if restore_best and run.best is not None and not run.diverged:
            algorithm.load_state_dict(run.best.state)
        elif not run.diverged:
            algorithm.finish(ranks.shard(sampler.data))
    finally:
        threads.close()
        run.seconds = time.perf_counter() - started
        for callback in callbacks:
            callback.on_end(run)
    return run


def _explain(model: FeatureGP, batches: Sequence[Rows]) -> None:
    """A better error if it is the feature map or the noise model that fails on these rows."""
    layer = next((each for each in model.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)), None)
    if layer is not None and layer.training and any(len(batch.inputs) == 1 for batch in batches):
        raise ValueError(
            f"batch_size leaves a batch of one row, which the {type(layer).__name__} of the model does not take: use "
            "another batch_size, a layer that takes each row by itself, such as LayerNorm, or call eval() on it."
        )
    with torch.no_grad():
        for batch in batches[:1]:
            model.checked_forward(batch)


def _checked_factor(factor: float, step: int) -> float:
    """A factor on the learning rates, if it is one."""
    if not (isinstance(factor, numbers.Real) and 0.0 <= factor < math.inf):
        raise ValueError(f"schedule must give a number from 0 on for every step, but gave {factor!r} for step {step}.")
    return factor


def _check_optimizer(algorithm: Algorithm, optimizer: torch.optim.Optimizer) -> None:
    """An optimizer that steps by the gradients that are set, and has parameters of the algorithm."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "optimizer is LBFGS, which evaluates the loss several times per step, but a batch gives one gradient: use "
            "fit_full_batch(model, data), which is L-BFGS on the exact gradient, or an optimizer such as "
            "make_optimizer(algorithm)."
        )
    moved = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    # None at all where everything is frozen and only the algorithm's own state moves.
    if moved and moved.isdisjoint(map(id, algorithm.parameters())):
        raise ValueError(
            "optimizer has none of the parameters of the algorithm, so that training would change nothing: make it "
            "over algorithm.parameter_groups(), of this algorithm, as make_optimizer(algorithm) does."
        )


def _recover(run: TrainingRun, initial_state: dict[str, Tensor], problem: str) -> None:
    run.diverged = True
    best = run.best
    run.algorithm.load_state_dict(initial_state if best is None else best.state)
    back_to = (
        "the initial state" if best is None else f"the best state, {best.metric} {best.value:.4g} of epoch {best.epoch}"
    )
    rates = ", ".join(f"{group['lr']:.2g}" for group in run.optimizer.param_groups)
    warn_caller(
        f"Training diverged at step {run.step} (epoch {run.epoch}): {problem} (learning rate {rates}). Restored "
        f"{back_to}. Use a smaller learning rate, or standardise inputs and targets.",
        TrainingDivergedWarning,
    )
