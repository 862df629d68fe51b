"""Batches: uniform, and the same for the same seed."""

import pytest
import torch
from training_runs import ROWS, make_data

from finitegp import DataError
from finitegp.data.sampling import Sampler


@pytest.fixture
def data():
    return make_data()


class TestSampling:
    def test_shuffled_epoch_has_every_row_once(self, data):
        sampler = Sampler(data, 32, seed=3)
        seen = torch.cat([batch.inputs for batch in sampler.epoch(0)])
        assert len(seen) == ROWS
        assert torch.equal(seen.sort(dim=0).values, data[0].sort(dim=0).values)
        assert [len(batch.inputs) for batch in sampler.epoch(0)] == [32] * 9 + [12]

    def test_rows_stay_together_and_skipping_is_going_on(self, data):
        weights = torch.arange(1.0, ROWS + 1)
        sampler = Sampler((data[0], weights, weights), 7, seed=3)
        batches = list(sampler.epoch(5))
        for batch in batches:
            index = batch.targets[:, 0].long() - 1
            assert torch.equal(batch.inputs, data[0][index])
            assert torch.equal(batch.weights, batch.targets[:, 0])
        for skip in (1, 31, 32, 42):
            rest = list(sampler.epoch(5, skip=skip))
            assert len(rest) == len(batches) - skip
            assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(rest, batches[skip:], strict=True))
            some = list(sampler.epoch(5, skip=skip, stop=40))
            assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(some, batches[skip:40], strict=True))

    def test_epochs_streams_and_seeds_differ_and_repeat(self, data):
        sampler = Sampler(data, 50, seed=3)
        first = next(iter(sampler.epoch(0))).inputs
        assert torch.equal(first, next(iter(Sampler(data, 50, seed=3).epoch(0))).inputs)
        for other in (sampler.epoch(1), sampler.epoch(0, stream=1), Sampler(data, 50, seed=4).epoch(0)):
            assert not torch.equal(first, next(iter(other)).inputs)

    @pytest.mark.parametrize("sampling", ["shuffle", "independent"])
    def test_batches_are_uniform(self, sampling):
        """Chi-square over 20 rows from sorted data: first batches of 4000 epochs."""
        rows = torch.arange(20.0)
        sampler = Sampler((rows[:, None], rows), 5, sampling=sampling, seed=0)
        counts = torch.zeros(20)
        for epoch in range(4000):
            counts += torch.bincount(next(iter(sampler.epoch(epoch))).targets[:, 0].long(), minlength=20)
        expected = 4000 * 5 / 20
        chi_square = float(((counts - expected) ** 2 / expected).sum())
        assert chi_square < 43.8  # the 99.9 % quantile for 19 degrees of freedom

    def test_independent_batches_repeat_rows(self, data):
        sampler = Sampler(data, 32, sampling="independent", seed=3)
        seen = torch.cat([batch.inputs[:, 0] for batch in sampler.epoch(0)])
        assert len(seen) == 320
        assert len(seen.unique()) < 0.75 * ROWS

    def test_bad_arguments(self, data):
        with pytest.raises(ValueError, match="batch_size"):
            Sampler(data, 0)
        with pytest.raises(ValueError, match="sampling"):
            Sampler(data, 5, sampling="blocks")
        with pytest.raises(DataError, match="Some chunks"):
            Sampler([(data[0], data[1]), (data[0], data[1], torch.ones(ROWS))], 5)
        assert Sampler(data, 10**6).batch_size == ROWS
