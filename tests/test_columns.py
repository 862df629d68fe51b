"""Messy tables into numbers: against pandas and the standard library, for any chunking, and with clear errors."""

import datetime as dt
import decimal
import json
import math
import re
from importlib.resources import as_file, files

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finitegp import DataError
from finitegp.data import sketches
from finitegp.data.columns import TableEncoder, TransformReport
from finitegp.data.diamonds import load_diamonds
from finitegp.data.tables import TableReader
from finitegp.data.targets import target_values
from finitegp.data.text_values import NOT_A_MOMENT, moment_text, parse_moments, parse_numbers


def kinds(encoder):
    return {line.column: (line.kind, line.encoding) for line in encoder.summary()}


def note(encoder, column):
    return next(line.note for line in encoder.summary() if line.column == column)


def output(encoder, table, name):
    return encoder.transform(table)[:, encoder.feature_names_out.index(name)]


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    rows = 300
    return pd.DataFrame(
        {
            "size": rng.normal(size=rows),
            "count": rng.integers(0, 9, rows),
            "sold": rng.random(rows) < 0.3,
            "cut": rng.choice(["fair", "good", "ideal"], rows, p=[0.2, 0.3, 0.5]),
            "shop": rng.choice([f"shop {number}" for number in range(40)], rows),
            "day": pd.date_range("2019-11-01", periods=rows, freq="31h"),
            "serial": [f"no. {number}" for number in range(rows)],
            "country": "NL",
            "nothing": None,
        }
    )


def test_kinds_of_columns_are_found(frame):
    encoder = TableEncoder.fit(frame)
    assert kinds(encoder) == {
        "size": ("number", "number"),
        "count": ("number", "number"),
        "sold": ("boolean", "number"),
        "cut": ("category", "one-hot"),
        "shop": ("category", "rank"),
        "day": ("date", "date parts"),
        "serial": ("identifier", "left out"),
        "country": ("constant", "left out"),
        "nothing": ("empty", "left out"),
    }
    assert note(encoder, "serial") == "300 different texts in 300 rows"
    assert note(encoder, "country") == "every value is 'NL'"
    assert note(encoder, "nothing") == "all 300 values are missing"
    assert note(encoder, "count") == "from 0 to 8"
    assert encoder.required_columns == ["size", "count", "sold", "cut", "shop", "day"]
    assert repr(encoder) == "TableEncoder(9 columns, 3 left out, 15 outputs, missing='error')"
    numbers = encoder.transform(frame)
    assert numbers.shape == (300, 15)
    assert numbers.dtype == np.float64
    assert [name for line in encoder.summary() for name in line.outputs] == encoder.feature_names_out
    for name in ("size", "count", "sold"):
        assert np.array_equal(output(encoder, frame, name), frame[name].astype(float))


def test_one_hot_equals_pandas(frame):
    encoder = TableEncoder.fit(frame[["cut", "shop"]], max_one_hot=100)
    expected = pd.get_dummies(frame[["cut", "shop"]], prefix_sep="=")
    assert set(encoder.feature_names_out) == set(expected.columns)
    assert np.array_equal(encoder.transform(frame), expected[encoder.feature_names_out].to_numpy(float))


def test_the_bundled_table_is_encoded_as_by_hand():
    with as_file(files("finitegp.data") / "bundled" / "diamonds.csv.gz") as path:
        table = TableReader(path)
        encoder = TableEncoder.fit(table, exclude="price")
        numbers = encoder.transform(table)
        prices = target_values(table, "price")
    inputs, expected, names = load_diamonds()
    assert sorted(encoder.feature_names_out) == sorted(names)
    assert np.array_equal(numbers[:, [encoder.feature_names_out.index(name) for name in names]], inputs)
    assert np.array_equal(prices, expected)


def test_ranks_equal_pandas(frame):
    encoder = TableEncoder.fit(frame[["shop"]])
    counts = frame["shop"].value_counts()
    order = sorted(counts.index, key=lambda shop: (-counts[shop], shop))
    assert np.array_equal(output(encoder, frame, "shop rank"), [order.index(shop) for shop in frame["shop"]])
    assert np.allclose(output(encoder, frame, "shop log frequency"), np.log1p(counts[frame["shop"]]), rtol=1e-15)


