"""Columns of many categories: mean targets, frequencies, places, or a column for each; what fits learn from them."""

import json

import numpy as np
import pandas as pd
import pytest
from encoder_summaries import kinds, output
from table_frames import linear

from finitegp import DataError, GPRegressor, TableRegressor
from finitegp.features import LinearFeatures
from finitegp.tables.encoder import TableEncoder


def test_means_of_categories_do_not_contain_the_rows_own_target():
    """With targets of pure noise, no encoding of training rows may tell them: the correlation is not positive."""
    random = np.random.default_rng(0)
    towns, targets = [f"town {number}" for number in random.integers(0, 100, 600)], random.normal(size=600)
    encoder = TableEncoder.fit({"town": towns}, targets=targets, max_one_hot=4)
    training = encoder.transform_training({"town": towns})[:, 0]
    seen = encoder.transform({"town": towns})[:, 0]
    assert np.corrcoef(seen, targets)[0, 1] > 0.1
    assert np.corrcoef(training, targets)[0, 1] < 0.05
    # The other way round: with real effects, both tell.
    effects = random.normal(size=100)
    codes = np.array([int(town.split()[1]) for town in towns])
    encoder = TableEncoder.fit({"town": towns}, targets=effects[codes] + 0.1 * targets, max_one_hot=4)
    assert np.corrcoef(encoder.transform_training({"town": towns})[:, 0], effects[codes])[0, 1] > 0.9


def test_frequent_categories_have_a_place_without_targets():
    towns = [f"town {number:02d}" for number in range(20) for _ in range(31 - (number > 17) * 2)]
    random = np.random.default_rng(0)
    encoder = TableEncoder.fit({"town": towns}, targets=random.normal(size=len(towns)))
    assert kinds(encoder) == {"town": ("category", "target mean and place")}
    new = [*towns[::-1], "elsewhere"]
    places = output(encoder, {"town": new}, "town place")
    expected = [number if number < 18 else -1 for number in (int(town[-2:]) for town in new[:-1])]
    assert places.tolist() == [*expected, -1]
    column = encoder.feature_names_out.index("town place")
    assert encoder.transform_training({"town": towns})[:, column].tolist() == expected[::-1]
    # What new rows have: slightly different means by fold would be names that no new row has.
    frequent = np.array(expected[::-1]) >= 0
    learned, new_rows = encoder.transform_training({"town": towns}), encoder.transform({"town": towns})
    np.testing.assert_array_equal(learned[frequent], new_rows[frequent])
    assert (learned[~frequent] != new_rows[~frequent]).any()
    other = TableEncoder.fit({"town": towns}, targets=random.normal(size=len(towns)))
    assert np.array_equal(output(other, {"town": new}, "town place"), places)
    again = TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    assert np.array_equal(again.transform({"town": new}), encoder.transform({"town": new}))
    assert kinds(encoder.with_one_hot(20, 20)) == kinds(encoder)


def test_categories_of_few_rows_have_no_place():
    towns = [f"town {number}" for number in range(20) for _ in range(30 if number < 8 else 29)]
    encoder = TableEncoder.fit({"town": towns}, targets=np.arange(len(towns)) % 7.0)
    assert kinds(encoder) == {"town": ("category", "target mean")}
    assert kinds(encoder.with_one_hot(20, 20)) == {"town": ("category", "one-hot")}
    assert kinds(encoder.with_one_hot(19, 20)) == kinds(encoder.with_one_hot(20, 19)) == kinds(encoder)


def test_frequencies_of_categories_do_not_count_the_row_itself():
    """A training row is told as much of its category as a new row would be, if it were not there."""
    random = np.random.default_rng(0)
    towns = [f"town {number}" for number in [*random.integers(0, 20, 100), *range(20, 40)]]
    targets = random.normal(size=120)
    encoder = TableEncoder.fit({"town": towns}, targets=targets, max_one_hot=4)
    training, seen = encoder.transform_training({"town": towns})[:, 1], encoder.transform({"town": towns})[:, 1]
    others = np.array([towns.count(town) - 1 for town in towns])
    np.testing.assert_allclose(training, np.log1p(others), rtol=1e-15)
    np.testing.assert_allclose(seen, np.log1p(others + 1), rtol=1e-15)
    # The only row of its category is told what a row of a new one is told.
    new = encoder.transform({"town": ["town 99"]})
    assert np.array_equal(encoder.transform_training({"town": towns})[-1:], new)


def test_shrunk_means_are_those_of_a_random_effect():
    """Against the textbook: the mean of a group is shrunk by rows / (rows + within / between)."""
    from finitegp.tables.categories import CategoryMeans

    random = np.random.default_rng(1)
    codes = random.integers(0, 200, 20_000)
    targets = 3.0 + 0.5 * random.normal(size=200)[codes] + 2.0 * random.normal(size=20_000)
    means = CategoryMeans()
    names = [str(number) for number in range(200)]
    means.add(names, codes, targets, np.arange(20_000))
    found = means.shrunk(names).means
    counts = np.bincount(codes)
    plain = np.bincount(codes, targets - targets.mean()) / counts
    np.testing.assert_allclose(found, plain * counts / (counts + 2.0**2 / 0.5**2), rtol=0.05, atol=0.02)


