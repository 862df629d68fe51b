"""A stack of kernels comes back from its file with everything that predicts, updates and forgets."""

from dataclasses import replace

import pytest
import torch
from scaled_fits import make_rows, same

from finitegp.automatic import fit_auto
from finitegp.persistence import load_fit, save_fit
from finitegp.persistence.container import read_container


@pytest.mark.parametrize("changed", [False, True])
def test_everything_comes_back_from_a_file(stack, changed, tmp_path):
    fit = stack.update(*make_rows(30, seed=3)) if changed else stack
    save_fit(fit, tmp_path / "stack.finitegp")
    tensors = read_container(tmp_path / "stack.finitegp").tensors
    # Row sums follow from landmarks and their weights, until there are other rows in them.
    assert ("fits.0.components.1.statistics.gram" in tensors) == changed
    assert ("fits.0.components.1.landmark_weights" in tensors) != changed
    again = load_fit(tmp_path / "stack.finitegp")
    new = make_rows(30, seed=2)[0]
    # Sums of counted and doubted rows round differently; see the next test.
    same(again.predict(new), fit.predict(new), rtol=1e-7, atol=1e-7)
    # Rows of high leverage multiply rounding.
    same(again.leave_one_out(*make_rows()), fit.leave_one_out(*make_rows()), rtol=1e-4, atol=1e-4)
    for method in ("predictive", "gaussian", "conformal"):
        torch.testing.assert_close(again.interval(new, 0.8, method=method), fit.interval(new, 0.8, method=method))
    assert again.evidence() == pytest.approx(fit.evidence(), rel=1e-7)
    assert torch.equal(torch.from_numpy(again.outside(3 * new)), torch.from_numpy(fit.outside(3 * new)))
    assert (again.outliers, again.keeps_rows) == (fit.outliers, True)
    more = make_rows(5, seed=6)
    same(again.update(*more).predict(new), fit.update(*more).predict(new), rtol=1e-7, atol=1e-7)
    same(
        again.forget(*(part[:9] for part in make_rows())).predict(new),
        fit.forget(*(part[:9] for part in make_rows())).predict(new),
        rtol=1e-6,
        atol=1e-6,
    )


def test_plain_rows_come_back_to_the_last_bit(tmp_path):
    inputs, targets = make_rows(60, seed=1)
    fit = fit_auto(inputs, targets, effort="low")
    save_fit(fit, tmp_path / "stack.finitegp")
    again = load_fit(tmp_path / "stack.finitegp")
    same(again.predict(inputs), fit.predict(inputs), rtol=0, atol=0)
    assert again.evidence() == fit.evidence()


def test_no_prediction_depends_on_the_record(stack, tmp_path):
    save_fit(replace(stack, record={}), tmp_path / "bare.finitegp")
    bare = load_fit(tmp_path / "bare.finitegp")
    new = make_rows(30, seed=2)[0]
    assert bare.record == {}
    same(bare.predict(new), stack.predict(new), rtol=1e-7, atol=1e-7)
    assert bare.evidence() == pytest.approx(stack.evidence(), rel=1e-7)
    torch.testing.assert_close(bare.interval(new, method="conformal"), stack.interval(new, method="conformal"))