def test_new_categories_are_zeros_or_at_the_rare_end_and_are_counted(frame):
    encoder = TableEncoder.fit(frame[["cut", "shop"]])
    report = TransformReport()
    new = pd.DataFrame({"cut": ["good", "poor", "poor", "Good"], "shop": ["shop 1", "x", "shop 2", "shop 3"]})
    numbers = encoder.transform(new, report)
    assert numbers[1:, :3].tolist() == [[0.0] * 3] * 3
    assert numbers[1, 3:].tolist() == [40.0, 0.0]
    assert report.unseen == {"cut": 3, "shop": 1}
    encoder.transform(new[1:2], report)
    assert report.unseen == {"cut": 4, "shop": 2}
    assert report.lines()[0] == (
        "Column 'cut': 4 of 5 values are categories that the fit did not see, such as 'poor', 'Good'."
    )
    clean = TransformReport()
    assert encoder.transform(new[:1], clean)[0, 3] < 40.0
    assert clean.lines() == []


def test_date_parts_equal_the_standard_library(frame):
    encoder = TableEncoder.fit(frame[["day"]])
    assert encoder.feature_names_out == [
        "day days",
        *(f"day {part} {way}" for part in ("day of year", "weekday", "time of day") for way in ("sine", "cosine")),
    ]
    expected = []
    for moment in frame["day"]:
        when = moment.to_pydatetime()
        year = dt.datetime(when.year + 1, 1, 1) - dt.datetime(when.year, 1, 1)
        seconds = when.hour * 3600 + when.minute * 60 + when.second
        angles = [(when.timetuple().tm_yday - 1) / year.days, when.weekday() / 7, seconds / 86400]
        waves = [wave(2 * math.pi * angle) for angle in angles for wave in (math.sin, math.cos)]
        expected.append([(when - dt.datetime(1970, 1, 1)) / dt.timedelta(days=1), *waves])
    assert np.allclose(encoder.transform(frame), expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (pd.date_range("2021-03-01", periods=20, freq="D"), ["days", "day of year", "weekday"]),
        (pd.date_range("2021-03-01", periods=20, freq="7D"), ["days", "day of year"]),
        (pd.date_range("2021-03-01", periods=20, freq="h"), ["days", "time of day"]),
    ],
)
def test_only_parts_that_vary_are_used(values, names):
    names = [
        f"d {name}" for part in names for name in ([part] if part == "days" else [part + " sine", part + " cosine"])
    ]
    if "d time of day sine" in names:
        values = values[:20].map(lambda moment: moment.replace(day=1))
    assert TableEncoder.fit({"d": pa.array(values)}).feature_names_out == names


def test_all_ways_of_writing_a_date_give_the_same(frame):
    days = [dt.date(2020, 2, 29), dt.date(1960, 1, 1), dt.date(2021, 12, 31), dt.date(2021, 3, 3)]
    noon = [dt.datetime.combine(day, dt.time(12)) for day in days]
    expected = TableEncoder.fit({"d": pa.array(days, pa.date32())}).transform({"d": pa.array(days, pa.date32())})
    ways = [
        pa.array(days, pa.date64()),
        pa.array(days, pa.date32()).cast(pa.timestamp("ns")),
        pa.array([dt.datetime.combine(day, dt.time()) for day in days], pa.timestamp("s", tz="UTC")),
        pa.array([day.isoformat() for day in days]),
        pa.array([f"{day.isoformat()}T00:00:00Z" for day in days]),
        pa.array([f"{day.isoformat()} 02:30:00.000+02:30" for day in days]),
        pa.array([day.isoformat() for day in days]).dictionary_encode(),
    ]
    encoder = TableEncoder.fit({"d": ways[0]})
    for way in ways:
        assert kinds(TableEncoder.fit({"d": way})) == {"d": ("date", "date parts")}
        assert np.array_equal(TableEncoder.fit({"d": way}).transform({"d": way}), expected)
        assert np.array_equal(encoder.transform({"d": way}), expected)
    half = encoder.transform({"d": [moment.isoformat(" ", "minutes") for moment in noon]})
    assert np.array_equal(half[:, 0], expected[:, 0] + 0.5)


