"""Targets with an atom: it is found, and rows that have it for certain do not spoil what is claimed of the others."""

from dataclasses import replace

import numpy as np
import pytest

from finitegp import TableRegressor
from finitegp.automatic.misleading_rows import atom, dithered
from finitegp.kernel_gp import KernelRows


def batters(rows, seed):
    """Counts that are zero for certain in nearly half of the rows, those without a chance."""
    random = np.random.default_rng(seed)
    chances = np.where(random.random(rows) < 0.45, 0.0, np.ceil(600.0 * random.random(rows) ** 3))
    hits = random.binomial(chances.astype(int), 0.27)
    runs = random.binomial(hits, 0.1)
    table = {"chances": chances, "hits": hits, "home runs": runs, "average": hits / np.maximum(chances, 1.0)}
    return table | {"number": random.integers(0, 30, rows), "batted in": random.poisson(0.25 * hits + 1.6 * runs)}


def test_atoms_are_found_and_coarse_scales_are_none():
    random = np.random.default_rng(0)
    assert atom(np.append(np.zeros(50), random.lognormal(size=200))) == (0.0, 0.2)
    assert atom(np.arange(20.0)) is None
    assert atom(np.arange(20.0), np.append(10.0, np.ones(19))) == (0.0, 10.0 / 29.0)
    assert atom(random.integers(0, 10, 1000).astype(float)) is None
    assert atom(random.normal(size=100)) is None


def test_rows_in_an_atom_get_errors_like_those_of_the_others():
    random = np.random.default_rng(0)
    inputs = random.normal(size=(400, 2))
    inside = inputs[:, 1] < 0.0
    targets = np.where(inside, 0.0, inputs[:, 0] + 0.3 * random.normal(size=400))
    found = dithered(KernelRows.of(inputs, targets), seed=0).targets
    assert np.array_equal(found[~inside], targets[~inside])
    assert 0.2 < found[inside].std() < 0.4
    smooth = KernelRows.of(inputs, inputs[:, 0])
    assert dithered(smooth, seed=0) is smooth


@pytest.mark.slow
def test_rows_that_are_certain_do_not_spoil_what_is_claimed_of_others():
    """Noise that went to zero claimed a density of a thousand at zero, with an error of all others that was larger."""
    new = batters(1000, 11)
    fitted = TableRegressor(random_state=0).fit(batters(300, 1), target="batted in")
    assert any("exactly 0 in" in note for note in fitted.notes_)
    claimed = fitted.predict_scored(new)
    # Rows without a chance are equal to rows that were seen, of which it is known that all of them have zero.
    certain = claimed.log_density[new["chances"] == 0.0]
    assert np.median(certain) > 5.0
    assert certain.min() > -5.0
    fitted.regressor_.fits_ = [replace(fit, repeated=None) for fit in fitted.regressor_.fits_]
    scored = fitted.predict_scored(new)
    assert np.exp(scored.log_density.max()) < 50.0
    best = np.std(new["batted in"] - (0.25 * new["hits"] + 1.6 * new["home runs"]))
    assert scored.scores().rmse < 1.1 * best
    place = scored.lower.shape[1] - 2  # of the 90 % intervals
    for each in (scored, claimed):
        inside = (each.lower[:, place] <= each.targets) & (each.targets <= each.upper[:, place])
        assert 0.85 < inside[new["chances"] > 0.0].mean() < 0.96
