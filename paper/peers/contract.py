"""What all peers share: settings, optional packages, standardised rows, validation rows, outcomes."""

from __future__ import annotations

import importlib
import importlib.util
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from finitegp.data.scaling import Standardizer
from finitegp.errors import DataError

from ..outcome import Array, DatasetSplit, Outcome

Index = npt.NDArray[np.int64]

#: Below this share of the target's deviation a validation error is chance or exact repetition, not knowledge.
SMALLEST_NOISE = 1e-4


class PeerFunction(Protocol):
    """Fits a method to the training rows of a split and predicts its test rows."""

    def __call__(self, split: DatasetSplit, *, seed: int, settings: Mapping[str, Any]) -> Outcome:
        """Fit and predict; ``settings`` override the peer's documented defaults."""
        ...


def merge_settings(peer: str, defaults: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults with ``settings`` in their place; an unknown name is an error.

    Example:
        >>> merge_settings("mlp", {"epochs": 60, "batch_size": 128}, {"epochs": 5})
        {'epochs': 5, 'batch_size': 128}
    """
    unknown = sorted(set(settings) - set(defaults))
    if unknown:
        names = ", ".join(map(repr, unknown))
        raise ValueError(f"The peer {peer!r} has no setting {names}; it knows {', '.join(sorted(defaults))}.")
    return {**defaults, **settings}


def require(package: str, peer: str, extra: str = "benchmark-peers") -> Any:
    """Import an optional package, or say which extra of this library brings it."""
    root = package.partition(".")[0]
    if importlib.util.find_spec(root) is None:
        raise ImportError(f'The peer {peer!r} needs {root}: pip install "finitegp[{extra}]"')
    try:
        return importlib.import_module(package)
    except (ImportError, RuntimeError) as error:
        hint = ""
        if "torchvision" in str(error):
            # laplace-torch requires it without using it, and PyPI's build of it only loads beside PyTorch with CUDA.
            hint = " This torchvision does not fit the installed PyTorch and no peer uses it: pip uninstall torchvision"
        raise ImportError(f"The peer {peer!r} needs {root}, which is installed but fails: {error}.{hint}") from error


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's random numbers on the CPU inside, and leave them outside as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


class Elapsed(NamedTuple):
    """What something took: processor seconds of all threads, and seconds by the clock."""

    processor: float
    wall: float


class Stopwatch:
    """Seconds since it was made: of the processor, for all threads and ended child processes; and of the clock.

    With one thread processor seconds are the seconds on an idle machine. On a busy one, wall-clock limits would cut a
    method short for what others do.
    """

    def __init__(self) -> None:
        self._started = _processor_seconds(), time.perf_counter()

    @property
    def seconds(self) -> float:
        """Processor seconds since the start."""
        return _processor_seconds() - self._started[0]

    @property
    def elapsed(self) -> Elapsed:
        """Both since the start."""
        return Elapsed(self.seconds, time.perf_counter() - self._started[1])


def _processor_seconds() -> float:
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


@dataclass(frozen=True, eq=False)
class ScaledSplit:
    """The rows of a split with inputs and target standardised on the training rows; the test targets are left out.

    Attributes:
        inputs: Training inputs ``(n, columns)``.
        targets: Training targets ``(n,)``.
        test_inputs: Test inputs.
        target_scaler: Brings predictions back to the target's units.
    """

    inputs: Array
    targets: Array
    test_inputs: Array
    target_scaler: Standardizer

    @classmethod
    def of(cls, split: DatasetSplit) -> ScaledSplit:
        """Standardise a split."""
        input_scaler, target_scaler = Standardizer.fit(split.inputs), Standardizer.fit(split.targets)
        return cls(
            inputs=input_scaler.transform(split.inputs),
            targets=target_scaler.transform(split.targets),
            test_inputs=input_scaler.transform(split.test_inputs),
            target_scaler=target_scaler,
        )

    def outcome(
        self, mean: Any, std: Any, elapsed: Elapsed, details: dict[str, Any], log_density: Array | None = None
    ) -> Outcome:
        """The outcome in the target's units of a standardised mean and deviation per row, or one deviation for all."""
        mean = np.asarray(mean, dtype=np.float64).reshape(-1)
        std = np.broadcast_to(np.asarray(std, dtype=np.float64).reshape(-1), mean.shape)
        return Outcome(
            mean=self.target_scaler.inverse(mean),
            std=std * self.target_scaler.scale,
            seconds=elapsed.processor,
            wall_seconds=elapsed.wall,
            log_density=log_density,
            details=details,
        )


def hold_out(rows: int, fraction: float, seed: int) -> tuple[Index, Index]:
    """Which rows to train on and which to hold out for validation, at least one of each, drawn by ``seed``.

    Example:
        >>> kept, held_out = hold_out(50, fraction=0.1, seed=0)
        >>> len(kept), len(held_out), sorted({*kept.tolist(), *held_out.tolist()}) == list(range(50))
        (45, 5, True)
    """
    if rows < 2:
        raise DataError(f"Validation rows need at least two training rows, but there are {rows}.")
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"validation_fraction must lie between 0 and 1, but is {fraction}.")
    order = np.random.default_rng(seed).permutation(rows)
    count = min(max(1, round(fraction * rows)), rows - 1)
    return order[count:], order[:count]


def constant_noise(residuals: Any) -> float:
    """The deviation of standardised validation residuals about zero, kept away from zero."""
    return max(float(np.sqrt(np.mean(np.square(np.asarray(residuals, dtype=np.float64))))), SMALLEST_NOISE)
