"""``PartitionedRows``: the exact pass and batch prediction over rows in partitions, whatever the engine.

An engine runs :func:`sum_blocks` on each partition and hands back one :class:`PartialSum` for each, in the order of the
partitions, which are added here or there in that order. A partial sum has no effect but its value, so a task that is
repeated, because a worker was lost or was slow, gives the same sum, and only one of its results is added. Workers
predict with a :class:`Predictor`.
"""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..data.arrays import ArraySource
from ..data.naming import unknown_column
from ..data.sources import Rows
from ..errors import DataError, FiniteGPError, ModelFileError
from ..estimator import GPRegressor, as_regressor
from ..likelihood import MarginalLikelihood, likelihood_in_passes, optimal_noise
from ..model import FeatureGP, FittedGP
from ..persistence.container import read_container
from ..posterior import WeightPosterior
from ..predictive import check_coverage
from ..scaled import ScaledGP
from ..statistics import FeatureStatistics, sum_statistics
from ..tables.model import TableRegressor

if TYPE_CHECKING:
    import pandas
    import pyarrow as pa

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

    def predict(self, rows: _Array | pa.RecordBatch | pandas.DataFrame, names: Sequence[str] | None = None) -> _Array:
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


class Block(NamedTuple):
    """Some rows of a partition as arrays: what :class:`~finitegp.ArraySource` takes."""

    inputs: _Array
    targets: _Array | None = None
    weights: _Array | None = None
    counts: _Array | None = None


class PartialSum(NamedTuple):
    """The answer of a partition.

    Attributes:
        values: The flattened :class:`FeatureStatistics`, or None if there were no rows.
        problem: What is wrong with the rows, or nothing. Sent as a value, because engines run a task that raises again
            and again.
    """

    values: _Array | None
    problem: str = ""

    def __add__(self, other: tuple[Any, ...]) -> PartialSum:
        """The sum of both; of problems, the first stays."""
        values, problem = other
        if self.problem or problem:
            return PartialSum(None, self.problem or problem)
        if self.values is None or values is None:
            return PartialSum(values if self.values is None else self.values)
        return PartialSum(self.values + values)


@dataclass(frozen=True)
class Columns:
    """The names of the columns that an engine reads, checked.

    Attributes:
        inputs: In the order of the feature map's inputs.
        targets: None or several.
        weights: A weight divides the row's noise variance; None for one.
        counts: How many equal rows each row stands for; None for one.
    """

    inputs: tuple[str, ...]
    targets: tuple[str, ...] = ()
    weights: str | None = None
    counts: str | None = None

    @classmethod
    def of(
        cls, inputs: Sequence[str], targets: str | Sequence[str], weights: str | None, counts: str | None
    ) -> Columns:
        """Names as users give them."""
        if isinstance(inputs, str):
            raise DataError(f"inputs must be a list of column names, but is the text {inputs!r}:", "put it in a list.")
        names = (targets,) if isinstance(targets, str) else tuple(targets)
        return cls(tuple(inputs), names, weights, counts)

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.inputs, *self.targets, *(name for name in (self.weights, self.counts) if name is not None))

    def check(self, numeric: dict[str, bool]) -> None:
        """Refuse names that are not columns of the frame, and columns that are not numbers.

        Args:
            numeric: For each column of the frame, whether it holds numbers.
        """
        if missing := [name for name in self.names if name not in numeric]:
            raise DataError(unknown_column(missing[0], list(numeric), "the frame"))
        if text := [name for name in self.names if not numeric[name]]:
            raise DataError(
                f"Column {text[0]!r} does not hold numbers:",
                "encode it with the engine first (casts, one-hot columns, parts of dates), because feature maps take "
                "numbers; to predict with a TableRegressor, which takes text and dates, name no inputs.",
            )

    def block(self, column: Callable[[str], ArrayLike]) -> Block:
        """Arrays out of a function from a name to the column's values."""

        def table(names: tuple[str, ...]) -> _Array:
            return np.column_stack([np.asarray(column(name), dtype=np.float64) for name in names])

        return Block(
            table(self.inputs),
            table(self.targets) if self.targets else None,
            None if self.weights is None else np.asarray(column(self.weights), dtype=np.float64),
            None if self.counts is None else np.asarray(column(self.counts), dtype=np.float64),
        )


