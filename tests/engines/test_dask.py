"""``DaskRows`` on a real cluster of two worker processes, against one process."""

import numpy as np
import pandas as pd
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
from export_models import KINDS, file_of, kept

from finitegp import DataError

pytest.importorskip("dask.dataframe", reason="needs the extra 'dask'", exc_type=ImportError)
pytest.importorskip("distributed", reason="needs the extra 'dask'", exc_type=ImportError)

import dask
import dask.array
import dask.dataframe
import distributed

from finitegp.engines.dask import DaskRows

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def client():
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def table():
    return make_table()


@pytest.fixture
def frame(table, client):
    return dask.dataframe.from_pandas(table, npartitions=11, sort=False)


def arrays_of(parts, rows=700, columns=2):
    return [dask.array.from_array(part, chunks=(rows, columns)[: part.ndim]) for part in parts]


def test_the_workers_are_two_processes(client):
    import os

    assert len({os.getpid(), *client.run(os.getpid).values()}) == 3


@pytest.mark.parametrize("kind", ["frame", "arrays"])
@pytest.mark.parametrize("make", [make_model, make_noisy_model], ids=["constant noise", "input noise"])
def test_the_exact_pass_is_that_of_one_process(kind, make, frame, table):
    targets, model = ["price", "rent"], make()
    parts = parts_of(table, targets, weighted=True)
    if kind == "frame":
        rows = DaskRows(frame, INPUTS, targets, weights="weight", counts="times")
    else:
        inputs, observed, weights, counts = arrays_of(parts)
        rows = DaskRows.from_arrays(inputs, observed.rechunk((1000, 1)), weights, counts=counts)
    assert_same_statistics(rows.statistics(model), model.statistics(parts))
    assert rows.nlml(model) == pytest.approx(model.nlml(parts), rel=1e-10)


def test_small_noise_takes_a_second_pass(frame, table):
    model = make_model(1e-9)
    mine, alone = (rows(model) for rows in (DaskRows(frame, INPUTS, "price").likelihood, _likelihood(table)))
    assert mine.total_nlml == pytest.approx(alone.total_nlml, rel=1e-10)
    assert mine.rounding_error == pytest.approx(alone.rounding_error, rel=1e-3)


def _likelihood(table):
    return lambda model: model.likelihood(parts_of(table))


