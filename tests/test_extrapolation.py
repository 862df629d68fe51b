"""Variance outside of what was seen."""

import numpy as np
import pytest
import torch

from finitegp.errors import ModelFileError
from finitegp.extrapolation import ExcessVariance, growth, left_out_factors, total_effects


def make_rows(count=2000, seed=0):
    return np.random.default_rng(seed).uniform(-1.7, 1.7, size=(count, 4))


@pytest.fixture(scope="module")
def excess():
    return ExcessVariance.fit(make_rows(), np.array([1.0, 0.3, 0.0, 0.05]), make_rows(500, seed=1))


def test_total_effects_of_a_known_function():
    """Ishigami's function: the indices are known in closed form."""
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-np.pi, np.pi, size=(100_000, 4))
    a, b = 7.0, 0.1

    def function(x):
        return np.sin(x[:, 0]) + a * np.sin(x[:, 1]) ** 2 + b * x[:, 2] ** 4 * np.sin(x[:, 0])

    # Variances of the parts: (1 + b pi^4 / 5)^2 / 2 of x0 alone, a^2 / 8 of x1, 8 b^2 pi^8 / 225 of x0 with x2.
    first, second, both = 0.5 * (1 + b * np.pi**4 / 5) ** 2, a**2 / 8, 8 * b**2 * np.pi**8 / 225
    found = total_effects(function, inputs, rng, rows=100_000)
    np.testing.assert_allclose(found, [first + both, second, both, 0.0], rtol=0.02)


def test_nothing_is_added_inside(excess):
    inside = make_rows(2000, seed=2)
    inside = np.clip(inside, make_rows().min(axis=0), make_rows().max(axis=0))
    assert float(excess.outside(inside).max()) == 0.0
    share = float((excess.variance(inside) > 0.0).double().mean())
    assert share < 0.05
    assert float(excess.variance(make_rows()[:100]).median()) == 0.0


def test_grows_monotonically_outside(excess):
    distances = np.concatenate([np.linspace(1.7, 30.0, 200), np.logspace(2, 300, 50)])
    for column in (0, 1):
        for sign in (-1.0, 1.0):
            rows = np.zeros((len(distances), 4))
            rows[:, column] = sign * distances
            variance = excess.variance(rows).numpy()
            assert np.isfinite(variance).all()
            assert (np.diff(variance) > -1e-12).all()
            assert variance[-1] > variance[20] > 0.0
    # A column without any effect adds nothing by itself, but is told of.
    rows = np.zeros((1, 4))
    rows[0, 2] = 50.0
    assert float(excess.variance(rows)) == pytest.approx(0.0, abs=1e-12)
    assert float(excess.outside(rows)[0, 2]) > 20.0


def test_gaps_count_as_outside():
    rows = make_rows(4000)
    rows = rows[np.abs(rows[:, 0]) > 0.5]
    found = ExcessVariance.fit(rows, np.array([1.0, 0.1, 0.1, 0.1]))
    inside = np.zeros((3, 4))
    inside[:, 0] = [-1.0, 0.0, 0.4]
    outside = found.outside(inside)[:, 0].numpy()
    # In units of the column, to the nearer edge; rows set aside are a little outside of the others, too.
    unit = max(rows[:, 0].std(), np.ptp(rows[:, 0]) / 8.0)
    edges = rows[rows[:, 0] < 0, 0].max(), rows[rows[:, 0] > 0, 0].min()
    expected = [0.0, min(-edges[0], edges[1]) / unit, (edges[1] - 0.4) / unit]
    np.testing.assert_allclose(outside, expected, atol=0.01)


def test_rows_set_aside_say_what_is_still_inside():
    """A sparse tail has gaps everywhere; new rows fall into them, and are no news."""
    rng = np.random.default_rng(0)
    rows, aside, new = (rng.standard_t(3.0, size=(count, 1)) for count in (2000, 500, 2000))
    found = ExcessVariance.fit(rows, np.ones(1), aside)
    strict = ExcessVariance.fit(rows, np.ones(1), rows[:500])
    assert float((found.outside(new) > 0.0).double().mean()) < 0.25 * float((strict.outside(new) > 0.0).double().mean())
    # No slack of rows set aside, however far out they are, is larger than one unit.
    wild = ExcessVariance.fit(rows, np.ones(1), np.array([[1e6]]))
    assert float(wild.outside(rows.max(keepdims=True) + 2.0 * wild.units.numpy())) == pytest.approx(1.0)


