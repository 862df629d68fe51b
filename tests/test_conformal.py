"""Conformal scores: their guarantee by simulation, their ranks when there are many, and what files may hold."""

import numpy as np
import pytest

from finitegp.conformal import ConformalScores
from finitegp.errors import ModelFileError


@pytest.mark.parametrize("rows", [19, 40, 99])
@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_new_rows_are_held_as_often_as_promised_whatever_the_errors(rows, coverage):
    random = np.random.default_rng(0)
    held = []
    for _ in range(20_000):
        errors = random.standard_t(1.5, size=rows + 1)  # without a variance
        held.append(abs(errors[-1]) <= ConformalScores.of(errors[:-1], "rows set aside").at(coverage))
    deviation = np.sqrt(coverage * (1 - coverage) / 20_000)
    assert coverage - 4 * deviation < np.mean(held) < coverage + 1 / (rows + 1) + 4 * deviation


def test_the_rank_holds_also_when_scores_are_thinned():
    scores = np.random.default_rng(0).permutation(np.arange(1.0, 20_000.0))
    thinned = ConformalScores.of(-scores, "rows set aside")
    assert len(thinned.scores) == 1000
    assert thinned.rows == 19_999
    for coverage in (0.1, 0.5, 0.9, 0.99):
        assert 20_000 * coverage <= thinned.at(coverage) <= 20_000 * coverage + 30  # one thinned rank is 20 scores


@pytest.mark.parametrize("rows", [300, 3000])
def test_rows_that_stand_for_several_count_as_often(rows):
    random = np.random.default_rng(0)
    errors, counts = random.normal(size=rows), random.integers(1, 9, rows).astype(float)
    found = ConformalScores.of(errors, "out-of-fold rows", counts=counts)
    each = ConformalScores.of(np.repeat(errors, counts.astype(int)), "out-of-fold rows")
    assert np.array_equal(found.scores, each.scores)
    assert found.rows == each.rows == counts.sum()
    plain = ConformalScores.of(errors, "out-of-fold rows")
    assert np.array_equal(ConformalScores.of(errors, "out-of-fold rows", counts=0.3 * counts).scores, plain.scores)


def test_no_more_is_promised_than_rows_allow():
    scores = ConformalScores.of(np.arange(9.0), "rows set aside")
    assert scores.at(0.9) == 8.0
    with pytest.raises(ValueError, match=r"0\.95 cannot be promised by 9 left-out rows: ask for at most 0\.900"):
        scores.at(0.95)
    with pytest.raises(ValueError, match="coverage must lie between 0 and 1"):
        scores.at(0.0)


def test_json_and_what_it_may_not_be():
    scores = ConformalScores.of(np.array([2.0, -1.0]), "out-of-fold rows")
    again = ConformalScores.from_json(scores.to_json())
    assert again.scores.tolist() == [1.0, 2.0]
    assert (again.rows, again.source, again.in_deviations) == (2, "out-of-fold rows", False)
    # Files before version 2 did not say: there they are standard deviations.
    assert ConformalScores.from_json({"scores": [1.0], "rows": 1, "source": "folds"}).in_deviations
    for strange in (None, {}, {"scores": [-1.0], "rows": 1, "source": ""}, {"scores": 1.0, "rows": 1, "source": ""}):
        with pytest.raises(ModelFileError, match="conformal intervals make no sense"):
            ConformalScores.from_json(strange)
