"""Scores of predictive distributions: what they are where squares would be no numbers."""

import numpy as np
import pytest

from finitegp.metrics import score, score_rows


@pytest.mark.parametrize("exponent", [490, -490])
def test_scores_in_any_unit(exponent):
    random = np.random.default_rng(0)
    mean, errors = random.normal(size=(2, 20))
    unit = 2.0**exponent  # about 1e147 and 1e-148
    plain = score(mean, np.ones(20), mean + errors, name="a")
    found = score(mean * unit, np.full(20, unit), (mean + errors) * unit, name="a")
    for name in ("rmse", "mae", "rmse_error", "mae_error"):
        assert getattr(found, name) == getattr(plain, name) * unit
    assert found.r_squared == plain.r_squared
    squares = np.square(errors)
    assert plain.rmse == pytest.approx(np.sqrt(squares.mean()), rel=1e-14)
    assert plain.rmse_error == pytest.approx(squares.std() / np.sqrt(20) / (2 * plain.rmse), rel=1e-14)
    assert plain.r_squared == pytest.approx(1 - squares.mean() / (mean + errors).var(), rel=1e-14)


def test_a_row_that_is_certain_and_right_has_no_residual():
    targets = np.array([0.0, 1.0, 3.0])
    inside = {0.9: np.ones(3, dtype=bool)}
    mean, std, zero = np.array([0.0, 1.5, 2.0]), np.array([0.0, 1.0, 1.0]), np.zeros(3)
    found = score_rows("a", mean, std, targets, density=zero, crps=zero, inside=inside)
    assert found.largest_standardized_residual == 1.0
