"""``SparkRows`` on a real Spark with two executors, each a process of its own, against one process."""

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_rows import (
    INPUTS,
    MAPS,
    FailsOnce,
    assert_same_columns,
    assert_same_statistics,
    check_refusals,
    columns_of,
    frame_of,
    make_model,
    make_noisy_model,
    make_table,
    model_columns,
    named_regressor,
    parts_of,
    run_block_of_page,
)
from export_models import KINDS, file_of

from finitegp import DataError

pytest.importorskip("pyspark", reason="needs the extra 'spark'", exc_type=ImportError)

from pyspark.sql import DataFrameWriter, SparkSession

from finitegp.engines.spark import SparkRows

HAS_JAVA = shutil.which("java") is not None or "JAVA_HOME" in os.environ
pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(not HAS_JAVA, reason="needs Java 17 or later: no java on the path and no JAVA_HOME"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]
PARTITIONS = 6


@pytest.fixture(scope="module")
def spark():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("finitegp tests")
        paths = os.pathsep.join(path for path in sys.path if path)  # the helpers of the tests, for the workers
        settings = {
            "spark.ui.enabled": "false",
            "spark.executorEnv.PYTHONPATH": paths,
            "spark.executorEnv.OMP_NUM_THREADS": "1",
            "spark.executor.memory": "1g",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "300",  # several batches in each partition
            "spark.log.level": "OFF",
        }
        for name, value in settings.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        yield session
        session.stop()


@pytest.fixture(scope="module")
def table():
    return make_table()


@pytest.fixture(scope="module")
def frame(spark, table, tmp_path_factory):
    """A folder of Parquet files, each of which is a partition."""
    return spark.read.parquet(str(write_files(table, tmp_path_factory.mktemp("rows"), PARTITIONS)))