def test_posterior_and_predictions(frame, table):
    model, new = make_model(), make_table(500, seed=1)
    fitted = DaskRows(frame, INPUTS, "price").condition(model, optimize_noise=True)
    alone_model = make_model()
    alone = alone_model.condition(parts_of(table), optimize_noise=True)
    assert model.noise_variance == pytest.approx(alone_model.noise_variance, rel=1e-10)
    columns = columns_of(alone, new[INPUTS].to_numpy(), 0.8)
    lazy = DaskRows(dask.dataframe.from_pandas(new, npartitions=3), INPUTS).predict(fitted, coverage=0.8)
    found = lazy.compute()
    assert list(lazy.columns) == list(found.columns)
    assert found["key"].tolist() == new["key"].tolist()
    as_arrays = DaskRows.from_arrays(*arrays_of([new[INPUTS].to_numpy()], rows=180)).predict(fitted, coverage=0.8)
    assert as_arrays.keys() == columns.keys()
    for name, values in columns.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(as_arrays[name].compute(), values, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", MAPS)
def test_every_feature_map(kind, frame, table):
    model, new = make_model(feature_map=MAPS[kind]()), make_table(50, seed=1)
    fitted = DaskRows(frame, INPUTS, "price").condition(model)
    found = DaskRows(dask.dataframe.from_pandas(new, npartitions=2), INPUTS).predict(fitted, coverage=0.8).compute()
    alone = model.condition(parts_of(table))
    assert_same_columns(found, columns_of(alone, new[INPUTS].to_numpy(), 0.8), new.columns)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_kind_of_model_predicts(kind, client):
    fitted, new, inputs = frame_of(kind)
    lazy = DaskRows(dask.dataframe.from_pandas(new, npartitions=2), inputs).predict(fitted, coverage=0.8)
    found, expected = lazy.compute(), model_columns(kind, 0.8)
    assert list(lazy.columns) == list(found.columns)
    assert_same_columns(found, expected, new.columns)
    if inputs:
        arrays = DaskRows.from_arrays(*arrays_of([new[list(inputs)].to_numpy()], rows=4)).predict(fitted, coverage=0.8)
        assert arrays.keys() == expected.keys()
        np.testing.assert_allclose(arrays[next(iter(expected))].compute(), next(iter(expected.values())), rtol=1e-10)


def test_workers_get_the_bytes_of_a_file(frame, tmp_path):
    """Of a model file, and of a regressor that finds its columns by name."""
    fitted, new, _ = frame_of("table")
    rows = DaskRows(dask.dataframe.from_pandas(new, npartitions=1))
    found = [rows.predict(model) for model in (file_of("table", tmp_path), fitted)]
    pd.testing.assert_frame_equal(*(each.compute() for each in found))
    regressor = named_regressor()
    expected = regressor.predict(make_table()[["depth", "width"]])
    np.testing.assert_allclose(DaskRows(frame).predict(regressor)["mean"].compute(), expected, rtol=1e-10)


def test_predictions_of_several_targets_and_empty_partitions(frame, table):
    fitted = make_model().condition(parts_of(table, ["price", "rent"]))
    few = frame[frame["width"] > 1.5]  # leaves partitions of different sizes
    none = frame[frame["width"] > 100.0]
    found = DaskRows(few, INPUTS).predict(fitted).compute()
    expected = fitted.predict(table[table["width"] > 1.5][INPUTS].to_numpy())
    for target in range(2):
        np.testing.assert_allclose(found[f"mean_{target}"], expected.mean[:, target], rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(found[f"upper_{target}"], expected.interval()[1][:, target], rtol=1e-10, atol=1e-10)
    assert len(DaskRows(none, INPUTS).predict(fitted).compute()) == 0
    with pytest.raises(DataError, match="no rows"):
        DaskRows(none, INPUTS, "price").statistics(make_model())


@pytest.mark.parametrize("way", ["raises", "exits"])
def test_repeated_tasks_and_lost_workers_give_the_same_sums(way, frame, client, tmp_path):
    """To the bit: partitions, their rows and the order of the sum do not depend on who does the work, or how often."""
    rows = DaskRows(frame, INPUTS, "price")
    expected = rows.statistics(make_model())
    before = set(client.run(lambda: __import__("os").getpid()).values())
    with dask.annotate(retries=2):  # Dask repeats tasks that raise only if asked to; lost workers' tasks always
        found = rows.statistics(make_model(feature_map=FailsOnce(way, tmp_path)))
    assert (tmp_path / "failed").exists()
    assert len(list(tmp_path.iterdir())) > len(list(frame.partitions)) + 1  # one file for each call
    assert torch.equal(found.flatten(), expected.flatten())
    if way == "exits":
        client.wait_for_workers(2)
        assert set(client.run(lambda: __import__("os").getpid()).values()) != before


def test_without_a_cluster(table):
    model = make_model()
    with dask.config.set(scheduler="threads"):
        rows = DaskRows(dask.dataframe.from_pandas(table, npartitions=4, sort=False), INPUTS, "price")
        assert_same_statistics(rows.statistics(model), model.statistics(parts_of(table)))


def test_bad_rows_are_named(table, client):
    bad = table.astype({"times": "Int64"})
    bad.loc[1234, "the.height"] = np.nan
    with pytest.raises(DataError, match=r"the\.height"):
        DaskRows(dask.dataframe.from_pandas(bad, npartitions=5), INPUTS, "price").statistics(make_model())
    bad = table.astype({"times": "Int64"})
    bad.loc[7, "times"] = pd.NA
    with pytest.raises(DataError, match="counts"):
        DaskRows(dask.dataframe.from_pandas(bad, npartitions=5), INPUTS, "price", counts="times").statistics(
            make_model()
        )


def test_refusals_say_what_to_do(frame, table):
    check_refusals(DaskRows, frame, frame.rename(columns={"rent": "mean"}), table)
    inputs, targets = arrays_of(parts_of(table))
    with pytest.raises(DataError, match="put it in a list"):
        DaskRows(frame, "width", "price")
    with pytest.raises(DataError, match=r"use DaskRows.from_arrays"):
        DaskRows(table, INPUTS, "price")
    with pytest.raises(DataError, match=r"arrays have none: use DaskRows\(frame\)"):
        DaskRows.from_arrays(inputs).predict(kept("table").fitted)
    with pytest.raises(DataError, match=r"use dask.array.from_array"):
        DaskRows.from_arrays(inputs, parts_of(table)[1])
    with pytest.raises(DataError, match=r"compute_chunk_sizes"):
        DaskRows.from_arrays(frame[INPUTS].values, targets)
    with pytest.raises(DataError, match="inputs have 3000 rows but targets have 2000"):
        DaskRows.from_arrays(inputs, targets[:2000])
    with pytest.raises(DataError, match="reshape"):
        DaskRows.from_arrays(inputs[:, 0], targets)


def test_the_block_of_the_page_runs(client, tmp_path, monkeypatch):
    inputs, targets = arrays_of(parts_of(make_table(200)))
    names = {"dask": dask, "inputs": inputs, "targets": targets}
    assert run_block_of_page(1, names, tmp_path, monkeypatch)["rows"].num_inputs == 3
