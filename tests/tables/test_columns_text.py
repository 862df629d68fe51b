"""Numbers and dates that are written as text: read like Python's, and words among them."""

import datetime as dt
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from encoder_summaries import kinds, note, output
from hypothesis import given, settings
from hypothesis import strategies as st

from finitegp import DataError
from finitegp.tables.arrow_values import NOT_A_MOMENT, moment_text, read_moments
from finitegp.tables.encoder import TableEncoder
from finitegp.tables.text_values import parse_numbers


@settings(max_examples=50, deadline=None)
@given(st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)), st.sampled_from("T "))
def test_moments_are_read_like_the_standard_library(moment, separator):
    expected = (moment - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
    assert read_moments(pa.array([moment.isoformat(separator)])).tolist() == [expected]
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
    assert (read_moments(texts) == NOT_A_MOMENT).tolist() == [True, False, True, False, True]


def test_numbers_written_as_text_with_words_for_missing():
    texts = [str(number / 4) for number in range(200)] + ["n/a", "-", "", None, " N/A ", "broken", "+7", "1e3", ".5"]
    table = {"x": texts}
    with pytest.raises(DataError, match=r"column 'x' has 6 missing values \(first: row 200\)"):
        TableEncoder.fit(table)
    encoder = TableEncoder.fit(table, missing="impute")
    assert encoder.feature_names_out == ["x", "x missing"]
    assert "numbers written as text" in note(encoder, "x")
    assert "missing where it is '-' (1 times), 'N/A' (1 times), 'broken' (1 times), 'n/a' (1 times)" in note(
        encoder, "x"
    )
    numbers = encoder.transform(table)
    parsed = pd.to_numeric(pd.Series(texts).str.strip(), errors="coerce")
    assert np.array_equal(numbers[:, 0], parsed.fillna(parsed.median()))
    assert np.array_equal(numbers[:, 1], parsed.isna())
    # Real numbers later, or other known words, are fine; other text is named.
    assert encoder.transform({"x": [3, 4]}).tolist() == [[3.0, 0.0], [4.0, 0.0]]
    assert encoder.transform({"x": ["broken", "NULL"]})[:, 1].tolist() == [1.0, 1.0]
    with pytest.raises(DataError, match=r"Column 'x', row 1 holds 'wrong', but the column was numbers in the fit"):
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
