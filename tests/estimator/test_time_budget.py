"""``GPRegressor(time_budget=...)``: shorter fits, and refusals that name the argument."""

import numpy as np
import pytest

from finitegp import GPRegressor
from finitegp.automatic import EFFORTS, seconds


@pytest.fixture(scope="module")
def rows():
    random = np.random.default_rng(0)
    inputs = random.normal(size=(120, 2))
    return inputs, np.column_stack([inputs[:, 0], inputs[:, 1]]) + 0.1 * random.normal(size=(120, 2))


def test_targets_share_the_time(rows, monkeypatch, capsys):
    seen = []

    def within(budget, work):
        seen.append(budget)
        return work

    monkeypatch.setattr("finitegp.automatic.fit.within_seconds", within)
    monkeypatch.setattr(seconds, "_timed_evidence", lambda rows, columns: 1e-4)
    GPRegressor(effort="low", time_budget="1min", verbose=True).fit(*rows)
    assert seen == [30.0, 30.0]
    assert capsys.readouterr().err.count("About ") == 2


def test_less_time_means_fewer_rows_to_learn_from(rows):
    fit = GPRegressor(effort="medium", time_budget="0.001s").fit(rows[0], rows[1][:, 0]).fits_[0]
    assert fit.record["settings"]["learning_rows"] < EFFORTS["medium"].learning_rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_budget": "soon"}, "time_budget must be a time such as"),
        ({"time_budget": "60s", "feature_map": "mlp"}, "time_budget is for the automatic fit"),
    ],
)
def test_refusals(rows, options, message):
    with pytest.raises(ValueError, match=message):
        GPRegressor(**options).fit(*rows)
