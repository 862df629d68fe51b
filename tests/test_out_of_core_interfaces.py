"""Fits within a memory budget by the estimator and from the command line."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from out_of_core_rows import QUICK, make_rows
from typer.testing import CliRunner

from finitegp import DataError, GPRegressor
from finitegp.automatic import EFFORTS
from finitegp.cli import app
from finitegp.estimator import as_regressor
from finitegp.model import FittedGP
from finitegp.tables.encoder import TableEncoder
from finitegp.tables.model import TableRegressor

runner = CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1", "TERM": "dumb"})


def write_table(path, rows=2000, seed=0, **more):
    inputs, targets = make_rows(rows, seed=seed)
    order = np.argsort(targets)  # sorted: only uniform sampling gets it right
    columns = {f"x{number}": inputs[order, number] for number in range(3)} | {"y": targets[order]} | more
    pq.write_table(pa.table(columns), path, row_group_size=500)
    return path


@pytest.fixture
def quick_low(monkeypatch):
    quicker = {"max_steps": 40, "min_steps": 40, "noise_min_steps": 20}
    monkeypatch.setitem(EFFORTS, "low", EFFORTS["low"].with_changes(QUICK | quicker))


class TestEstimator:
    def test_fit_predict_update_save(self, quick_low, tmp_path):
        inputs, targets = make_rows(1600)
        gp = GPRegressor(effort="low", memory_budget="16MB", random_state=0).fit(inputs, targets)
        assert gp.fits_[0].record["path"] == "networks on disk"
        assert gp.score(inputs, targets) > 0.85
        assert np.isfinite(gp.log_marginal_likelihood())
        chunk = gp.fits_[0].fitted.chunk_size
        gp.save(tmp_path / "m.finitegp")
        again = GPRegressor.load(tmp_path / "m.finitegp")
        assert (again.memory_budget, again.fits_[0].fitted.chunk_size) == ("16MB", chunk)
        for one, other in zip(again.predict(inputs, return_std=True), gp.predict(inputs, return_std=True), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9)
        gp.partial_fit(inputs[:10], targets[:10])
        assert gp.fits_[0].fitted.posterior.statistics.num_data == 1610
        assert gp.fits_[0].fitted.chunk_size == chunk

    def test_the_bill_is_shown(self, quick_low, capfd):
        inputs, targets = make_rows(1600)
        GPRegressor(effort="low", memory_budget="16MB", random_state=0, verbose=True, noise="constant").fit(
            inputs, targets
        )
        assert "Memory budget 16.0MB, planned peak" in capfd.readouterr().err

    @pytest.mark.parametrize(
        ("parameters", "message"),
        [
            ({"memory_budget": "lots"}, "memory_budget must be None or a size: 'lots' is not a size"),
            ({"memory_budget": [64]}, "memory_budget must be None or a size: A size must be text"),
            ({"memory_budget": 0}, "memory_budget must be None or a size"),
            ({"memory_budget": "64MB", "feature_map": "mlp"}, "memory_budget is for the automatic fit"),
        ],
    )
    def test_bad_budgets(self, parameters, message):
        with pytest.raises(ValueError, match=message):
            GPRegressor(**parameters).fit(*make_rows(50))

    def test_a_regressor_around_a_fit_of_rows_on_disk(self, fitted_rows, tmp_path):
        fit, rows, _ = fitted_rows
        gp = as_regressor(fit, effort="low", memory_budget="64MB")
        inputs, _ = rows.in_original_units(rows.table(0, 20))
        np.testing.assert_array_equal(gp.predict(inputs), fit.predict(inputs).mean.numpy())
        assert gp.training_summary_["rows"] == 1800
        gp.save(tmp_path / "m.finitegp")
        np.testing.assert_allclose(GPRegressor.load(tmp_path / "m.finitegp").predict(inputs), gp.predict(inputs))


def run(*arguments, code=0):
    result = runner.invoke(app, [str(each) for each in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


class TestCommands:
    def test_fit_and_predict(self, quick_low, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        colour = np.random.default_rng(0).choice(["red", "blue"], size=2000)
        write_table(tmp_path / "t.parquet", colour=colour)
        result = run("fit", "t.parquet", "--target", "y", "--effort", "low", "--memory", "24MB", "-o", "m.finitegp")
        for word in ("Memory budget 24.0MB", "exact pass", "400 held-out rows", "this model", "linear", "one-hot"):
            assert word in result.stdout
        assert result.stdout.index("Memory budget") < result.stdout.index("seconds of training")
        assert "<title>Predicting y</title>" in (tmp_path / "m.html").read_text()
        model = TableRegressor.load("m.finitegp")
        assert model.regressor_.fits_[0].fitted.posterior.statistics.num_data == 2000  # test rows taken in at the end
        assert model.regressor_.fits_[0].record["path"] == "networks on disk"
        scores = {row["name"]: row["rmse"] for row in model.summary_["scores"]}
        assert scores["this model"] < scores["linear"] < scores["mean"]
        chunk = model.regressor_.fits_[0].fitted.chunk_size

        shown = run("predict", "m.finitegp", "t.parquet", "-o", "a.parquet").stdout
        assert "Memory budget 24.0MB" in shown
        found = json.loads(
            run("predict", "m.finitegp", "t.parquet", "-o", "b.parquet", "--memory", "11MB", "--json").stdout
        )
        assert found["rows"] == 2000
        one, other = (pq.read_table(name)["y_mean"].to_numpy() for name in ("a.parquet", "b.parquet"))
        np.testing.assert_allclose(one, other, rtol=1e-9)
        assert chunk > 16

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
        errors = [line for line in result.stderr.splitlines() if not line.startswith("Note: ")]
        assert len(errors) == 1
        assert errors[0].startswith("Error: A budget of 1.0MB is too small: the smallest fit of 3 columns needs")
        assert "planned peak" in result.stdout  # the nearest plan
        advised = errors[0].rstrip(".").split("Use --memory ")[1].split(" ")[0]
        run("fit", "t.parquet", "-t", "y", "--effort", "low", "--memory", advised, "-o", "m.finitegp")
        assert "is not a size" in run("fit", "t.parquet", "-t", "y", "--memory", "lots", code=2).stderr
        assert not (tmp_path / "model.finitegp").exists()
        result = run("predict", "m.finitegp", "t.parquet", "-o", "a.csv", "--memory", "1MB", code=1)
        assert "prediction with this model needs" in result.stderr

    def test_bad_targets_are_named_with_file_and_row(self, quick_low, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        inputs, targets = make_rows(2000)
        targets[1234] = np.nan
        pq.write_table(pa.table({"x": inputs[:, 0], "y": targets}), "t.parquet")
        result = run("fit", "t.parquet", "-t", "y", "--effort", "low", "--memory", "24MB", code=1)
        assert "'y' is missing" in result.stderr
        assert "row 1234 of t.parquet" in result.stderr
        result = run("fit", "t.parquet", "-t", "Y", "--memory", "24MB", code=1)
        assert "did you mean 'y'?" in result.stderr


def test_sites_of_a_model_whose_rows_were_rounded_on_disk(fitted_rows):
    fit, rows, plan = fitted_rows
    inputs, targets = make_rows(2000)
    own = np.sort(rows.order(np.arange(plan.setting.test_rows, 2000)))

    def table(x, y):
        return {f"x{number}": x[:, number] for number in range(3)} | {"y": y}

    encoder = TableEncoder.fit(table(inputs, targets), exclude="y")
    fit = replace(fit, fitted=FittedGP(fit.fitted.model, fit.fitted.posterior, chunk_size=48))
    model = TableRegressor.from_parts(as_regressor(fit, memory_budget="64MB"), encoder, "y")
    with pytest.raises(DataError, match="site 0 has the sums of the rows that the model has already"):
        model.merge(model.statistics(table(inputs[own], targets[own])))
    joint = model.merge(model.statistics(table(*make_rows(1800, seed=1))))
    merged = joint.regressor_.fits_[0].fitted
    assert merged.posterior.statistics.num_data == 3600
    assert merged.chunk_size == 48  # of the plan: predictions keep to the budget


def test_predictions_say_that_the_budget_is_the_models_own(fitted_rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit = fitted_rows[0]
    inputs, targets = make_rows(100)
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


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_a_fit_that_is_told_to_end_leaves_no_rows_behind(tmp_path):
    write_table(tmp_path / "t.parquet")
    (tmp_path / "temporary").mkdir()
    program = (
        "import os, signal, sys, finitegp.out_of_core as places\n"
        "from finitegp.cli import app\n"
        "def stop(*_, **__):\n"
        "    print('rows on disk:', len(os.listdir(os.environ['TMPDIR'])), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "places.fit_disk_rows = stop\n"
        "app(['fit', sys.argv[1], '-o', sys.argv[2], '--target', 'y', '--memory', '64MB', '--effort', 'low'])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "t.parquet"), str(tmp_path / "m.finitegp")],
        env=os.environ | {"TMPDIR": str(tmp_path / "temporary")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "rows on disk: 1" in ended.stdout, ended.stderr
    assert ended.returncode == 143
    assert not list((tmp_path / "temporary").iterdir())
