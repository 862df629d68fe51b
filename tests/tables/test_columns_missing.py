"""Missing and infinite values: listed, or replaced by medians and most frequent values."""

import math

import numpy as np
import pandas as pd
import pytest
from encoder_summaries import kinds, note

from finitegp import DataError
from finitegp.tables import sketches
from finitegp.tables.encoder import TableEncoder
from finitegp.tables.summaries import TransformReport


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
