"""The commands on tables: what they write agrees with the library, for people and for scripts."""

from __future__ import annotations

import dataclasses
import gzip
import re
import shlex
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from command_runs import run, run_json, runner
from conftest import write_shop_table
from pyarrow import csv

from finitegp import DataError, GPRegressor
from finitegp.cli import app
from finitegp.metrics import Scores
from finitegp.report import evaluation
from finitegp.tables.model import TableRegressor
from finitegp.tables.reader import TableReader


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_fit_writes_model_and_report_and_shows_columns_and_scores(shop):
    assert (shop / "price.finitegp").exists()
    page = (shop / "price.html").read_text()
    assert "<title>Predicting price</title>" in page
    result = run("info", shop / "price.finitegp")
    for word in ("width", "one-hot", "date parts", "12 held-out rows", "this model", "linear", "mean", "in 90 %"):
        assert word in result.stdout


def test_fit_for_scripts_and_what_the_file_holds(here, shop, quick_effort):
    found = run_json("fit", shop / "train.csv", "-t", "price", "--effort", "low", "-o", "m.finitegp", "--seed", 3)
    assert (found["model"], found["report"]) == ("m.finitegp", "m.html")
    assert (found["rows"], found["held_out_rows"], found["takes_in_held_out_rows"]) == (60, 12, True)
    assert [line["encoding"] for line in found["columns"]] == ["number", "one-hot", "date parts"]
    ours, linear, mean = found["scores"]
    assert [each["name"] for each in found["scores"]] == ["this model", "linear", "mean"]
    assert set(ours) == {field.name for field in dataclasses.fields(Scores)}
    assert set(ours["coverage"]) == {"0.5", "0.9", "0.95"}
    assert linear["rmse"] < mean["rmse"]
    model = TableRegressor.load("m.finitegp")
    assert model.summary_["scores"] == found["scores"]
    assert model.regressor_.fits_[0].fitted.posterior.statistics.num_data == 60  # the held-out rows too
    info = run_json("info", "m.finitegp")
    assert (info["rows"], info["rows_taken_in_after_training"]) == (60, 12)
    assert info["predictive_distribution"] == "a mixture of Student's t"
    assert info["summary"]["scores"] == found["scores"]


def test_info_shows_the_file_of_a_regressor(here):
    inputs = np.random.default_rng(0).normal(size=(40, 2))
    GPRegressor(effort="low", random_state=0).fit(inputs, inputs @ [1.0, 2.0]).save("m.finitegp")
    info = run_json("info", "m.finitegp")
    assert (info["rows"], info["inputs"], info["holds_training_rows"]) == (40, 2, True)
    assert "holds training rows" in run("info", "m.finitegp").stdout


def test_the_linear_baseline_is_fitted_once_and_page_and_terminal_agree(here, shop, quick_effort, monkeypatch):
    counts = {"linear": 0}

    def counted(name, function):
        def call(*arguments, **options):
            counts[name] += 1
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(evaluation, "predict_linear", counted("linear", evaluation.predict_linear))
    found = run_json("fit", shop / "train.csv", "-t", "price", "--effort", "low", "-o", "m.finitegp")
    assert counts == {"linear": 1}
    # The page shows what the command prints, to its digits.
    shown = f"{found['scores'][0]['rmse']:.4g}"
    assert shown in run("info", "m.finitegp").stdout
    assert f">{shown}<" in (here / "m.html").read_text()