def test_times_of_day():
    times = pa.array([dt.time(0), dt.time(6), dt.time(18, 30)], pa.time32("s"))
    encoder = TableEncoder.fit({"t": times})
    assert encoder.feature_names_out == ["t days", "t time of day sine", "t time of day cosine"]
    assert note(encoder, "t") == "from 00:00:00 to 18:30:00"
    assert np.allclose(encoder.transform({"t": times})[1], [0.25, 1.0, 0.0], atol=1e-15)


@settings(max_examples=50, deadline=None)
@given(st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)), st.sampled_from("T "))
def test_moments_are_read_like_the_standard_library(moment, separator):
    expected = (moment - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
    assert parse_moments(pa.array([moment.isoformat(separator)])).tolist() == [expected]
    if moment.year >= 1900:
        style = "%Y-%m-%d" if expected % 86_400_000_000 == 0 else "%Y-%m-%d %H:%M:%S"
        assert moment_text(expected) == moment.strftime(style)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(st.floats(allow_nan=False).map(repr), st.text(max_size=8)), max_size=20))
def test_numbers_are_read_like_python(texts):
    found = parse_numbers(pa.array(texts, pa.string()))
    for text, number in zip(texts, found.tolist(), strict=True):
        if not math.isnan(number):
            assert number == float(text)
        elif text.isascii() and "_" not in text and "nan" not in text.lower():
            with pytest.raises(ValueError, match="could not convert"):
                float(text)


def test_dates_that_are_not_in_the_calendar():
    texts = pa.array(["2021-02-30", "2021-02-28", "2020-13-01T00:00Z", "2020-12-01T00:00Z", None])
    assert (parse_moments(texts) == NOT_A_MOMENT).tolist() == [True, False, True, False, True]


# Numbers and dates as text


def test_numbers_written_as_text_with_words_for_missing():
    texts = [str(number / 4) for number in range(200)] + ["n/a", "-", "", None, " N/A ", "broken", "+7", "1e3", ".5"]
    table = {"x": texts}
    with pytest.raises(DataError, match=r"column 'x' has 6 missing values \(first: row 200\)"):
        TableEncoder.fit(table)
    encoder = TableEncoder.fit(table, missing="impute")
    assert encoder.feature_names_out == ["x", "x missing"]
    assert "numbers written as text" in note(encoder, "x")
    assert "missing where it says '-' (1 times), 'N/A' (1 times), 'broken' (1 times), 'n/a' (1 times)" in note(
        encoder, "x"
    )
    numbers = encoder.transform(table)
    parsed = pd.to_numeric(pd.Series(texts).str.strip(), errors="coerce")
    assert np.array_equal(numbers[:, 0], parsed.fillna(parsed.median()))
    assert np.array_equal(numbers[:, 1], parsed.isna())
    # Real numbers later, or other known words, are fine; other text is named.
    assert encoder.transform({"x": [3, 4]}).tolist() == [[3.0, 0.0], [4.0, 0.0]]
    assert encoder.transform({"x": ["broken", "NULL"]})[:, 1].tolist() == [1.0, 1.0]
    with pytest.raises(DataError, match=r"Column 'x', row 1 holds 'wrong', but the column was numbers when"):
        encoder.transform({"x": ["1", "wrong"]})


def test_text_with_many_other_words_is_a_category():
    assert kinds(TableEncoder.fit({"x": ["1", "2", "three"] * 9})) == {"x": ("category", "one-hot")}
    assert kinds(TableEncoder.fit({"x": ["1", "2", "-"] * 9}, missing="impute")) == {"x": ("number", "number")}
    many = [f"{number}" for number in range(1000)] + [f"w{number}" for number in range(30)]
    assert kinds(TableEncoder.fit({"x": many + many, "y": [*range(2060)]}))["x"] == ("category", "rank")
    dates = ["2020-01-01", "2020-02-02", "unknown"] + ["2020-03-03"] * 40
    encoder = TableEncoder.fit({"d": dates}, missing="impute")
    assert kinds(encoder) == {"d": ("date", "date parts")}
    assert output(encoder, {"d": dates}, "d missing").nonzero()[0].tolist() == [2]
    with pytest.raises(DataError, match=r"Column 'd', row 0 holds 'soon', but the column was dates"):
        encoder.transform({"d": ["soon"]})


