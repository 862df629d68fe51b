"""Small tables: the stack of kernel GPs holds what it claims on data of known kinds, and recognises what it should."""

import numpy as np
import pytest
from scipy.stats import t

from finitegp.automatic import fit_auto, small_table
from finitegp.automatic.kernels import FORMS, LINEAR, Line, condition_kernel
from finitegp.automatic.misleading_rows import are_copies, equal_rows
from finitegp.automatic.small_table import assign_folds, fit_small_table
from finitegp.automatic.stacking import choose_shape, stacking_weights
from finitegp.automatic.table import merge_equal_rows
from finitegp.component import Component
from finitegp.data.scaling import Standardizer
from finitegp.kernel_gp import KernelGP, KernelPosterior, KernelRows, fit_from_several_starts
from finitegp.scaled import ScaledGP
from finitegp.stages import open_stages


def standardize(values):
    return (values - values.mean(axis=0)) / values.std(axis=0)


def predict(fit, inputs):
    """The distribution of the targets that were fitted."""
    nothing = Standardizer(np.zeros(()), np.ones(()))
    target = Standardizer(np.array(fit.target_shift), np.array(fit.target_unit))
    return ScaledGP(fit.components, nothing, target, spread=fit.spread).predict(inputs).mixture


def held(fit, inputs, targets, coverage=0.9):
    inside = predict(fit, inputs).cumulative(targets)
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
        assert predict(fit, new).mean.std() < 0.6
    assert 0.82 < np.mean(shares) < 0.96


def test_spread_that_depends_on_the_input_is_found():
    random = np.random.default_rng(0)
    inputs, new = random.normal(size=(200, 2)), random.normal(size=(1000, 2))
    deviation = lambda x: 0.05 + 0.5 * (x[:, 0] > 0)  # noqa: E731
    fit = fit_small_table(inputs, inputs[:, 1] + deviation(inputs) * random.normal(size=200))
    assert fit.spread is not None
    width = predict(fit, new).quantile(0.95) - predict(fit, new).quantile(0.05)
    assert width[new[:, 0] > 0.3].mean() > 2.5 * width[new[:, 0] < -0.3].mean()


def test_one_wild_target_does_not_take_the_fit_down():
    random = np.random.default_rng(1)
    inputs, new = random.normal(size=(80, 3)), random.normal(size=(500, 3))
    targets = np.sin(inputs[:, 0]) + 0.1 * random.normal(size=80)
    targets[7] = 50.0
    scaled = standardize(targets)
    fit = fit_small_table(inputs, scaled)
    assert fit.notes["outliers"] == 1
    found = predict(fit, new).in_units(targets.mean(), targets.std()).mean
    assert np.sqrt(np.mean((found - np.sin(new[:, 0])) ** 2)) < 0.12


def test_copies_are_recognised_and_repeated_measurements_are_not():
    random = np.random.default_rng(2)
    inputs = np.repeat(random.normal(size=(40, 2)), 2, axis=0)
    targets = np.repeat(random.normal(size=40), 2)
    for rows in (KernelRows.of(inputs, targets), KernelRows.of(inputs[::2], targets[::2], counts=np.full(40, 2.0))):
        assert are_copies(rows, equal_rows(rows.inputs))
    measured = KernelRows.of(inputs, targets + 0.1 * random.normal(size=80))
    assert not are_copies(measured, equal_rows(inputs))
    # Targets with two values agree by chance.
    coins = KernelRows.of(inputs[:8], np.array([0.0, 0, 1, 1, 0, 0, 1, 1]))
    assert not are_copies(coins, equal_rows(inputs[:8]))
    # Three pairs are enough where no two other rows agree.
    few = np.append(np.arange(0, 18, 2), [1, 3, 5])
    tiny = KernelRows.of(inputs[few], targets[few])
    assert are_copies(tiny, equal_rows(tiny.inputs))
    merged = merge_equal_rows(inputs, targets, None)
    copies = fit_small_table(*merged)
    assert copies.notes == {"copies": 40}
    assert copies.rows.counts.tolist() == [1.0] * 40
    assert fit_small_table(*merged, may_be_copies=False).notes == {}


