"""``finitegp fit --memory`` and ``finitegp predict --memory``: rows stay in the table, scores and refusals."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from budget_rows import QUICK, make_rows
from typer.testing import CliRunner

from finitegp import fit_source
from finitegp.automatic import EFFORTS
from finitegp.cli import app
from finitegp.estimator import as_regressor
from finitegp.tables.encoder import TableEncoder
from finitegp.tables.model import TableRegressor

runner = CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1", "TERM": "dumb"})


def write_table(path, rows=3000, seed=0, **more):
    inputs, targets = make_rows(rows, seed=seed)
    order = np.argsort(targets)  # sorted: only uniform sampling gets it right
    columns = {f"x{number}": inputs[order, number] for number in range(3)} | {"y": targets[order]} | more
    pq.write_table(pa.table(columns), path, row_group_size=500)
    return path


@pytest.fixture
def quick_low(monkeypatch):
    quick = QUICK | {"steps": 200, "max_steps": 200}
    monkeypatch.setitem(EFFORTS, "low", EFFORTS["low"].with_changes(quick))


def run(*arguments, code=0):
    result = runner.invoke(app, [str(each) for each in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


class TestCommands:
    def test_fit_and_predict(self, quick_low, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        colour = np.random.default_rng(0).choice(["red", "blue"], size=3000)
        write_table(tmp_path / "t.parquet", colour=colour)
        result = run("fit", "t.parquet", "--target", "y", "--effort", "low", "--memory", "24MB", "-o", "m.finitegp")
        for word in ("Memory budget 24.0MB", "exact pass", "600 held-out rows", "this model", "linear", "one-hot"):
            assert word in result.stdout
        assert result.stdout.index("Memory budget") < result.stdout.index("seconds of training")
        assert "<title>Predicting y</title>" in (tmp_path / "m.html").read_text()
        model = TableRegressor.load("m.finitegp")
        assert model.regressor_.fits_[0].fitted.posterior.statistics.num_data == 3000  # test rows taken in at the end
        assert model.regressor_.fits_[0].record["path"] == "networks"
        scores = {row["name"]: row["rmse"] for row in model.summary_["scores"]}
        assert scores["this model"] < scores["linear"] < scores["mean"]
        chunk = model.regressor_.fits_[0].fitted.chunk_size

        shown = run("predict", "m.finitegp", "t.parquet", "-o", "a.parquet").stdout
        assert "Memory budget 24.0MB" in shown
        found = json.loads(
            run("predict", "m.finitegp", "t.parquet", "-o", "b.parquet", "--memory", "11MB", "--json").stdout
        )
        assert found["rows"] == 3000
        one, other = (pq.read_table(name)["y_mean"].to_numpy() for name in ("a.parquet", "b.parquet"))
        np.testing.assert_allclose(one, other, rtol=1e-9)
        assert chunk >= 64

    def test_the_same_seed_gives_the_same_model_and_json_is_all_there_is(self, quick_low, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write_table(tmp_path / "t.parquet")
        arguments = ("fit", "t.parquet", "-t", "y", "--effort", "low", "--memory", "24MB", "--no-report", "--json")
        first, second = (json.loads(run(*arguments, "-o", f"{name}.finitegp").stdout) for name in "ab")
        assert first["scores"] == second["scores"]
        assert first["memory"] == "24MB"

    def test_refusals_say_what_to_do(self, quick_low, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write_table(tmp_path / "t.parquet")
        result = run("fit", "t.parquet", "-t", "y", "--effort", "low", "--memory", "1MB", code=1)
        errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
        assert len(errors) == 1
        assert errors[0].startswith(
            "Error: A budget of 1.0MB is too small: the smallest fit of 3000 rows with 3 columns needs"
        )
        assert "planned peak" in result.stdout  # the nearest plan
        advised = errors[0].rstrip(".").split("Use --memory ")[1].split(" ")[0]
        run("fit", "t.parquet", "-t", "y", "--effort", "low", "--memory", advised, "-o", "m.finitegp")
        assert "is not a size" in run("fit", "t.parquet", "-t", "y", "--memory", "lots", code=2).stderr
        assert not (tmp_path / "model.finitegp").exists()
        result = run("predict", "m.finitegp", "t.parquet", "-o", "a.csv", "--memory", "1MB", code=1)
        assert "prediction with this model needs" in result.stderr

    def test_bad_targets_are_named_with_file_and_row(self, quick_low, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        inputs, targets = make_rows(3000)
        targets[1234] = np.nan
        pq.write_table(pa.table({"x": inputs[:, 0], "y": targets}), "t.parquet")
        result = run("fit", "t.parquet", "-t", "y", "--effort", "low", "--memory", "24MB", code=1)
        assert "'y' is missing" in result.stderr
        assert "row 1234 of t.parquet" in result.stderr
        result = run("fit", "t.parquet", "-t", "Y", "--memory", "24MB", code=1)
        assert "did you mean 'y'?" in result.stderr


def test_predictions_say_that_the_budget_is_the_models_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inputs, targets = make_rows(100)
    fit = fit_source((inputs, targets), effort="low")
    table = {f"x{number}": inputs[:, number] for number in range(3)} | {"y": targets}
    encoder = TableEncoder.fit(table, exclude="y")
    TableRegressor.from_parts(as_regressor(fit, memory_budget="1MB"), encoder, "y").save("m.finitegp")
    pq.write_table(pa.table(table), "t.parquet")
    shown = run("predict", "m.finitegp", "t.parquet", "-o", "a.csv", code=1).stderr
    assert "The model was fitted with a memory budget, which predictions keep to. A budget of 1.0MB is too" in shown
    shown = run("predict", "m.finitegp", "t.parquet", "-o", "a.csv", "--memory", "64", code=1).stderr
    assert "The model was fitted" not in shown
    assert "A budget of 64 bytes is too small" in shown
    run("predict", "m.finitegp", "t.parquet", "-o", "a.csv", "--memory", "64MB")
