"""Small tables: the stack of kernel GPs holds what it claims on data of known kinds, and recognises what it should."""

import numpy as np
import pytest
from scipy.stats import t

from finitegp.automatic.small_table import (
    assign_folds,
    choose_shape,
    equal_rows,
    fit_small_table,
    stacking_weights,
    without_copies,
)
from finitegp.kernel_gp import KernelRows


def standardize(values):
    return (values - values.mean(axis=0)) / values.std(axis=0)


def held(fit, inputs, targets, coverage=0.9):
    inside = fit.predict(inputs).cumulative(targets)
    return float(np.mean(np.abs(inside - 0.5) < 0.5 * coverage))


@pytest.mark.parametrize(("rows", "columns"), [(50, 20), (100, 20)])
def test_linear_data_with_many_columns(rows, columns):
    """Where length scales per column without a prior hold half: the intervals hold what they claim."""
    shares = []
    for seed in range(3):
        random = np.random.default_rng(seed)
        slopes = np.linspace(1.0, 0.1, columns)
        inputs, new = random.normal(size=(rows, columns)), random.normal(size=(1000, columns))
        unit = float(np.sqrt(np.square(slopes).sum() + 0.25))
        targets = (inputs @ slopes + 0.5 * random.normal(size=rows)) / unit
        new_targets = (new @ slopes + 0.5 * random.normal(size=1000)) / unit
        shares.append(held(fit_small_table(inputs, targets), new, new_targets))
    assert 0.84 < np.mean(shares) < 0.96


def test_pure_noise():
    shares = []
    for seed in range(3):
        random = np.random.default_rng(seed)
        fit = fit_small_table(random.normal(size=(60, 8)), random.normal(size=60))
        new, targets = random.normal(size=(1000, 8)), random.normal(size=1000)
        shares.append(held(fit, new, targets))
        assert fit.predict(new).mean.std() < 0.6
    assert 0.82 < np.mean(shares) < 0.96


def test_spread_that_depends_on_the_input_is_found():
    random = np.random.default_rng(0)
    inputs, new = random.normal(size=(200, 2)), random.normal(size=(1000, 2))
    deviation = lambda x: 0.05 + 0.5 * (x[:, 0] > 0)  # noqa: E731
    fit = fit_small_table(inputs, inputs[:, 1] + deviation(inputs) * random.normal(size=200))
    assert fit.spread is not None
    width = fit.predict(new).quantile(0.95) - fit.predict(new).quantile(0.05)
    assert width[new[:, 0] > 0.3].mean() > 2.5 * width[new[:, 0] < -0.3].mean()


def test_one_wild_target_does_not_take_the_fit_down():
    random = np.random.default_rng(1)
    inputs, new = random.normal(size=(80, 3)), random.normal(size=(500, 3))
    targets = np.sin(inputs[:, 0]) + 0.1 * random.normal(size=80)
    targets[7] = 50.0
    scaled = standardize(targets)
    fit = fit_small_table(inputs, scaled)
    assert fit.notes["outliers"] == 1
    found = fit.predict(new).in_units(targets.mean(), targets.std()).mean
    assert np.sqrt(np.mean((found - np.sin(new[:, 0])) ** 2)) < 0.12


def test_copies_are_recognised_and_repeated_measurements_are_not():
    random = np.random.default_rng(2)
    inputs = np.repeat(random.normal(size=(40, 2)), 2, axis=0)
    targets = np.repeat(random.normal(size=40), 2)
    rows = KernelRows.of(inputs, targets)
    assert len(without_copies(rows, equal_rows(inputs))) == 40
    measured = KernelRows.of(inputs, targets + 0.1 * random.normal(size=80))
    assert without_copies(measured, equal_rows(inputs)) is None
    # Targets with two values agree by chance.
    coins = KernelRows.of(inputs[:8], np.array([0.0, 0, 1, 1, 0, 0, 1, 1]))
    assert without_copies(coins, equal_rows(inputs[:8])) is None
    assert fit_small_table(inputs, targets).notes == {"copies": 40}


def test_equal_rows_share_a_fold():
    groups = np.array([0, 1, 1, 2, 3, 3, 3, 4])
    folds = assign_folds(groups, 3, np.random.default_rng(0))
    assert folds[1] == folds[2]
    assert len(set(folds[4:7])) == 1
    assert set(folds) == {0, 1, 2}


def test_widening_is_believed_more_readily_than_narrowing():
    random = np.random.default_rng(0)
    ones = np.ones(12)
    errors = standardize(random.normal(size=12))

    def log_width(factor, freedom):
        return np.log(factor * t.ppf(0.95, freedom) / t.ppf(0.95, 14.0))

    wide, narrow = (log_width(*choose_shape(factor * errors, 14.0, ones)) for factor in (2.0, 0.5))
    assert wide > 0.3
    assert -0.15 < narrow < 0.0


def test_stacking_prefers_the_better_component():
    random = np.random.default_rng(0)
    values = random.normal(size=300)
    good, bad = -0.5 * values**2, -0.5 * (values - 2.0) ** 2
    weights = stacking_weights(np.array([good, bad]), np.ones(300))
    assert weights[0] > 0.9
    assert weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("rows", [2, 3, 4, 6])
def test_very_few_rows(rows):
    random = np.random.default_rng(0)
    inputs = standardize(random.normal(size=(rows, 2)))
    fit = fit_small_table(inputs, standardize(random.normal(size=rows)))
    found = fit.predict(random.normal(size=(50, 2)))
    assert np.isfinite(found.mean).all()
    assert (found.quantile(0.95) - found.quantile(0.05)).min() > 1.0


def test_threads_make_no_difference():
    random = np.random.default_rng(0)
    inputs, targets = random.normal(size=(60, 3)), random.normal(size=60)
    one, two = (fit_small_table(inputs, targets, threads=count).predict(inputs) for count in (1, 2))
    np.testing.assert_array_equal(one.means, two.means)
    np.testing.assert_array_equal(one.scales, two.scales)
