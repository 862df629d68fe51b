"""Rows that a fit learns from: positions and numbers, in memory and on disk; what is known of their targets."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from finitegp import DataError
from finitegp.statistics import Share
from finitegp.tables.reader import TableReader
from finitegp.tables.rows import TableRows
from finitegp.tables.summaries import EncodingOptions
from finitegp.tables.targets import TargetScale
from finitegp.tables.training_rows import EncodedSource, TrainingRows, note_on_copies

ROWS = 50


@pytest.fixture(params=["memory", "disk"])
def training(request, tmp_path):
    random = np.random.default_rng(0)
    targets = random.normal(size=ROWS)
    targets[[0, 7, 49]] = np.nan
    weights = np.ones(ROWS)
    weights[[3, 20]] = 0.0
    town = [f"town {number}" for number in random.integers(0, 5, ROWS)]
    table = pa.table({"x": np.arange(ROWS), "town": town, "y": targets, "w": weights})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=9)
    reader = TableReader(tmp_path / "t.parquet", chunk_size=6)
    data = reader if request.param == "disk" else TableRows.read(reader)
    return TrainingRows.survey(data, *((lambda batch, _, name=name: batch[name].to_numpy()) for name in "yw"))


KEPT = np.delete(np.arange(ROWS), [0, 3, 7, 20, 49])


def test_positions_count_the_rows_that_are_left(training):
    assert training.num_rows == len(KEPT)
    assert training.numbers(np.arange(len(KEPT))).tolist() == KEPT.tolist()
    chunks = list(training.chunks())
    assert np.concatenate([chunk.rows["x"].to_numpy() for chunk in chunks]).tolist() == KEPT.tolist()
    assert [chunk.position for chunk in chunks] == np.cumsum([0, *(len(c.targets) for c in chunks)])[:-1].tolist()
    for start, stop in ((8, 30), (21, 22)):
        first = next(iter(training.chunks(start, stop)))
        assert KEPT[first.position] == first.rows["x"][0].as_py() == min(n for n in KEPT if n >= start)
    rows, targets = training.take(np.array([0, 4, 44]))
    assert rows.numbers.tolist() == rows.table["x"].to_pylist() == KEPT[[0, 4, 44]].tolist()
    assert targets.tolist() == rows.table["y"].to_pylist()
    assert training.locate(4)[1] == KEPT[4]
    assert (training.facts.missing, training.facts.first_missing) == (3, 0)


def test_nothing_is_known_of_rows_that_are_held_out(training):
    targets = training.all_rows().targets
    held_out = np.array([int(np.argmax(targets)), int(np.argmin(targets))])
    others = training.without(np.sort(held_out))
    assert others.num_rows == len(KEPT) - 2
    rest = np.delete(targets, held_out)
    assert others.facts.typical.max() == others.facts.moments.largest[0] == rest.max()
    assert others.facts.typical.min() == rest.min()
    assert others.facts.moments.mean[0] == pytest.approx(rest.mean())
    assert others.facts.missing == 3


def test_encoded_rows_are_the_same_in_shares_of_any_number(training):
    options = EncodingOptions(max_one_hot=2, missing="impute", exclude=("y", "w"))
    encoder = training.encoder(options, TargetScale())
    source = EncodedSource(training, encoder, TargetScale(), chunk_size=4)
    inputs, targets, weights = source.arrays()
    rows = training.all_rows()
    assert np.array_equal(inputs, encoder.transform_training(rows.rows))
    assert np.array_equal(targets, rows.targets)
    assert np.array_equal(weights, np.ones(len(KEPT)))
    parts = [part.inputs.numpy() for index in range(3) for part in source.part(Share(index, 3))]
    assert np.array_equal(np.concatenate(parts), inputs)
    some = np.array([1, 5, 30])
    assert np.array_equal(encoder.transform_training(training.take(some).rows, numbers=some), inputs[some])


def test_copies_are_looked_for_in_memory_alone(training):
    assert note_on_copies(training) == (
        ["Copies of rows were not looked for: the rows stay on disk."] if training.on_disk else []
    )


def test_no_targets():
    with pytest.raises(DataError, match="no row with a target"):
        TrainingRows.survey(TableRows.read({"y": [1.0]}), lambda batch, _: np.full(len(batch), np.nan), None)
