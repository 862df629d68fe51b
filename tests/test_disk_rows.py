"""Rows on disk, scaled and in random order: test rows, held-out rows and training rows."""

import numpy as np
import pytest
import torch
from out_of_core_rows import make_rows

from finitegp import DataError
from finitegp.data import ArraySource
from finitegp.out_of_core import DiskRows, RandomRows


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
                .take(np.arange(60))
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
        found = RandomRows(rows.data, rows.order, start=0, count=200, noise=noise, power=0.5).take(np.arange(9))
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
