"""Checkpoints of a training run: one safetensors file with a JSON header, written atomically, no pickle."""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .errors import DataError
from .run import BestIterate, TrainingRun

FORMAT = "finitegp-checkpoint-1"


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
    state = run.optimizer.state_dict()
    plain_state: dict[str, dict[str, Any]] = {}
    for index, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{name}"] = value
            elif value is not None:
                plain_state.setdefault(str(index), {})[name] = value
    if run.best is not None:
        tensors |= {f"best.{name}": tensor for name, tensor in run.best.state.items()}
    tensors["random_state"] = torch.get_rng_state()
    header = {
        "format": FORMAT,
        "epoch": run.epoch,
        "step": run.step,
        "step_in_epoch": run.step_in_epoch,
        "loss": run.loss,
        "seconds": run.seconds,
        "metrics": run.metrics,
        "history": run.history,
        "stop_reason": run.stop_reason,
        "best": None if run.best is None else [run.best.metric, run.best.value, run.best.epoch],
        "setting": _setting(run),
        "optimizer_state": plain_state,
        "optimizer_groups": [
            {name: value for name, value in group.items() if _is_plain(value)} for group in state["param_groups"]
        ],
        "scheduler": None if torch_scheduler is None else _plain_dict(torch_scheduler.state_dict()),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    # Shared memory would be written twice or refused; contiguous copies are what safetensors takes.
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    os.close(handle)
    try:
        save_file(copies, temporary, metadata={"finitegp": json.dumps(header)})
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load_checkpoint(
    path: Path, run: TrainingRun, torch_scheduler: torch.optim.lr_scheduler.LRScheduler | None = None
) -> None:
    """Put a run into the state of a checkpoint."""
    try:
        with safe_open(path, framework="pt") as opened:
            header = json.loads((opened.metadata() or {}).get("finitegp", "{}"))
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, json.JSONDecodeError, OSError) as error:
        raise DataError(f"{path} cannot be read as a checkpoint: {error}. Delete it to start anew.") from error
    if header.get("format") != FORMAT:
        raise DataError(f"{path} is not a checkpoint of this version ({FORMAT}): {header.get('format')!r}.")
    for name, value in _setting(run).items():
        if header["setting"].get(name) != value:
            raise DataError(
                f"{path} belongs to another run: {name} was {header['setting'].get(name)!r} and is now {value!r}."
            )
    parts: dict[str, dict[str, Tensor]] = {"algorithm": {}, "pending": {}, "optimizer": {}, "best": {}}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(".")
        if kind in parts:
            parts[kind][rest] = tensor
    run.algorithm.load_state_dict(parts["algorithm"])
    run.algorithm.load_pending_state(parts["pending"])
    state: dict[int, dict[str, Any]] = {int(key): dict(value) for key, value in header["optimizer_state"].items()}
    for name, tensor in parts["optimizer"].items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = tensor
    groups = run.optimizer.state_dict()["param_groups"]
    for group, saved in zip(groups, header["optimizer_groups"], strict=True):
        group.update({name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()})
    run.optimizer.load_state_dict({"state": state, "param_groups": groups})
    if torch_scheduler is not None and header["scheduler"] is not None:
        torch_scheduler.load_state_dict(header["scheduler"])
    if header["best"] is not None:
        metric, value, epoch = header["best"]
        run.best = BestIterate(metric, value, epoch, parts["best"])
    for name in ("epoch", "step", "step_in_epoch", "seconds", "metrics", "history", "stop_reason"):
        setattr(run, name, header[name])
    run.loss = math.nan if header["loss"] is None else header["loss"]
    torch.set_rng_state(tensors["random_state"])


def _setting(run: TrainingRun) -> dict[str, Any]:
    """What must be the same for a run to go on from a checkpoint."""
    return {
        "algorithm": type(run.algorithm).__name__,
        "optimizer": type(run.optimizer).__name__,
        "num_data": run.sampler.num_data,
        "batch_size": run.sampler.batch_size,
        "sampling": run.sampler.sampling,
        "seed": run.sampler.seed,
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(part, int | float | str | bool) for part in value)
    return value is None or isinstance(value, int | float | str | bool)


def _plain_dict(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if _is_plain(value)}