def test_words_in_columns_of_categories_are_categories():
    encoder = TableEncoder.fit({"basement": ["NA", "good", "None", "good"]})
    assert set(encoder.feature_names_out) == {"basement=NA", "basement=good", "basement=None"}


# Missing values


def test_missing_and_infinite_values_are_all_listed():
    table = pd.DataFrame(
        {
            "a": [1.0, np.nan, 3.0, np.nan],
            "b": [1.0, 2.0, np.inf, -np.inf],
            "c": ["x", "y", " ", None],
            "d": pd.to_datetime(["2020-01-01", None, "2020-01-02", "2020-01-03"]),
            "e": [np.nan, 2.0, np.inf, 2.0],
            "f": [None] * 4,
        }
    )
    with pytest.raises(DataError) as caught:
        TableEncoder.fit(table)
    assert str(caught.value) == (
        "Some values are missing or infinite: column 'a' has 2 missing values (first: row 1); column 'b' has 2 "
        "infinite values (first: row 2); column 'c' has 2 missing values (first: row 2); column 'd' has 1 missing "
        "value (first: row 1); column 'e' has 1 missing value (first: row 0); column 'e' has 1 "
        "infinite value (first: row 2). Remove "
        "these rows or columns, or pass missing='impute' to put in the median or the most frequent value."
    )
    encoder = TableEncoder.fit(table, missing="impute")
    numbers = pd.DataFrame(encoder.transform(table), columns=encoder.feature_names_out)
    assert numbers["a"].tolist() == [1, 2, 3, 2]
    assert numbers["b"].tolist() == [1, 2, 1.5, 1.5]
    assert numbers["c=x"].tolist() == [1, 0, 1, 1]
    assert numbers["d days"].tolist() == [18262, 18263, 18263, 18264]
    assert kinds(encoder)["e"] == ("number", "missing or not")
    assert "e" not in numbers
    for name, rows in {"a": [1, 3], "b": [2, 3], "c": [2, 3], "d": [1], "e": [0, 2]}.items():
        assert np.flatnonzero(numbers[f"{name} missing"]).tolist() == rows
    assert note(encoder, "b") == "from 1 to 2; 2 infinite: median 1.5 put in"
    assert note(encoder, "c") == "2 categories, most often 'x' (1 times); 2 missing: most frequent 'x' put in"


def test_values_missing_only_later_are_put_in_and_counted():
    fitted = {"a": [1.0, 2.0, 9.0], "b": [True, True, False], "c": ["u", "v", "v"]}
    later = {"a": [None, 5.0, math.inf], "b": [None, False, None], "c": ["u", None, ""]}
    with pytest.raises(DataError, match=r"'a' has 1 missing value \(first: row 0\); column 'a' has 1 infinite"):
        TableEncoder.fit(fitted).transform(later)
    encoder = TableEncoder.fit(fitted, missing="impute")
    report = TransformReport()
    numbers = encoder.transform(later, report)
    assert encoder.feature_names_out == ["a", "b", "c=v", "c=u"]
    assert numbers.tolist() == [[2, 1, 0, 1], [5, 0, 1, 0], [2, 1, 1, 0]]
    assert report.imputed == {"a": 2, "b": 2, "c": 2}
    assert "Column 'a': 2 of 3 values were missing or infinite, and the usual value was put in." in report.lines()


def test_medians_of_long_columns_are_close_and_say_so():
    values = np.random.default_rng(3).normal(size=200_000)
    values[5] = np.nan
    encoder = TableEncoder.fit({"x": values}, missing="impute")
    assert abs(encoder.columns[0].usual) < 0.05
    assert "(approximate, from 16384 rows)" in note(encoder, "x")
    huge = TableEncoder.fit({"x": [1.7e308, 1.6e308, None]}, missing="impute")
    assert huge.columns[0].usual == pytest.approx(1.65e308)


