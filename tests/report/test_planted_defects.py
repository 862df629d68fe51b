"""Whole fits of tables: what was planted is found, and healthy tables raise no alarm."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from command_runs import run_json

from benchmarks.tables import TARGETS
from finitegp import GPRegressor, TableRegressor
from finitegp.features import LinearFeatures
from finitegp.tables.judging import fit_and_judge

#: What a careful statistician agrees with, and why.
AGREED = {
    "chicago": {
        "Duplicate columns",  # four baseball clubs, at home or away, share one column
        "Predicted distributions have the wrong shape",  # holidays pull the lower tail out
    },
    "mlbbat10": {"One target value is very common"},  # two of five players batted no run in
    "saratoga": {"Heavy-tailed residuals"},  # houses that were sold for a few thousand dollars
}


def make_frame(rows=600, *, seed=0, noise=0.3):
    random = np.random.default_rng(seed)
    size, age = random.normal(size=(2, rows))
    town = random.choice(["a", "b", "c"], rows)
    rent = 10 + 2 * size - age + (town == "a") + noise * random.normal(size=rows)
    return pd.DataFrame({"size": size, "age": age, "town": town, "rent": rent})


def linear(training):
    """A linear model of the target itself, which takes a fraction of a second."""
    columns = training.shape[1] - 1 + (training["town"].nunique() - 1)
    regressor = GPRegressor(LinearFeatures(columns), algorithm="exact", random_state=0)
    return TableRegressor(regressor=regressor, target_scale="identity")


def findings(tmp_path, training, test=None):
    """What the doctor finds of a linear model, by title."""
    fit = fit_and_judge(linear(training), training, "rent", test=test, report=tmp_path / "r.html")
    return {each.title: each for each in fit.contents.checkup.findings}


def test_a_healthy_table_has_no_finding_but_that_it_is_linear(tmp_path):
    assert set(findings(tmp_path, make_frame(2000))) <= {"No better than the linear baseline"}


def test_copies_between_training_and_test(tmp_path):
    training, test = make_frame(), make_frame(200, seed=1)
    assert "Held-out rows are also training rows" not in findings(tmp_path, training, test)
    test[:30] = training[:30].to_numpy()
    found = findings(tmp_path, training, test.infer_objects())["Held-out rows are also training rows"]
    assert "30 of 200" in found.evidence


def test_a_column_that_determines_the_target(tmp_path):
    frame = make_frame()
    tax = 0.19 * frame["rent"] * (1 + 0.001 * np.random.default_rng(1).normal(size=len(frame)))
    found = findings(tmp_path, frame.assign(tax=tax))
    assert "'tax'" in found["A column gives the target away"].evidence


@pytest.mark.parametrize("row", [3, 11, 42])
def test_a_mistyped_target_is_named_and_no_column_is_blamed(tmp_path, row):
    """Whether it is held out or not."""
    frame = make_frame(200)
    frame.loc[row, "rent"] = 9500.0
    frame.to_csv(tmp_path / "rents.csv", index=False)
    fit = fit_and_judge(linear(frame), tmp_path / "rents.csv", "rent", report=tmp_path / "r.html")
    found = {each.title: each for each in fit.contents.checkup.findings}
    assert f"line {row + 2} of {tmp_path / 'rents.csv'} has 9,500" in found["A target is far from all others"].evidence
    assert not any("away" in title for title in found)


def test_error_bars_that_fail_in_a_segment(tmp_path):
    training, test = make_frame(), make_frame(800, seed=1)
    high = test["rent"] > test["rent"].quantile(0.75)
    error = np.random.default_rng(2).normal(size=len(test))
    found = findings(tmp_path, training, test.assign(rent=test["rent"] + high * error))
    assert "with the highest predictions" in found["Error bars are too narrow for some rows"].evidence


def test_little_is_explained(tmp_path):
    found = findings(tmp_path, make_frame(noise=12.0))
    assert "of the held-out variance is explained" in found["Little is explained"].evidence


def test_an_input_that_does_harm(tmp_path):
    """What held in training holds no longer."""
    training, test = make_frame(), make_frame(400, seed=1)
    test["rent"] += 2.0 * test["age"]
    found = findings(tmp_path, training, test)["Some inputs do harm"]
    assert found.evidence.endswith("smaller: 'age'.")


def test_rows_beyond_the_training_are_no_sign_of_overfitting(tmp_path):
    """The relation does not go on where no row was seen."""
    training, test = make_frame(noise=0.05), make_frame(300, seed=1, noise=0.05)
    test["size"] += 8.0
    found = findings(tmp_path, training, test)
    assert "most often in 'size', by up to" in found["Held-out rows lie outside of the trained range"].evidence
    assert "Overfitted features" not in found
    inside = findings(tmp_path, training, test.assign(size=test["size"] - 8.0, rent=test["rent"] - 16.0))
    assert "Overfitted features" in inside  # the same errors, without that excuse


def test_extrapolation_is_told_with_column_and_distance(tmp_path):
    training, new = make_frame(), make_frame(50, seed=1)
    low, high = training["size"].min(), training["size"].max()
    new.loc[7, "size"] = high + 2.0 * (high - low)
    linear(training).fit(training, target="rent").save(tmp_path / "m.finitegp")
    new.to_csv(tmp_path / "new.csv", index=False)
    notes = run_json("predict", tmp_path / "m.finitegp", tmp_path / "new.csv", "-o", tmp_path / "p.csv")["notes"]
    (note,) = [each for each in notes if "extrapolations" in each]
    assert note.startswith("Column 'size': 1 of 50 values lie outside of what the fit saw")
    assert f"the farthest, {new.loc[7, 'size']:.6g}, by 200 % of that range" in note


@pytest.mark.parametrize(
    ("name", "step"),
    [("mlbbat10", 3), *(pytest.param(name, 1, marks=pytest.mark.slow) for name in TARGETS)],
)
def test_no_false_alarms(name, step, tmp_path):
    """Of whole tables, and of every third row of one."""
    default = Path(__file__).resolve().parents[3] / "shared" / "data" / "tables"
    directory = Path(os.environ.get("FINITEGP_TABLES_DIR", default))
    if not directory.exists():
        pytest.skip(f"Tables not found in {directory}; set FINITEGP_TABLES_DIR to run this test")
    table = pq.read_table(directory / f"{name}.parquet")
    table = table.drop_columns([column for column in table.column_names if column.startswith("test")])
    pq.write_table(table.take(np.arange(0, len(table), step)), tmp_path / f"{name}.parquet")
    options = ["--target", TARGETS[name], "--effort", "low", "-o", tmp_path / "m.finitegp"]
    found = run_json("fit", tmp_path / f"{name}.parquet", *options, quiet=False)["findings"]
    assert {each["title"] for each in found} <= AGREED.get(name, set()), found
