"""Scores of an outcome as a line of results holds them."""

import numpy as np
import pytest
from scipy import stats

from finitegp.error_shape import ErrorShape
from paper.outcome import DatasetSplit, Outcome
from paper.worker import score_outcome


def test_experiments_store_what_a_gaussian_would_score_too():
    student = stats.t(2.5, scale=np.sqrt(0.5 / 2.5))  # of deviation one
    targets = ErrorShape(2.5).draw(np.random.RandomState(0), 500)
    rows = np.zeros((1, 1)), np.zeros(1), np.zeros((500, 1)), targets
    predicted = np.zeros(500), np.ones(500), 1.0
    shaped = score_outcome(DatasetSplit("made", 0, *rows), Outcome(*predicted, error_shape=ErrorShape(2.5)))
    plain = score_outcome(DatasetSplit("made", 0, *rows), Outcome(*predicted))
    assert shaped["nlpd"] == pytest.approx(-student.logpdf(targets).mean())
    assert shaped["gaussian_nlpd"] == plain["nlpd"] == pytest.approx(-stats.norm.logpdf(targets).mean())
    assert "gaussian_nlpd" not in plain
