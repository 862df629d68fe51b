"""What is shown while a fit works: a share that never falls, parts of fits inside, lines in notebooks."""

import numpy as np

from finitegp import GPRegressor
from finitegp.estimator import progress
from finitegp.estimator.progress import Stages, show_stages, stage_progress


def test_the_share_that_is_done_never_falls():
    """Also where series of parts follow one another, and with parts that nobody counted."""
    shown = []
    stages = Stages({"reading": 1.0, "fit": 8.0, "report": 1.0}, lambda done, part: shown.append(done))
    stages.begin("reading")
    stages.begin("fit")
    for part in ("network 1 of 3", "network 3 of 3", "noise", "1 of 5 refined", "5 of 5 refined", "2 of 2", "pass"):
        stages.tell(part)
    stages.begin("report")
    assert shown == sorted(shown)
    assert shown[:2] == [0.0, 0.1]
    assert 0.1 < shown[2] < shown[3] < 0.75
    assert shown[-2] < 0.9
    assert shown[-1] == 0.9


def test_fits_tell_the_stages_around_them(capsys, monkeypatch):
    """Without a bar of their own, and in a notebook as lines, for which no widgets are needed."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    X = np.random.default_rng(0).normal(size=(30, 1))
    with show_stages("finitegp", {"fit": 1.0, "report": 1.0}, shown=True) as stages:
        stages.begin("fit")
        GPRegressor(effort="low", random_state=0, verbose=True).fit(X, X[:, 0])
        stages.begin("report")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "finitegp 0 % fit"
    assert any(" % " in line and "fit: " in line for line in lines[1:-2])
    assert lines[-2].startswith("finitegp 50 % about")
    assert lines[-1] == "finitegp 100 % done"


def test_the_score_of_left_out_rows_stays_until_there_is_another():
    shown = []
    stages = Stages({"fit": 1.0, "report": 1.0}, lambda done, part: shown.append(part))
    stages.begin("fit")
    for part in ("reading", "network 1 of 2, left-out R2 0.71", "network 2 of 2, left-out R2 0.82", "noise"):
        stages.tell(part)
    stages.begin("report")
    stages.tell("charts")
    assert shown[1:5] == [
        "fit: reading",
        "fit: network 1 of 2, left-out R2 0.71",
        "fit: network 2 of 2, left-out R2 0.82",
        "fit: noise, left-out R2 0.82",
    ]
    assert shown[-1] == "report: charts"


def test_a_small_table_shows_its_score_in_notebooks(capsys, monkeypatch):
    """Lines with share, part and the score of left-out rows, which a good fit has near one."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    X = np.random.default_rng(0).normal(size=(60, 1))
    GPRegressor(effort="low", random_state=0, verbose=True).fit(X, X[:, 0])
    lines = capsys.readouterr().err.splitlines()
    scores = [
        float(line.split("left-out R2 ")[1]) for line in lines if "fold 5 of 5" in line or "fold 10 of 10" in line
    ]
    assert scores
    assert scores[-1] > 0.99


def test_nothing_is_shown_unasked(capsys):
    with stage_progress("fit", shown=False) as tell:
        tell("network 1 of 2")
    assert capsys.readouterr().err == ""
