"""Fits that hold no rows: landmarks are means of neighbours, nothing in the file is a row, and sums can be merged."""

import numpy as np
import pytest
import torch

from finitegp.automatic import fit_auto
from finitegp.automatic.kernels import neighbour_means
from finitegp.features.landmarks import landmarks_of
from finitegp.persistence import load_fit, save_fit
from finitegp.persistence.container import read_container


def make_rows(count=90, seed=0):
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(count, 3))
    return inputs, 5.0 + np.sin(2.0 * inputs[:, 0]) + 0.3 * inputs[:, 1] + 0.1 * random.normal(size=count)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 40])
def test_every_group_has_at_least_three_different_rows(count):
    rows = np.random.default_rng(0).normal(size=(count, 2))
    means = neighbour_means(rows, np.ones(2))
    assert len(means) == max(1, count // 3)
    # Each row is in one group: with weights of the sizes of groups the mean of means would be the mean.
    np.testing.assert_allclose(neighbour_means(np.repeat(rows, 3, axis=0), np.ones(2)), means)
    if count % 3 == 0:
        np.testing.assert_allclose(means.mean(axis=0), rows.mean(axis=0))


def test_groups_are_of_neighbours_in_length_scales():
    random = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 1000.0]])
    rows = np.repeat(centres, 3, axis=0) + 0.1 * random.normal(size=(9, 2))
    found = neighbour_means(rows, np.array([1.0, 100.0]))
    expected = rows.reshape(3, 3, 2).mean(axis=1)
    np.testing.assert_allclose(found[np.lexsort(found.T)], expected[np.lexsort(expected.T)])


@pytest.fixture(scope="module")
def fit():
    inputs, targets = make_rows()
    targets = targets.copy()
    targets[4] = 300.0  # an outlier
    return fit_auto(inputs, targets, effort="low", keep_rows=False)


def test_it_is_one_kernel_on_means(fit):
    (component,) = fit.components
    assert component.landmark_weights is None
    assert component.weight == 1.0
    assert fit.record["kernels"] == {component.name: 1.0}
    assert not fit.keeps_rows
    assert fit.spread is None
    assert len(landmarks_of(component.fitted.model.feature_map)) == 30
    assert fit.num_data == 90


def test_no_row_is_in_the_file(fit, tmp_path):
    save_fit(fit, tmp_path / "shared.finitegp")
    header, tensors = read_container(tmp_path / "shared.finitegp")
    inputs, targets = make_rows()
    forms = inputs, fit.inputs_scaler.transform(inputs)
    stored = torch.cat([tensor.double().reshape(-1) for tensor in tensors.values()]).numpy()
    data = (tmp_path / "shared.finitegp").read_bytes()
    for rows in forms:
        # No value of any row, not only no row.
        assert np.abs(stored[:, None] - rows.ravel()).min() > 1e-12
        assert not any(np.float64(value).tobytes() in data for value in rows.ravel())
    for values in (targets, fit.target_scaler.transform(targets)):
        others = np.delete(values, np.argmin(np.abs(values - np.median(values))))
        assert not any(np.float64(value).tobytes() in data for value in others)
    text = str(header)
    assert not any(repr(float(value)) in text for value in inputs.ravel())
    # As a check of the check: with rows, they are found.
    kept = fit_auto(inputs, targets, effort="low")
    save_fit(kept, tmp_path / "kept.finitegp")
    data = (tmp_path / "kept.finitegp").read_bytes()
    assert all(np.float64(value).tobytes() in data for value in kept.inputs_scaler.transform(inputs).ravel())
    again = load_fit(tmp_path / "shared.finitegp")
    assert torch.equal(again.predict(inputs).std, fit.predict(inputs).std)
    assert not again.keeps_rows


def test_intervals_hold_what_they_claim_and_errors_are_a_little_larger(fit):
    inputs, targets = make_rows()
    new, observed = make_rows(1000, seed=1)
    kept, shared = (fit_auto(inputs, targets, effort="low", keep_rows=keep) for keep in (True, False))
    errors = [np.sqrt(np.mean((each.predict(new).mean.numpy() - observed) ** 2)) for each in (kept, shared)]
    assert errors[1] < 1.5 * errors[0]
    for each in (shared, fit):
        lower, upper = each.interval(new, 0.9)
        inside = (lower.numpy() < observed) & (observed < upper.numpy())
        # What means of rows do not see of the function is a variance of its own: intervals are wider than they need be.
        assert 0.86 < inside.mean() < 0.995


@pytest.mark.parametrize("rows", [2, 3, 6, 12])
def test_few_rows(rows):
    inputs, targets = make_rows(rows)
    fit = fit_auto(inputs, targets, effort="low", keep_rows=False)
    assert len(fit.components) == 1
    assert not fit.keeps_rows
    assert bool(torch.isfinite(fit.predict(inputs).std).all())


def test_a_line_needs_no_landmarks():
    random = np.random.default_rng(0)
    inputs = random.normal(size=(300, 2))
    fit = fit_auto(inputs, inputs[:, 0], effort="low", keep_rows=False)
    new = random.normal(size=(50, 2))
    np.testing.assert_allclose(fit.predict(new).mean, new[:, 0], atol=1e-3)
