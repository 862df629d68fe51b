"""Fits of rows on disk within a memory budget: plans, stages against references, estimator and commands."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from finitegp import DataError, GPRegressor
from finitegp.automatic import EFFORTS, AutoSettings, fit_auto
from finitegp.cli import app
from finitegp.data import ArraySource, NpySource, StreamSource
from finitegp.data.table_source import TableSource
from finitegp.estimator import as_regressor
from finitegp.memory import (
    KernelSetting,
    MemoryBudgetError,
    PredictionSetting,
    plan_fit,
    plan_kernel_fit,
    plan_prediction,
)
from finitegp.out_of_core import DiskRows, RandomRows, fit_disk_rows, fit_within_memory, settings_for
from finitegp.out_of_core.fit import plan_for
from finitegp.table_model import TableModel

runner = CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1", "TERM": "dumb"})
QUICK = {
    "epochs": 2,
    "min_steps": 60,
    "max_epochs": 3,
    "max_steps": 80,
    "weight_decays": (0.01,),
    "hidden": (16, 16),
    "num_frequencies": 8,
    "embedding_width": 4,
    "noise_epochs": 2,
    "noise_min_steps": 60,
    "noise_hidden": 16,
    "noise_learning_rate": 0.02,
}


def make_rows(rows=2000, columns=3, seed=0):
    """Targets with noise that grows with the first column."""
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(rows, columns)) * 10.0 + 50.0
    scaled = (inputs - 50.0) / 10.0
    noise = 2.0 * np.exp(0.8 * scaled[:, 0]) * random.normal(size=rows)
    return inputs, 1000.0 + 20.0 * np.sin(scaled[:, 0]) + 5.0 * scaled[:, 1] + noise


def write_table(path, rows=2000, seed=0, **more):
    inputs, targets = make_rows(rows, seed=seed)
    order = np.argsort(targets)  # sorted: only uniform sampling gets it right
    columns = {f"x{number}": inputs[order, number] for number in range(3)} | {"y": targets[order]} | more
    pq.write_table(pa.table(columns), path, row_group_size=500)
    return path


class TestPlan:
    def test_totals_are_sums_and_the_bill_names_every_item(self):
        plan = plan_fit("64MB", 16, num_data=10**6, test_fraction=0.2, reading_bytes=10**6, columns_bytes=10**5)
        always = sum(item.bytes for item in plan.items if item.phase == "always")
        for phase, total in plan.phases.items():
            assert total == always + sum(item.bytes for item in plan.items if item.phase == phase)
        assert plan.total == max(plan.phases.values())
        assert plan.total < plan.limit <= plan.budget
        text = str(plan)
        for word in ("held-out rows", "decoded part of the table", "noise", "exact pass", "calibration", "prediction"):
            assert word in text

    def test_smaller_budgets_give_smaller_fits_that_fit(self):
        plans = [plan_fit(10**6 * size, 16, num_data=10**6) for size in (256, 64, 32, 16, 8, 6, 4)]
        assert all(plan.fits for plan in plans)
        features = [plan.setting.num_features for plan in plans]
        assert features == sorted(features, reverse=True)
        assert plans[0].setting.members == 5
        assert plans[-1].setting.members == 1
        held_out = [plan.setting.held_out_rows for plan in plans]
        assert held_out == sorted(held_out, reverse=True)

    def test_a_budget_for_nothing_names_the_smallest_which_is_accepted(self):
        with pytest.raises(MemoryBudgetError, match=r"the smallest fit of 16 columns needs [0-9.]+MB") as refused:
            plan_fit("1MB", 16)
        needed = refused.value.plan.limit
        assert plan_fit(needed, 16).fits
        with pytest.raises(MemoryBudgetError):
            plan_fit(int(0.98 * needed), 16)

    def test_held_out_rows_are_a_tenth_and_bounded(self):
        assert plan_fit("64MB", 4, num_data=3000).setting.held_out_rows == 300
        assert plan_fit("64MB", 4, num_data=10**8).setting.held_out_rows == 20_000
        setting = plan_fit("64MB", 4, num_data=3000, test_fraction=0.2).setting
        assert (setting.test_rows, setting.held_out_rows) == (600, 300)

    def test_parameters_are_counted_as_the_networks_have_them(self):
        from finitegp import FeatureGP, Lagged
        from finitegp.automatic.members import make_network
        from finitegp.automatic.residual_noise import _make_network as make_noise_network

        settings = AutoSettings(hidden=(20, 30), num_frequencies=9, embedding_width=5)
        setting = plan_fit("64MB", 7, hidden=(20, 30), num_frequencies=9, embedding_width=5).setting
        algorithm = Lagged(FeatureGP(make_network(7, settings, seed=0), noise_variance=1.0), num_data=10)
        assert sum(p.numel() for p in algorithm.parameters()) == setting.network.num_parameters
        assert sum(p.numel() for p in make_noise_network(7, 64, 0).parameters()) == setting.noise_parameters

    def test_kernels_and_predictions_have_plans_too(self):
        small = plan_kernel_fit(10**9, KernelSetting(1500, 16, 530))
        assert small.fits
        assert "1500 rows of 16 columns" in str(small)
        assert not plan_kernel_fit(10**7, KernelSetting(1500, 16, 530)).fits
        setting = PredictionSetting(num_columns=9, num_features=641, num_parameters=200_000, layer_width=300)
        assert plan_prediction("64MB", setting).setting.chunk_size < 4096
        with pytest.raises(MemoryBudgetError, match="prediction with this model needs") as refused:
            plan_prediction("1MB", setting)
        assert plan_prediction(refused.value.plan.limit, setting).fits
        with pytest.raises(MemoryBudgetError):
            plan_prediction(int(0.98 * refused.value.plan.limit), setting)

    def test_settings_grow_with_the_rows_and_stay_where_given(self):
        assert settings_for(AutoSettings(), num_columns=40, num_data=10_000) == AutoSettings()
        large = settings_for(AutoSettings(), num_columns=2, num_data=10**8)
        assert (large.batch_size, large.embedding_width) == (1024, 32)
        given = settings_for(AutoSettings(), num_columns=2, num_data=10**8, given={"batch_size": 64})
        assert given.batch_size == 64


class TestDiskRows:
    def test_scaling_and_split(self):
        inputs, targets = make_rows(1000)
        rows = DiskRows.prepare(ArraySource(inputs, targets), chunk_size=64, seed=3)
        np.testing.assert_allclose(rows.inputs_scaler.mean, inputs.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(float(rows.target_scaler.scale), targets.std(), rtol=1e-12)
        # Tests, held-out rows and training rows are all rows, each once.
        parts = [rows.in_original_units(rows.table(start, stop))[1] for start, stop in ((0, 100), (100, 250))]
        training = RandomRows(rows.data, rows.order, start=250, count=750, offset=123)
        parts.append(rows.target_scaler.inverse(torch.cat([part.targets for part in training])[:, 0].numpy()))
        np.testing.assert_allclose(np.sort(np.concatenate(parts)), np.sort(targets), rtol=1e-12)

    def test_a_part_of_the_rows_goes_around_and_differs_by_offset(self):
        inputs, targets = make_rows(100)
        rows = DiskRows.prepare(ArraySource(inputs, targets), chunk_size=64, seed=0)
        picked = [
            set(
                RandomRows(rows.data, rows.order, start=10, count=60, offset=offset)
                .gather(np.arange(60))
                .targets[:, 0]
                .tolist()
            )
            for offset in (0, 60)
        ]
        assert [len(each) for each in picked] == [60, 60]
        assert len(picked[0] | picked[1]) == 90
        held_out = set(rows.table(0, 10).targets.tolist())
        assert not held_out & (picked[0] | picked[1])

    def test_weights_come_from_the_noise(self):
        from finitegp import InputNoise

        inputs, targets = make_rows(200)
        rows = DiskRows.prepare(ArraySource(inputs, targets), chunk_size=64, seed=0)
        noise = InputNoise(torch.nn.Linear(3, 1).requires_grad_(False), reads="inputs")
        found = RandomRows(rows.data, rows.order, start=0, count=200, noise=noise, power=0.5).gather(np.arange(9))
        with torch.no_grad():
            expected = torch.exp(-0.5 * noise.log_scale(found.inputs, found.inputs).double())
        torch.testing.assert_close(found.weights, expected, rtol=1e-6, atol=0.0)

    @pytest.mark.parametrize("center", [True, False])
    def test_prior_mean_is_that_of_the_targets_or_zero(self, center):
        inputs, targets = make_rows(500)
        rows = DiskRows.prepare(ArraySource(inputs, targets), chunk_size=64, seed=0, center=center)
        expected = (targets.mean(), targets.std()) if center else (0.0, np.sqrt(np.mean(targets**2)))
        np.testing.assert_allclose([float(rows.target_scaler.mean), float(rows.target_scaler.scale)], expected)

    def test_the_files_go_with_the_rows(self):
        inputs, targets = make_rows(100)
        rows = DiskRows.prepare(ArraySource(inputs, targets), chunk_size=64, seed=0)
        directory = rows.data.directory
        assert directory.exists()
        del rows
        assert not directory.exists()

    def test_refusals(self):
        inputs, targets = make_rows(100)
        with pytest.raises(DataError, match="give counts"):
            DiskRows.prepare(ArraySource(inputs, targets, np.ones(100)), chunk_size=64, seed=0)
        with pytest.raises(DataError, match="All targets are 5: there is nothing to learn"):
            DiskRows.prepare(ArraySource(inputs, np.full(100, 5.0)), chunk_size=64, seed=0)
        with pytest.raises(DataError, match="one column, but are 2"):
            DiskRows.prepare(ArraySource(inputs, inputs[:, :2]), chunk_size=64, seed=0)


@pytest.fixture(scope="module")
def fitted_rows(tmp_path_factory):
    """A fit with test rows, and the rows."""
    inputs, targets = make_rows(2000)
    settings = settings_for(EFFORTS["low"], num_columns=3, num_data=2000, given=QUICK)
    plan = plan_for("64MB", settings, num_columns=3, num_data=2000, test_fraction=0.1)
    rows = DiskRows.prepare(ArraySource(inputs, targets), chunk_size=plan.setting.chunk_size, seed=0)
    return fit_disk_rows(rows, plan, settings, seed=0), rows, plan


class TestFit:
    def test_the_posterior_is_the_exact_one_of_all_rows_but_the_test_rows(self, fitted_rows, tolerances):
        fit, rows, plan = fitted_rows
        tests = plan.setting.test_rows
        assert tests == 200
        others = rows.table(tests, len(rows))
        reference = fit.fitted.model.condition(others.source())  # one pass over exactly these rows
        found, expected = fit.fitted.posterior.statistics, reference.posterior.statistics
        assert found.num_data == 1800
        for name in ("gram", "projected_targets", "target_sum_of_squares", "log_scale_sum"):
            torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-9)
        new = rows.table(0, tests).inputs
        torch.testing.assert_close(fit.fitted.predict(new).mean, reference.predict(new).mean, rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(
            fit.fitted.predict(new).variance, reference.predict(new).variance, rtol=1e-7, atol=1e-9
        )

    def test_it_learns_mean_and_noise(self, fitted_rows):
        fit, rows, plan = fitted_rows
        inputs, targets = rows.in_original_units(rows.table(0, plan.setting.test_rows))
        prediction = fit.predict(inputs)
        error = prediction.mean.numpy() - targets
        assert np.sqrt(np.mean(error**2)) < 0.4 * targets.std()  # a linear model has 0.43
        inside = np.abs(error) < 1.645 * prediction.std.numpy()
        assert 0.8 < inside.mean() < 0.98
        quiet, loud = inputs[:, 0] < 42.0, inputs[:, 0] > 58.0
        assert prediction.std[loud].mean() > 1.5 * prediction.std[quiet].mean()
        lower, upper = fit.interval(inputs, 0.9, method="conformal")
        assert 0.8 < np.mean((targets > lower.numpy()) & (targets < upper.numpy())) < 0.98

    def test_the_record_says_what_was_planned_and_chosen(self, fitted_rows):
        fit, _, plan = fitted_rows
        record = json.loads(json.dumps(fit.record))
        assert record["memory"]["budget"] == 64 * 10**6
        assert record["memory"]["planned"] == plan.total
        assert record["race"]["frequency_scale"] in record["race"]["frequencies"]["frequency_scales"]
        assert record["validation_nlpd"] < 1.4
        assert fit.fitted.chunk_size == plan.setting.chunk_size

    def test_every_kind_of_source_gives_the_same_fit(self, tmp_path):
        inputs, targets = make_rows(400)
        np.save(tmp_path / "inputs.npy", inputs)
        np.save(tmp_path / "targets.npy", targets)
        names = [f"x{number}" for number in range(3)]
        pq.write_table(pa.table({**dict(zip(names, inputs.T, strict=True)), "y": targets}), tmp_path / "rows.parquet")
        sources = [
            (inputs, targets),
            NpySource(tmp_path / "inputs.npy", tmp_path / "targets.npy"),
            TableSource(tmp_path / "rows.parquet", "y"),
            StreamSource((torch.from_numpy(row), target) for row, target in zip(inputs, targets, strict=True)),
        ]
        settings = QUICK | {"small_rows": 0, "max_steps": 6, "min_steps": 6, "noise_min_steps": 4, "noise_epochs": 1}
        means = []
        for source in sources:
            if isinstance(source, StreamSource):
                source.input_dim = 3
            known = {"batch_size": 128}  # a stream does not know how many rows it has
            fit = fit_within_memory(source, "16MB", effort="low", settings=settings | known, seed=1)
            means.append(fit.predict(inputs[:20]).mean)
        for mean in means[1:3]:
            torch.testing.assert_close(mean, means[0], rtol=1e-6, atol=1e-6)
        assert bool(torch.isfinite(means[3]).all())

    def test_counts_are_repetitions_in_the_posterior(self):
        inputs, targets = make_rows(400)
        counts = np.random.default_rng(0).integers(1, 4, size=400).astype(float)
        settings = QUICK | {"small_rows": 0, "max_steps": 6, "min_steps": 6}
        fit = fit_within_memory(
            (inputs, targets, None, counts), "16MB", effort="low", noise="constant", settings=settings
        )
        assert fit.fitted.posterior.statistics.num_data == counts.sum()
        np.testing.assert_allclose(float(fit.target_scaler.mean), np.average(targets, weights=counts), rtol=1e-12)

    def test_small_tables_have_kernels_if_there_is_room(self):
        inputs, targets = make_rows(150)
        fit = fit_within_memory((inputs, targets), "64MB", effort="low", settings={"fourier_features": 24})
        expected = fit_auto(inputs, targets, effort="low", settings={"fourier_features": 24})
        assert fit.record["path"] == "kernel"
        torch.testing.assert_close(fit.predict(inputs).mean, expected.predict(inputs).mean)
        tight = fit_within_memory((inputs, targets), "5MB", effort="low", noise="constant", settings=QUICK)
        assert tight.record["path"] == "networks on disk"
        with pytest.raises(MemoryBudgetError, match="so few rows are fitted by a kernel"):
            fit_within_memory((inputs[:50], targets[:50]), "2MB", effort="low")

    def test_arguments_are_checked_before_rows_are_read(self):
        class Unreadable(ArraySource):
            def __iter__(self):
                raise AssertionError("was read")

        source = Unreadable(*make_rows(2000))
        with pytest.raises(MemoryBudgetError):
            fit_within_memory(source, "1MB")
        with pytest.raises(ValueError, match="effort must be one of"):
            fit_within_memory(source, "64MB", effort="much")
        with pytest.raises(ValueError, match="noise must be"):
            fit_within_memory(source, "64MB", noise="none")
        with pytest.raises(ValueError, match="is not a size"):
            fit_within_memory(source, "lots")
        shown = []
        with pytest.raises(AssertionError, match="was read"):
            fit_within_memory(source, "64MB", on_plan=shown.append)
        assert shown[0].fits


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
        model = TableModel.load("m.finitegp")
        assert model.regressor.fits_[0].fitted.posterior.statistics.num_data == 2000  # test rows taken in at the end
        assert model.regressor.fits_[0].record["path"] == "networks on disk"
        scores = {row["name"]: row["rmse"] for row in model.summary["scores"]}
        assert scores["this model"] < scores["linear"] < scores["mean"]
        chunk = model.regressor.fits_[0].fitted.chunk_size

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


LIMITED = """
import gc, json, resource, sys
import numpy as np, torch
from finitegp.automatic import EFFORTS
from finitegp.data import NpySource
from finitegp.experiments.environment import peak_memory_bytes, reset_peak_memory, resident_memory_bytes
from finitegp.libraries import load_libraries
from finitegp.memory import MemoryBudgetError, return_freed_memory
from finitegp.out_of_core import fit_within_memory

