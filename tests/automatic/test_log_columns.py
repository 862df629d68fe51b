"""Heavy-tailed columns on a logarithmic scale, where the evidence is for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from finitegp import GPRegressor, TableRegressor
from finitegp.automatic import fit_auto
from finitegp.automatic.log_columns import _heavy_tailed, choose_log_columns
from finitegp.data.scaling import LogScales, Standardizer
from finitegp.errors import DataError, ModelFileError
from finitegp.lite import LiteError, load
from finitegp.persistence import load_fit, save_fit


def made(count, seed):
    """The second column acts by its ratios, the third to both sides of its middle; the first is plain."""
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(count, 3))
    inputs[:, 0] = random.uniform(-2.0, 2.0, size=count)
    inputs[:, 1] = np.exp(2.0 * inputs[:, 1])
    inputs[:, 2] = np.sinh(2.0 * inputs[:, 2])
    targets = np.sin(inputs[:, 0]) + np.log(inputs[:, 1]) + np.arcsinh(inputs[:, 2]) + 0.1 * random.normal(size=count)
    return inputs, targets


@pytest.fixture(scope="module")
def fit():
    return fit_auto(*made(200, 0), effort="low")


def test_columns_are_those_with_heavy_tails():
    inputs, targets = made(300, 0)
    found = choose_log_columns(inputs, targets)
    assert found.columns.tolist() == [1, 2]
    assert found.origin[0] == pytest.approx(np.sort(inputs[:, 1])[:3].mean())
    assert found.origin[1] == pytest.approx(np.median(inputs[:, 2]), abs=0.1)
    mirrored = choose_log_columns(-inputs, targets)
    assert mirrored.origin[0] == pytest.approx(-found.origin[0])
    # No value of a row: a model without rows holds them as well.
    assert not np.isin(found.origin, inputs).any()
    # Linear in the columns as they are; nothing but noise; nothing heavy; too few rows.
    random = np.random.default_rng(1)
    assert choose_log_columns(inputs, inputs @ [1.0, 0.1, 0.1] + random.normal(size=300)) is None
    assert choose_log_columns(inputs, random.normal(size=300)) is None
    assert choose_log_columns(inputs[:, :1], targets) is None
    assert choose_log_columns(inputs[:10], targets[:10]) is None


def test_one_of_two_values_has_no_other_scale():
    shops = np.random.default_rng(1).permutation(300)[:, None] < 20 * np.arange(1, 4)
    sizes = made(300, 0)[0][:, 1:2]
    assert _heavy_tailed(shops.astype(float)) is None
    assert _heavy_tailed(np.column_stack([shops, sizes])).columns.tolist() == [3]


def test_a_wild_target_does_not_decide():
    inputs, targets = made(300, 0)
    targets[7] = 1e6
    assert choose_log_columns(inputs, targets) is not None


def test_columns_come_out_a_second_time():
    logs = LogScales(np.array([1]), np.array([2.0]), np.array([0.5]))
    scaler = Standardizer(np.array([1.0, 0.0, 0.3]), np.array([2.0, 1.0, 0.7]), logs)
    values = np.array([[3.0, 2.0], [-1.0, 1e6], [0.0, -40.0]])
    scaled = scaler.transform(values)
    assert scaler.num_columns == 2
    np.testing.assert_allclose(scaled[:, :2], (values - [1.0, 0.0]) / [2.0, 1.0])
    np.testing.assert_allclose(scaled[:, 2], (np.arcsinh((values[:, 1] - 2.0) / 0.5) - 0.3) / 0.7)
    with pytest.raises(DataError, match=r"inputs must be \(rows, 2\)"):
        scaler.transform(scaled)


def test_a_target_that_grows_with_the_column_stays_within_its_error_bars():
    """On the logarithmic scale alone, twice the largest value was hardly outside, and error bars missed all rows."""
    random = np.random.default_rng(9)
    inputs = np.column_stack([random.lognormal(0.0, 1.5, size=200), random.normal(size=200)])

    def function(x):
        return np.where(x[:, 0] < 1.0, np.log(x[:, 0] + 0.1), np.log(1.1) + 0.3 * (x[:, 0] - 1.0)) + np.sin(x[:, 1])

    fit = fit_auto(inputs, function(inputs) + 0.2 * random.normal(size=200), effort="low")
    assert fit.record["log_columns"] == [0]
    for times in (1.5, 2.0, 3.0):
        new = np.column_stack([np.full(100, times * inputs[:, 0].max()), random.normal(size=100)])
        lower, upper = (each.numpy() for each in fit.interval(new, 0.9))
        assert np.mean((lower <= function(new)) & (function(new) <= upper)) > 0.8
        outside = fit.outside(new)
        assert outside.shape == new.shape
        assert (outside[:, 0] > 1.0).all()


@pytest.mark.parametrize("rows", [3, 8, 19, 20, 21, 30, 45])
def test_switches_are_no_sizes(rows):
    """A column with one or two ones ended in an error about a quantile of fewer than three values."""
    targets = np.arange(float(rows))
    for ones in (1, 2, 3):
        inputs = np.column_stack([targets < ones, targets])
        assert choose_log_columns(inputs, targets) is None


@pytest.mark.slow
def test_the_fit_gains_by_it(fit):
    inputs, targets = made(1000, 1)
    assert fit.record["log_columns"] == [1, 2]
    plain = fit_auto(*made(200, 0), effort="low", settings={"log_columns": False})
    assert plain.inputs_scaler.logarithms is None
    errors = [float((each.predict_mean(inputs) - torch.from_numpy(targets)).square().mean()) for each in (plain, fit)]
    assert errors[1] < 0.3 * errors[0]
    lower, upper = (each.numpy() for each in fit.interval(inputs, 0.9))
    assert np.mean((lower <= targets) & (targets <= upper)) > 0.86


def test_rows_come_and_go(fit):
    more, new = made(30, 2), made(20, 3)[0]
    back = fit.update(*more).forget(*more)
    torch.testing.assert_close(back.predict(new).mean, fit.predict(new).mean, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(fit.update(*more).predict(new).mean, fit.predict(new).mean, rtol=1e-5, atol=1e-5)


def test_files_and_lite_models_keep_it(fit, tmp_path):
    path, new = tmp_path / "model.finitegp", made(40, 4)[0]
    new[0] = [0.0, 1e30, -1e30]
    save_fit(fit, path)
    expected = fit.predict(new)
    torch.testing.assert_close(load_fit(path).predict(new).mean, expected.mean)
    light = load(path)
    np.testing.assert_allclose(light.predict(new).mean, expected.mean, rtol=1e-8)
    np.testing.assert_allclose(light.predict(new).std, expected.std, rtol=1e-8)
    more = made(10, 5)
    changed = light.update(*more).predict(new[1:])
    np.testing.assert_allclose(changed.mean, fit.update(*more).predict(new[1:]).mean, rtol=1e-6)


@pytest.mark.parametrize(
    "wrong", [{"unit": np.array([-1.0, 1.0])}, {"unit": np.array([np.inf, 1.0])}, {"columns": np.array([1, 3])}]
)
def test_a_scale_without_sense_is_refused(fit, tmp_path, wrong):
    path = tmp_path / "model.finitegp"
    logs = fit.inputs_scaler.logarithms._replace(**wrong)
    save_fit(replace(fit, inputs_scaler=replace(fit.inputs_scaler, logarithms=logs)), path)
    with pytest.raises(ModelFileError, match="logarithmic scale that makes no sense"):
        load_fit(path)
    with pytest.raises(LiteError):
        load(path)


def test_models_without_rows_use_it_and_hold_none():
    inputs, targets = made(200, 0)
    fit = fit_auto(inputs, targets, effort="low", keep_rows=False)
    assert fit.record["log_columns"] == [1, 2]
    assert not fit.keeps_rows
    assert not np.isin(fit.inputs_scaler.logarithms.origin, inputs).any()


def test_the_regressor_shows_it():
    table = dict(zip(("hour", "income", "balance"), made(100, 0)[0].T, strict=True)) | {"spent": made(100, 0)[1]}
    notes = TableRegressor(effort="low", random_state=0).fit(table, target="spent").notes_
    assert "Seen on a logarithmic scale as well, because the evidence is for it: 'income', 'balance'." in notes
    regressor = GPRegressor(effort="low", random_state=0).fit(*made(100, 0))
    assert regressor.training_summary_["fits"][0]["log_columns"] == [1, 2]
