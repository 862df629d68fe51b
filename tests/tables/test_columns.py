"""Columns of messy tables into numbers, against pandas and the standard library, and matched by name later."""

import datetime as dt
import decimal
import math
from importlib.resources import as_file, files

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from diamonds_by_hand import load_diamonds
from encoder_summaries import kinds, note, output

from finitegp import DataError
from finitegp.tables import sketches
from finitegp.tables.encoder import TableEncoder
from finitegp.tables.reader import TableReader
from finitegp.tables.summaries import TransformReport
from finitegp.tables.targets import target_values


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


def test_too_many_or_too_long_categories_are_identifiers(monkeypatch):
    monkeypatch.setattr(sketches, "MAX_CATEGORIES", 30)
    texts = [f"w{number}" for number in range(31)] * 9
    encoder = TableEncoder.fit({"t": texts, "y": range(279)})
    assert kinds(encoder)["t"] == ("identifier", "left out")
    assert kinds(TableEncoder.fit({"t": texts[:30] * 9, "y": range(270)}))["t"] == ("category", "rank")
    monkeypatch.setattr(sketches, "MAX_CATEGORY_BYTES", 100)
    assert kinds(TableEncoder.fit({"t": ["a" * 60, "b" * 60] * 5, "y": range(10)}))["t"] == ("identifier", "left out")


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
            pa.array(np.array([1.0, 0.0], np.float16)),
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
            "Column 'x', row 12 holds 'two', but the column was numbers in the fit",
        ),
        (
            "x",
            pa.array([1, 2, 3], pa.date32()),
            r"Column 'x' holds dates \(date32\[day\]\), but was numbers in the fit",
        ),
        ("b", ["true", "false", "perhaps"], "row 12 holds 'perhaps', but the column was true or false in the fit"),
        ("d", [1, 2, 3], r"Column 'd' holds numbers \(int64\), but was dates in the fit"),
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
