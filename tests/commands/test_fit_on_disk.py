"""``finitegp fit --memory`` and ``finitegp predict --memory``: rows stay in the table, scores and refusals."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from budget_rows import QUICK, make_rows
from sklearn.base import clone
from typer.testing import CliRunner

from finitegp import GPRegressor, fit_source
from finitegp.automatic import EFFORTS
from finitegp.cli import app
from finitegp.estimator import as_regressor
from finitegp.features import LinearFeatures
from finitegp.tables import learning
from finitegp.tables.encoder import TableEncoder
from finitegp.tables.hold_out import Judging
from finitegp.tables.judging import fit_and_judge
from finitegp.tables.model import TableRegressor

runner = CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1", "TERM": "dumb"})


def write_table(path, rows=3000, seed=0, **more):
    inputs, targets = make_rows(rows, seed=seed)
    order = np.argsort(targets)  # sorted: only uniform sampling gets it right
    columns = {f"x{number}": inputs[order, number] for number in range(3)} | {"y": targets[order]} | more
    pq.write_table(pa.table(columns), path, row_group_size=500)
    return path


# Without the search for the target's scale, which takes longer than the fit.
FIT = ("fit", "t.parquet", "-t", "y", "--effort", "low", "--target-scale", "identity")


@pytest.fixture
def quick_low(monkeypatch):
    monkeypatch.setitem(EFFORTS, "low", EFFORTS["low"].with_changes(QUICK))


def run(*arguments, code=0):
    result = runner.invoke(app, [str(each) for each in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def described(model):
    """The encoding of a model; sums over other chunks differ in their last digits."""
    stored = model.encoder_.to_dict()
    for column in stored["columns"]:
        column["means"] = [round(mean, 9) for mean in column.get("means", ())]
    return stored


class TestCommands:
    def test_fit_and_predict(self, quick_low, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        colour = np.random.default_rng(0).choice(["red", "blue"], size=3000)
        write_table(tmp_path / "t.parquet", colour=colour)
        monkeypatch.setitem(EFFORTS, "low", EFFORTS["low"].with_changes({"steps": 200, "max_steps": 200}))
        result = run(*FIT, "--memory", "24MB", "-o", "m.finitegp")
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
        arguments = (*FIT, "--memory", "24MB", "--no-report", "--json")
        first, second = (json.loads(run(*arguments, "-o", f"{name}.finitegp").stdout) for name in "ab")
        assert first["scores"] == second["scores"]
        assert first["memory"] == "24MB"

    def test_refusals_say_what_to_do(self, quick_low, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write_table(tmp_path / "t.parquet")
        result = run(*FIT, "--memory", "1MB", code=1)
        errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
        assert len(errors) == 1
        assert errors[0].startswith(
            "Error: A budget of 1.0MB is too small: the smallest fit of 3000 rows with 3 columns needs"
        )
        assert "planned peak" in result.stdout  # the nearest plan
        advised = errors[0].rstrip(".").split("Use --memory ")[1].split(" ")[0]
        run(*FIT, "--memory", advised, "-o", "m.finitegp")
        assert "is not a size" in run("fit", "t.parquet", "-t", "y", "--memory", "lots", code=2).stderr
        assert not (tmp_path / "model.finitegp").exists()
        result = run("predict", "m.finitegp", "t.parquet", "-o", "a.csv", "--memory", "1MB", code=1)
        assert "prediction with this model needs" in result.stderr

    def test_a_budget_changes_nothing_about_columns_targets_and_weights(self, quick_low, tmp_path, monkeypatch):
        """The encodings, the scale and the rows are those of the same fit in memory."""
        monkeypatch.chdir(tmp_path)
        random = np.random.default_rng(0)
        inputs, targets = make_rows(2400)
        town = random.integers(0, 30, 2400)
        price = np.exp(0.3 * targets + 0.1 * town)
        price[[5, 1234]] = np.nan
        table = {
            "x": inputs[:, 0],
            "unused": inputs[:, 1],
            "size": pa.array([f"{value:.2f} kg" if value > 40 else None for value in inputs[:, 2]]),
            "town": [f"town {number}" for number in town],
            "times": random.integers(0, 3, 2400),
            "price": price,
        }
        pq.write_table(pa.table(table), "t.parquet", row_group_size=500)
        options = ["--only", "x", "--only", "size", "--only", "town", "--weight", "times", "--test-fraction", 0]
        arguments = ("fit", "t.parquet", "-t", "price", "--effort", "low", *options, "--memory", "32MB", "--json")
        made = json.loads(run(*arguments, "--no-report", "-o", "disk.finitegp").stdout)
        disk = TableRegressor.load("disk.finitegp")
        regressor = GPRegressor(LinearFeatures(6), algorithm="exact", random_state=0)
        memory = TableRegressor(only=["x", "size", "town"], weight="times", regressor=regressor, random_state=0)
        memory.fit("t.parquet", target="price")
        assert described(disk) == described(memory)
        assert {line.column: line.encoding for line in disk.columns_}["town"] == "target mean and place"
        assert disk.scale_ == memory.scale_
        assert disk.scale_.name == "log"
        times = table["times"][np.isfinite(price)]
        assert disk.rows_ == memory.rows_ == times.sum()
        assert made["rows"] == memory.summary_["rows"] == (times > 0).sum()
        told = "'price' is missing in 2 of 2400 rows, first in row 5 of t.parquet: these rows are left out."
        assert all(any(told in note for note in notes) for notes in (made["notes"], memory.notes_))
        assert any("Copies of rows were not looked for" in note for note in made["notes"])

    @pytest.mark.slow
    def test_a_table_in_memory_is_encoded_in_pieces_too(self, quick_low, tmp_path):
        """`TableRegressor` with a budget: the same fit from a file and from a table in memory."""
        path = write_table(tmp_path / "t.parquet", rows=2600, town=[f"town {n % 23}" for n in range(2600)])
        model = TableRegressor(effort="low", random_state=0, memory_budget="32MB", target_scale="identity")
        first, second = (clone(model).fit(data, target="y") for data in (path, pq.read_table(path)))
        for fitted in (first, second):
            assert fitted.regressor_.fits_[0].record["memory"]["planned"] < 32_000_000
            assert fitted.rows_ == 2600
        assert described(first) == described(second)
        np.testing.assert_allclose(first.predict(path), second.predict(path), rtol=1e-6)

    def test_what_cannot_hold_within_a_budget_is_refused_by_name(self, quick_low, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write_table(tmp_path / "t.parquet")
        fit = ("fit", "t.parquet", "-t", "y", "--effort", "low", "--memory", "150kB")
        for options in (("--split-by", "x0"), ("--group", "x0"), ("--cv", 3)):
            message = run(*fit, *options, code=1).stderr
            assert "takes 0.2MB, more than the memory budget: use --memory" in message
            assert f"or more, leave out {options[0]}, or give the rows to judge with as --test FILE" in message
        assert "'y' is missing" not in message
        assert "did you mean 'x0'?" in run(*fit, "--group", "x00", code=1).stderr
        assert "did you mean 'y'?" in run("fit", "t.parquet", "-t", "Y", "--memory", "24MB", code=1).stderr

    def test_another_table_judges(self, quick_low, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write_table(tmp_path / "t.parquet")
        write_table(tmp_path / "later.parquet", rows=100, seed=5)
        fit = (*FIT, "--memory", "24MB", "--json", "--no-report")
        found = json.loads(run(*fit, "--test", "later.parquet").stdout)
        assert (found["held_out_rows"], found["rows"], found["takes_in_held_out_rows"]) == (100, 3000, False)
        scores = json.loads(run("evaluate", "model.finitegp", "later.parquet", "--json").stdout)["scores"][0]
        assert found["scores"][0]["rmse"] == pytest.approx(scores["rmse"], rel=1e-9)


@pytest.fixture
def judged_rows(monkeypatch):
    """Fits in milliseconds, whose rows are still read from disk; the numbers of rows that judge, and the bills."""
    rows, bills = [], []
    judge = TableRegressor.judge

    def fit(training, source, regressor, **_):
        bills.append((training.kept_bytes, len(training.left_out)))
        return linear().regressor.fit(*source.arrays())

    def keep(model, taken, *more):
        rows.append(taken.numbers.tolist())
        return judge(model, taken, *more)

    monkeypatch.setattr(learning, "_fit_within_budget", fit)
    monkeypatch.setattr(TableRegressor, "judge", keep)
    return rows, bills


def linear(memory_budget=None):
    """A quick model in memory; within a budget, one that ``judged_rows`` makes the same."""
    regressor = GPRegressor(LinearFeatures(3), algorithm="exact", random_state=0)
    chosen = {"regressor": regressor} if memory_budget is None else {"memory_budget": memory_budget, "random_state": 0}
    return TableRegressor(only=["x0", "x1", "x2"], target_scale="identity", **chosen)


@pytest.mark.parametrize(
    "judging", [Judging(split_by="day"), Judging(group="town"), Judging(folds=3), Judging(folds=3, group="town")]
)
def test_rows_on_disk_are_judged_as_rows_in_memory(judging, judged_rows, tmp_path):
    """The same rows are held out, and the scores are the same; also with rows that have no target."""
    random = np.random.default_rng(1)
    days = np.datetime64("2020-01-01") + random.integers(0, 900, 2400)
    written = [f"{day.astype(object):%d.%m.%Y}" for day in days]
    town = [None if number == 7 else f"town {number}" for number in random.integers(0, 40, 2400)]
    path = write_table(tmp_path / "t.parquet", 2400, day=written, town=town)
    table = pq.read_table(path)
    gaps = pa.array(np.where(np.arange(2400) % 97 == 5, np.nan, table["y"].to_numpy()), from_pandas=True)
    pq.write_table(table.set_column(table.column_names.index("y"), "y", gaps), path, row_group_size=500)
    report = tmp_path / "r.html"
    plain = fit_and_judge(linear(), path, "y", judging, report=report)
    rows, bills = judged_rows
    in_memory = rows.copy()
    rows.clear()
    found = fit_and_judge(linear("128MB"), path, "y", judging, report=report)
    assert rows == in_memory
    assert len(bills) == (judging.folds + 1 if judging.folds else 1)
    assert found.held_out_rows == plain.held_out_rows
    assert found.rows == plain.rows == found.model.rows_ == 2375
    for one, other in zip(plain.scores, found.scores, strict=True):
        assert one.name == other.name
        assert one.rmse == pytest.approx(other.rmse, rel=1e-9)
        assert one.nlpd == pytest.approx(other.nlpd, rel=1e-9)


@pytest.mark.parametrize(("judging", "wanted"), [(Judging(split_by="year"), 1200), (Judging(folds=2), 6000)])
def test_held_out_rows_beyond_the_room_do_not_judge_but_are_taken_in(judging, wanted, judged_rows, tmp_path):
    path = write_table(tmp_path / "t.parquet", rows=6000, year=np.arange(6000) // 100)
    fit = fit_and_judge(linear("6MB"), path, "y", judging)
    judges = fit.held_out_rows
    assert 100 < judges < 0.9 * wanted
    assert f"{judges} rows are used for the scores instead of {wanted}: they are kept in memory." in fit.notes
    assert fit.model.rows_ == 6000
    for kept_bytes, left_out in judged_rows[1]:  # rows that judge, and the positions of all that are held out
        assert kept_bytes > 32 * left_out
    assert judged_rows[1][0][1] >= 1200


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