def test_features_on_landmarks_are_the_kernel():
    """The same posterior in two ways: of the kernel matrix, and of weights of finite features."""
    random = np.random.default_rng(3)
    inputs, new = random.normal(size=(70, 3)), 2.0 * random.normal(size=(200, 3))
    targets = np.sin(2.0 * inputs[:, 0]) + 0.1 * random.normal(size=70)
    scales, counts = np.where(np.arange(70) % 7 == 0, 5.0, 1.0), 1.0 + np.arange(70) % 3
    rows = KernelRows.of(inputs, targets, scales, counts)
    for name, form in FORMS.items():
        parameters = fit_from_several_starts(form, rows, (1.0, 0.3))
        expected = KernelPosterior(form, parameters, rows)
        fitted = condition_kernel(form, parameters, inputs, rows)
        factor = Component(fitted, scale_degrees=form.prior.scale_degrees).variance_factor
        mean, variance = expected.predict(new)
        found = fitted.predict(new)
        np.testing.assert_allclose(found.mean.numpy(), mean, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(factor * found.epistemic_variance.numpy(), variance, rtol=1e-5, err_msg=name)
        assert factor == pytest.approx(expected.scale, rel=1e-6)


def test_the_line_by_sums_is_the_line_by_a_matrix_of_all_rows():
    random = np.random.default_rng(4)
    inputs = random.normal(size=(90, 4))
    scales, counts = np.where(np.arange(90) % 7 == 0, 5.0, 1.0), 1.0 + np.arange(90) % 3
    for noise in (0.3, 0.0):
        targets = inputs @ [1.0, -2.0, 0.0, 0.5] + noise * random.normal(size=90)
        rows, form = KernelRows.of(inputs, targets, scales, counts), FORMS[LINEAR]
        parameters = np.array([2.0 * np.log(noise + 1e-3), 0.0])
        expected, found = KernelPosterior(form, parameters, rows), Line(parameters, rows)
        assert found.scale == pytest.approx(expected.scale, rel=1e-6)
        folds = assign_folds(np.arange(90), 5, random)
        for one, other in zip(found.leave_groups_out(folds), expected.leave_groups_out(folds), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-8)


def test_kernels_that_were_learned_are_known_where_rows_judge():
    """Judged by the kernels of learning as by those that are made anew."""
    random = np.random.default_rng(5)
    inputs = random.normal(size=(1130, 2))
    targets = standardize(np.sin(2.0 * inputs[:, 0]) + 0.3 * random.normal(size=1130))
    rows = KernelRows.of(inputs, targets)
    groups, stages = np.arange(1130), open_stages("", {})
    stack = small_table._Stack(inputs, rows, rows, groups, 120, 0, 0, 2, None, stages)
    parameters = stack.learn()
    assert set(stack.known) == set(FORMS)
    found = stack._leave_folds_out(parameters, 5, stack.judges)
    assert not stack.known
    for one, other in zip(found, stack._leave_folds_out(parameters, 5, stack.judges), strict=True):
        np.testing.assert_array_equal(one, other)


def test_outliers_are_found_in_counted_rows_too():
    random = np.random.default_rng(1)
    inputs = random.normal(size=(80, 3))
    targets = np.sin(inputs[:, 0]) + 0.1 * random.normal(size=80)
    targets[7] = 50.0
    found = []
    for count in (1.0, 3.0):
        counts = np.where(np.arange(80) == 7, count, 1.0)
        fit = fit_small_table(inputs, standardize(targets), counts, may_be_copies=False)
        assert np.flatnonzero(fit.rows.noise_scales > 1.0).tolist() == [7]
        found.append(fit.rows.noise_scales[7])
    # How far a row is off hardly depends on how often it counts.
    assert 0.1 < found[1] / found[0] < 10.0


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


def test_a_kernel_that_no_row_speaks_for_is_left_out():
    inputs = np.linspace(-1.7, 1.7, 40)[:, None]
    fit = fit_small_table(inputs, np.sin(1.5 * inputs[:, 0]))
    assert "linear" not in {component.name for component in fit.components}
    found = predict(fit, inputs + 0.01)
    np.testing.assert_allclose(found.mean, np.sin(1.5 * (inputs[:, 0] + 0.01)), atol=1e-4)


@pytest.mark.parametrize("rows", [2, 3, 4, 6])
def test_very_few_rows(rows):
    random = np.random.default_rng(0)
    inputs = standardize(random.normal(size=(rows, 2)))
    fit = fit_small_table(inputs, standardize(random.normal(size=rows)))
    found = predict(fit, random.normal(size=(50, 2)))
    assert np.isfinite(found.mean).all()
    assert (found.quantile(0.95) - found.quantile(0.05)).min() > 1.0


def test_threads_make_no_difference():
    random = np.random.default_rng(0)
    inputs, targets = random.normal(size=(60, 3)), random.normal(size=60)
    one, two = (predict(fit_small_table(inputs, targets, threads=count), inputs) for count in (1, 2))
    np.testing.assert_array_equal(one.means, two.means)
    np.testing.assert_array_equal(one.scales, two.scales)


@pytest.mark.slow
def test_nothing_but_noise_has_one_spread_on_more_rows_too():
    """The mean of all other rows would tell what a row is, where there is nothing else to learn."""
    random = np.random.default_rng(0)
    inputs, targets = random.normal(size=(1300, 2)), random.uniform(-1.7, 1.7, size=1300)
    found = fit_small_table(inputs, targets, learning_rows=200)
    assert found.spread is None
    # Between the entropy of the uniform distribution, below which no honest density is, and that of a Gaussian.
    assert np.log(3.4) < found.left_out_nlpd < 0.5 * np.log(2 * np.pi * np.mean(targets**2)) + 0.53
    assert len(found.normal_scores) == 1100


@pytest.mark.slow
def test_weights_are_no_evidence_of_little_noise():
    random = np.random.default_rng(0)
    inputs, new = random.normal(size=(150, 2)), random.normal(size=(500, 2))
    targets = 3.0 * np.sin(2.0 * inputs[:, 1]) + 0.6 * random.normal(size=150)
    counts = 1.0 + np.arange(150) % 3
    error = {}
    for name, given in (("none", None), ("whole", counts), ("alike", np.full(150, 2.0))):
        fit = fit_auto(inputs, targets, counts=given, effort="low")
        error[name] = float(np.square(fit.predict(new).mean.numpy().ravel() - 3.0 * np.sin(2.0 * new[:, 1])).mean())
        noise = min(float(part.fitted.posterior.noise_variance) for part in fit.components)
        assert noise > 0.01, name  # of a variance of about one
    assert max(error.values()) < 1.5 * error["none"]


def test_a_kernel_that_was_taken_for_the_noise_is_learned_again_from_all_rows(monkeypatch):
    """Rows that hyperparameters were not learned from may have near neighbours with other targets."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(120, 4))
    inputs = np.concatenate([inputs, inputs + 1e-3 * random.normal(size=inputs.shape)])
    targets = random.normal(size=len(inputs))

    def without_noise(form, rows, starts, *, seed):
        found = form.start(rows.inputs.shape[1])
        if form.correlation is not None:
            found[0], found[3:] = -10.0, -1.0  # no noise, and correlations that end before the next row
        return found

    class Counted(KernelGP):
        def __init__(self, form, rows):
            super().__init__(form, rows)
            learned.append(len(rows.targets))

    learned = []
    monkeypatch.setattr(small_table, "fit_from_several_starts", without_noise)
    monkeypatch.setattr(small_table, "KernelGP", Counted)
    monkeypatch.setattr(small_table, "_MOST_LEARNED", 200)
    fit = fit_auto(inputs, targets, effort="low", settings={"learning_rows": 60, "trees": 0}, seed=0)
    assert np.median(fit.predict(random.normal(size=(50, 4))).std.numpy()) < 2.0
    assert max(learned) == 200


def test_trees_take_part_in_tables_of_few_rows():
    random = np.random.default_rng(0)
    inputs = random.normal(size=(40, 3))
    targets = (inputs[:, 0] > 0.3) + 2.0 * (inputs[:, 1] > -0.2) + 0.02 * random.normal(size=40)
    with_trees, without = (fit_auto(inputs, targets, effort="low", settings={"trees": trees}) for trees in (300, 0))
    assert len(with_trees.trees.leaves) <= 80
    assert with_trees.record["left_out_nlpd"] < without.record["left_out_nlpd"] - 0.1
