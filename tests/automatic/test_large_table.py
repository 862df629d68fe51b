"""The fit of a large table: exact on every row, indifferent to copies and threads, honest inside and outside."""

import numpy as np
import pytest
import torch

from finitegp.automatic.large_table import fit_large_table
from finitegp.automatic.settings import EFFORTS, AutoSettings
from finitegp.automatic.table import Table
from finitegp.data import IterableSource

QUICK = AutoSettings(members=2, hidden=(24, 24), steps=150, trees=20, fourier_features=32, noise_steps=60)


def make_table(rows, seed=0):
    rng = np.random.default_rng(seed)
    inputs = rng.uniform(-1.7, 1.7, size=(rows, 3))
    targets = np.sin(2.0 * inputs[:, 0]) + 0.5 * inputs[:, 1] + 0.1 * rng.normal(size=rows)
    return Table(inputs, targets)


@pytest.fixture(scope="module")
def fit():
    table = make_table(1500)
    # With parts side by side: the test of threads below has them one after the other.
    return fit_large_table(table, table.source(), QUICK, seed=0, threads=2, may_use_all_cores=True)


def test_the_posterior_is_that_of_every_row(fit):
    direct = fit.fitted.model.condition(make_table(1500).source())
    new = make_table(50, seed=1).inputs
    torch.testing.assert_close(fit.fitted.predict(new).mean, direct.predict(new).mean, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(fit.fitted.predict(new).variance, direct.predict(new).variance, rtol=1e-7, atol=1e-9)
    assert fit.fitted.posterior.statistics.num_data == pytest.approx(1500)


def test_the_number_of_threads_changes_nothing(fit):
    table = make_table(1500)
    other = fit_large_table(table, table.source(), QUICK, seed=0, threads=1)
    assert torch.equal(fit.fitted.posterior.weight_mean, other.fitted.posterior.weight_mean)
    new = make_table(50, seed=1).inputs * 3.0
    assert torch.equal(fit.excess.variance(new), other.excess.variance(new))
    assert (fit.trees is None) == (other.trees is None)
    assert fit.trees is None or np.array_equal(fit.trees.predict(new), other.trees.predict(new))


def test_rows_beyond_the_sample_are_in_the_posterior():
    table = make_table(3000)
    sample = table.take(np.arange(0, 3000, 3))
    source = IterableSource([(table.inputs[i::2], table.targets[i::2]) for i in range(2)])
    found = fit_large_table(sample, source, QUICK, seed=0)
    direct = found.fitted.model.condition(table.source())
    new = make_table(50, seed=1).inputs
    torch.testing.assert_close(found.fitted.predict(new).mean, direct.predict(new).mean, rtol=1e-7, atol=1e-8)
    assert found.fitted.posterior.statistics.num_data == pytest.approx(3000)


def test_repeated_rows_are_counted(fit):
    table = make_table(1500)
    twice = table.take(np.repeat(np.arange(1500), 2))
    counted = Table(table.inputs, table.targets, np.full(1500, 2.0))
    repeated = fit_large_table(twice, twice.source(), QUICK, seed=0)
    same = fit_large_table(counted, counted.source(), QUICK, seed=0)
    assert "copies" in repeated.record
    new = make_table(50, seed=1).inputs
    torch.testing.assert_close(repeated.fitted.predict(new).mean, same.fitted.predict(new).mean)
    torch.testing.assert_close(repeated.fitted.predict(new).variance, same.fitted.predict(new).variance)
    # Copies are no evidence: the noise is that of the rows counted once.
    once, again = fit.fitted.predict(new).noise_variance.mean(), same.fitted.predict(new).noise_variance.mean()
    assert float(again / once) == pytest.approx(1.0, abs=0.15)


def test_intervals_hold_inside_and_variance_grows_outside(fit):
    new = make_table(1000, seed=2)
    prediction = fit.fitted.predict(new.inputs)
    excess = fit.excess.variance(new.inputs)
    standardized = (torch.from_numpy(new.targets) - prediction.mean) / (prediction.variance + excess).sqrt()
    assert float((prediction.mean - torch.from_numpy(new.targets)).square().mean()) < 0.03
    assert 0.8 < float((standardized.abs() < 1.645).double().mean()) < 0.97
    far = new.inputs.copy()
    far[:, 0] = 5.0
    assert float(fit.excess.variance(far).min()) > 10.0 * float(prediction.variance.max())
    assert float(fit.excess.outside(far)[:, 0].min()) > 1.0
    assert float(fit.fitted.predict(np.full((1, 3), 1e300)).mean.abs()) < 1e4


def test_noise_stays_within_what_was_seen(fit):
    inside = fit.fitted.predict(make_table(1500).inputs).noise_variance
    outside = fit.fitted.predict(100.0 * make_table(300, seed=3).inputs).noise_variance
    # Bounds are those of the rows whose residuals were left out.
    assert float(outside.max()) <= 1.3 * float(inside.max())
    assert float(outside.min()) >= float(inside.min()) / 1.3


def test_constant_noise():
    table = make_table(600)
    found = fit_large_table(table, table.source(), QUICK.with_changes({"input_noise": False}), seed=0)
    variance = found.fitted.predict(table.inputs).noise_variance
    assert float(variance.max()) == float(variance.min())


def test_scores_are_of_rows_set_aside(fit):
    assert len(fit.scores) == 150
    assert bool((fit.scores >= 0.0).all())


@pytest.mark.parametrize(
    "changes", [{"members": 1}, {"steps": 0}, {"validation_fraction": 0.6}, {"fourier_features": 30}]
)
def test_settings_that_cannot_be(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        EFFORTS["medium"].with_changes(changes)
    with pytest.raises(ValueError, match="no setting 'depth'"):
        EFFORTS["low"].with_changes({"depth": 3})
