"""``SparkRows``: exact passes and batch prediction on Spark data frames. Needs the extra ``spark``, and Java."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from ..arguments import check_at_least_one
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
    from pyspark import TaskContext
    from pyspark.sql import DataFrame
    from pyspark.sql.types import BooleanType, DoubleType, NumericType, StructField, StructType
except ImportError as error:
    raise ImportError("finitegp.engines.spark needs Spark: pip install 'finitegp[spark]', and Java.") from error

# All partial sums come to the driver; Spark itself lets one job bring 1 GB (spark.driver.maxResultSize).
_RESULT_BYTES = 1 << 29
_PARTIAL_SUM = "part int, sums binary, problem string"


class SparkRows(PartitionedRows):
    """The rows of a Spark data frame.

    Each task sums its rows with ``mapInArrow`` and sends one partial sum of 8 d² bytes to the driver, which adds them
    in the order of the partitions.

    Args:
        frame: A ``pyspark.sql.DataFrame``.
        inputs: Columns that the feature map takes, in its order; none for new rows of a model that finds its columns
            by name.
        targets: One column or several; none for new rows.
        weights: The column of row weights, which divide the row's noise variance.
        counts: The column with the number of equal rows that each row stands for.
        max_tasks: Partitions are joined (``coalesce``) until there are this many at most. By default, their
            partial sums are 512 MB: about 1000 for 256 features, 60 for 1024.
    """

    def __init__(
        self,
        frame: DataFrame,
        inputs: Sequence[str] = (),
        targets: str | Sequence[str] = (),
        *,
        weights: str | None = None,
        counts: str | None = None,
        max_tasks: int | None = None,
    ) -> None:
        if not isinstance(frame, DataFrame):
            raise DataError(
                f"frame must be a pyspark.sql.DataFrame, but is a {type(frame).__name__}:",
                "use spark.createDataFrame or spark.read, and FeatureGP itself for what is in memory.",
            )
        if frame.isStreaming:
            raise DataError(
                "frame is a stream, whose sums never end:",
                "use foreachBatch, with SparkRows(batch, ...).statistics(model) for each batch, and add them.",
            )
        if max_tasks is not None:
            check_at_least_one(max_tasks=max_tasks)
        self.columns = Columns.of(inputs, targets, weights, counts)
        self._numeric = {
            field.name: isinstance(field.dataType, NumericType | BooleanType) for field in frame.schema.fields
        }
        self.columns.check(self._numeric)
        self.num_inputs, self.num_targets = len(self.columns.inputs), len(self.columns.targets)
        self.max_tasks = max_tasks
        self._schema = frame.schema
        # mapInArrow fails on names with dots: columns go by their numbers until they come back.
        self._places = {name: f"c{number}" for number, name in enumerate(frame.columns)}
        self._numbered = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))

    def predict(self, model: Predictable, *, coverage: float = 0.9) -> DataFrame:
        """Predictions for all rows, made when Spark is asked for them.

        Args:
            model: A :class:`~finitegp.FittedGP`, a fitted :class:`~finitegp.GPRegressor` or
                :class:`~finitegp.TableRegressor`, a :class:`~finitegp.ScaledGP`, or a model file.
            coverage: Probability that the interval from ``lower`` to ``upper`` holds a new observation.

        Returns:
            The frame with columns ``mean``, ``lower``, ``upper``, ``epistemic_std``, ``noise_std`` and ``std``; with
            several targets ``mean_0``, ``mean_1`` and so on; of a table without the two parts of ``std``.
        """
        predictor = Predictor.of(model, coverage)
        predictor.check_new(self._schema.names)
        names = predictor.columns_in(self._numeric, self.columns.inputs)
        columns, places = Columns(names), self._places
        fields = [*self._schema.fields, *(StructField(name, DoubleType(), False) for name in predictor.gives)]
        all_names = [*self._schema.names, *predictor.gives]

        def predict_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                if predictor.takes_tables:
                    rows = pa.RecordBatch.from_arrays([batch.column(places[name]) for name in names], names=list(names))
                else:
                    rows = _block(batch, columns, places).inputs
                arrays = [*batch.columns, *map(pa.array, predictor.predict(rows, names).T)]
                yield pa.RecordBatch.from_arrays(arrays, names=all_names)

        return self._numbered.mapInArrow(predict_batches, StructType(fields))

    def _sum(self, work: Work, num_bytes: int) -> PartialSum:
        tasks = self.max_tasks or max(_RESULT_BYTES // num_bytes, 1)
        read = self._numbered.select(*dict.fromkeys(self._places[name] for name in self.columns.names)).coalesce(tasks)
        summing = _sum_batches(work, self.columns, self._places)
        found = read.mapInArrow(summing, _PARTIAL_SUM).toArrow().sort_by("part")
        total = PartialSum(None)
        for sums, problem in zip(found["sums"], found["problem"], strict=True):
            total = total + PartialSum(np.frombuffer(sums.as_buffer()) if sums.is_valid else None, problem.as_py())
        return total


def _sum_batches(
    work: Work, columns: Columns, places: dict[str, str]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def sum_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        blocks = (_block(batch, columns, places) for batch in batches)
        values, problem = sum_blocks(work, blocks, list(columns.inputs))
        part = pa.array([TaskContext.get().partitionId()], pa.int32())
        sums = pa.array([None if values is None else values.tobytes()], pa.binary())
        yield pa.RecordBatch.from_arrays([part, sums, pa.array([problem])], names=["part", "sums", "problem"])

    return sum_batches


def _block(batch: pa.RecordBatch, columns: Columns, places: dict[str, str]) -> Block:
    # Nulls become NaN, which is refused by name.
    return columns.block(lambda name: batch.column(places[name]).cast(pa.float64()).to_numpy(zero_copy_only=False))
