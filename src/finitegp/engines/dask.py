"""``DaskRows``: exact passes and batch prediction on Dask data frames and arrays. Needs the extra ``dask``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from .partitions import (
    Block,
    Columns,
    PartialSum,
    PartitionedRows,
    Predictable,
    Predictor,
    Work,
    sum_blocks,
)

try:
    import dask
    import dask.array
    import dask.dataframe
except ImportError as error:
    raise ImportError("finitegp.engines.dask needs Dask: pip install 'finitegp[dask]'.") from error

if TYPE_CHECKING:
    import pandas

# Partial sums that one task adds: neighbours, so that the order of the sum is that of the partitions.
_ADDED_AT_ONCE = 8


class DaskRows(PartitionedRows):
    """The rows of a Dask data frame, or of Dask arrays (:meth:`from_arrays`).

    Partial sums are added on the workers, in a tree over neighbouring partitions; one comes back. They run wherever
    Dask runs: on the cluster of the current ``distributed.Client``, or in threads of this process.

    Args:
        frame: A ``dask.dataframe.DataFrame``.
        inputs: Columns that the feature map takes, in its order; none for new rows of a model that finds its columns
            by name.
        targets: One column or several; none for new rows.
        weights: The column of row weights, which divide the row's noise variance.
        counts: The column with the number of equal rows that each row stands for.

    Example:
        >>> import pandas
        >>> from finitegp import FeatureGP, LinearFeatures
        >>> table = pandas.DataFrame({"x": [0.0, 1.0, 2.0, 3.0], "y": [1.0, 3.0, 5.0, 7.0]})
        >>> rows = DaskRows(dask.dataframe.from_pandas(table, npartitions=2), inputs=["x"], targets="y")
        >>> fitted = rows.condition(FeatureGP(LinearFeatures(1), noise_variance=1e-4))
        >>> rows.predict(fitted).compute()["mean"].round(2).tolist()
        [1.0, 3.0, 5.0, 7.0]
    """

    def __init__(
        self,
        frame: dask.dataframe.DataFrame,
        inputs: Sequence[str] = (),
        targets: str | Sequence[str] = (),
        *,
        weights: str | None = None,
        counts: str | None = None,
    ) -> None:
        if not isinstance(frame, dask.dataframe.DataFrame):
            raise DataError(
                f"frame must be a dask.dataframe.DataFrame, but is a {type(frame).__name__}:",
                "use DaskRows.from_arrays for Dask arrays, and FeatureGP itself for what is in memory.",
            )
        self.columns = Columns.of(inputs, targets, weights, counts)
        self._numeric = {str(name): _is_numeric(dtype) for name, dtype in frame.dtypes.items()}
        self.columns.check(self._numeric)
        self.num_inputs, self.num_targets = len(self.columns.inputs), len(self.columns.targets)
        self._frame, self._inputs = frame, None
        self._blocks = [dask.delayed(_frame_block)(part, self.columns) for part in frame.to_delayed()]

    @classmethod
    def from_arrays(
        cls,
        inputs: dask.array.Array,
        targets: dask.array.Array | None = None,
        weights: dask.array.Array | None = None,
        *,
        counts: dask.array.Array | None = None,
    ) -> DaskRows:
        """The rows of Dask arrays.

        Args:
            inputs: ``(rows, columns)``.
            targets: ``(rows,)`` or ``(rows, t)``; None for new rows.
            weights: ``(rows,)`` row weights, or None.
            counts: ``(rows,)`` counts of equal rows, or None.
        """
        parts = {"inputs": inputs, "targets": targets, "weights": weights, "counts": counts}
        for name, part in parts.items():
            if part is None and name != "inputs":
                continue
            if not isinstance(part, dask.array.Array):
                raise DataError(
                    f"{name} must be a Dask array, but is a {type(part).__name__}:",
                    "use dask.array.from_array, DaskRows for data frames, and FeatureGP itself for what is in memory.",
                )
            if any(np.isnan(size) for size in part.shape):
                raise DataError(
                    f"The chunks of {name} have unknown sizes, so rows cannot be matched:",
                    "call compute_chunk_sizes() on it first, or use the data frame that it came from.",
                )
            if part.ndim not in {"inputs": (2,), "targets": (1, 2)}.get(name, (1,)):
                raise DataError(f"{name} have {part.ndim} dimensions, shape {part.shape}:", "reshape them.")
            if part.shape[0] != inputs.shape[0]:
                raise DataError(f"inputs have {inputs.shape[0]} rows but {name} have {part.shape[0]}.")
        rows = cls.__new__(cls)
        rows.num_inputs = int(inputs.shape[1])
        rows.num_targets = 0 if targets is None else 1 if targets.ndim == 1 else int(targets.shape[1])
        rows._frame, rows._inputs = None, inputs.rechunk({1: -1})
        columns = [_row_chunks(part, inputs.chunks[0]) for part in parts.values()]
        rows._blocks = [dask.delayed(Block)(*chunks) for chunks in zip(*columns, strict=True)]
        return rows

    def predict(
        self, model: Predictable, *, coverage: float = 0.9
    ) -> dask.dataframe.DataFrame | dict[str, dask.array.Array]:
        """Predictions for all rows, made when Dask is asked for them.

        Args:
            model: A :class:`~finitegp.FittedGP`, a fitted :class:`~finitegp.GPRegressor` or
                :class:`~finitegp.TableRegressor`, a :class:`~finitegp.ScaledGP`, or a model file.
            coverage: Probability that the interval from ``lower`` to ``upper`` holds a new observation.

        Returns:
            For a data frame, the frame with columns ``mean``, ``lower``, ``upper``, ``epistemic_std``, ``noise_std``
            and ``std``; for arrays, a dict of arrays of these names. With several targets there are ``mean_0``,
            ``mean_1`` and so on; of a table without the two parts of ``std``.
        """
        predictor = Predictor.of(model, coverage)
        shipped = dask.delayed(predictor, pure=False, traverse=False)
        if self._frame is not None:
            predictor.check_new(self._frame.columns)
            names = predictor.columns_in(self._numeric, self.columns.inputs)
            meta = self._frame._meta.assign(**{name: np.empty(0) for name in predictor.gives})
            return self._frame.map_partitions(_predict_frame, shipped, names, meta=meta)
        if predictor.takes_tables:
            raise DataError("A TableRegressor takes columns by name, but arrays have none:", "use DaskRows(frame).")
        assert self._inputs is not None
        predictor.check_count(self.num_inputs)
        table = self._inputs.map_blocks(
            _predict_array, shipped, chunks=(self._inputs.chunks[0], (len(predictor.gives),)), meta=np.empty((0, 0))
        )
        return {name: table[:, column] for column, name in enumerate(predictor.gives)}

    def _sum(self, work: Work, num_bytes: int) -> PartialSum:
        shipped = dask.delayed(work, pure=False, traverse=False)
        names = list(self.columns.inputs) if self._frame is not None else None
        parts = [dask.delayed(sum_blocks)(shipped, [block], names) for block in self._blocks]
        while len(parts) > 1:
            groups = range(0, len(parts), _ADDED_AT_ONCE)
            parts = [dask.delayed(_add)(parts[start : start + _ADDED_AT_ONCE]) for start in groups]
        (total,) = dask.compute(*parts)
        return PartialSum(*total)


def _is_numeric(dtype: object) -> bool:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return bool(is_numeric_dtype(dtype) or is_bool_dtype(dtype))


def _frame_block(frame: pandas.DataFrame, columns: Columns) -> Block:
    return columns.block(lambda name: frame[name].to_numpy(dtype=np.float64, na_value=np.nan))


def _row_chunks(part: dask.array.Array | None, chunks: tuple[int, ...]) -> list[Any]:
    """The parts of an array in the rows of these chunks, with all columns."""
    if part is None:
        return [None] * len(chunks)
    whole_rows = part.rechunk({0: chunks} if part.ndim == 1 else {0: chunks, 1: -1})
    return list(whole_rows.to_delayed().reshape(-1))


def _add(parts: list[PartialSum]) -> PartialSum:
    return reduce(PartialSum.__add__, parts)


def _predict_frame(frame: pandas.DataFrame, predictor: Predictor, names: Sequence[str]) -> pandas.DataFrame:
    rows = frame[list(names)] if predictor.takes_tables else _frame_block(frame, Columns(tuple(names))).inputs
    values = predictor.predict(rows, names)
    return frame.assign(**{name: values[:, column] for column, name in enumerate(predictor.gives)})


def _predict_array(inputs: dask.array.Array, predictor: Predictor) -> npt.NDArray[np.float64]:
    return predictor.predict(np.asarray(inputs))
