"""Encoders do not depend on chunks, come back from storage as they were, and are checked when they do."""

import datetime as dt
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finitegp import DataError
from finitegp.tables.encoder import TableEncoder
from finitegp.tables.summaries import TransformReport

TEXTS = ["a", "b", "c", "", "1", "2.5", "-", "x y", "2020-01-01", "2021-06-07T08:00", "inf", "ü"]


@st.composite
def tables(draw):
    rows = draw(st.integers(2, 40))

    def column(values, kind):
        return pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind)

    some = st.lists(st.sampled_from(TEXTS), min_size=1, max_size=6, unique=True)
    return pa.table(
        {
            "n": pa.array(range(rows), pa.int64()),
            "x": column(st.floats(width=64), pa.float64()),
            "i": column(st.integers(-5, 5), pa.int8()),
            "b": column(st.booleans(), pa.bool_()),
            "t": column(st.sampled_from(draw(some)), pa.string()),
            "u": column(st.sampled_from(draw(some)), pa.large_string()).dictionary_encode(),
            "d": column(st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1)), pa.date32()),
            "s": column(st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1)), pa.timestamp("us")),
            "m": column(st.decimals(-9, 9, places=2), pa.decimal128(5, 2)),
            "z": pa.nulls(rows),
        }
    )


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(tables(), st.integers(1, 7), st.integers(1, 4))
def test_chunks_and_storage_change_nothing(table, size, max_one_hot):
    encoder = TableEncoder.fit(table, missing="impute", max_one_hot=max_one_hot)
    chunks = table.to_batches(max_chunksize=size)
    again = TableEncoder.fit(chunks, missing="impute", max_one_hot=max_one_hot)
    assert again.to_dict() == encoder.to_dict()
    stored = json.loads(json.dumps(encoder.to_dict(), allow_nan=False))
    loaded = TableEncoder.from_dict(stored)
    assert loaded.to_dict() == encoder.to_dict()
    assert loaded.summary() == encoder.summary()
    numbers = encoder.transform(table, whole := TransformReport())
    assert np.isfinite(numbers).all()
    assert numbers.shape == (table.num_rows, len(encoder.feature_names_out))
    assert len(set(encoder.feature_names_out)) == numbers.shape[1]
    in_parts = TransformReport()
    assert np.array_equal(np.concatenate([loaded.transform(chunk, in_parts) for chunk in chunks]), numbers)
    assert in_parts == whole
    assert np.array_equal(encoder.transform(table.select(table.column_names[::-1])), numbers)
    # No output is constant over the rows of the fit, but waves may be: the cosine of Tuesday is that of Sunday.
    varies = numbers.min(axis=0) < numbers.max(axis=0)
    assert all(varies | np.array([name.endswith(("sine", "cosine")) for name in encoder.feature_names_out]))


@pytest.mark.slow
def test_long_columns_do_not_depend_on_chunks():
    rng = np.random.default_rng(1)
    values = rng.normal(size=50_000)
    values[rng.integers(0, 50_000, 100)] = np.nan
    table = pa.table({"x": pa.array(values, from_pandas=True), "t": [f"{value:.3f}" for value in values]})
    fits = [
        TableEncoder.fit(table.to_batches(max_chunksize=size), missing="impute").to_dict()
        for size in (50_000, 7777, 100)
    ]
    assert fits[0] == fits[1] == fits[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda stored: [], "not a stored table encoder"),
        (lambda stored: stored | {"format": "pickle"}, "not a stored table encoder"),
        (lambda stored: stored | {"version": 3}, "stored in version 3 of the format"),
        (lambda stored: stored | {"missing": "drop"}, "no valid 'missing': 'drop'"),
        (lambda stored: stored | {"columns": {}}, "'columns' of the stored table encoder must be a list"),
        (lambda stored: stored | {"columns": [None] * 100_001}, "must be a list of at most 100000"),
        (lambda stored: stored | {"excluded": [1]}, "'excluded' of the stored table encoder must be names"),
        (lambda stored: stored | {"columns": stored["columns"] * 2}, "two columns of one name"),
        (lambda stored: stored | {"columns": []}, "no column that carries information"),
        (lambda stored: stored | {"columns": [3]}, "Column 0 of the stored table encoder: an entry .* not a column"),
        (("type", "code"), "Column 0 .*not a column of a known type"),
        (("type", ["number"]), "not a column of a known type"),
        (("name", 3), "the entry 'name' of a stored column cannot be used: '3'"),
        (("note", "x" * 1_000_001), "the entry 'note'"),
        (("kind", "date"), "the entry 'kind'"),
        (("encoding", "one-hot"), "the entry 'encoding'"),
        (("indicator", 1), "the entry 'indicator'"),
        (("usual", float("nan")), "the entry 'usual'"),
        (("usual", "1"), "the entry 'usual'"),
        (("usual", True), "the entry 'usual'"),
        (("usual", 10**400), "the entry 'usual'"),
        (("span", [0, 10**400]), "the entry 'span'"),
        (("words", "abc"), "the entry 'words'"),
        (("words", [1]), "the entry 'words'"),
        (("more", 1), "has the entries"),
        (("categories", ["a"]), "do not match their counts"),
        (("categories", ["a", "a"]), "repeated"),
        (("categories", ["a", "b" * 2**24]), "too long"),
        (("categories", ["a"] * 100_001), "the entry 'categories'"),
        (("counts", [1, 0]), "the entry 'counts'"),
        (("counts", [1, 2]), "not in the order of their counts"),
        (("counts", [1, 2.5]), "the entry 'counts'"),
        (("counts", [1, 2**70]), "the entry 'counts'"),
        (("parts", ["weekday", "days"]), "the entry 'parts'"),
        (("parts", [["days"]]), "the entry 'parts'"),
    ],
)
def test_stored_encoders_are_checked(change, message):
    table = {"x": [1.0, 2.0], "c": ["u", "v"], "d": pa.array([0, 1], pa.date32())}
    stored = TableEncoder.fit(table).to_dict()
    if callable(change):
        stored = change(stored)
    else:
        key, value = change
        column = next((each for each in stored["columns"] if key in each), stored["columns"][0])
        column[key] = value
    with pytest.raises(DataError, match=message):
        TableEncoder.from_dict(stored)