def write_files(table, folder, number):
    rows = -(-len(table) // number)
    for part in range(number):
        table.iloc[part * rows : (part + 1) * rows].to_parquet(folder / f"{part}.parquet", index=False)
    return folder


def collect(frame):
    return frame.toArrow().to_pandas().sort_values("key", ignore_index=True)


def test_there_are_two_executors_and_several_partitions(spark, frame):
    assert frame.rdd.getNumPartitions() >= 2
    infos = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    assert len(infos) == 3  # with the driver


@pytest.mark.parametrize("make", [make_model, make_noisy_model], ids=["constant noise", "input noise"])
def test_the_exact_pass_is_that_of_one_process(make, frame, table):
    targets, model = ["price", "rent"], make()
    parts = parts_of(table, targets, weighted=True)
    rows = SparkRows(frame, INPUTS, targets, weights="weight", counts="times")
    assert_same_statistics(rows.statistics(model), model.statistics(parts))
    assert rows.nlml(model) == pytest.approx(model.nlml(parts), rel=1e-10)


def test_small_noise_takes_a_second_pass(frame, table):
    model = make_model(1e-9)
    mine, alone = SparkRows(frame, INPUTS, "price").likelihood(model), model.likelihood(parts_of(table))
    assert mine.total_nlml == pytest.approx(alone.total_nlml, rel=1e-10)
    assert mine.rounding_error == pytest.approx(alone.rounding_error, rel=1e-3)


@pytest.mark.parametrize("max_tasks", [1, 3])
def test_fewer_tasks_give_the_same_sums(max_tasks, frame, table):
    model = make_model()
    rows = SparkRows(frame.repartition(7), INPUTS, "price", max_tasks=max_tasks)
    assert_same_statistics(rows.statistics(model), model.statistics(parts_of(table)))


def test_posterior_and_predictions(spark, frame, table):
    model, new = make_model(), make_table(500, seed=1).sort_values("key", ignore_index=True)
    fitted = SparkRows(frame, INPUTS, "price").condition(model, optimize_noise=True)
    alone_model = make_model()
    alone = alone_model.condition(parts_of(table), optimize_noise=True)
    assert model.noise_variance == pytest.approx(alone_model.noise_variance, rel=1e-10)
    columns = columns_of(alone, new[INPUTS].to_numpy(), 0.8)
    found = collect(SparkRows(spark.createDataFrame(new), INPUTS).predict(fitted, coverage=0.8))
    assert found["key"].tolist() == new["key"].tolist()
    for name, values in columns.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", MAPS)
def test_every_feature_map(kind, spark, frame, table):
    model, new = make_model(feature_map=MAPS[kind]()), make_table(50, seed=1).sort_values("key", ignore_index=True)
    fitted = SparkRows(frame, INPUTS, "price").condition(model)
    found = collect(SparkRows(spark.createDataFrame(new), INPUTS).predict(fitted, coverage=0.8))
    alone = model.condition(parts_of(table))
    assert_same_columns(found, columns_of(alone, new[INPUTS].to_numpy(), 0.8), new.columns)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_kind_of_model_predicts(kind, spark):
    fitted, new, inputs = frame_of(kind)
    found = collect(SparkRows(spark.createDataFrame(new).repartition(2), inputs).predict(fitted, coverage=0.8))
    assert_same_columns(found, model_columns(kind, 0.8), new.columns)


def test_workers_get_the_bytes_of_a_file(spark, frame, table, tmp_path):
    """Of a model file, and of a regressor that finds its columns by name."""
    fitted, new, _ = frame_of("table")
    rows = SparkRows(spark.createDataFrame(new))
    one, other = (collect(rows.predict(model)) for model in (file_of("table", tmp_path), fitted))
    assert one.equals(other)
    regressor = named_regressor()
    expected = regressor.predict(table.sort_values("key")[["depth", "width"]])
    np.testing.assert_allclose(collect(SparkRows(frame).predict(regressor))["mean"], expected, rtol=1e-10)


def test_columns_of_other_types(spark):
    """Decimals, moments and dates of Spark are numbers and dates of the table."""
    fitted, new, _ = frame_of("table")
    plain = new.assign(sold=["2024-05-05", "2024-06-01", "2025-01-01", "2024-02-29"])
    frame = spark.createDataFrame(plain)
    expected = collect(SparkRows(frame).predict(fitted))["mean"]
    casts = {"size": "decimal(8, 3)", "sold": "date", "key": "bigint"}
    for moment in ("date", "timestamp_ntz", "timestamp"):
        changed = frame
        for name, kind in (casts | {"sold": moment}).items():
            changed = changed.withColumn(name, changed[name].cast(kind))
        np.testing.assert_allclose(collect(SparkRows(changed).predict(fitted))["mean"], expected, rtol=1e-12)


def test_several_targets_and_empty_partitions(frame, table):
    fitted = make_model().condition(parts_of(table, ["price", "rent"]))
    none = frame.where("width > 100")
    found = collect(SparkRows(frame.where("width > 1.5"), INPUTS).predict(fitted))
    expected = fitted.predict(table[table["width"] > 1.5].sort_values("key")[INPUTS].to_numpy())
    for target in range(2):
        np.testing.assert_allclose(found[f"mean_{target}"], expected.mean[:, target], rtol=1e-10, atol=1e-10)
    assert SparkRows(none, INPUTS).predict(fitted).count() == 0
    with pytest.raises(DataError, match="no rows"):
        SparkRows(none, INPUTS, "price").statistics(make_model())


@pytest.mark.parametrize("way", ["raises", "exits", "kills the executor"])
def test_repeated_tasks_and_lost_workers_give_the_same_sums(way, frame, tmp_path):
    """To the bit: partitions, their rows and the order of the sum do not depend on who does the work, or how often."""
    if way == "kills the executor" and not Path("/proc/self/stat").exists():
        pytest.skip("needs /proc to find the executor")
    rows = SparkRows(frame, INPUTS, "price")
    expected = rows.statistics(make_model())
    found = rows.statistics(make_model(feature_map=FailsOnce(way, tmp_path)))
    assert (tmp_path / "failed").exists()
    assert torch.equal(found.flatten(), expected.flatten())


def test_bad_rows_are_named(spark, table, tmp_path):
    bad = table.copy()
    bad.loc[1234, "the.height"] = np.nan
    frame = spark.read.parquet(str(write_files(bad, tmp_path, 2)))
    with pytest.raises(DataError, match=r"the\.height"):
        SparkRows(frame, INPUTS, "price").statistics(make_model())


def test_refusals_say_what_to_do(spark, frame, table):
    check_refusals(SparkRows, frame, frame.withColumnRenamed("rent", "mean"), table)
    with pytest.raises(DataError, match=r"use spark\.createDataFrame"):
        SparkRows(table, INPUTS, "price")
    with pytest.raises(DataError, match="use foreachBatch"):
        SparkRows(spark.readStream.format("rate").load(), ["value"])
    with pytest.raises(ValueError, match="max_tasks must be at least 1"):
        SparkRows(frame, INPUTS, max_tasks=0)


def test_the_block_of_the_page_runs(spark, tmp_path, monkeypatch):
    """The driver's directory is that where Java started: paths of the page become those of a temporary folder."""
    table = make_table(50)[["width", "depth"]].set_axis(["flow", "pressure"], axis=1)
    kind, read, write = type(spark.read), type(spark.read).parquet, DataFrameWriter.parquet
    monkeypatch.setattr(kind, "parquet", lambda reader, path: read(reader, str(tmp_path / path)))
    monkeypatch.setattr(DataFrameWriter, "parquet", lambda writer, path: write(writer, str(tmp_path / path)))
    names = {"spark": spark, "new_frame": spark.createDataFrame(table)}
    found = run_block_of_page(0, names, tmp_path, monkeypatch)
    assert found["fitted"].posterior.statistics.num_data == 200
    assert spark.read.parquet("predicted/").count() == 50