def test_held_out_scores_are_of_rows_that_training_did_not_see(here, shop, quick_effort):
    found = run_json("fit", shop / "train.csv", "-t", "price", "--effort", "low", "--no-report", "--seed", 1)
    assert found["report"] is None
    assert not list(here.glob("*.html"))
    # Without its held-out rows, the saved model gives the scores again; they are those that the seed draws.
    model = TableRegressor.load("model.finitegp")
    table = TableReader(shop / "train.csv")
    inputs = model.encoder_.transform(table)
    targets = np.asarray(table.read()["price"])
    held_out = np.sort(np.random.default_rng(1).permutation(60)[:12])
    regressor = model.regressor_.forget(inputs[held_out], targets[held_out])
    error = regressor.predict(inputs[held_out]) - targets[held_out]
    assert found["scores"][0]["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-6)
    mean = np.delete(targets, held_out).mean()
    assert found["scores"][2]["rmse"] == pytest.approx(np.sqrt(np.mean((targets[held_out] - mean) ** 2)), rel=1e-9)


def test_the_same_seed_gives_the_same_predictions(here, shop, quick_effort):
    run("fit", shop / "train.csv", "-t", "price", "--effort", "low", "-o", "again.finitegp", "--no-report")
    for name, model in (("a.csv", shop / "price.finitegp"), ("b.csv", "again.finitegp")):
        run("predict", model, shop / "new.csv", "-o", name)
    assert (here / "a.csv").read_bytes() == (here / "b.csv").read_bytes()


def test_predict_adds_columns_that_agree_with_the_library(here, shop):
    found = run_json("predict", shop / "price.finitegp", shop / "new.csv", "-o", "out.csv", "--coverage", 0.8)
    assert found["columns"] == ["price_mean", "price_std", "price_lower", "price_upper"]
    out = csv.read_csv("out.csv")
    assert out.column_names == ["width", "colour", "sold", "price", *found["columns"]]
    assert out.select(["width", "colour", "sold", "price"]).equals(csv.read_csv(shop / "new.csv"))
    model = TableRegressor.load(shop / "price.finitegp")
    inputs = model.encoder_.transform(TableReader(shop / "new.csv"))
    mean, std = model.regressor_.predict(inputs, return_std=True)
    lower, upper = model.regressor_.predict_interval(inputs, coverage=0.8)
    for name, expected in (("mean", mean), ("std", std), ("lower", lower), ("upper", upper)):
        np.testing.assert_allclose(out[f"price_{name}"], expected, rtol=1e-12)


def test_conformal_intervals_agree_with_the_library(here, shop):
    arguments = ("predict", shop / "price.finitegp", shop / "new.csv", "-o", "out.csv", "--interval", "conformal")
    run(*arguments, "--coverage", 0.8)
    model = TableRegressor.load(shop / "price.finitegp")
    inputs = model.encoder_.transform(TableReader(shop / "new.csv"))
    lower, upper = model.regressor_.predict_interval(inputs, coverage=0.8, method="conformal")
    out = csv.read_csv("out.csv")
    np.testing.assert_allclose(out["price_lower"], lower, rtol=1e-12)
    np.testing.assert_allclose(out["price_upper"], upper, rtol=1e-12)
    result = runner.invoke(app, [*map(str, arguments), "--coverage", "0.999", "--force"])
    assert result.exit_code == 1
    assert "cannot be promised by 48 left-out rows" in result.stderr


def test_predict_in_pieces_and_in_every_kind_of_file(here, shop, monkeypatch):
    run("predict", shop / "price.finitegp", shop / "new.csv", "-o", "whole.csv")
    monkeypatch.setattr("finitegp.tables.reader._MAX_CHUNK_ROWS", 7)
    assert len(list(TableReader(shop / "new.csv"))) == 4
    for name in ("pieces.csv", "pieces.csv.gz", "pieces.parquet"):
        run("predict", shop / "price.finitegp", shop / "new.csv", "-o", name)
    whole = csv.read_csv("whole.csv")
    for pieces in (csv.read_csv("pieces.csv"), csv.read_csv("pieces.csv.gz"), pq.read_table("pieces.parquet")):
        assert pieces.column_names == whole.column_names
        for name in whole.column_names[-4:]:
            np.testing.assert_allclose(pieces[name], whole[name], rtol=1e-9)


def test_several_files_gzip_and_parquet_are_one_table(here, shop):
    lines = (shop / "new.csv").read_text().splitlines(keepends=True)
    (here / "a.csv").write_text("".join(lines[:10]))
    (here / "b.csv.gz").write_bytes(gzip.compress("".join([lines[0], *lines[10:]]).encode()))
    pq.write_table(csv.read_csv(shop / "new.csv"), "c.parquet")
    one = run_json("evaluate", shop / "price.finitegp", shop / "new.csv")
    two = run_json("evaluate", shop / "price.finitegp", "a.csv", "b.csv.gz")
    three = run_json("evaluate", shop / "price.finitegp", "c.parquet")
    assert one["rows"] == two["rows"] == three["rows"] == 25
    for name in ("rmse", "nlpd", "crps"):
        assert two["scores"][0][name] == pytest.approx(one["scores"][0][name], rel=1e-9)
        assert three["scores"][0][name] == pytest.approx(one["scores"][0][name], rel=1e-9)


def test_evaluate_agrees_with_its_definition(shop):
    found = run_json("evaluate", shop / "price.finitegp", shop / "new.csv")
    model = TableRegressor.load(shop / "price.finitegp")
    table = TableReader(shop / "new.csv")
    mean = model.regressor_.predict(model.encoder_.transform(table))
    truth = np.asarray(table.read()["price"])
    assert found["scores"][0]["rmse"] == pytest.approx(np.sqrt(np.mean((mean - truth) ** 2)), rel=1e-12)
    lower, upper = model.regressor_.predict_interval(model.encoder_.transform(table), coverage=0.9)
    inside = np.mean((lower <= truth) & (truth <= upper))
    assert found["scores"][0]["coverage"]["0.9"] == pytest.approx(inside)
    shown = run("evaluate", shop / "price.finitegp", shop / "new.csv").stdout
    assert "25 rows" in shown
    assert "training mean" in shown


def test_update_is_the_exact_posterior_of_all_rows(here, shop, monkeypatch):
    monkeypatch.setattr("finitegp.tables.reader._MAX_CHUNK_ROWS", 10)
    found = run_json("update", shop / "price.finitegp", shop / "new.csv", "-o", "more.finitegp")
    assert (found["rows_added"], found["rows"]) == (25, 85)
    model = TableRegressor.load(shop / "price.finitegp")
    table = TableReader(shop / "new.csv")
    inputs = model.encoder_.transform(table)
    expected = model.regressor_.partial_fit(inputs, np.asarray(table.read()["price"])).predict(inputs)
    np.testing.assert_allclose(TableRegressor.load("more.finitegp").regressor_.predict(inputs), expected, rtol=1e-9)


def test_forget_is_the_opposite_of_update(here, shop):
    run_json("update", shop / "price.finitegp", shop / "new.csv", "-o", "more.finitegp")
    found = run_json("forget", "more.finitegp", shop / "new.csv", "-o", "back.finitegp")
    assert (found["rows_forgotten"], found["rows"]) == (25, 60)
    first, more, back = (
        TableRegressor.load(path) for path in (shop / "price.finitegp", "more.finitegp", "back.finitegp")
    )
    table = TableReader(shop / "new.csv")
    inputs = first.encoder_.transform(table)
    expected = first.regressor_.predict(inputs)
    np.testing.assert_allclose(back.regressor_.predict(inputs), expected, rtol=1e-6)
    assert not np.allclose(more.regressor_.predict(inputs), expected, rtol=1e-6)
    assert "25 rows forgotten" in run("forget", "more.finitegp", shop / "new.csv", "-o", "b.finitegp").stdout


def test_a_model_of_another_name_for_the_target(here, shop):
    (here / "n.csv").write_text((shop / "new.csv").read_text().replace("price", "paid"))
    one = run_json("evaluate", shop / "price.finitegp", "n.csv", "--target", "paid")
    two = run_json("evaluate", shop / "price.finitegp", shop / "new.csv")
    assert one["scores"] == two["scores"]
    assert one["target"] == "paid"


def test_other_delimiters_and_encodings_are_read(here, shop):
    text = (shop / "new.csv").read_text()
    (here / "n.csv").write_bytes(text.replace(",", ";").replace("price", "größe").encode("latin-1"))
    options = ("--delimiter", ";", "--encoding", "latin-1", "--target", "größe")
    one = run_json("evaluate", shop / "price.finitegp", "n.csv", *options)
    assert one["scores"] == run_json("evaluate", shop / "price.finitegp", shop / "new.csv")["scores"]
    (here / "n.csv").write_text(text.replace(",", "\t"))
    one = run_json("evaluate", shop / "price.finitegp", "n.csv", "--delimiter", "tab")
    assert one["rows"] == 25


def test_report_on_new_rows(here, shop):
    found = run_json("report", shop / "price.finitegp", shop / "new.csv", "-o", "new.html")
    assert found["rows"] == 25
    assert "width" in (here / "new.html").read_text()
    assert "new.html" in run("report", shop / "price.finitegp", shop / "new.csv", "-o", "new.html", "--force").stdout


def test_missing_values_can_be_put_in(here, shop, quick_effort):
    lines = (shop / "train.csv").read_text().splitlines()
    lines[5] = "," + lines[5].split(",", 1)[1]
    (here / "t.csv").write_text("\n".join(lines) + "\n")
    found = run_json("fit", "t.csv", "-t", "price", "--effort", "low", "--test-fraction", 0)
    assert any("Gaps were filled with the usual value" in note and "'width (1)'" in note for note in found["notes"])
    # A gap where the fit saw some is no news; one elsewhere is.
    (here / "n.csv").write_text("width,colour,sold\n,red,2024-01-01\n3.0,,2024-01-01\n")
    found = run_json("predict", "model.finitegp", "n.csv", "-o", "out.csv")
    assert not any("'width'" in note for note in found["notes"])
    assert any("'colour': 1 of 2 values were missing" in note for note in found["notes"])


def test_dropped_columns_and_small_tables(here, quick_effort):
    write_shop_table(here / "t.csv", 8)
    arguments = ("fit", "t.csv", "-t", "price", "--effort", "low", "--drop", "colour", "--drop", "sold")
    found = run_json(*arguments)
    assert [line["column"] for line in found["columns"]] == ["width"]
    # Too few to hold some out: every row is judged by a model that did not see it.
    assert (len(found["scores"]), found["report"], found["held_out_rows"]) == (3, "model.html", 8)
    assert found["judged_by"] == "5-fold cross-validation"
    found = run_json(*arguments, "--test-fraction", 0, "--force")
    assert (found["scores"], found["report"], found["held_out_rows"]) == ([], None, 0)
    assert any("No rows are held out" in note for note in found["notes"])


def test_nothing_is_left_behind_when_a_table_breaks_in_the_middle(here, shop):
    (here / "n.csv").write_text("width,colour,sold\n" + "1,red,2024-01-01\n" * 50 + "wide,red,2024-01-01\n")
    result = runner.invoke(app, ["predict", str(shop / "price.finitegp"), "n.csv", "-o", "out.csv"])
    assert result.exit_code == 1
    assert sorted(file.name for file in here.iterdir()) == ["n.csv"]


def test_lists_cannot_be_written_as_csv(here):
    import pyarrow as pa

    from finitegp.commands.predict import table_writer

    with (
        pytest.raises(DataError, match="holds lists"),
        table_writer(here / "out.csv", pa.schema([("a", pa.list_(pa.int64()))])),
    ):
        pass


def test_help_has_examples():
    for command in ("fit", "predict", "evaluate", "update", "info", "report"):
        assert f"finitegp {command} " in run(command, "--help").stdout


def test_the_commands_of_the_documentation_run(here, quick_effort, monkeypatch):
    from importlib.resources import files

    from finitegp.automatic import EFFORTS

    monkeypatch.setitem(EFFORTS, "medium", EFFORTS["low"])
    bundled = gzip.decompress((files("finitegp.data") / "bundled" / "diamonds.csv.gz").read_bytes()).decode()
    header, *rows = bundled.splitlines(keepends=True)
    for number, name in enumerate(("diamonds.csv", "new.csv", "later.csv", "north.csv", "south.csv")):
        (here / name).write_text(header + "".join(rows[number::400][:130]))
    text = (Path(__file__).resolve().parents[2] / "docs" / "command-line.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    described = {"fit", "predict", "evaluate", "report", "update", "forget", "info", "statistics", "merge"}
    assert {line.split()[1] for line in lines} == described
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "finitegp"
        run(*arguments)
    assert {"price.finitegp", "price.html", "predicted.csv", "later.html", "joint.finitegp"} <= {
        file.name for file in here.iterdir()
    }
