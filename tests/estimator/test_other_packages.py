"""The regressors inside what other packages build around estimators."""

import numpy as np
import pandas
import pytest
from estimator_rows import make_rows, quick
from sklearn.ensemble import BaggingRegressor, StackingRegressor
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LinearRegression
from sklearn.multioutput import RegressorChain

from finitegp import GPRegressor, TableRegressor, nlpd_scorer


def test_stacking_finds_the_better_one():
    inputs, targets = make_rows(90)
    stack = StackingRegressor(
        [("gp", quick()), ("line", LinearRegression())], final_estimator=LinearRegression(positive=True), cv=3
    ).fit(inputs, targets)
    ours, theirs = stack.final_estimator_.coef_
    assert ours > 0.8 > 0.2 > theirs
    assert stack.score(*make_rows(200, seed=1)) > 0.95


def test_bagging_is_the_mean_of_regressors_of_their_own_seeds():
    inputs, targets = make_rows(60)
    bag = BaggingRegressor(GPRegressor(effort="low"), n_estimators=2, random_state=0).fit(inputs, targets)
    assert len({each.random_state for each in bag.estimators_}) == 2
    means = [each.predict(inputs) for each in bag.estimators_]
    assert not np.array_equal(*means)
    np.testing.assert_allclose(bag.predict(inputs), np.mean(means, axis=0), rtol=1e-12)


def test_a_chain_gains_from_the_target_before():
    inputs, _ = make_rows(60)
    first = np.random.default_rng(5).normal(size=60)  # inputs do not say what it is
    targets = np.column_stack([first, 3.0 * first + inputs[:, 0]])
    chain = RegressorChain(quick()).fit(inputs, targets)
    assert chain.estimators_[1].n_features_in_ == inputs.shape[1] + 1
    assert chain.estimators_[1].score(np.column_stack([inputs, first]), targets[:, 1]) > 0.99


def test_permutations_show_the_column_of_text_that_matters():
    random = np.random.default_rng(0)
    table = pandas.DataFrame(
        {"town": random.choice(["here", "there"], 80), "paint": random.choice(["grey", "white"], 80)}
    )
    targets = np.where(table["town"] == "here", 5.0, 1.0) + 0.1 * random.normal(size=80)
    model = TableRegressor(effort="low", random_state=0).fit(table, targets)
    found = permutation_importance(model, table, targets, scoring=nlpd_scorer, n_repeats=3, random_state=0)
    assert found.importances_mean[0] > 100 * abs(found.importances_mean[1])


@pytest.mark.engines
def test_skops_refuses_the_tensors_of_a_fit():
    """The day it does not, docs/other-packages.md is out of date."""
    skops_io = pytest.importorskip("skops.io", reason="needs the extra 'skops'", exc_type=ImportError)
    regressor = quick()
    again = skops_io.loads(skops_io.dumps(regressor), trusted=["finitegp.estimator.regressor.GPRegressor"])
    assert again.get_params() == regressor.get_params()
    with pytest.raises(RuntimeError, match="TensorBase"):
        skops_io.dumps(regressor.fit(*make_rows(30)))
