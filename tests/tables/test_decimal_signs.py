"""The decimal sign is one for a table: what some columns show decides for others, and for new tables as in the fit."""

import numpy as np
import pytest

from finitegp import TableRegressor
from finitegp.tables.encoder import TableEncoder
from finitegp.tables.judging import fit_and_judge
from finitegp.tables.reader import TableReader

COMMAS, POINTS, WHOLE = ["145,5", "90,25", "56,1"], ["145.5", "90.25", "56.1"], ["145", "90", "56"]
EITHER = ["1.693", "1.030", "694"]


def encode(table, name="km"):
    encoder = TableEncoder.fit(table)
    return encoder, encoder.transform(table)[:, encoder.feature_names_out.index(name)].tolist()


def write(path, **columns):
    rows = [";".join(columns), *(";".join(row) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize(
    ("other", "numbers", "doubt"),
    [
        ({"ps": COMMAS}, [1693, 1030, 694], False),
        ({"ps": ["12.345.678", "9.000", "3"]}, [1693, 1030, 694], False),
        ({"ps": POINTS}, [1.693, 1.03, 694], False),
        ({"ps": WHOLE}, [1.693, 1.03, 694], True),
        ({"ps": COMMAS, "m": POINTS}, [1.693, 1.03, 694], True),
    ],
)
def test_the_sign_of_other_columns_decides(tmp_path, other, numbers, doubt, in_file):
    table = other | {"km": EITHER}
    table = TableReader(write(tmp_path / "t.csv", **table)) if in_file else table
    encoder, found = encode(table)
    assert found == numbers
    notes = [note for note in [*encoder.notes, *getattr(table, "notes", ())] if "decimal=','" in note]
    assert [("'km'" in note, "'1.693'" in note, "--decimal ," in note) for note in notes] == [(True,) * 3] * doubt


def test_numbers_that_all_have_three_decimals_are_nothing_to_ask_about(tmp_path):
    table = {"ps": WHOLE, "km": ["1.693", "1.030", "2.500"]}
    reader = TableReader(write(tmp_path / "t.csv", **table))
    assert (reader.notes, str(reader.schema.field("km").type)) == ([], "double")
    encoder, found = encode(table)
    assert (encoder.notes, found) == ([], [1.693, 1.03, 2.5])
    # Later rows may settle it.
    more = TableReader(write(tmp_path / "u.csv", ps=WHOLE * 900, km=[*EITHER * 899, "1.5", "2.25", "3"]))
    assert more.notes == []


def test_a_comma_that_comes_late_counts(tmp_path):
    rows = 3000
    table = TableReader(
        write(tmp_path / "t.csv", ps=["145"] * (rows - 1) + ["90,5"], km=["694"] * 10 + ["1.693"] * (rows - 10)),
        block_size=1 << 12,
    )
    assert encode(table)[1][-1] == 1693


def test_the_target_shows_it_too():
    encoder = TableEncoder.fit({"km": EITHER, "rent": COMMAS}, exclude="rent")
    assert encoder.transform({"km": ["1.500"]}).tolist() == [[1500]]


@pytest.fixture(scope="module")
def cars(tmp_path_factory):
    rng = np.random.default_rng(0)
    power, seats = rng.uniform(50, 200, 60), rng.integers(2, 8, 60)
    price = (12 * power + rng.normal(0, 20, 60)).round().astype(int)
    assert price.min() < 1000 < price.max()
    path = tmp_path_factory.mktemp("cars") / "cars.csv"
    texts = [f"{each:,}".replace(",", ".") for each in price]
    write(path, PS=[f"{each:.1f}".replace(".", ",") for each in power], Sitze=seats.astype(str), km=texts, Preis=texts)
    return path, price


def test_new_tables_are_read_as_that_of_the_fit(cars, tmp_path):
    path, price = cars
    model = TableRegressor(effort="low", random_state=0).fit(path, target="Preis")
    assert np.abs(model.predict(path) - price).max() < 100
    model.save(tmp_path / "m.finitegp")
    for each in (model, TableRegressor.load(tmp_path / "m.finitegp")):
        # Nothing in this file shows how its decimals are written.
        new = write(tmp_path / "new.csv", PS=["100"], Sitze=["4"], km=["1.200"], Preis=["1.200"])
        assert each.encoder_.transform(each.read(new))[0, :3].tolist() == [100, 4, 1200]
        assert each.rows_to_judge(new)[1].tolist() == [1200]
    # A fit to another table does not know of it.
    again = model.fit(write(tmp_path / "p.csv", PS=POINTS * 4, km=EITHER * 4, Preis=WHOLE * 4), target="Preis")
    assert again.reading_options["text"] == []


def test_a_table_that_judges_is_read_as_that_of_the_fit(cars, tmp_path):
    path, _ = cars
    test = write(tmp_path / "test.csv", PS=["100"] * 3, Sitze=["4"] * 3, km=EITHER, Preis=EITHER)
    fit = fit_and_judge(TableRegressor(effort="low", random_state=0), path, "Preis", test=test)
    # Targets near those of the fit, not one and a half.
    assert fit.scores[-1].name == "mean"
    assert fit.scores[-1].rmse < 800