def test_many_equally_frequent_categories_are_learned():
    """Which ranks by frequency cannot do: they are in the order of the alphabet, whatever the effects."""
    random = np.random.default_rng(0)
    effects = random.normal(size=60)
    town = np.repeat(np.arange(60), 12)
    table = pd.DataFrame({"town": [f"town {number:02d}" for number in town], "year": np.tile(np.arange(12.0), 60)})
    table["y"] = effects[town] + 0.1 * table["year"] + 0.2 * random.normal(size=720)
    held_out = np.arange(720) % 4 == 0
    training, test = table[~held_out], table[held_out]
    model = linear(target_scale="identity", feature_map=LinearFeatures(2)).fit(training, target="y")
    assert {line.column: line.encoding for line in model.columns_}["town"] == "target mean"
    assert model.evaluate(test).r_squared > 0.9
    inputs, y = (TableEncoder.fit(training, exclude="y").transform(each) for each in (training, test)), test["y"]
    ranks, new = inputs
    plain = GPRegressor(LinearFeatures(2), algorithm="exact", random_state=0).fit(ranks, training["y"])
    assert plain.score(new, y) < 0.5


def test_categories_of_few_rows_have_effects_beside_those_of_other_columns():
    """Mean targets of four rows hold what the other columns explain: the error was more than twice the noise."""
    random = np.random.default_rng(0)
    effects, person, age = random.normal(size=50), random.integers(0, 50, 500), random.normal(size=500)
    table = pd.DataFrame({"person": [f"p{each}" for each in person], "age": age})
    table["y"] = 2 * effects[person] + age + 0.3 * random.normal(size=500)
    training, new = table[:200], table[200:]
    model = TableRegressor(effort="low", random_state=0).fit(training, target="y")
    assert model.columns_[0].encoding == "one-hot"
    new = new[new["person"].isin(training["person"])]
    scores = model.evaluate(new)
    assert scores.rmse < 0.4
    assert 0.8 < scores.coverage[0.9] < 0.97  # rows of one person err alike
    told = TableRegressor(effort="low", random_state=0, max_one_hot=16).fit(training, target="y")
    assert told.columns_[0].encoding == "target mean"
    assert told.evaluate(new).rmse > 1.5 * scores.rmse


def test_kinds_of_categories_and_of_which_columns_get_one_for_each():
    """Mean targets, which show of which kind a town is, are no help: they are of too few rows."""
    random = np.random.default_rng(0)
    town, x, large = random.integers(0, 40, 480), random.normal(size=480), random.integers(0, 2, 40)
    table = pd.DataFrame({"town": [f"t{each}" for each in town], "rare": np.arange(480) % 200, "x": x})
    table["rare"] = "r" + table["rare"].astype(str)
    table["y"] = np.where(large[town], 2 * x + 3, -2 * x) + 0.1 * random.normal(size=480)
    training, new = table[:240], table[240:]
    model = TableRegressor(effort="low", random_state=0).fit(training, target="y")
    assert [column.encoding for column in model.columns_] == ["one-hot", "target mean", "number"]
    means = TableRegressor(effort="low", random_state=0, max_one_hot=16).fit(training, target="y")
    assert model.evaluate(new).crps < 0.5 * means.evaluate(new).crps
    few = TableRegressor(effort="low", random_state=0, keep_rows=False).fit(training[:60], target="y")
    assert few.columns_[0].encoding == "target mean"


def test_copies_are_encoded_alike_where_categories_learn_from_targets():
    """In different folds they got different mean targets: neighbours with equal targets were taken as no noise."""
    random = np.random.default_rng(0)
    towns = random.normal(size=40)
    town, size = random.integers(0, 40, size=400), random.normal(size=400)
    table = pd.DataFrame({"town": [f"t{each}" for each in town], "size": size})
    table["price"] = towns[town] + size + 0.7 * random.normal(size=400)
    new, table = table.iloc[300:], table.iloc[:300]
    table = pd.concat([table, table.sample(90, random_state=0)], ignore_index=True)
    model = TableRegressor(effort="low", random_state=0, max_one_hot=16).fit(table, target="price")
    fit = model.regressor_.fits_[0]
    assert fit.record["copies"] == 90
    assert fit.num_data == 300
    lower, upper = model.predict_interval(new)
    assert 0.8 < np.mean((lower <= new["price"]) & (new["price"] <= upper)) < 0.98
    assert float(np.median(upper - lower)) < 4.5
    # New rows are encoded by means over all folds: as such they are known again.
    assert fit.repeated.has(model.encoder_.transform(table), table["price"].to_numpy()).all()
    assert any("predicted by what that row had" in note for note in model.notes_)
    assert model.notes_on_known(model.judge(*model.rows_to_judge(table))) == [
        "390 of 390 rows are equal to training rows and predicted by what these had: scores, NLPD above all, say less "
        "of rows that are new."
    ]
    assert not model.notes_on_known(model.judge(*model.rows_to_judge(new)))
    with pytest.raises(DataError, match="cannot be forgotten where a column is encoded by the mean targets"):
        model.forget(table)