def test_reservoirs_are_uniform_samples():
    hits = np.zeros(1000)
    for start in range(0, 400_000, 1000):
        sample = sketches.Reservoir(np.float64, size=100)
        sample.add(np.arange(start, start + 1000), np.arange(1000.0))
        hits[sample._values.astype(int)] += 1
    # 400 draws of probability 0.1: five standard deviations over a thousand positions.
    assert abs(hits - 40).max() < 5 * math.sqrt(400 * 0.1 * 0.9)


# Chunks and storage

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


def test_too_many_or_too_long_categories_are_identifiers(monkeypatch):
    monkeypatch.setattr(sketches, "MAX_CATEGORIES", 30)
    texts = [f"w{number}" for number in range(31)] * 9
    encoder = TableEncoder.fit({"t": texts, "y": range(279)})
    assert kinds(encoder)["t"] == ("identifier", "left out")
    assert kinds(TableEncoder.fit({"t": texts[:30] * 9, "y": range(270)}))["t"] == ("category", "rank")
    monkeypatch.setattr(sketches, "MAX_CATEGORY_BYTES", 100)
    assert kinds(TableEncoder.fit({"t": ["a" * 60, "b" * 60] * 5, "y": range(10)}))["t"] == ("identifier", "left out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda stored: [], "not a stored table encoder"),
        (lambda stored: stored | {"format": "pickle"}, "not a stored table encoder"),
        (lambda stored: stored | {"version": 2}, "stored in version 2 of the format"),
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


def test_equally_frequent_categories_have_ranks_only():
    encoder = TableEncoder.fit({"c": ["u", "v", "w"] * 3}, max_one_hot=2)
    assert encoder.feature_names_out == ["c rank"]
    assert encoder.transform({"c": ["w", "new"]}).tolist() == [[2.0], [3.0]]


# Matching at transform


def test_columns_are_matched_by_name(frame):
    encoder = TableEncoder.fit(frame, exclude="count")
    expected = encoder.transform(frame)
    shuffled = frame[list(frame.columns)[::-1]].assign(more=1)
    report = TransformReport()
    assert np.array_equal(encoder.transform(shuffled, report), expected)
    assert report.extra_columns == ["more"]
    assert report.lines() == ["Columns that the fit did not see are ignored: 'more'."]
    assert encoder.extra_columns(["count", "size", "other"]) == ["other"]
    # What was left out is not needed.
    assert np.array_equal(encoder.transform(frame[encoder.required_columns]), expected)
    with pytest.raises(DataError, match=r"no column 'cut' in the table; did you mean 'Cut'\?") as caught:
        encoder.transform(frame.rename(columns={"cut": "Cut", "day": "date"}))
    assert str(caught.value).endswith("Also absent: 'day'.")
    assert "did you mean 'Cut'?" in str(caught.value)
    with pytest.raises(DataError, match=r"There is no column 'sizes' in the table; did you mean 'size'\?"):
        TableEncoder.fit(frame, exclude=["sizes"])


def test_types_convert_where_values_can_be_understood():
    encoder = TableEncoder.fit({"x": [0.5, 1.5], "b": [True, False], "c": ["1", "a"], "e": ["true", "no"]})
    ways = {
        "x": [
            pa.array([1, 0], pa.uint8()),
            pa.array([1.0, 0.0], pa.float16()),
            pa.array([True, False]),
            pa.array([decimal.Decimal("1.00"), decimal.Decimal(0)]),
            pa.array(["1", " 0.0"]),
            pa.array([1, 0], pa.duration("s")),
            pa.array([1000, 0], pa.duration("ms")),
            pa.array(["1", "0"]).dictionary_encode(),
            pa.chunked_array([[1], [0]]),
        ],
        "b": [pa.array([1, 0]), pa.array([1.0, 0.0]), pa.array(["True", "false"]), pa.array(["1", "0"])],
        "c": [pa.array([1, 0]), pa.array([1.0, 7.5])],
        "e": [pa.array([True, False])],
    }
    plain = {"x": [1, 0], "b": [True, False], "c": ["1", "z"], "e": ["true", "z"]}
    expected = encoder.transform(plain)
    for name, arrays in ways.items():
        for array in arrays:
            assert np.array_equal(encoder.transform(plain | {name: array}), expected), (name, array.type)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        (
            "x",
            ["1", "2", "two"],
            "Column 'x', row 12 holds 'two', but the column was numbers when the encoder was fitted",
        ),
        ("x", pa.array([1, 2, 3], pa.date32()), r"Column 'x' holds dates \(date32\[day\]\), but was numbers when"),
        ("b", ["true", "false", "perhaps"], "row 12 holds 'perhaps', but the column was true or false when"),
        ("d", [1, 2, 3], r"Column 'd' holds numbers \(int64\), but was dates when"),
        ("d", ["2020-01-01", "2020-02-30", ""], "row 11 holds '2020-02-30', but the column was dates"),
        ("t", ["2020-01-01"] * 3, "row 10 holds '2020-01-01', but the column was times of day"),
        ("c", [[1], [2], [3]], "Column 'c' holds values of a type that cannot be used"),
    ],
)
def test_values_that_no_longer_fit_are_named(column, values, message):
    table = {
        "x": [1.0, 2.0, 3.0],
        "b": [True, False, True],
        "d": pa.array([1, 2, 3], pa.date32()),
        "t": pa.array([1, 2, 3], pa.time32("s")),
        "c": ["u", "v", "v"],
    }
    encoder = TableEncoder.fit(table)
    with pytest.raises(DataError, match=message):
        encoder.transform(table | {column: values}, TransformReport(rows=10))


