"""Fits of rows on disk within a memory budget, against the exact posterior of the same rows in memory."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from finitegp.out_of_core import fit_within_memory
from out_of_core_rows import QUICK, make_rows

from finitegp.automatic import fit_auto
from finitegp.data import ArraySource, NpySource, StreamSource
from finitegp.memory import MemoryBudgetError
from finitegp.tables.source import TableSource


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