#: Row sums of each chunk of some rows.
Work: TypeAlias = Callable[[ArraySource], Iterable[FeatureStatistics]]


def residual_sums(model: FeatureGP, weights: Tensor, source: ArraySource) -> Iterator[FeatureStatistics]:
    """Residuals at given weights as the targets of no features: their sum of squares adds like any other."""
    for rows in source:
        features, log_scale = model.summed_forward(rows)
        residuals = features.to(torch.float64) @ weights - rows.observed
        yield FeatureStatistics.from_batch(features[:, :0], residuals, log_scale, counts=rows.counts)


def sum_blocks(work: Work, blocks: Iterable[Block], input_names: list[str] | None) -> PartialSum:
    """The work on a partition: the sum over its blocks, in float64."""
    sources = (
        ArraySource(block.inputs, block.targets, block.weights, counts=block.counts, column_names=input_names)
        for block in blocks
        if len(block.inputs)
    )
    try:
        first = next(sources, None)
        if first is None:
            return PartialSum(None)
        parts = (part for source in chain([first], sources) for part in work(source))
        return PartialSum(sum_statistics(parts).flatten().numpy())
    except FiniteGPError as error:
        return PartialSum(None, str(error))


class PartitionedRows(ABC):
    """Rows that an engine holds in partitions. A subclass sums over partitions, and predicts.

    Attributes:
        num_inputs: The number of input columns; 0 for rows of which the model finds the columns by name.
        num_targets: The number of targets; 0 for new rows, which can only be predicted.
    """

    num_inputs: int
    num_targets: int

    @abstractmethod
    def _sum(self, work: Work, num_bytes: int) -> PartialSum:
        """The sum over all partitions, in their order; each partial sum has ``num_bytes``."""

    @abstractmethod
    def predict(self, model: Predictable, *, coverage: float = 0.9) -> object:
        """Predictions for all rows, made when the engine is asked for them."""

    def statistics(self, model: FeatureGP) -> FeatureStatistics:
        """The row sums of all rows in one pass: those of ``FeatureGP.statistics``, to rounding."""
        return self._statistics(frozen(model))

    def likelihood(self, model: FeatureGP) -> MarginalLikelihood:
        """The exact negative log marginal likelihood with its terms, as ``FeatureGP.likelihood``.

        One pass, and a second one where the noise is so small that the first would cancel.
        """
        exact = frozen(model)
        statistics = self._statistics(exact)
        exact.checked_forward(Rows(torch.zeros(1, self.num_inputs)))  # notes the type of the features

        def residual_squares(weights: Tensor) -> float:
            return float(
                self._total(partial(residual_sums, exact, weights), num_features=0).target_sum_of_squares.sum()
            )

        return likelihood_in_passes(
            statistics, exact.noise_variance, residual_squares, feature_rounding=exact.feature_rounding
        )

    def nlml(self, model: FeatureGP) -> float:
        """The exact negative log marginal likelihood per row."""
        return self.likelihood(model).nlml

    def condition(self, model: FeatureGP, *, optimize_noise: bool = False) -> FittedGP:
        """The exact posterior given all rows, in one pass; ``optimize_noise`` first sets the model's noise variance."""
        exact = frozen(model)
        statistics = self._statistics(exact)
        if optimize_noise:
            for each in (model, exact):
                each.noise.set_variance(optimal_noise(statistics).noise_variance)
        return FittedGP(exact, WeightPosterior(statistics, exact.noise_variance))

    def _statistics(self, exact: FeatureGP) -> FeatureStatistics:
        if not self.num_targets or not self.num_inputs:
            what = "targets" if self.num_inputs else "inputs"
            raise DataError(f"The rows have no {what}, so they can only be predicted:", f"name the {what} as well.")
        return self._total(exact.partial_statistics, exact.count_features(self.num_inputs))

    def _total(self, work: Work, num_features: int) -> FeatureStatistics:
        shape = FeatureStatistics.zeros(num_features, self.num_targets)
        values, problem = self._sum(work, num_bytes=shape.flatten().nbytes)
        if problem:
            raise DataError(f"In one of the partitions: {problem}")
        if values is None:
            raise DataError("There are no rows: the data are empty.")
        return shape.unflatten(torch.from_numpy(np.array(values)))


def frozen(model: FeatureGP) -> FeatureGP:
    """A float64 copy for workers."""
    check_on_cpu(model)
    return model.exact_copy().requires_grad_(False)