# What a table can be


def test_data_frames_of_all_sorts():
    frame = pd.DataFrame(
        {
            0: pd.Categorical(["u", "v", None]),
            "whole": pd.array([1, None, 3], dtype="Int64"),
            "mixed": [1, "two", None],
            "object": np.array([1, 2.5, None], dtype=object),
            "wait": pd.to_timedelta([1, 2, 90], unit="s"),
            "list": [[1], [2], [3]],
        },
        index=[7, 7, 7],
    )
    encoder = TableEncoder.fit(frame, missing="impute")
    assert kinds(encoder) == {
        "0": ("category", "one-hot"),
        "whole": ("number", "number"),
        "mixed": ("category", "one-hot"),
        "object": ("number", "number"),
        "wait": ("number", "number"),
        "list": ("other", "left out"),
    }
    assert output(encoder, frame, "wait").tolist() == [1, 2, 90]
    assert output(encoder, frame, "whole").tolist() == [1, 2, 3]
    assert "list<" in note(encoder, "list")
    assert output(encoder, frame[1:], "mixed=two").tolist() == [1.0, 0.0]


def test_arrays_iterables_and_empty_tables():
    array = np.random.default_rng(0).normal(size=(9, 3))
    encoder = TableEncoder.fit(array)
    assert encoder.feature_names_out == ["x0", "x1", "x2"]
    assert np.array_equal(encoder.transform(array[::2]), array[::2])
    assert np.array_equal(encoder.transform(np.asfortranarray(array)), array)
    assert TableEncoder.fit([array[:4], array[4:]]).to_dict() == encoder.to_dict()
    assert TableEncoder.fit(iter([array[:4], array[4:]])).to_dict() == encoder.to_dict()
    assert encoder.transform(array[:0]).shape == (0, 3)
    assert encoder.transform(pa.table({"x0": [], "x1": [], "x2": []})).shape == (0, 3)
    objects = np.array([["u", 1], ["v", 2]], dtype=object)
    assert TableEncoder.fit(objects).feature_names_out == ["x0=u", "x0=v", "x1"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("table.csv", r"open it with TableReader\('table.csv'\) first"),
        (3, "must be a data frame, an Arrow table or chunks of these, but is a int"),
        ([1, 2], "must come in chunks such as Arrow record batches, but one is a int"),
        (np.zeros(3), r"must be \(rows, columns\), but has shape \(3,\)"),
        (np.zeros((0, 2)), "The table has no rows"),
        ([], "The table has no rows"),
        ({"x": [1, 1]}, r"no column that carries information \('x': every value is 1\)"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "The data frame has more than one column named 'a'"),
        (pa.table([[1], [2]], names=["a", "a"]), "The table has more than one column named 'a'"),
        (pd.DataFrame({"z": [1j, 2j]}), "Column 'z' has the type complex128, which cannot be used"),
        (
            [{"x": [1, 2]}, {"x": ["a"]}],
            "Column 'x', in the chunk from row 2 on: its type is large_string, but was int64 before; read",
        ),
        ({"x": [1, 2], "y": [1]}, "The mapping is not a table of columns of equal length"),
        ({"d": pa.array([0, 2**60], pa.timestamp("s"))}, "Column 'd', in the chunk from row 0 on: a date .* too far"),
        ([{"x": [1, 2]}, {"y": [1]}], "The chunk from row 2 on has other columns than those before: 'x', 'y'"),
    ],
)
def test_what_is_not_a_table_is_named(data, message):
    with pytest.raises(DataError, match=message):
        TableEncoder.fit(data)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="missing must be 'error' or 'impute', but is 'drop'"):
        TableEncoder.fit({"x": [1, 2]}, missing="drop")
    with pytest.raises(ValueError, match="max_one_hot must be at least 1, but is 0"):
        TableEncoder.fit({"x": [1, 2]}, max_one_hot=0)


