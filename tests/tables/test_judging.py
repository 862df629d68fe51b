"""Which rows judge a fit of a table: the latest, groups, folds, another table."""

from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from table_frames import linear, make_frame

from finitegp import DataError, TableRegressor
from finitegp.tables.hold_out import HoldOut, Judging, make_folds, split_groups, split_last
from finitegp.tables.judging import fit_and_judge


@pytest.fixture(scope="module")
def frame():
    return make_frame()


def test_splits():
    groups = np.repeat(np.arange(20), 3)
    split = split_groups(groups, 0.2, seed=0)
    assert not set(groups[split.training]) & set(groups[split.held_out])
    assert sorted([*split.training, *split.held_out]) == list(range(60))
    order = np.random.default_rng(0).permutation(50).astype(float)
    last = split_last(order, 0.2)
    assert order[last.training].max() < order[last.held_out].min()
    assert len(last.held_out) == 10
    folds = make_folds(groups, 4, seed=0)
    assert sorted(np.concatenate(folds)) == list(range(60))
    assert all(len(fold) == 15 for fold in folds)
    with pytest.raises(DataError, match="one group"):
        split_groups(np.zeros(5, dtype=int), 0.2, seed=0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"test_fraction": 1.0}, "test_fraction must be .* but is 1.0"),
        ({"test_fraction": -0.1}, "test_fraction must be .* but is -0.1"),
        ({"test_fraction": float("nan")}, "test_fraction must be .* but is nan"),
        ({"test_fraction": "some"}, "test_fraction must be a number"),
        ({"folds": 1}, "folds must be .* but is 1"),
        ({"folds": -3}, "folds must be .* but is -3"),
        ({"folds": 2.5}, "folds must be .* but is 2.5"),
        ({"split_by": "day", "group": "size"}, "split_by cannot be used together with group"),
        ({"split_by": "day", "folds": 3}, "split_by cannot be used together with folds"),
    ],
)
def test_judging_that_makes_no_sense_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Judging(**wrong)


@pytest.mark.parametrize("judging", [Judging(split_by="day"), Judging(group="size"), Judging(folds=3)])
def test_another_table_judges_alone(frame, judging):
    with pytest.raises(ValueError, match="test cannot be used together with"):
        fit_and_judge(linear(), frame, "price", judging, test=frame)


def test_judging_by_date_by_group_by_folds_and_by_another_table(frame):
    later = make_frame(40, seed=1)
    made = {
        "date": fit_and_judge(linear(target_scale="identity"), frame, "price", Judging(split_by="day")),
        "group": fit_and_judge(linear(target_scale="identity"), frame, "price", Judging(group="size")),
        "folds": fit_and_judge(linear(target_scale="identity"), frame, "price", Judging(folds=4)),
        "small": fit_and_judge(linear(target_scale="identity"), frame[:30], "price"),
        "test": fit_and_judge(linear(target_scale="identity"), frame, "price", test=later),
    }
    assert [fit.held_out_rows for fit in made.values()][2:] == [80, 30, 40]
    assert [fit.model.rows_ for fit in made.values()] == [80, 80, 80, 30, 80]
    assert made["folds"].how == "4-fold cross-validation"
    assert made["small"].how == "5-fold cross-validation"
    assert all(fit.scores[0].rmse < 8 for fit in made.values())
    assert any("holds dates, and random rows do not show" in note for note in made["test"].notes)
    assert not any("random rows do not show" in note for note in made["date"].notes)
    days = pd.to_datetime(frame["day"], format="%d.%m.%Y")
    expected = clone(made["date"].model).fit(frame[days <= days.sort_values().iloc[63]], target="price")
    held_out = frame[days > days.sort_values().iloc[63]]
    assert made["date"].scores[0].rmse == pytest.approx(expected.evaluate(held_out).rmse, rel=1e-6)


@pytest.mark.parametrize(
    ("written", "odd"),
    [(["yes", "no"], "partly"), (["1.5", "2.5", "4"], "Total"), (["2020-01-01", "2020-03-01"], "soon")],
)
@pytest.mark.parametrize("rows", [30, 60])
def test_held_out_rows_may_hold_what_the_rows_of_the_fit_do_not_show(written, odd, rows):
    random = np.random.default_rng(0)
    table = {"x": random.normal(size=rows), "c": [written[number % len(written)] for number in range(rows)]}
    table["y"] = table["x"] + 0.1 * random.normal(size=rows)
    # In cross-validation every row is held out once, otherwise these are.
    held_out = fit_and_judge(TableRegressor(effort="low", random_state=0), table, "y").held_out_rows
    assert held_out == (30 if rows == 30 else 12)
    training = TableRegressor().training_rows(table, target="y")
    model = TableRegressor(effort="low", random_state=0)
    row = 3 if rows == 30 else int(HoldOut(model, training, Judging(), 0).split().held_out[0])
    table["c"][row] = odd
    judged = fit_and_judge(model, table, "y")
    assert judged.model.rows_ == rows
    if rows == 60:
        assert any(
            f"'c': 1 of 12 values count as missing; the first, row {row} holds '{odd}'" in each for each in judged.notes
        )
    with pytest.raises(DataError, match=f"holds '{odd}'") if rows == 60 else nullcontext():
        judged.model.predict(table)
