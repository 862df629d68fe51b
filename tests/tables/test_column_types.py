"""Types of columns that other programs write: used, or left out by name."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_runs import run

from finitegp import DataError, TableReader, TableRegressor
from finitegp.tables.training_rows import TrainingRows

ROWS = 40
FRAME = pl.DataFrame({"c": ["a", "b"] * 20, "x": np.arange(40.0), "y": np.arange(40.0) * 2})
PERIODS = pd.DataFrame(
    {"c": pd.period_range("2020-01", periods=ROWS, freq="M"), "x": np.arange(40.0), "y": np.arange(40.0)}
)
KINDS = {
    "categorical": (FRAME.with_columns(pl.col("c").cast(pl.Categorical)), "category"),
    "enum": (FRAME.with_columns(pl.col("c").cast(pl.Enum(["a", "b"]))), "category"),
    "binary": (FRAME.with_columns(pl.col("c").cast(pl.Binary)), "other"),
    "texts": (FRAME.with_columns(pl.concat_list("c")), "other"),
    "struct": (FRAME.with_columns(pl.struct("c", "x").alias("c")), "other"),
    "period": (PERIODS, "number"),
    "interval": (PERIODS.assign(c=pd.interval_range(0, ROWS, ROWS)), "other"),
}


def write(frame, path):
    if isinstance(frame, pl.DataFrame):
        (frame.write_parquet if path.suffix == ".parquet" else frame.write_ipc)(path)
    else:
        frame.to_parquet(path)
    return path


@pytest.mark.parametrize("name", KINDS)
def test_types_of_frames_and_their_files(tmp_path, name):
    frame, kind = KINDS[name]
    tables = [frame, write(frame, tmp_path / "t.parquet")]
    tables += [write(frame, tmp_path / "t.feather")] if isinstance(frame, pl.DataFrame) else []
    for table in tables:
        model = TableRegressor(effort="low", random_state=0).fit(table, target="y")
        assert model.columns_[0].kind == kind
        assert kind != "other" or "cannot be used" in model.columns_[0].note
        assert np.isfinite(model.predict(tables[0])).all()


def test_rows_that_come_later_where_texts_are_views_and_targets_have_gaps(tmp_path):
    frame = FRAME.with_columns(pl.when(pl.col("x") < 3).then(None).otherwise(pl.col("y")).alias("y"))
    for table in (frame, write(frame, tmp_path / "t.feather")):
        model = TableRegressor(effort="low", random_state=0, rows_without_target="drop").fit(table, target="y")
        with pytest.warns(UserWarning, match=r"'y' is missing in 3 of 40 rows"):
            assert model.update(table).rows_ == 2 * 37
        with pytest.warns(UserWarning, match=r"'y' is missing in 3 of 40 rows"):
            assert model.forget(table).rows_ == 37


def test_a_file_with_views_can_be_learned_from_on_disk(tmp_path):
    table = TableReader(write(FRAME, tmp_path / "t.feather"))
    targets = np.arange(40.0)
    targets[:3] = np.nan
    training = TrainingRows.survey(table, lambda rows, first: targets[first : first + rows.num_rows], None)
    assert training.on_disk
    assert training.take(np.array([0, 2])).rows.column("c").to_pylist() == ["b", "b"]


def test_the_same_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("categorical", "period", "binary"):
        path = write(KINDS[name][0], tmp_path / f"{name}.parquet")
        run("fit", path, "-t", "y", "-o", "m.finitegp", "--force", "--effort", "low", "--no-report")
        run("predict", "m.finitegp", path, "-o", "p.csv", "--force")


def test_dictionaries_of_unsigned_numbers_with_gaps(tmp_path):
    codes = pa.array([0, 1, None, 1] * 10, pa.uint8())
    columns = {"c": pa.DictionaryArray.from_arrays(codes, ["a", "b"]), "x": np.arange(40.0), "y": np.arange(40.0)}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    for table in (pa.table(columns), tmp_path / "t.parquet"):
        model = TableRegressor(effort="low", random_state=0).fit(table, target="y")
        assert (model.columns_[0].kind, model.columns_[0].gaps) == ("category", 10)


def test_a_row_that_is_no_table():
    frame = pd.DataFrame({"x": np.arange(40.0), "y": np.arange(40.0)})
    model = TableRegressor(effort="low", random_state=0).fit(frame, target="y")
    for row in (frame.iloc[0], frame.assign(c="a").iloc[0], pl.from_pandas(frame)["x"]):
        with pytest.raises(DataError, match=r"pass .* df\.iloc\[\[0\]\]"):
            model.predict(row)
