"""``TrainingRun``: the state of a training run, as the loop and the callbacks share it, and its checkpoints."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .algorithms.base import Algorithm
from .arguments import check_arguments
from .data.sampling import Sampler
from .distributed import ALONE, Ranks
from .errors import DataError, ModelFileError
from .persistence.container import read_container, write_container
from .schedules import Schedule

FORMAT = "finitegp-checkpoint"
_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("epoch", "step", "step_in_epoch"), int),
    **dict.fromkeys(("loss", "seconds"), float),
    "metrics": dict,
    "history": list,
    "stop_reason": str | None,
}


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
    learning_rates: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.learning_rates = [float(group["lr"]) for group in self.optimizer.param_groups]

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


def copy_state(algorithm: Algorithm) -> dict[str, Tensor]:
    """A copy of all tensors of an algorithm: later steps do not reach it."""
    return {name: tensor.detach().clone() for name, tensor in algorithm.state_dict().items()}


def save_checkpoint(
    path: Path, run: TrainingRun, torch_scheduler: torch.optim.lr_scheduler.LRScheduler | None = None
) -> None:
    """Write everything that the run needs to go on; the old file stays whole until the new one is complete.

    All ranks of a run call this, and the first one writes.
    """
    tensors = {f"algorithm.{name}": tensor for name, tensor in run.algorithm.state_dict().items()}
    tensors |= {f"pending.{name}": tensor for name, tensor in run.algorithm.pending_state().items()}
    if not run.ranks.is_first:
        return
    optimizer = run.optimizer.state_dict()
    numbers: dict[str, Any] = {}
    for index, entries in optimizer["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{name}"] = value
            elif value is not None:
                numbers[f"{index}.{name}"] = value
    if run.best is not None:
        tensors |= {f"best.{name}": tensor for name, tensor in run.best.state.items()}
    tensors["random_state"] = torch.get_rng_state()
    state = {
        **{name: getattr(run, name) for name in _FIELDS},
        "best": None if run.best is None else [run.best.metric, run.best.value, run.best.epoch],
        "optimizer_numbers": numbers,
        "optimizer_groups": [_plain_entries(group) for group in optimizer["param_groups"]],
        "scheduler": None if torch_scheduler is None else _plain_entries(torch_scheduler.state_dict()),
    }
    # As text: losses and bests that are not finite come back as they are, which JSON itself has no numbers for.
    header = {"format": FORMAT, "setting": _setting(run), "state": json.dumps(state)}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_container(path, header, tensors)


def load_checkpoint(
    path: Path, run: TrainingRun, torch_scheduler: torch.optim.lr_scheduler.LRScheduler | None = None
) -> None:
    """Put a run into the state of a checkpoint.

    Raises:
        ModelFileError: If the file is damaged, of another run or of an earlier release, or if a tensor in it has
            another shape or type than that of the run; the run is then as it was before.
    """
    try:
        header, tensors = read_container(path, "a checkpoint", FORMAT)
        for name, value in _setting(run).items():
            if header["setting"].get(name) != value:
                raise ModelFileError(
                    f"{path} belongs to another run: {name} was {header['setting'].get(name)!r} and is now {value!r}."
                )
        _load(run, torch_scheduler, json.loads(header["state"]), tensors)
    except ModelFileError as error:
        raise ModelFileError(f"The checkpoint cannot be used: {error} Delete it to start anew.") from None
    except (DataError, LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError) as error:
        raise ModelFileError(
            f"The checkpoint {path} cannot be used: its parts do not make a run ({type(error).__name__}: {error}). "
            "Delete it to start anew."
        ) from error


def _load(
    run: TrainingRun,
    torch_scheduler: torch.optim.lr_scheduler.LRScheduler | None,
    stored: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> None:
    """Check everything, then change everything."""
    parts: dict[str, dict[str, Tensor]] = {kind: {} for kind in ("algorithm", "pending", "optimizer", "best")}
    for name, tensor in tensors.items():
        if name != "random_state":
            kind, _, rest = name.partition(".")
            parts[kind][rest] = tensor
    live = run.algorithm.state_dict()
    _check_same("algorithm", live, parts["algorithm"])
    best = None
    if stored["best"] is not None:
        _check_same("best state", live, parts["best"])
        metric, value, epoch = stored["best"]
        best = BestIterate(str(metric), float(value), int(epoch), parts["best"])
    optimizer = _optimizer_state(run.optimizer, stored, parts["optimizer"])
    trained = {f"model.{name}" for name, _ in run.algorithm.model.named_parameters()}
    for name, tensor in (*parts["optimizer"].items(), *((name, parts["algorithm"][name]) for name in sorted(trained))):
        if not bool(torch.isfinite(tensor).all()):
            raise ModelFileError(f"its tensor {name!r} has values that are not finite.")
    scheduler = None
    if torch_scheduler is not None and stored["scheduler"] is not None:
        scheduler = _merged("scheduler", torch_scheduler.state_dict(), stored["scheduler"])
    for name, kind in _FIELDS.items():
        value = stored[name]
        if not isinstance(value, kind) or isinstance(value, bool) or (kind is int and value < 0):
            raise ModelFileError(f"its {name} is {str(value)[:60]!r}.")
    if stored["step_in_epoch"] > run.steps_per_epoch:
        raise ModelFileError(f"it has made {stored['step_in_epoch']} of {run.steps_per_epoch} steps of an epoch.")
    torch.Generator().set_state(tensors["random_state"])  # an error if that is no state

    run.algorithm.load_pending_state(parts["pending"])  # checks all of it before it changes anything
    run.algorithm.load_state_dict(parts["algorithm"])
    run.optimizer.load_state_dict(optimizer)
    if torch_scheduler is not None and scheduler is not None:
        torch_scheduler.load_state_dict(scheduler)
    for name in _FIELDS:
        setattr(run, name, stored[name])
    run.best = best
    torch.set_rng_state(tensors["random_state"])


def _check_same(what: str, live: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Refuse tensors whose names, shapes or types are not those of the live ones."""
    for name in sorted(live.keys() ^ found.keys()):
        raise ModelFileError(f"its {what} has {'no' if name in live else 'a'} tensor {name!r}, unlike that of the run.")
    for name, expected in live.items():
        if found[name].shape != expected.shape or found[name].dtype != expected.dtype:
            raise ModelFileError(
                f"its {what} has a tensor {name!r} of shape {tuple(found[name].shape)} in {found[name].dtype}, but "
                f"that of the run has shape {tuple(expected.shape)} in {expected.dtype}."
            )


