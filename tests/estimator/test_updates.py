"""GPRegressor: rows that are added, forgotten, merged and left out give the posterior of the rows that remain."""

import copy

import numpy as np
import pytest
from estimator_rows import make_rows, quick, quick_network

from finitegp.errors import DataError


@pytest.mark.parametrize("make", [quick, quick_network])
def test_partial_fit_is_the_posterior_of_all_rows(make):
    inputs, targets = make_rows(90)
    gp = make().fit(inputs[:60], targets[:60])
    again = copy.deepcopy(gp)
    again.partial_fit(inputs[60:75], targets[60:75]).partial_fit(inputs[75:], targets[75:])
    fit = gp.fits_[0]
    scaled = fit.inputs_scaler.transform(inputs), fit.target_scaler.transform(targets)
    expected = fit.with_fitted([each.fitted.model.condition(scaled) for each in fit.components]).predict(inputs)
    mean, std = again.predict(inputs, return_std=True)
    np.testing.assert_allclose(mean, expected.mean.numpy(), rtol=1e-8)
    np.testing.assert_allclose(std, expected.std.numpy(), rtol=1e-7)
    assert again.training_summary_["rows_added"] == 30
    assert not np.allclose(mean, gp.predict(inputs), rtol=1e-8)


def test_first_partial_fit_fits(rows, fitted):
    np.testing.assert_array_equal(quick().partial_fit(*rows).predict(rows[0]), fitted.predict(rows[0]))


def test_forget_undoes_partial_fit(fitted, rows):
    gp = copy.deepcopy(fitted)
    new = make_rows(25, seed=5)
    weights = np.linspace(0.5, 3, 25)
    gp.partial_fit(*new, sample_weight=weights).forget(*new, sample_weight=weights)
    for found, expected in zip(
        gp.predict(rows[0], return_std=True), fitted.predict(rows[0], return_std=True), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-8)
    assert gp.log_marginal_likelihood() == pytest.approx(fitted.log_marginal_likelihood(), rel=1e-8)
    with pytest.raises(DataError, match="Cannot subtract statistics of 500 rows from statistics of 120 rows"):
        gp.forget(*make_rows(500, seed=8))


def test_merge_equals_partial_fit(fitted, rows):
    first, second = make_rows(20, seed=6), make_rows(30, seed=7)
    left = copy.deepcopy(fitted).partial_fit(*first)
    right = copy.deepcopy(fitted).partial_fit(*second).forget(*rows)
    merged = left.merge(right)
    expected = copy.deepcopy(fitted).partial_fit(*first).partial_fit(*second)
    for found, wanted in zip(
        merged.predict(rows[0], return_std=True), expected.predict(rows[0], return_std=True), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-8)
    assert merged.training_summary_["rows_added"] == 50
    with pytest.raises(DataError, match="stem from one fit"):
        merged.merge(quick().fit(*first))


def test_leave_one_out_equals_refits_without_the_row(fitted, rows):
    inputs, targets = rows
    mean, std = fitted.leave_one_out(inputs, targets)
    for row in (0, 17, 119):
        without = copy.deepcopy(fitted).forget(inputs[row : row + 1], targets[row : row + 1])
        expected_mean, expected_std = without.predict(inputs[row : row + 1], return_std=True)
        np.testing.assert_allclose(mean[row], expected_mean[0], rtol=1e-8)
        np.testing.assert_allclose(std[row], expected_std[0], rtol=1e-8)
    # By brute force, from the other rows alone.
    fit, kept = fitted.fits_[0], np.arange(120) != 40
    scaled = fit.inputs_scaler.transform(inputs)
    others = scaled[kept], fit.target_scaler.transform(targets[kept])
    expected = fit.with_fitted([each.fitted.model.condition(others) for each in fit.components]).predict(inputs[40:41])
    assert mean[40] == pytest.approx(float(expected.mean), rel=1e-8)
    assert std[40] == pytest.approx(float(expected.std), rel=1e-8)
