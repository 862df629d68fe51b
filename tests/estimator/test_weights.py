"""GPRegressor: weights of rows."""

import numpy as np
import pytest
from estimator_rows import make_rows, quick, quick_network


def check_same(one, other, new):
    for found, expected in zip(one.predict(new, return_std=True), other.predict(new, return_std=True), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert one.log_marginal_likelihood() == other.log_marginal_likelihood()


@pytest.mark.parametrize("rounded", [True, False])
@pytest.mark.parametrize("make", [quick, quick_network])
def test_weights_are_repetitions_unless_those_are_recognised_as_copies(make, rounded):
    inputs, targets = make_rows(40)
    if rounded:  # to two values, which agree by chance: nobody can tell copies from repeated measurements
        targets = np.where(targets > np.median(targets), 60.0, 40.0)
    weights = np.random.default_rng(0).integers(0, 4, size=40)
    if rounded:
        weights = np.minimum(weights, np.where(np.arange(40) < 6, 3, 1))
    rows = np.repeat(inputs, weights, axis=0)[::-1], np.repeat(targets, weights)[::-1]
    weighted = make().fit(inputs, targets, sample_weight=weights)
    new, once = make_rows(20, seed=1)[0], make().fit(inputs[weights > 0], targets[weights > 0])
    assert not np.allclose(weighted.predict(new), once.predict(new), rtol=1e-6)
    if make is quick and not rounded:
        repeated = make().fit(*rows)
        assert repeated.fits_[0].counts_copies_once
        np.testing.assert_allclose(repeated.predict(new), once.predict(new), rtol=0.05)
        # Said to be no copies, repeated rows are what weights are.
        ones = make().fit(*rows, sample_weight=np.ones(len(rows[0])))
        check_same(weighted, ones, new)
    else:
        check_same(weighted, make().fit(*rows), new)


def test_weights_on_large_tables_steer_the_fit():
    inputs, targets = make_rows(1600)
    settings = {"feature_map": "fourier", "algorithm": "lagged", "epochs": 2}
    wrong = targets.copy()
    wrong[::2] += 40
    weights = np.where(np.arange(1600) % 2, 1.0, 1e-6)
    gp = quick(**settings).fit(inputs, wrong, sample_weight=weights)
    kept = slice(1, None, 2)
    assert gp.score(inputs[kept], targets[kept]) > 0.9
    assert gp.training_summary_["total_weight"] == pytest.approx(weights.sum())
