"""Numbers and dates as people write them, keys and codes: recognised, or refused with the option that settles it."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from encoder_summaries import kinds, note, output

from finitegp import DataError
from finitegp.lite.tables import Encoder
from finitegp.tables.arrow_values import NOT_A_MOMENT, read_moments
from finitegp.tables.encoder import TableEncoder
from finitegp.tables.reader import TableReader
from finitegp.tables.targets import fit_target
from finitegp.tables.text_values import read_numbers

DAYS = [dt.date(2019, 12, 28) + dt.timedelta(days=17 * number) for number in range(30)]


def micros(day):
    return (day - dt.date(1970, 1, 1)).days * 86_400_000_000


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("day first", "%d/%m/%Y"),
        ("day first", "%d-%m-%y"),
        ("month first", "%m/%d/%Y"),
        ("day.month.year", "%d.%m.%Y"),
        ("year first", "%Y/%m/%d"),
        ("month name first", "%b %d, %Y"),
        ("month name first", "%A, %B %d, %Y"),
        ("day and month name", "%d-%b-%Y"),
        ("day and month name", "%d %B %Y"),
        ("year and month name", "%Y-%b-%d"),
        ("yyyymmdd", "%Y%m%d"),
    ],
)
def test_dates_of_every_style_are_those_that_python_wrote(style, text):
    written = [day.strftime(text) for day in DAYS]
    assert read_moments(pa.array(written), style).tolist() == [micros(day) for day in DAYS]
    encoder = TableEncoder.fit({"d": written})
    assert kinds(encoder) == {"d": ("date", "date parts")}
    days = output(encoder, {"d": written}, "d days")
    assert days.tolist() == [micros(day) / 86_400_000_000 for day in DAYS]
    # Programs that take over from people write ISO.
    assert output(encoder, {"d": [str(day) for day in DAYS]}, "d days").tolist() == days.tolist()
    assert len(encoder.notes) == 1
    assert "read as dates" in encoder.notes[0]


def test_times_months_and_halves_of_the_day():
    found = read_moments(pa.array(["3/1/2020 12:05 AM", "3/1/2020 1:05:07 pm", "3/1/2020 13:05 PM"]), "day first")
    midnight = micros(dt.date(2020, 1, 3))
    assert found.tolist() == [midnight + 300_000_000, midnight + 47_107_000_000, NOT_A_MOMENT]
    assert kinds(TableEncoder.fit({"m": [f"2020-{month:02d}" for month in range(1, 13)]}))["m"][0] == "date"
    assert read_moments(pa.array(["30/2/2020", "31.4.2020", "29/2/2020"]), "day first").tolist() == [
        NOT_A_MOMENT,
        NOT_A_MOMENT,
        micros(dt.date(2020, 2, 29)),
    ]


@pytest.mark.parametrize(
    ("written", "first_day"),
    [
        (["1939 Jan", "1940 Feb", "2001 September"], dt.date(1940, 2, 1)),
        (["2020Mar", "2020May", "2021Jun"], dt.date(2020, 5, 1)),
        (["2020Q1", "2020 Q3", "2021-q4"], dt.date(2020, 7, 1)),
        (["Q1 2020", "Q2 2020", "q4/2021"], dt.date(2020, 4, 1)),
        (["2020-W01", "2020 W53", "2021W10"], dt.date(2020, 12, 28)),
        (["2020-01", "2020-11", "2021-12"], dt.date(2020, 11, 1)),
    ],
)
def test_months_quarters_and_weeks_begin_on_their_first_day(written, first_day):
    encoder = TableEncoder.fit({"d": written})
    assert kinds(encoder) == {"d": ("date", "date parts")}
    assert output(encoder, {"d": written}, "d days")[1] == micros(first_day) / 86_400_000_000
    # The weekday on which a month begins says nothing, and all weeks begin on one.
    assert not any("weekday" in name for name in encoder.feature_names_out)


def test_weeks_are_those_of_python():
    for year in range(1999, 2030):
        texts = [f"{year}-W{week:02d}" for week in range(55)]
        last = dt.date(year, 12, 28).isocalendar()[1]
        expected = [micros(dt.date.fromisocalendar(year, week, 1)) for week in range(1, last + 1)]
        assert read_moments(pa.array(texts), "week").tolist() == [
            NOT_A_MOMENT,
            *expected,
            *[NOT_A_MOMENT] * (54 - last),
        ]


def test_the_order_of_day_and_month_is_found_or_asked_for():
    written = ["01/02/2020", "03/04/2020", "05/06/2021"]
    with pytest.raises(DataError, match=r"such as '01/02/2020', of which no row shows .*Pass day_first") as caught:
        TableEncoder.fit({"d": written})
    assert caught.value.code == "ambiguous_dates"
    february = micros(dt.date(2020, 2, 1)) / 86_400_000_000
    assert output(TableEncoder.fit({"d": written}, day_first=True), {"d": written}, "d days")[0] == february
    january = micros(dt.date(2020, 1, 2)) / 86_400_000_000
    assert output(TableEncoder.fit({"d": written}, day_first=False), {"d": written}, "d days")[0] == january
    encoder = TableEncoder.fit({"d": [*written, "31/01/2020"]})
    assert output(encoder, {"d": written}, "d days")[0] == february
    assert TableEncoder.fit({"d": written}, categorical=["d"]).columns[0].kind == "category"


def test_one_row_of_many_shows_the_order_of_day_and_month():
    written = [f"{month}/{day}/2020" for month in range(1, 13) for day in (1, 5, 9)]
    encoder = TableEncoder.fit({"d": [*written, "3/25/2020"]})
    assert output(encoder, {"d": ["2/1/2020"]}, "d days")[0] == micros(dt.date(2020, 2, 1)) / 86_400_000_000
    assert encoder.columns[0].gaps == 0
    with pytest.raises(DataError, match="of which rows show in two ways whether the day or the month comes first"):
        TableEncoder.fit({"d": [*written, "3/25/2020", "25/3/2020"]})


def test_a_few_thousands_among_smaller_numbers_are_no_gaps():
    encoder = TableEncoder.fit({"price": [*(f"{number}.5" for number in range(40)), "1,234.5"]})
    assert (encoder.columns[0].gaps, encoder.columns[0].span) == (0, (0.5, 1234.5))


@pytest.mark.parametrize(
    ("texts", "numbers", "unit"),
    [
        (["41,100", "1,234,567", "950"], [41100, 1234567, 950], ""),
        (["$41.10", "$1,000", "-$3"], [41.10, 1000, -3], "$"),
        (["17.0 %", "3%", "100 %"], [17, 3, 100], "%"),
        (["17.0 kg", "3 kg", "0.5kg"], [17, 3, 0.5], "kg"),
        (["39,1", "40,25", "1.234,5"], [39.1, 40.25, 1234.5], ""),
        (["€ 12", "€ 1 300", "€ 7.5"], [12, 1300, 7.5], "€"),
        (["5 °C", "−3 °C", "2.5e1 °C"], [5, -3, 25], "°C"),
        (["$1,234.50", "($17.20)", "$ (3)"], [1234.5, -17.2, -3], "$"),
    ],
)
def test_numbers_with_separators_and_units(texts, numbers, unit):
    encoder = TableEncoder.fit({"x": texts})
    assert kinds(encoder) == {"x": ("number", "number")}
    assert output(encoder, {"x": texts}, "x").tolist() == pytest.approx(numbers)
    assert encoder.columns[0].unit == unit
    assert "read as numbers written as text" in encoder.notes[0]
    again = TableEncoder.from_dict(encoder.to_dict())
    assert output(again, {"x": texts}, "x").tolist() == pytest.approx(numbers)


@pytest.mark.parametrize("style", ["{:.1f} sq ft", "({:,.2f})", "Rs {:,.0f}", "<{}", "no. {}"])
def test_numbers_in_an_unknown_style_are_named_with_an_example(style):
    texts = [style.format(1000 + 7 * number) for number in range(40)]
    encoder = TableEncoder.fit({"x": texts, "z": range(40, 80)})
    assert encoder.columns[0].kind == "identifier"
    note = f"nearly every row has another text, such as {min(texts)!r}. Most values contain a number"
    assert note in encoder.notes[0]
    words = ["".join(chr(97 + number // place % 26) for place in (676, 26, 1)) for number in range(40)]
    assert TableEncoder.fit({"x": words, "z": range(40, 80)}).notes[0].endswith("another text, such as 'aaa'.")


def test_a_few_numbers_in_brackets_are_below_zero_and_no_gaps():
    """They were words for a missing value, so that the usual value was put in."""
    texts = [f"{number}.5" for number in range(60)] + ["(1,234.5)", "(7)"]
    encoder = TableEncoder.fit({"x": texts}, missing="impute")
    assert encoder.columns[0].gaps == 0
    assert output(encoder, {"x": texts}, "x")[-2:].tolist() == [-1234.5, -7]
    assert output(encoder, {"x": ["(8.25)"]}, "x").tolist() == [-8.25]
    assert Encoder.read(encoder.to_dict()).encode({"x": ["(8.25)"]})[0].tolist() == [[-8.25]]
    assert fit_target([pa.array(texts)], "y").read(pa.array(["(2)"])).values.tolist() == [-2]


def test_a_decimal_comma_can_be_said():
    texts = ["41,100", "39,250", "12,500"]
    assert output(TableEncoder.fit({"x": texts}), {"x": texts}, "x").tolist() == [41100, 39250, 12500]
    assert output(TableEncoder.fit({"x": texts}, decimal=","), {"x": texts}, "x").tolist() == [41.1, 39.25, 12.5]


def test_another_unit_in_new_rows_is_an_error():
    encoder = TableEncoder.fit({"x": ["17.0 kg", "3 kg", "5 kg"]})
    with pytest.raises(DataError, match="row 1 holds '300 g', but the column was numbers"):
        encoder.transform({"x": ["4 kg", "300 g"]})


def test_texts_that_begin_with_numbers_are_no_numbers():
    for texts in (["12a", "13b", "14c"], ["12 Main St", "9 Oak Rd"], ["1st", "2nd", "3rd"], ["A1", "A2"]):
        assert kinds(TableEncoder.fit({"x": texts}))["x"][0] == "category"
    assert np.isnan(read_numbers(pa.array(["1,23", "1,2345", "12,34,567", "--3", "1.2.3"])).values).all()


def test_keys_and_row_numbers_are_left_out():
    rows = 40
    random = np.random.default_rng(0)
    table = {
        "": range(rows),
        "customer_id": random.permutation(np.arange(100_000, 100_000 + rows)),
        "distcod": random.permutation(np.arange(60_000, 60_000 + 97 * rows, 97)),
        "n": np.arange(1, rows + 1),
        "big": np.arange(rows) + 2**62,
        "year": np.arange(1950, 1950 + rows),
        "trend": np.arange(7, 7 + rows),
        "amount": random.permutation(np.arange(rows)),
        "x": random.normal(size=rows),
    }
    encoder = TableEncoder.fit(table)
    left_out = [name for name, kind in kinds(encoder).items() if kind == ("identifier", "left out")]
    assert left_out == ["", "customer_id", "distcod", "n", "big"]
    assert sum("numbers or names the rows" in text for text in encoder.notes) == 4
    assert "15th digit" in note(encoder, "big")
    # A sample of a row index, in order, still counts rows; where there is nothing else, it stands for time.
    sample = np.sort(random.permutation(rows)[:30])
    assert kinds(TableEncoder.fit({"i": sample, "x": table["x"][:30]}))["i"] == ("identifier", "left out")
    assert kinds(TableEncoder.fit({"i": range(30)}))["i"] == ("number", "number")


def test_codes_that_repeat_are_categories():
    codes = np.arange(60) % 20
    encoder = TableEncoder.fit({"shop_id": codes, "rooms": codes}, targets=codes.astype(float))
    assert kinds(encoder) == {"shop_id": ("category", "target mean"), "rooms": ("number", "number")}
    numbers = encoder.transform({"shop_id": ["3", "3.0"], "rooms": [1, 1]})
    assert numbers[0].tolist() == numbers[1].tolist() == encoder.transform({"shop_id": [3], "rooms": [1]})[0].tolist()


def test_free_text_is_left_out_and_yes_or_no_is_one_column():
    remarks = [f"the {number} th remark that somebody wrote" for number in range(30)]
    encoder = TableEncoder.fit({"remark": remarks, "paid": ["Yes", "no", "no"] * 10})
    assert kinds(encoder) == {"remark": ("free text", "left out"), "paid": ("boolean", "number")}
    assert encoder.transform({"remark": ["x", "y"], "paid": ["YES", "No"]}).tolist() == [[1.0], [0.0]]


def test_columns_can_be_told_what_they_are():
    table = {"zone": [1, 2, 3, 1], "size": ["1", "2", "x", "4"], "day": [2019, 2020, 2021, 2022]}
    encoder = TableEncoder.fit(table, categorical=["zone"], date=["day"])
    assert kinds(encoder)["zone"] == ("category", "one-hot")
    assert kinds(encoder)["day"] == ("date", "date parts")
    with pytest.raises(DataError, match="'size' shall hold numbers, but too many of its values are none"):
        TableEncoder.fit(table, numeric=["size"])
    with pytest.raises(DataError, match=r"no column 'sizes'.*did you mean 'size'"):
        TableEncoder.fit(table, numeric=["sizes"])


def test_absurd_and_infinite_values_are_named():
    values = [*np.linspace(0, 1, 30), 1e12]
    encoder = TableEncoder.fit({"x": values, "z": [*range(30), np.inf]}, missing="impute")
    assert "Column 'x': row 30 holds a value that is absurdly far from all others" in encoder.notes[0]
    assert "Column 'z': 1 infinite values count as missing, first in row 30" in encoder.notes[1]


def test_codes_with_leading_zeros_are_asked_about(tmp_path):
    codes = ["01067", "10115", "80331"] * 4
    (tmp_path / "t.csv").write_text("plz,n\n" + "".join(f"{code},{n}\n" for n, code in enumerate(codes)))
    note = "Column 'plz' holds '01067', which is read as the number 1067: if these are codes, say so with categorical="
    for found in (TableReader(tmp_path / "t.csv").notes, TableEncoder.fit({"plz": codes, "n": range(12)}).notes):
        assert [each.startswith(note) and "--categorical" in each for each in found if "plz" in each] == [True]
    assert TableReader(tmp_path / "t.csv", text=["plz"]).notes == []
    assert "plz" not in " ".join(TableEncoder.fit({"plz": codes}, categorical="plz").notes)