def test_names_of_outputs_are_different():
    encoder = TableEncoder.fit({"a": ["b", "c"], "a=b": [1, 2], "a=b (2)": [3, 4]})
    assert encoder.feature_names_out == ["a=b", "a=c", "a=b (2)", "a=b (2) (2)"]


def test_files_are_named_in_errors(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n2,3\n")
    (tmp_path / "b.csv").write_text("x,y\n3,4\n-,inf\n")
    reader = TableReader([tmp_path / "a.csv", tmp_path / "b.csv"])
    with pytest.raises(DataError, match=re.escape(f"'x' has 1 missing value (first: row 1 of {tmp_path / 'b.csv'})")):
        TableEncoder.fit(reader)
    with pytest.raises(DataError, match=r"target 'y' is infinite in 1 of 4 rows, first in row 1 of .*b\.csv"):
        target_values(reader, "y")
    encoder = TableEncoder.fit(TableReader(tmp_path / "a.csv"))
    with pytest.raises(DataError, match=r"\(first: row 1 of .*b\.csv\)"):
        encoder.transform(reader)
    (tmp_path / "b.csv").write_text("x,y\n3,4\n4,oops\n")
    later = TableReader([tmp_path / "b.csv"])
    report = TransformReport(source=later)
    (chunk,) = later
    with pytest.raises(DataError, match=r"Column 'y', row 1 of .*b\.csv holds 'oops'"):
        encoder.transform(chunk, report)


# Targets


def test_targets_convert():
    for values in ([1, 2], [1.0, 2.0], ["1", "2.0"], [decimal.Decimal("1.0"), decimal.Decimal("2.0")]):
        found = target_values({"y": values}, "y")
        assert found.dtype == np.float64
        assert found.tolist() == [1.0, 2.0]
    assert target_values({"y": [True, False]}, "y").tolist() == [1.0, 0.0]
    assert target_values({"y": [3, 3]}, "y", allow_constant=True).tolist() == [3.0, 3.0]
    assert target_values([{"y": [3]}, {"y": [4]}], "y").tolist() == [3.0, 4.0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["1", "high"], "The target 'price' must be numbers, but row 101 holds 'high': correct the value, or choose"),
        (["1", "n/a"], "The target 'price' is missing in 1 of 2 rows, first in row 101: remove these rows"),
        ([None, 1.0, math.nan], "The target 'price' is missing in 2 of 3 rows, first in row 100"),
        ([1.0, math.inf], "The target 'price' is infinite in 1 of 2 rows, first in row 101"),
        ([7, 7], "The target 'price' is 7 in every row, so there is nothing to predict"),
        (pa.nulls(2), "is missing in 2 of 2 rows"),
        (pa.array([1, 2], pa.date32()), r"holds dates or times \(date32\[day\]\): turn it into a number first"),
        ([[1], [2]], "has the type list<item: int64>, but must be numbers"),
        ([], "The table has no rows, so there are no targets 'price'"),
    ],
)
def test_targets_that_cannot_be_predicted(values, message):
    with pytest.raises(DataError, match=message):
        target_values({"price": values}, "price", first_row=100)


def test_a_target_that_is_not_there():
    with pytest.raises(DataError, match=r"There is no column 'Prices' in the table; did you mean 'price'\?"):
        target_values({"price": [1, 2]}, "Prices")
