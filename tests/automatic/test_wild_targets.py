"""A few wild targets do not take the fit of a table down, and tails of distributions are not called wild."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from finitegp import GPRegressor
from finitegp.automatic import fit_auto
from finitegp.automatic.misleading_rows import limits_without_wild_targets
from finitegp.automatic.table import Table
from finitegp.errors import DataError
from finitegp.lite import load
from finitegp.persistence.fits import load_fit, save_fit

QUICK = {"small_rows": 100, "most_rows_for_both": 0, "members": 2, "hidden": [16, 16], "steps": 80, "max_steps": 80}
QUICK |= {"fourier_features": 16, "noise_steps": 30, "trees": 20}


def make_rows(rows=1200, seed=0):
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(rows, 3))
    return inputs, np.sin(2.0 * inputs[:, 0]) + inputs[:, 1] + 0.2 * random.normal(size=rows)


@pytest.mark.parametrize("wild", [[100.0], [-1e9], [300.0, -1e6, 500.0]])
def test_wild_targets_are_found(wild):
    inputs, targets = make_rows()
    ordinary = targets[len(wild) :].min(), targets[len(wild) :].max()
    targets[: len(wild)] = wild
    limits = limits_without_wild_targets(Table(inputs, targets), seed=0)
    assert limits == ordinary


def test_far_targets_that_other_columns_explain_are_not_wild():
    inputs, targets = make_rows()
    inputs[:8, 2] = 50.0
    targets[:8] += 100.0
    assert limits_without_wild_targets(Table(inputs, targets), seed=0) is None


@pytest.mark.parametrize("draw", ["lognormal", "standard_t", "exponential"])
def test_tails_are_not_wild(draw):
    random = np.random.default_rng(0)
    arguments = {"lognormal": (0.0, 1.5), "standard_t": (3.0,), "exponential": ()}[draw]
    targets = getattr(random, draw)(*arguments, size=4000)
    assert limits_without_wild_targets(Table(random.normal(size=(4000, 2)), targets), seed=0) is None


@pytest.fixture(scope="module")
def fits():
    inputs, targets = make_rows()
    spoilt = targets.copy()
    spoilt[7] = 1e6
    return [fit_auto(inputs, each, settings=QUICK, seed=0) for each in (targets, spoilt)]


def test_error_bars_stay_what_they_are(fits):
    new, held = make_rows(500, seed=1)
    predicted = [fit.predict(new) for fit in fits]
    errors = [float((each.mean - torch.from_numpy(held)).square().mean().sqrt()) for each in predicted]
    assert float(predicted[1].std.mean()) < 1.3 * float(predicted[0].std.mean())
    assert errors[1] < 1.2 * errors[0]
    assert [fit.record.get("wild_targets") for fit in fits] == [None, 1]


def test_rows_are_forgotten_as_they_were_taken_in_and_files_know_it(fits, tmp_path):
    fit, path = fits[1], tmp_path / "model.finitegp"
    save_fit(fit, path)
    new, targets = make_rows(40, seed=2)
    targets[3] = -1e7
    asked = make_rows(30, seed=3)[0]
    before, more = fit.predict(asked), load_fit(path).update(new, targets)
    expected = more.predict(asked)
    np.testing.assert_allclose(
        load(path).update(new, targets).predict(asked).mean, expected.mean, rtol=1e-9, atol=1e-10
    )
    assert float((expected.mean - before.mean).abs().max()) < 1.0
    after = more.forget(new, targets).predict(asked)
    torch.testing.assert_close(after.mean, before.mean, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(after.std, before.std, rtol=1e-8, atol=1e-9)


def test_fits_with_other_limits_are_not_merged(fits):
    moved = replace(fits[1], target_scaler=replace(fits[1].target_scaler, limits=(-3.0, 3.0)))
    with pytest.raises(DataError, match="stem from one fit"):
        fits[1].merge(moved)


def test_limits_that_make_no_sense_are_refused(fits, tmp_path):
    wrong = replace(fits[1], target_scaler=replace(fits[1].target_scaler, limits=(3.0, -3.0)))
    save_fit(wrong, tmp_path / "model.finitegp")
    for read in (load_fit, load):
        with pytest.raises(ValueError, match="limits that make no sense"):
            read(tmp_path / "model.finitegp")


def test_one_wild_row_of_twenty():
    inputs, targets = make_rows(20)
    inputs, targets = inputs[:, :1], np.sin(inputs[:, 0])
    targets[4] = 1e6
    fit = GPRegressor(effort="low", random_state=0).fit(inputs, targets)
    error = np.delete(fit.predict(inputs) - np.sin(inputs[:, 0]), 4)
    assert np.abs(error).max() < 0.5
