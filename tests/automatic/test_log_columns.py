"""Heavy-tailed columns on a logarithmic scale, where the evidence is for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from finitegp import GPRegressor
from finitegp.automatic import fit_auto
from finitegp.automatic.log_columns import choose_log_columns
from finitegp.data.scaling import Standardizer
from finitegp.errors import ModelFileError
from finitegp.lite import load
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
    assert (found.unit > 0.0).tolist() == [False, True, True]
    assert found.origin[1] == inputs[:, 1].min()
    assert found.origin[2] == pytest.approx(np.median(inputs[:, 2]))
    mirrored = choose_log_columns(-inputs, targets)
    assert mirrored.origin[1] == -inputs[:, 1].min()
    # Linear in the columns as they are; nothing but noise; nothing heavy; too few rows.
    random = np.random.default_rng(1)
    assert choose_log_columns(inputs, inputs @ [1.0, 0.1, 0.1] + random.normal(size=300)) is None
    assert choose_log_columns(inputs, random.normal(size=300)) is None
    assert choose_log_columns(inputs[:, :1], targets) is None
    assert choose_log_columns(inputs[:10], targets[:10]) is None


def test_a_wild_target_does_not_decide():
    inputs, targets = made(300, 0)
    targets[7] = 1e6
    assert choose_log_columns(inputs, targets) is not None


def test_scaled_and_back():
    origin, unit = np.array([0.0, 2.0]), np.array([0.0, 0.5])
    scaler = Standardizer(np.array([1.0, 0.3]), np.array([2.0, 0.7]), origin, unit)
    values = np.array([[3.0, 2.0], [-1.0, 1e6], [0.0, -40.0]])
    scaled = scaler.transform(values)
    np.testing.assert_allclose(scaled[:, 0], (values[:, 0] - 1.0) / 2.0)
    np.testing.assert_allclose(scaled[:, 1], (np.arcsinh((values[:, 1] - 2.0) / 0.5) - 0.3) / 0.7)
    np.testing.assert_allclose(scaler.inverse(scaled), values, rtol=1e-12)


def test_the_fit_gains_by_it(fit):
    inputs, targets = made(1000, 1)
    assert fit.record["log_columns"] == [1, 2]
    plain = fit_auto(*made(200, 0), effort="low", settings={"log_columns": False})
    assert plain.inputs_scaler.unit is None
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


def test_a_scale_without_sense_is_refused(fit, tmp_path):
    path = tmp_path / "model.finitegp"
    for unit in ([0.0, -1.0, 1.0], [0.0, np.inf, 1.0]):
        wrong = replace(fit, inputs_scaler=replace(fit.inputs_scaler, unit=np.array(unit)))
        save_fit(wrong, path)
        with pytest.raises(ModelFileError, match="logarithmic scale that makes no sense"):
            load_fit(path)


def test_networks_use_it_too():
    random = np.random.default_rng(0)
    inputs = np.exp(2.0 * random.normal(size=(3000, 2)))
    targets = np.log(inputs[:, 0]) * np.log(inputs[:, 1]) + 0.1 * random.normal(size=3000)
    quick = {"steps": 300, "max_steps": 300, "noise_steps": 50, "small_rows": 100, "trees": 0}
    before = inputs.copy()
    fits = [fit_auto(inputs, targets, effort="low", settings=quick | {"log_columns": on}) for on in (False, True)]
    np.testing.assert_array_equal(inputs, before)
    assert fits[1].record["log_columns"] == [0, 1]
    errors = [fit.record["validation_rmse"] for fit in fits]
    assert errors[1] < 0.5 * errors[0]


def test_the_regressor_shows_it():
    regressor = GPRegressor(effort="low", random_state=0).fit(*made(100, 0))
    assert regressor.training_summary_["fits"][0]["log_columns"] == [1, 2]