def virtual_data(key):
    line = next(line for line in open("/proc/self/status") if line.startswith(key))
    return 1024 * int(line.split()[1])

torch.set_num_threads(1)
return_freed_memory()
directory, effort, columns = sys.argv[1], sys.argv[2], 8
random = np.random.default_rng(0)
inputs = random.normal(size=(20_000, columns)).astype(np.float32)
targets = np.sin(2 * inputs[:, 0]) + 0.3 * np.exp(0.5 * inputs[:, 1]) * random.normal(size=20_000)
np.save(directory + "/inputs.npy", inputs)
np.save(directory + "/targets.npy", targets)
few = {"max_steps": 120, "min_steps": 60, "noise_min_steps": 100, "noise_epochs": 1}
options = {"effort": effort, "settings": few}
load_libraries(tables=False, optimizers=False)
source = NpySource(directory + "/inputs.npy", directory + "/targets.npy")
del inputs, targets
plans = []

def refused(budget):
    class Stop(Exception):
        pass

    def stop(plan):
        plans.append(plan)
        raise Stop

    try:
        fit_within_memory(source, budget, on_plan=stop, **options)
    except MemoryBudgetError:
        return True
    except Stop:
        return False

low, high = 10**6, 10**9
while high - low > 10_000:  # the smallest budget that is not refused
    middle = (low + high) // 2
    low, high = (middle, high) if refused(middle) else (low, middle)
