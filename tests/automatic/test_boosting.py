"""Boosted trees beside networks and kernels: taken from scikit-learn whole, used where left-out rows gain, kept."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor

from finitegp.automatic import fit_auto
from finitegp.automatic.boosting import LARGE_TREES, SMALL_TREES, cross_fit_trees, fit_trees
from finitegp.automatic.budget import SmallTableSetting, plan_small_table
from finitegp.automatic.table import Table
from finitegp.errors import ModelFileError
from finitegp.lite import load
from finitegp.lite.program import sum_trees
from finitegp.persistence import save_fit
from finitegp.trees import NEVER, BoostedTrees

QUICK = {"small_rows": 100, "most_rows_for_both": 0, "members": 2, "hidden": [16, 16], "steps": 80, "max_steps": 80}
QUICK |= {"fourier_features": 16, "noise_steps": 30, "trees": 60}


def steps(count, seed=0):
    """A function with steps in all directions, which smooth features cannot follow."""
    random = np.random.default_rng(seed)
    inputs = random.uniform(-2.0, 2.0, size=(count, 3))
    levels = 3.0 * (inputs[:, 0] > 0.3) * (inputs[:, 1] < 0.8) - 2.0 * (inputs[:, 2] > -0.5)
    return inputs, levels + 0.1 * random.normal(size=count)


def test_sum_of_trees_follows_each_row_to_its_leaf():
    random = np.random.default_rng(0)
    columns, thresholds = random.integers(0, 3, size=(5, 7)), random.normal(size=(5, 7))
    leaves, inputs = random.normal(size=(5, 8)), random.normal(size=(40, 3))

    def by_hand(row):
        total = 0.0
        for tree in range(5):
            node = 0
            while node < 7:
                node = 2 * node + (2 if row[columns[tree, node]] > thresholds[tree, node] else 1)
            total += leaves[tree, node - 7]
        return total

    np.testing.assert_allclose(sum_trees(inputs, columns, thresholds, leaves), [by_hand(row) for row in inputs])
    assert sum_trees(inputs[:0], columns, thresholds, leaves).shape == (0,)


@pytest.mark.parametrize("ends", [0.0, 0.4, 1.0])
def test_many_rows_come_to_the_leaves_that_each_of_them_walks_to(ends):
    """Complete trees of depth four, and trees whose branches end early; values at thresholds go left."""
    random = np.random.default_rng(0)
    columns = random.integers(0, 3, size=(40, 15))
    thresholds = random.integers(-4, 5, size=(40, 15)).astype(float)
    thresholds[random.random(thresholds.shape) < ends] = NEVER
    trees = BoostedTrees(columns, thresholds, random.normal(size=(40, 16)))
    inputs = random.integers(-6, 7, size=(1000, 3)).astype(float)
    expected = sum_trees(inputs, columns, thresholds, trees.leaves)
    assert trees._masks is not None
    np.testing.assert_array_equal(trees.predict(inputs), expected)
    np.testing.assert_array_equal(trees.predict(inputs[:5]), expected[:5])
    inputs[3, 1] = 2.0 * NEVER  # beyond everything that a fit predicts
    np.testing.assert_array_equal(trees.predict(inputs), sum_trees(inputs, columns, thresholds, trees.leaves))


def test_trees_of_many_leaves_are_walked_down():
    random = np.random.default_rng(0)
    parts = random.integers(0, 3, size=(7, 31)), random.normal(size=(7, 31)), random.normal(size=(7, 32))
    trees, inputs = BoostedTrees(*parts), random.normal(size=(300, 3))
    assert trees._masks is None
    np.testing.assert_array_equal(trees.predict(inputs), sum_trees(inputs, *parts))


def test_trees_are_those_of_scikit_learn():
    inputs, targets = steps(500)
    held_out = Table(*steps(200, seed=1))
    found = fit_trees(Table(inputs, targets), held_out, 40, seed=3)
    assert found is not None, "scikit-learn keeps its trees in another form"
    same = HistGradientBoostingRegressor(
        learning_rate=0.1,
        max_iter=len(found.leaves),
        max_leaf_nodes=SMALL_TREES.leaves,
        max_depth=SMALL_TREES.depth,
        min_samples_leaf=5,
        l2_regularization=5.0,
        early_stopping=False,
        random_state=3,
    ).fit(inputs, targets)
    np.testing.assert_allclose(found.predict(held_out.inputs), same.predict(held_out.inputs), rtol=1e-9, atol=1e-9)


def test_rows_set_aside_choose_how_many():
    random = np.random.default_rng(0)
    inputs, noise = random.normal(size=(300, 2)), random.normal(size=300)
    held_out = Table(random.normal(size=(300, 2)), random.normal(size=300))
    few = fit_trees(Table(inputs, noise), held_out, 100, seed=0)
    many = fit_trees(Table(*steps(500)), Table(*steps(300, seed=1)), 100, seed=0)
    assert few is not None
    assert many is not None
    assert len(few.leaves) < 10 < len(many.leaves)


def test_rows_of_many_persons_get_larger_trees():
    """Each person has a level of its own, which no tree of 16 leaves can tell from all others."""
    random = np.random.default_rng(0)
    persons, levels = random.normal(size=(300, 2)), random.normal(size=300)
    who = random.integers(300, size=2400)
    rows = persons[who], levels[who] + 0.05 * random.normal(size=2400)
    training, held_out = Table(rows[0][:1800], rows[1][:1800]), Table(rows[0][1800:], rows[1][1800:])
    found = fit_trees(training, held_out, 40, seed=0)
    small = HistGradientBoostingRegressor(
        learning_rate=0.1, max_iter=40, max_leaf_nodes=16, max_depth=6, min_samples_leaf=5, l2_regularization=5.0
    ).fit(training.inputs, training.targets)
    assert found is not None
    assert found.columns.shape[1] == 2**LARGE_TREES.depth - 1
    errors = [np.mean((each.predict(held_out.inputs) - held_out.targets) ** 2) for each in (found, small)]
    assert errors[0] < 0.8 * errors[1]
    predicted = found.predict(held_out.inputs)
    np.testing.assert_allclose(found.predict(held_out.inputs[:5]), predicted[:5])
    again = BoostedTrees.from_tensors(0.5, found.tensors(), 2)
    np.testing.assert_array_equal(again.predict(held_out.inputs), predicted)


@pytest.fixture(scope="module")
def fits():
    rows = steps(1500)
    return fit_auto(*rows, settings=QUICK), fit_auto(*rows, settings=QUICK | {"trees": 0})


class TestFit:
    def test_they_help_where_there_are_steps(self, fits):
        blended, plain = fits
        inputs, targets = steps(500, seed=5)
        assert blended.trees is not None
        assert 0.3 < blended.record["tree_weight"] <= 1.0
        assert plain.trees is None

        def nlpd(fit):
            return -float(fit.log_density(inputs, targets).mean())

        assert nlpd(blended) < nlpd(plain) - 0.3

    def test_everything_agrees_on_the_mean(self, fits):
        fit = fits[0]
        inputs = steps(40, seed=6)[0]
        mean = fit.predict(inputs).mean
        torch.testing.assert_close(fit.predict_mean(inputs), mean, rtol=1e-9, atol=1e-9)
        draws = fit.sample(inputs, 4000, seed=1)
        error = (draws.mean(dim=0) - mean) / (fit.predict(inputs).std / 4000**0.5)
        assert float(error.abs().max()) < 5.0
        gp = replace(fit, trees=None).predict(inputs).mean
        scaled = fit.inputs_scaler.transform(inputs)
        trees = fit.trees.predict(scaled) * fit.target_scaler.scale + fit.target_scaler.mean
        weight = fit.trees.weight
        np.testing.assert_allclose(mean.numpy(), weight * trees + (1.0 - weight) * gp.numpy(), rtol=1e-9)

    def test_rows_that_come_and_go_change_the_gp_alone(self, fits):
        fit = fits[0]
        inputs, targets = steps(50, seed=7)
        back = fit.update(inputs, targets).forget(inputs, targets)
        torch.testing.assert_close(back.predict(inputs).mean, fit.predict(inputs).mean, rtol=1e-6, atol=1e-6)
        assert fit.update(inputs, targets).trees is fit.trees

    def test_none_where_rows_do_not_gain(self):
        random = np.random.default_rng(0)
        inputs = random.normal(size=(1500, 2))
        fit = fit_auto(inputs, inputs @ [1.0, -2.0] + 0.3 * random.normal(size=1500), settings=QUICK)
        assert fit.trees is None
        assert fit.record["tree_weight"] == 0.0


class TestSmallTable:
    @pytest.fixture
    def rows(self):
        return steps(240)

    def test_out_of_fold_predictions_are_those_of_the_other_folds(self, rows):
        table, folds = Table(*rows), np.arange(240) % 3
        found = cross_fit_trees(table, folds, 30, seed=0)
        assert found is not None
        trees = found.grow()
        count = len(trees.leaves)

        def boosted(part):
            return HistGradientBoostingRegressor(
                learning_rate=0.1,
                max_iter=count,
                max_leaf_nodes=SMALL_TREES.leaves,
                max_depth=SMALL_TREES.depth,
                min_samples_leaf=5,
                l2_regularization=5.0,
                early_stopping=False,
            ).fit(table.inputs[part], table.targets[part])

        for fold in range(3):
            expected = boosted(folds != fold).predict(table.inputs[folds == fold])
            np.testing.assert_allclose(found.out_of_fold[folds == fold], expected, rtol=1e-9, atol=1e-9)
        expected = boosted(folds >= 0).predict(table.inputs)
        np.testing.assert_allclose(trees.predict(table.inputs), expected, rtol=1e-6, atol=1e-9)

    def test_they_help_where_there_are_steps_and_files_keep_them(self, rows, tmp_path):
        blended, plain = (fit_auto(*rows, effort="low", settings={"trees": trees}) for trees in (120, 0))
        assert blended.record["path"] == "kernel"
        assert blended.trees is not None
        assert blended.record["tree_weight"] == blended.trees.weight > 0.2
        inputs, targets = steps(500, seed=5)
        density, without = (float(fit.log_density(inputs, targets).mean()) for fit in (blended, plain))
        assert density > without + 0.1
        # Out-of-fold rows promise what new rows show.
        scale = np.log(float(blended.target_scaler.scale))
        assert abs(blended.record["left_out_nlpd"] + scale + density) < 0.3
        save_fit(blended, tmp_path / "model.finitegp")
        lite = load(tmp_path / "model.finitegp").predict(inputs)
        np.testing.assert_allclose(lite.mean, blended.predict(inputs).mean, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(lite.std, blended.predict(inputs).std, rtol=1e-9)

    def test_none_where_rows_do_not_gain_or_may_not_be_kept(self, rows):
        random = np.random.default_rng(0)
        inputs = random.normal(size=(200, 2))
        targets = inputs @ [1.0, -2.0] + 0.3 * random.normal(size=200)
        smooth = fit_auto(inputs, targets, effort="low", settings={"trees": 200})
        assert smooth.trees is None
        assert smooth.record["tree_weight"] == 0.0
        assert fit_auto(*rows, effort="low", keep_rows=False).trees is None

    def test_a_budget_without_room_has_none(self):
        wanted = SmallTableSetting(150, 100, 150, 1, trees=300)
        whole = plan_small_table(10**9, wanted)
        assert whole.setting.trees == 300
        assert plan_small_table(whole.total - 10**6, wanted).setting.trees == 0


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("columns", lambda each: each + 3),
        ("columns", lambda each: each.double()),
        ("thresholds", lambda each: each[:, :-1]),
        ("leaves", lambda each: each * torch.nan),
        ("leaves", lambda each: each[:1]),
    ],
)
def test_trees_of_a_file_are_checked(name, change):
    trees = BoostedTrees(np.zeros((2, 3), np.int64), np.zeros((2, 3)), np.zeros((2, 4)))
    good = trees.tensors()
    assert BoostedTrees.from_tensors(0.5, good, 3).weight == 0.5
    with pytest.raises(ModelFileError, match="trees"):
        BoostedTrees.from_tensors(0.5, good | {name: change(good[name])}, 3)
    with pytest.raises(ModelFileError, match="weight"):
        BoostedTrees.from_tensors(1.5, good, 3)
