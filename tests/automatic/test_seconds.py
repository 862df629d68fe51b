"""What a fit is expected to take, with the timing of single steps replaced by constants: nothing here is timed."""

import numpy as np
import pytest

from finitegp.automatic import EFFORTS, fit_auto, seconds
from finitegp.automatic.seconds import Work, expected_seconds, within_seconds
from finitegp.formatting import parse_seconds

MEDIUM = EFFORTS["medium"]


@pytest.fixture(autouse=True)
def constant_steps(monkeypatch):
    monkeypatch.setattr(seconds, "_multiplications_per_second", lambda: 2e10)
    monkeypatch.setattr(seconds, "_timed_evidence", lambda rows, columns: 1e-7 * rows**2)
    monkeypatch.setattr(seconds, "_timed_step", lambda columns, settings, members, device: 0.001 * (0.4 + members))
    monkeypatch.setattr(seconds, "_timed_noise_step", lambda columns, device: 0.001)


def work(rows, **changes):
    return Work(rows, 20, MEDIUM.with_changes(changes), 2, may_use_all_cores=True)


def test_more_rows_take_longer_but_ever_less_so():
    found = [expected_seconds(work(rows)) for rows in (4001, 40_000, 400_000, 4_000_000)]
    assert found == sorted(found)
    assert found[1] < 4 * found[0]
    assert found[2] < 6 * found[1]
    small = [expected_seconds(work(rows)) for rows in (50, 500, 2000)]
    assert small == sorted(small)


def test_both_kernels_and_networks_are_counted():
    both, alone = work(3000), work(3000, most_rows_for_both=0)
    assert (both.kernels, both.networks) == (True, True)
    assert (alone.kernels, alone.networks) == (False, True)
    assert expected_seconds(both) > expected_seconds(alone)
    assert (work(2000).kernels, work(2000).networks) == (True, False)
    # No posteriors of kernels where networks win, which is as likely as not.
    kernels = expected_seconds(work(3000, small_rows=3000))
    assert expected_seconds(both) < expected_seconds(alone) + kernels


def test_jobs_are_done_in_rounds():
    assert seconds._in_rounds([3.0, 1.0, 2.0], 2) == 5.0
    assert seconds._in_rounds([3.0, 1.0, 2.0], 1) == 6.0


def test_a_time_budget_makes_steps_fewer_first():
    wanted = work(40_000)
    usual = expected_seconds(wanted)
    assert within_seconds(2 * usual, wanted).settings == MEDIUM
    shorter = within_seconds(0.6 * usual, wanted)
    assert expected_seconds(shorter) <= 0.6 * usual
    assert shorter.settings.steps < MEDIUM.steps
    assert (shorter.settings.members, shorter.settings.max_sample) == (MEDIUM.members, MEDIUM.max_sample)
    fastest = within_seconds(0.001, work(4_000_000))
    assert (fastest.settings.members, fastest.settings.max_sample) == (2, 5000)


def test_the_fit_tells_before_it_begins():
    random = np.random.default_rng(0)
    inputs = random.normal(size=(300, 2))
    told = []
    quick = {"small_rows": 50, "most_rows_for_both": 0, "hidden": [8], "fourier_features": 16}
    fit = fit_auto(
        inputs,
        inputs[:, 0] + 0.1 * random.normal(size=300),
        effort="low",
        settings=quick,
        time_budget="1s",
        on_expected=lambda value: told.append(("expected", value)),
        progress=lambda part: told.append(("done", part)),
    )
    assert told[0] == ("expected", fit.record["expected_seconds"])
    assert told[1][0] == "done"
    assert fit.record["settings"]["steps"] < EFFORTS["low"].steps


@pytest.mark.parametrize("value", ["soon", "-3s", "0s", "5 parsecs", True, ""])
def test_what_is_no_time_is_refused(value):
    with pytest.raises(ValueError, match="time_budget must be a time such as '60s'"):
        fit_auto(np.zeros((3, 1)), np.arange(3.0), time_budget=value)


def test_units():
    assert [parse_seconds(value) for value in ("2h", "3 min", "10", 7)] == [7200.0, 180.0, 10.0, 7.0]