def _optimizer_state(
    optimizer: torch.optim.Optimizer, stored: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """The argument of ``optimizer.load_state_dict``, if it has the form of this optimizer's own state."""
    numbers = stored["optimizer_numbers"]
    names = [name.partition(".") for name in (*tensors, *numbers)]
    try:
        state_of = _state_after_a_step(optimizer)
    except Exception:  # a class of the user's that cannot be copied: what it averages is like the parameters
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        keys = {key: torch.empty(()) if key == "step" else None for _, _, key in names}
        state_of = {
            index: {
                key: numbers.get(f"{index}.{key}", parameter if like is None else like) for key, like in keys.items()
            }
            for index, parameter in enumerate(parameters)
        }
    with_state = {index for index, _, _ in names}  # parameters that never had a gradient have none
    expected = {
        f"{index}.{name}": value
        for index, entries in state_of.items()
        for name, value in entries.items()
        if value is not None and str(index) in with_state
    }
    _check_same("optimizer", {name: v for name, v in expected.items() if isinstance(v, Tensor)}, tensors)
    live_numbers = {name: value for name, value in expected.items() if not isinstance(value, Tensor)}
    if live_numbers.keys() != numbers.keys():
        raise ModelFileError(f"its optimizer has the numbers {sorted(numbers)} instead of {sorted(live_numbers)}.")
    state: dict[int, dict[str, Any]] = {}
    for name, value in {**tensors, **_merged("optimizer", live_numbers, numbers)}.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value
    groups = [
        _merged("optimizer", live, saved, fixed=True)
        for live, saved in zip(optimizer.state_dict()["param_groups"], stored["optimizer_groups"], strict=True)
    ]
    return {"state": state, "param_groups": groups}


def _state_after_a_step(optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Any]]:
    """The form of the state of each parameter, as a copy of the optimizer and its parameters shows."""
    twin = copy.deepcopy(optimizer)
    for group in twin.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    twin.step()
    state: dict[int, dict[str, Any]] = twin.state_dict()["state"]
    return state


def _merged(what: str, live: Mapping[str, Any], saved: Mapping[str, Any], *, fixed: bool = False) -> dict[str, Any]:
    """The live entries with the saved values, which must be of the same kind; with ``fixed`` only numbers may differ.

    Entries that are in only one of them stay as they are in the run: another release of torch may have more or fewer.
    """
    merged = dict(live)
    for name in live.keys() & saved.keys():
        old, new = live[name], saved[name]
        constant = fixed and (name == "params" or old is None or isinstance(old, bool | str))
        if new != old if constant else old is not None and _kind(new) != _kind(old):
            raise ModelFileError(f"its {what} has {name}={new!r}, but that of the run has {old!r}.")
        merged[name] = tuple(new) if isinstance(old, tuple) else new
    return merged


def _kind(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_kind(part) for part in value]
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def _setting(run: TrainingRun) -> dict[str, Any]:
    """Everything that must be the same for a run to go on from a checkpoint."""
    return {
        "algorithm": type(run.algorithm).__name__,
        "optimizer": type(run.optimizer).__name__,
        "num_data": run.sampler.num_data,
        "batch_size": run.sampler.batch_size,
        "sampling": run.sampler.sampling,
        "seed": run.sampler.seed,
        "learning_rates": run.learning_rates,
        "hash of the rows": run.sampler.fingerprint()[:16],
    }


def _plain_entries(values: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that come back from JSON as they are: numbers, text and lists of these."""
    return {
        name: value
        for name, value in values.items()
        if all(
            part is None or isinstance(part, int | float | str)
            for part in (value if isinstance(value, list | tuple) else [value])
        )
    }
