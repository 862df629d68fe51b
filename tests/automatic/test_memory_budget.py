"""Fits within a memory budget: the same recipe, the exact posterior of all rows, and bills that are measured."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from budget_rows import QUICK, make_rows

from finitegp import fit_source, fit_within_memory
from finitegp.automatic import EFFORTS
from finitegp.automatic.budget import SmallTableSetting, plan_small_table
from finitegp.automatic.large_table_memory import LargeTableSetting, memory_bill, plan_large_table
from finitegp.automatic.table import draw_sample
from finitegp.data import ArraySource, IterableSource, NpySource, ScaledSource, Scaling, StreamSource
from finitegp.errors import DataError
from finitegp.memory import MemoryBudgetError
from finitegp.tables.source import TableSource

ROOT = Path(__file__).resolve().parents[2]  # where `benchmarks` is


def assert_same(one, other, inputs):
    for name in ("mean", "variance"):
        assert torch.equal(getattr(one.predict(inputs), name), getattr(other.predict(inputs), name))


class TestSameRecipe:
    @pytest.mark.parametrize(("rows", "path"), [(60, "kernel"), (2200, "networks"), (12_000, "networks")])
    def test_a_budget_with_room_for_everything_changes_nothing(self, rows, path):
        inputs, targets = make_rows(rows)
        plain, budgeted = (
            fit_source((inputs, targets), effort="low", settings=QUICK, memory_budget=budget)
            for budget in (None, "100GB")
        )
        assert plain.record["path"] == budgeted.record["path"] == path
        assert plain.record["settings"] == budgeted.record["settings"]
        assert_same(plain, budgeted, inputs[:100])
        assert "memory" not in plain.record
        assert budgeted.record["memory"]["budget"] == 100 * 10**9

    def test_the_posterior_is_that_of_every_row_of_a_file(self, tmp_path):
        inputs, targets = make_rows(12_000)
        np.save(tmp_path / "inputs.npy", inputs.astype(np.float32))
        np.save(tmp_path / "targets.npy", targets)
        source = NpySource(tmp_path / "inputs.npy", tmp_path / "targets.npy")
        fit = fit_within_memory(source, "12MB", effort="low", settings=QUICK | {"max_sample": 3000}, seed=1)
        assert fit.chunk_size < 4096
        scaled = ScaledSource(
            ArraySource(inputs.astype(np.float32), targets), Scaling(fit.inputs_scaler, fit.target_scaler)
        )
        reference = fit.fitted.model.condition(scaled)
        assert fit.num_data == 12_000
        found, expected = fit.fitted.posterior, reference.posterior
        torch.testing.assert_close(found.statistics.gram, expected.statistics.gram, rtol=1e-9, atol=1e-9)
        new = fit.inputs_scaler.transform(inputs[:50])
        torch.testing.assert_close(fit.fitted.predict(new).mean, reference.predict(new).mean, rtol=1e-7, atol=1e-8)

    def test_it_learns_mean_and_noise(self):
        inputs, targets = make_rows(12_000)
        few = {"steps": 400, "max_steps": 400, "noise_steps": 300}
        fit = fit_within_memory((inputs[:11_000], targets[:11_000]), "16MB", effort="low", settings=few)
        new, observed = inputs[11_000:], targets[11_000:]
        prediction = fit.predict(new)
        error = prediction.mean.numpy() - observed
        assert np.sqrt(np.mean(error**2)) < 0.4 * observed.std()  # a linear model has 0.43
        lower, upper = fit.interval(new, 0.9)
        assert 0.85 < np.mean((observed > lower.numpy()) & (observed < upper.numpy())) < 0.95
        quiet, loud = new[:, 0] < 42.0, new[:, 0] > 58.0
        assert prediction.std[loud].mean() > 1.5 * prediction.std[quiet].mean()

    def test_every_kind_of_source_gives_the_same_fit(self, tmp_path):
        inputs, targets = make_rows(600)
        np.save(tmp_path / "inputs.npy", inputs)
        np.save(tmp_path / "targets.npy", targets)
        names = [f"x{number}" for number in range(3)]
        pq.write_table(pa.table({**dict(zip(names, inputs.T, strict=True)), "y": targets}), tmp_path / "rows.parquet")
        sources = [
            (inputs, targets),
            NpySource(tmp_path / "inputs.npy", tmp_path / "targets.npy"),
            (np.load(tmp_path / "inputs.npy", mmap_mode="r"), np.load(tmp_path / "targets.npy", mmap_mode="r")),
            TableSource(tmp_path / "rows.parquet", "y"),
            StreamSource((torch.from_numpy(row), target) for row, target in zip(inputs, targets, strict=True)),
        ]
        fits = [
            fit_within_memory(source, "16MB", effort="low", settings=QUICK | {"small_rows": 1, "most_rows_for_both": 0})
            for source in sources
        ]
        means = [fit.predict(inputs[:20]).mean for fit in fits]
        for mean in means[1:]:
            # Rows that can be read by number are summed in two shares, others in one.
            torch.testing.assert_close(mean, means[0], rtol=1e-6, atol=1e-6)

    def test_counts_are_repetitions_and_weights_are_refused(self):
        inputs, targets = make_rows(400)
        counts = np.random.default_rng(0).integers(1, 4, size=400).astype(float)
        quick = QUICK | {"small_rows": 1, "most_rows_for_both": 0}
        fit = fit_within_memory((inputs, targets, None, counts), "16MB", effort="low", settings=quick)
        assert fit.num_data == counts.sum()
        with pytest.raises(DataError, match="Weights of rows cannot be used by the automatic fit"):
            fit_within_memory((inputs, targets, counts), "16MB", effort="low", settings=quick)


class TestSample:
    def test_rows_by_number_and_rows_in_order_give_the_same_sample(self):
        inputs, targets = make_rows(5000)
        counts = np.arange(5000.0) + 1.0
        taken = draw_sample(ArraySource(inputs, targets, counts=counts, chunk_size=64), 5000, 700, seed=3)
        chunks = [(inputs[i : i + 900], targets[i : i + 900], None, counts[i : i + 900]) for i in range(0, 5000, 900)]
        passed = draw_sample(IterableSource(chunks), 5000, 700, seed=3)
        for name in ("inputs", "targets", "counts"):
            np.testing.assert_array_equal(getattr(taken, name), getattr(passed, name))
        numbers = taken.counts.astype(int) - 1
        assert len(np.unique(numbers)) == 700
        np.testing.assert_array_equal(taken.inputs, inputs[numbers])

    def test_each_row_is_as_likely_as_any_other_and_so_is_each_place(self):
        rows = ArraySource(np.zeros((40, 1)), np.arange(40.0))
        drawn = np.array([draw_sample(rows, 40, 10, seed=seed).targets for seed in range(2000)]).astype(int)
        for numbers in (drawn, drawn[:, 0]):
            counts = np.bincount(numbers.ravel(), minlength=40)
            expected = numbers.size / 40
            assert np.sum((counts - expected) ** 2 / expected) < 75.0  # chi-squared, 39 degrees: one in 2,000

    def test_all_rows_where_there_are_no_more(self):
        inputs, targets = make_rows(50)
        sample = draw_sample(ArraySource(inputs, targets), 50, 100, seed=0)
        assert sorted(sample.targets) == sorted(targets)
        assert not np.array_equal(sample.targets, targets)  # networks set the first rows aside

    def test_bad_values_are_found_before_anything_is_trained(self):
        inputs, targets = make_rows(12_000)
        inputs[11_987, 1] = np.nan
        told = []
        with pytest.raises(DataError, match="row 11987, column 1 is nan"):
            fit_source((inputs, targets), effort="low", settings=QUICK | {"max_sample": 200}, progress=told.append)
        assert not told


def wanted(rows=10**7, columns=16, effort="medium"):
    settings = EFFORTS[effort]
    return LargeTableSetting(settings, settings, rows, columns, threads=2)


class TestPlans:
    def test_a_smaller_budget_gives_a_smaller_plan_that_fits(self):
        plans = [plan_large_table(10**6 * size, wanted()) for size in (10_000, 1000, 180, 128, 64, 32, 16, 14)]
        assert all(plan.fits for plan in plans)
        features = [plan.setting.num_features for plan in plans]
        assert features == sorted(features, reverse=True)
        assert plans[0].setting == wanted()
        assert "nothing is smaller" in plans[0].setting.describe()
        # Only where a smaller sample is not enough, the model is smaller.
        assert plans[2].setting.changes() == ["chunk_size"]
        assert plans[-1].setting.settings.members < 4
        assert "members 2 instead of 4" in str(plans[-1])

    def test_the_number_of_rows_makes_no_difference(self):
        one, other = (plan_large_table(32 * 10**6, wanted(rows)) for rows in (10**6, 10**9))
        assert one.total == other.total
        assert one.setting.settings == other.setting.settings

    def test_totals_are_sums_of_the_bill(self):
        plan = plan_large_table(64 * 10**6, wanted())
        assert plan.items == tuple(memory_bill(plan.setting))
        always = sum(item.bytes for item in plan.items if item.phase == "always")
        for phase, total in plan.phases.items():
            assert total == always + sum(item.bytes for item in plan.items if item.phase == phase)
        assert plan.total == max(plan.phases.values())
        assert plan.total < plan.limit <= plan.budget

    def test_kernels_take_memory_with_the_square_of_the_rows(self):
        small, large = (plan_small_table(10**10, SmallTableSetting(rows, 4, 300, 2)).total for rows in (1000, 2000))
        assert 3.7 < large / small < 4.1
        one_thread = plan_small_table(int(1.05 * 10**6), SmallTableSetting(40, 4, 300, 2))
        assert one_thread.setting.threads == 1


class TestTooSmall:
    def test_kernels_without_room_are_networks(self):
        inputs, targets = make_rows(600)
        shown = []
        settings = QUICK | {"learning_rows": 60}
        fit = fit_within_memory((inputs, targets), "16MB", effort="low", settings=settings, on_plan=shown.append)
        assert (fit.record["path"], fit.record["why"]) == ("networks", "the memory budget has no room for kernels")
        assert isinstance(shown[0].setting, LargeTableSetting)
        kernel = fit_within_memory((inputs, targets), "200MB", effort="low", settings=settings)
        assert kernel.record["path"] == "kernel"

    def test_the_refusal_names_the_size_that_would_do(self):
        inputs, targets = make_rows(300)
        with pytest.raises(MemoryBudgetError, match="the smallest fit of 300 rows with 3 columns needs") as refused:
            fit_within_memory((inputs, targets), "2MB", effort="low")
        needed = refused.value.fields["needed"]
        assert str(refused.value.plan) in str(refused.value)
        fit = fit_within_memory((inputs, targets), needed, effort="low")
        assert fit.record["memory"]["planned"] <= needed
        assert fit.chunk_size < 4096  # predictions keep to it, too

    def test_rows_are_not_read_for_a_refusal(self):
        class Unreadable(ArraySource):
            num_reads = 0

            def take(self, indices):
                raise AssertionError("was read")

        source = Unreadable(*make_rows(12_000))
        with pytest.raises(MemoryBudgetError):
            fit_within_memory(source, "1MB")
        with pytest.raises(ValueError, match="is not a size"):
            fit_within_memory(source, "lots")
        shown = []
        with pytest.raises(AssertionError, match="was read"):
            fit_within_memory(source, "64MB", on_plan=shown.append)
        assert shown[0].fits


def measured(*case):
    arguments = [sys.executable, "-m", "benchmarks.memory", "--fit-worker", json.dumps(case)]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measures memory as Linux counts it")
@pytest.mark.parametrize(
    ("case", "path"),
    [
        (("20MB", 8, 15_000, "low", {"steps": 100, "max_steps": 100, "noise_steps": 40}, "npy"), "networks"),
        pytest.param(("64MB", 8, 15_000, "low", {}, "parquet"), "networks", marks=pytest.mark.slow),
        pytest.param(("64MB", 4, 450, "low", {}, "npy"), "kernel", marks=pytest.mark.slow),
    ],
)
def test_the_bill_is_what_the_kernel_measures(case, path):
    found = measured(*case)
    assert found["path"] == path
    assert 0.7 < found["ratio"] < 1.12, found
