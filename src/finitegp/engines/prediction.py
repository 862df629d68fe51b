"""``Predictor``: a fitted model as workers get it, and what it takes and gives."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from ..data import ArraySource
from ..data.naming import unknown_column
from ..errors import DataError, ModelFileError
from ..estimator import GPRegressor, as_regressor
from ..model import FeatureGP, FittedGP
from ..persistence.container import read_container
from ..predictive import check_coverage
from ..scaled import ScaledGP
from ..tables.model import TableRegressor

_Array = npt.NDArray[np.float64]
_ENDS, _DEVIATIONS = ("mean", "lower", "upper"), ("epistemic_std", "noise_std", "std")

#: What rows can be predicted with; a path is that of a model file.
Predictable: TypeAlias = FittedGP | ScaledGP | GPRegressor | TableRegressor | str | os.PathLike[str]


@dataclass(frozen=True)
class Predictor:
    """A fitted model as workers get it.

    Attributes:
        sent: A fitted GP, or the bytes of a model file: engines would send an estimator as a pickle.
        coverage: Of the intervals.
        takes: The columns that the model finds by name; None if it takes numbers by their place.
        num_inputs: How many columns it takes; None if it does not tell.
        takes_tables: Whether these may hold text, dates and gaps.
        gives: The columns of a prediction.
    """

    sent: FittedGP | bytes
    coverage: float
    takes: tuple[str, ...] | None
    num_inputs: int | None
    takes_tables: bool
    gives: tuple[str, ...]

    @classmethod
    def of(cls, model: Predictable, coverage: float) -> Predictor:
        """The part of a model that is sent; anything that workers could not use is refused here."""
        check_coverage(coverage)
        if isinstance(model, FittedGP):
            check_on_cpu(model.model)
            ends = _numbered(_ENDS, model.posterior.statistics.num_targets)
            known = getattr(model.model.feature_map, "input_dim", None)
            return cls(model, coverage, None, known, False, (*ends, *_DEVIATIONS))
        content = _content(model)
        try:
            loaded = load_content(content)
        except ModelFileError as error:
            raise DataError(
                f"Workers get the file of a model, and cannot load this one: {error}",
                "Of a feature map of one's own pass a FittedGP instead (FeatureGP.condition).",
            ) from None
        if isinstance(loaded, TableRegressor):
            used = tuple(line.column for line in loaded.columns_ if line.outputs)
            return cls(content, coverage, used, len(used), True, (*_ENDS, "std"))
        names = getattr(loaded, "feature_names_in_", None)
        gives = _numbered((*_ENDS, *_DEVIATIONS), len(loaded.fits_))
        takes = None if names is None else tuple(map(str, names))
        return cls(content, coverage, takes, loaded.n_features_in_, False, gives)

    def columns_in(self, numeric: Mapping[str, bool], inputs: Sequence[str]) -> tuple[str, ...]:
        """The columns of a frame that the model takes, in its order.

        Args:
            numeric: For each column of the frame, whether it holds numbers.
            inputs: The columns that were named; none for all.
        """
        if self.takes is None and not inputs:
            raise DataError("The model does not know its columns by name:", "name them in inputs, in its order.")
        columns = tuple(inputs) if self.takes is None else self.takes
        there = list(inputs or numeric)
        if absent := [name for name in columns if name not in there]:
            raise DataError(unknown_column(absent[0], there, "inputs" if inputs else "the frame"))
        self.check_count(len(columns))
        if not self.takes_tables and (text := [name for name in columns if not numeric[name]]):
            raise DataError(
                f"Column {text[0]!r} does not hold numbers:", "fit a TableRegressor, which takes text and dates."
            )
        return columns

    def check_count(self, columns: int) -> None:
        """Refuse rows with another number of columns."""
        if self.num_inputs is not None and columns != self.num_inputs:
            raise DataError(f"The model takes {self.num_inputs} columns, but there are {columns}.")

    def check_new(self, existing: Iterable[str]) -> None:
        """Refuse a frame that has columns of the prediction's names."""
        if taken := [name for name in self.gives if name in set(existing)]:
            raise DataError(f"The frame has a column {taken[0]!r} already:", "rename or drop it; predictions add it.")

    def predict(self, rows: Any, names: Sequence[str] | None = None) -> _Array:
        """``(rows, len(gives))`` of numbers ``(rows, columns)``, or of a table; ``names`` are for errors."""
        if len(rows) == 0:
            return np.empty((0, len(self.gives)))
        model = self.sent if isinstance(self.sent, FittedGP) else load_content(self.sent)
        if isinstance(model, TableRegressor):
            chunks = model.predict_chunks(rows, self.coverage)
            return np.vstack([np.stack([each.mean, each.lower, each.upper, each.std], axis=1) for each in chunks])
        fits = model.fits_ if isinstance(model, GPRegressor) else [model]
        source = ArraySource(rows, column_names=None if names is None else list(names))
        return np.vstack([_predicted(fits, chunk.inputs, self.coverage) for chunk in source])


def _predicted(fits: Sequence[FittedGP | ScaledGP], inputs: torch.Tensor, coverage: float) -> _Array:
    parts: list[torch.Tensor] = []
    for fit in fits:
        found = fit.predict(inputs)
        ends = torch.stack([found.mean, *found.interval(coverage)], dim=-1).reshape(len(inputs), -1)
        deviations = [found.epistemic_variance.sqrt(), found.noise_variance.sqrt(), found.std]
        parts += [ends, torch.stack(deviations, dim=-1)]
    result: _Array = torch.cat(parts, dim=1).numpy()
    return result


def check_on_cpu(model: FeatureGP) -> None:
    """Refuse a model that workers might not be able to load."""
    if model.device.type != "cpu":
        raise DataError(
            f"The model is on the device {model.device}, which workers may not have:", "pass model.cpu() instead."
        )


@lru_cache(maxsize=2)
def load_content(content: bytes) -> GPRegressor | TableRegressor:
    """The model of a file's bytes, which a worker makes once for all of its tasks."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.finitegp"
        path.write_bytes(content)
        kind = read_container(path).header.get("kind")
        if kind == "fit":
            from ..persistence import load_fit

            return as_regressor(load_fit(path))
        return GPRegressor.load(path) if kind == "regressor" else TableRegressor.load(path)


def _content(model: Predictable) -> bytes:
    if isinstance(model, str | os.PathLike):
        return Path(model).read_bytes()
    if not isinstance(model, ScaledGP | GPRegressor | TableRegressor):
        raise DataError(
            f"The model is a {type(model).__name__}:",
            "pass a FittedGP, a fitted GPRegressor or TableRegressor, a ScaledGP, or a model file.",
        )
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.finitegp"
        (as_regressor(model) if isinstance(model, ScaledGP) else model).save(path)
        return path.read_bytes()


def _numbered(names: Sequence[str], num_targets: int) -> tuple[str, ...]:
    """Names that end in the number of the target, if there are several."""
    ends = [""] if num_targets == 1 else [f"_{target}" for target in range(num_targets)]
    return tuple(f"{name}{end}" for end in ends for name in names)
