"""The automatic fit on a device: nothing is made behind its back, and the result is that of the CPU.

There is no other device than the CPU where these tests run: a shadow of one stands in for it.
"""

import numpy as np
import pytest
import torch
from shadow_device import SHADOW, ShadowTensor, shadow_device

from finitegp import GPRegressor, TableRegressor, devices
from finitegp.automatic import fit_auto
from finitegp.automatic.fit import check_device
from finitegp.devices import as_device, exact_device, in_float64
from finitegp.distributed import Ranks

QUICK = {
    "small_rows": 100,
    "most_rows_for_both": 0,
    "members": 3,
    "hidden": (16, 16),
    "steps": 10,
    "max_steps": 10,
    "noise_steps": 8,
    "fourier_features": 32,
}
MISSING = [name for name in ("cuda", "mps") if not getattr(torch, name).is_available()]


@pytest.fixture(scope="module")
def rows():
    random = np.random.default_rng(0)
    inputs = random.normal(size=(300, 3))
    noise = 0.1 * (1.0 + np.abs(inputs[:, 2])) * random.normal(size=300)
    return inputs, np.sin(2.0 * inputs[:, 0]) + 0.3 * inputs[:, 1] + noise


def test_the_shadow_refuses_what_a_device_refuses():
    here = torch.ones(3)
    with shadow_device(has_float64=False) as made:
        there = here.to(SHADOW)
        assert isinstance(there, ShadowTensor)
        assert isinstance(torch.zeros(3, device=SHADOW) + there, ShadowTensor)
        assert type(there.cpu()) is torch.Tensor
        with pytest.raises(RuntimeError, match="mixes devices"):
            there + torch.ones(3)
        with pytest.raises(TypeError, match="float64 on a device that has none"):
            there.double()
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
    assert made.tensors >= 3


@pytest.mark.parametrize(("has_float64", "counted"), [(True, False), (False, True)])
def test_networks_on_a_device_are_those_of_the_cpu(rows, monkeypatch, has_float64, counted):
    inputs, targets = rows
    counts = np.random.default_rng(1).integers(1, 4, size=len(targets)).astype(float) if counted else None
    options = {"counts": counts, "settings": QUICK, "threads": 1}
    reference = fit_auto(inputs, targets, **options)
    monkeypatch.setattr(devices, "WITHOUT_FLOAT64", set() if has_float64 else {SHADOW.type})
    expected = []
    with shadow_device(has_float64=has_float64) as made:
        found = fit_auto(inputs, targets, **options, device=SHADOW, on_expected=expected.append)
    assert made.tensors > 5000  # the work was done there
    assert expected[0] > 0.0
    assert (reference.record["device"], found.record["device"]) == ("cpu", SHADOW.type)
    assert found.fitted.model.device.type == found.fitted.posterior.statistics.device.type == "cpu"
    ours, theirs = found.predict(inputs), reference.predict(inputs)
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(ours.std, theirs.std, rtol=1e-10)


def test_kernels_of_small_tables_are_fitted_on_the_cpu(rows):
    inputs, targets = rows[0][:40], rows[1][:40]
    reference = GPRegressor(effort="low", random_state=0).fit(inputs, targets)
    with shadow_device() as made:
        found = GPRegressor(effort="low", random_state=0, device=SHADOW).fit(inputs, targets)
    assert made.tensors <= 4  # the one that asks whether the device is there, and its number
    assert np.array_equal(found.predict(inputs), reference.predict(inputs))


def test_no_process_is_started_for_a_device(rows, monkeypatch):
    def refuse(**_):
        raise AssertionError("a process was started")

    monkeypatch.setattr("joblib.Parallel", refuse)
    monkeypatch.setattr("finitegp.automatic.ensemble._MANY_STEPS", 0)
    with pytest.raises(AssertionError, match="a process was started"):
        fit_auto(*rows, settings=QUICK, threads=2)
    with shadow_device():
        fit_auto(*rows, settings=QUICK, threads=2, device=SHADOW)


def test_the_cpu_by_name_is_the_cpu_to_the_bit(rows):
    fits = [fit_auto(*rows, settings=QUICK, **options) for options in ({}, {"device": "cpu"}, {"device": devices.CPU})]
    for fit in fits[1:]:
        assert torch.equal(fit.predict(rows[0]).std, fits[0].predict(rows[0]).std)


@pytest.mark.parametrize("device", [*MISSING, "meta"])
def test_a_missing_device_is_refused_before_any_work(device, rows, monkeypatch):
    monkeypatch.setattr("finitegp.automatic.fit.as_source", None)
    with pytest.raises(ValueError, match=f"device is '{device}', which torch cannot use here .*: leave it at 'cpu'"):
        fit_auto(*rows, device=device)
    for model in (GPRegressor(device=device), GPRegressor("mlp", device=device), TableRegressor(device=device)):
        with pytest.raises(ValueError, match=f"device is '{device}'"):
            model.fit(None, None)


def test_what_a_device_cannot_be_combined_with():
    with shadow_device():
        with pytest.raises(ValueError, match="A memory budget is for fits on the CPU, but device is 'meta'"):
            check_device("meta", "64MB")
        with pytest.raises(ValueError, match="Several ranks fit on the CPU, but device is 'meta'"):
            check_device("meta", None, Ranks(0, 2))
    assert check_device("cpu", "64MB", Ranks(0, 2)) == devices.CPU


def test_a_given_feature_map_needs_float64(rows, monkeypatch):
    monkeypatch.setattr(devices, "WITHOUT_FLOAT64", {SHADOW.type})
    with shadow_device(), pytest.raises(ValueError, match="needs float64, which the device 'meta' has not"):
        GPRegressor("mlp", device=SHADOW).fit(*rows)


def test_float64_is_on_the_cpu_where_a_device_has_none(monkeypatch):
    assert exact_device(torch.device("mps")) == devices.CPU
    assert exact_device(torch.device("cuda", 1)) == torch.device("cuda", 1)
    monkeypatch.setattr(devices, "WITHOUT_FLOAT64", {SHADOW.type})
    with shadow_device(has_float64=False):
        found = in_float64(torch.ones(2, device=SHADOW))
    assert (type(found), found.dtype) == (torch.Tensor, torch.float64)


def test_unknown_devices_are_named():
    with pytest.raises(ValueError, match="device must be one that torch knows, such as 'cpu', 'cuda' or 'mps'"):
        as_device("gpu")


def test_files_name_the_device_and_need_none(tmp_path):
    table = {"x": np.arange(20.0)}
    model = TableRegressor(effort="low", random_state=0, device=torch.device("cpu")).fit(table, np.arange(20.0) ** 2)
    model.device = model.regressor_.device = torch.device("cuda")  # as after a fit there
    model.save(tmp_path / "model.finitegp")
    loaded = TableRegressor.load(tmp_path / "model.finitegp")
    assert (loaded.device, loaded.regressor_.device) == ("cuda", "cuda")
    assert np.array_equal(loaded.predict(table), model.predict(table))
    loaded.update(table, np.arange(20.0) ** 2)