budgets = [high, 32 * 10**6]
found = []
for budget in budgets:
    assert not refused(budget)
    plan = plans[-1]
    gc.collect()
    return_freed_memory()
    before = virtual_data("VmData")
    resource.setrlimit(resource.RLIMIT_DATA, (before + plan.limit, resource.RLIM_INFINITY))
    reset_peak_memory()
    baseline = resident_memory_bytes()
    fit = fit_within_memory(source, budget, **options)
    refined = "refinement" in fit.record
    source.chunk_size = fit.fitted.chunk_size
    rows = sum(len(fit.predict(part.inputs).mean) for part in source)
    source.chunk_size = 4096
    share = (peak_memory_bytes() - baseline) / plan.total
    try:
        # The limit is there, whatever has been given back since it was set.
        block = np.ones(int(1.2 * plan.limit) + max(before - virtual_data("VmData"), 0), dtype=np.uint8)
        limited = False
    except MemoryError:
        limited = True
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    features = plan.setting.num_features
    found.append({"rows": rows, "limited": limited, "features": features, "share": share, "refined": refined})
    del fit
print(json.dumps({"found": found, "refused": refused(low)}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sets RLIMIT_DATA")
@pytest.mark.parametrize("effort", ["low", "medium"])
def test_a_whole_fit_finishes_under_a_hard_limit_set_from_its_plan(tmp_path, effort):
    arguments = [sys.executable, "-c", LIMITED, str(tmp_path), effort]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    assert result["refused"]
    for found in result["found"]:
        assert found["limited"]
        assert found["rows"] == 20_000
        assert found["refined"] == (effort == "medium")
    assert 0.85 < result["found"][1]["share"] < 1.05  # the plan is right
    assert result["found"][0]["features"] < result["found"][1]["features"]