def test_corners_count_as_outside():
    """Each column is within its range, but not both together."""
    rows = make_rows(4000)
    rows = rows[(rows[:, 0] < 0.5) | (rows[:, 1] < 0.5)]
    found = ExcessVariance.fit(rows, np.array([1.0, 1.0, 0.0, 0.0]))
    corner = np.array([[1.6, 1.6, 0.0, 0.0]])
    assert float(found.outside(corner).max()) == 0.0
    assert float(found.variance(corner)) > 0.1


def test_constant_columns_are_guarded():
    rows = make_rows(500)
    rows[:, 3] = 1e-16 * np.random.default_rng(0).normal(size=500)
    found = ExcessVariance.fit(rows, np.array([1.0, 1.0, 1.0, 1.0]))
    new = np.zeros((1, 4))
    new[0, 3] = 2.0
    assert float(found.variance(new)) == 0.0


def test_no_row_is_kept():
    rows = np.concatenate([make_rows(1000), [[9.0, 9.0, 9.0, 9.0]]])
    found = ExcessVariance.fit(rows, np.ones(4))
    assert len(found.centres) <= 250
    distances = torch.cdist(found.centres, torch.from_numpy(rows)).min(dim=1).values
    assert float(distances.min()) > 0.0


@pytest.mark.parametrize("count", [2, 10, 40])
def test_small_tables(count):
    rows = make_rows(count)
    found = ExcessVariance.fit(rows, np.ones(4))
    assert bool(torch.isfinite(found.variance(10.0 * rows)).all())
    assert float(found.variance(10.0 * rows).min()) > 0.0


def test_factors_tell_lines_from_curves():
    """A line goes on as it was; where it bends at the ends, nobody knows."""
    rows = make_rows(3000)
    rng = np.random.default_rng(1)
    targets = rows[:, 0] + np.sin(3.0 * rows[:, 1]) + 0.1 * rng.normal(size=3000)
    targets /= targets.std()
    effects = total_effects(lambda x: x[:, 0] + np.sin(3.0 * x[:, 1]), rows, rng)
    factors = left_out_factors(rows, targets, effects)
    assert factors[0].max() < 0.5 * factors[1].min()
    # Columns without effect, and small tables, get what is usual.
    assert factors[2:].min() == factors[2:].max() == left_out_factors(rows[:100], targets[:100], effects).max()


def test_sides_have_their_own_factors():
    factors = np.array([[2.0, 8.0], [6.0, 6.0], [6.0, 6.0], [6.0, 6.0]])
    found = ExcessVariance.fit(make_rows(), np.array([1.0, 0.0, 0.0, 0.0]), make_rows(500, seed=1), factors=factors)
    rows = np.zeros((2, 4))
    rows[:, 0] = [-5.0, 5.0]
    low, high = found.by_column(rows)[:, 0].tolist()
    expected = factors[0] * growth(found.outside(rows)[:, 0]).numpy()
    np.testing.assert_allclose([low, high], expected)


def test_growth_slows_down():
    distances = torch.tensor([5.0, 10.0, 20.0, 40.0, 1e6], dtype=torch.float64)
    slopes = growth(distances).log().diff() / distances.log().diff()
    assert bool((slopes.diff() < 0.0).all())
    assert float(slopes[0]) > 2.5


def test_saved_and_made_again(excess):
    again = ExcessVariance.from_tensors(excess.config(), excess.tensors())
    rows = 3.0 * make_rows(100, seed=3)
    assert torch.equal(again.variance(rows), excess.variance(rows))


def test_files_that_make_no_sense(excess):
    with pytest.raises(ModelFileError, match="incomplete"):
        ExcessVariance.from_tensors({}, excess.tensors())
    with pytest.raises(ModelFileError, match="shapes"):
        ExcessVariance.from_tensors(excess.config(), excess.tensors() | {"centres": torch.zeros(2, 3)})
    with pytest.raises(ModelFileError, match="no sense"):
        ExcessVariance.from_tensors(excess.config(), excess.tensors() | {"units": torch.zeros(4)})
