"""``ScaledGP``: rows that are left out, added, forgotten and merged, against refits."""

from dataclasses import replace

import numpy as np
import pytest
from scaled_fits import COUNTS, WILD, dense_rows, make_rows, same

from finitegp import DataError
from finitegp.automatic import fit_auto
from finitegp.data import ArraySource


@pytest.mark.parametrize("name", ["stack", "gaussian", "without rows"])
def test_leaving_a_row_out_is_forgetting_it(name, request):
    inputs, targets = make_rows(seed=1 if name == "gaussian" else 0)
    if name == "without rows":
        fit = fit_auto(inputs, targets, effort="low", keep_rows=False)
    else:
        fit = request.getfixturevalue(name)
    rows = [0, 1, 2, WILD, 50]
    left_out = fit.leave_one_out(inputs[rows], targets[rows])
    for place, row in enumerate(rows):
        one = slice(row, row + 1)
        again = fit.forget(inputs[one], targets[one]).predict(inputs[one])
        mean, std = (float(part[place]) for part in (left_out.mean, left_out.std))
        assert mean == pytest.approx(float(again.mean), rel=1e-6), row
        assert std == pytest.approx(float(again.std), rel=1e-6), row
        assert float(left_out.quantile(0.9)[place]) == pytest.approx(float(again.quantile(0.9)), rel=1e-6)


def test_updates_are_the_posterior_of_all_rows(stack):
    more = make_rows(30, seed=3)
    counts = np.full(30, 2.0)
    updated = stack.update(*more, counts)
    assert updated.num_data == stack.num_data + 60
    (inputs, targets, scales), (new, values) = dense_rows(stack), more
    inputs = np.vstack([inputs, np.repeat(stack.inputs_scaler.transform(new), 2, axis=0)])
    targets = np.concatenate([targets, np.repeat(stack.target_scaler.transform(values), 2)])
    weights = np.concatenate([1.0 / scales, np.ones(60)])
    points = stack.inputs_scaler.transform(make_rows(20, seed=2)[0])
    for before, after in zip(stack.components, updated.components, strict=True):
        direct = before.fitted.model.condition(ArraySource(inputs, targets, weights)).predict(points)
        same(after.fitted.predict(points), direct, rtol=1e-6, atol=1e-8)
    back = updated.forget(*more, counts)
    same(back.predict(more[0]), stack.predict(more[0]), rtol=1e-6, atol=1e-6)


def test_merging_forks_of_one_fit(stack, gaussian):
    one, two = make_rows(30, seed=3), make_rows(20, seed=4)
    empty = stack.forget(*make_rows(), COUNTS)
    merged = stack.update(*one).merge(empty.update(*two))
    both = stack.update(*(np.concatenate(parts) for parts in zip(one, two, strict=True)))
    same(merged.predict(one[0]), both.predict(one[0]), rtol=1e-5, atol=1e-5)
    with pytest.raises(DataError, match="Only fits that stem from one fit"):
        stack.merge(gaussian)
    other = fit_auto(*make_rows(seed=5), effort="low", settings={"input_noise": False})
    with pytest.raises(DataError, match="Only fits that stem from one fit"):
        stack.merge(other)
    foreign = replace(stack, components=tuple(reversed(stack.components)))
    with pytest.raises(DataError, match="Only posteriors of the same model"):
        stack.merge(foreign)


def test_copies_count_once_when_they_are_forgotten_too():
    inputs, targets = make_rows(40, seed=1)
    twice = np.repeat(inputs, 2, axis=0), np.repeat(targets, 2)
    fit = fit_auto(*twice, effort="low")
    once = fit_auto(inputs, targets, effort="low")
    assert fit.counts_copies_once
    assert fit.record["copies"] == 40
    assert not once.counts_copies_once
    assert fit.num_data == once.num_data == 40
    same(fit.predict(inputs), once.predict(inputs), rtol=1e-9, atol=1e-9)
    same(fit.forget(twice[0][:6], twice[1][:6]).predict(inputs), once.forget(inputs[:3], targets[:3]).predict(inputs))
    more = make_rows(5, seed=2)
    again = fit.update(np.repeat(more[0], 2, axis=0), np.repeat(more[1], 2))
    assert again.num_data == 45
    assert fit.update(*more, np.full(5, 2.0)).num_data == 50
    assert fit.evidence(*twice) == pytest.approx(fit.evidence(), abs=1e-4)
