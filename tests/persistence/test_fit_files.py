"""Fits in files: what goes in comes out to the last bit, and nothing else is in them."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from export_models import QUICK
from saved_fits import MAPS, NOISES, assert_same_predictions, make_fit, make_rows
from torch import nn

import finitegp.features
from finitegp.automatic import fit_auto
from finitegp.data.scaling import Standardizer
from finitegp.errors import ModelFileError
from finitegp.features import (
    LinearFeatures,
    MLPFeatures,
)
from finitegp.noise import InputNoise
from finitegp.persistence import load_fit, save_fit
from finitegp.persistence.container import read_container, write_container
from finitegp.persistence.gps import describe_module


@pytest.mark.parametrize("name", MAPS)
def test_every_feature_map_comes_back_to_the_bit(name, path):
    fit = make_fit(MAPS[name]())
    save_fit(fit, path)
    again = load_fit(path)
    assert type(again.fitted.model.feature_map) is type(fit.fitted.model.feature_map)
    assert_same_predictions(fit, again)
    mine, theirs = fit.fitted.model.state_dict(), again.fitted.model.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    assert [p for p, _ in fit.fitted.model.named_parameters()] == [p for p, _ in again.fitted.model.named_parameters()]
    assert not any(parameter.requires_grad for parameter in again.fitted.model.parameters())


@pytest.mark.parametrize("name", NOISES)
def test_every_noise_model_comes_back_to_the_bit(name, path):
    fit = make_fit(LinearFeatures(2), NOISES[name]())
    save_fit(fit, path)
    assert_same_predictions(fit, load_fit(path))


def test_every_feature_map_of_the_library_can_be_saved():
    for name in finitegp.features.__all__:
        if isinstance(getattr(finitegp.features, name), type):
            assert name in MAPS, f"{name} is not tested"
            assert describe_module(MAPS[name]())["type"] == name


def test_scalers_and_record_come_back(path):
    fit = make_fit(LinearFeatures(2))
    save_fit(fit, path)
    again = load_fit(path)
    assert type(again.inputs_scaler) is Standardizer
    assert_same_predictions(fit, again)
    assert again.record == {"path": "test", "seconds": 1.5, "steps": [1, 2]}


def test_automatic_fits_come_back_and_go_on(path):
    inputs, targets = make_rows(300)
    fit = fit_auto(inputs, targets, effort="low", settings=QUICK)
    save_fit(fit, path)
    state = torch.get_rng_state()
    again = load_fit(path)
    assert torch.equal(torch.get_rng_state(), state)
    assert_same_predictions(fit, again)
    for one, other in zip(*(each.interval(inputs, 0.8, method="conformal") for each in (fit, again)), strict=True):
        assert torch.equal(one, other)
    more_inputs, more_targets = make_rows(20, seed=2)
    more = fit.inputs_scaler.transform(more_inputs), fit.target_scaler.transform(more_targets)
    one, other = fit.fitted.update(more), again.fitted.update(more)
    assert one.posterior.statistics.num_data == other.posterior.statistics.num_data
    assert torch.equal(one.posterior.weight_mean, other.posterior.weight_mean)
    back = other.forget(more)
    torch.testing.assert_close(back.posterior.weight_mean, fit.fitted.posterior.weight_mean, rtol=1e-6, atol=1e-8)


def test_no_training_row_is_in_the_file(path):
    inputs, targets = make_rows(60)
    fit = make_fit(MAPS["FourierFeatures"]())
    save_fit(fit, path)
    data = path.read_bytes()
    scaled = fit.inputs_scaler.transform(inputs), fit.target_scaler.transform(targets)
    for values in (inputs, targets, *scaled):
        for value in values.ravel():
            assert np.float64(value).tobytes() not in data
            assert np.float32(value).tobytes() not in data


class Bump(nn.Module):
    """A module of a user's own."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.centers = nn.Parameter(torch.linspace(-1, 1, 6))
        self.factor = factor

    def forward(self, inputs):
        return torch.exp(-self.factor * (inputs[:, :1] - self.centers).square())


def test_modules_of_ones_own_are_passed_in(path):
    module = Bump(2.0)
    with torch.no_grad():
        module.centers.mul_(1.3)
    fit = make_fit(module)
    save_fit(fit, path)
    with pytest.raises(ModelFileError, match=r"Bump.*never loaded.*feature_map=module"):
        load_fit(path)
    fresh = Bump(2.0)
    assert_same_predictions(fit, load_fit(path, feature_map=fresh))
    assert torch.equal(fresh.centers, Bump().centers), "the module passed in was changed"
    with pytest.raises(ModelFileError, match="same features as when it was saved"):
        load_fit(path, feature_map=Bump(3.0))  # the same tensors, another function
    with pytest.raises(ModelFileError, match=r"feature_map passed in is not the one.*no tensor 'weight'"):
        load_fit(path, feature_map=nn.Linear(2, 6, bias=False))
    with pytest.raises(ModelFileError, match="must be a torch nn"):
        load_fit(path, feature_map="mlp")


def test_noise_of_ones_own_is_passed_in(path):
    class Half(nn.Linear):
        pass

    noise = InputNoise(Half(2, 1), reads="inputs")
    fit = make_fit(LinearFeatures(2), noise)
    save_fit(fit, path)
    with pytest.raises(ModelFileError, match="noise_model=module"):
        load_fit(path)
    assert_same_predictions(fit, load_fit(path, noise_model=InputNoise(Half(2, 1), reads="inputs")))


def test_hooks_make_a_module_ones_own():
    module = nn.Sequential(nn.Linear(2, 3))
    assert describe_module(module) is not None
    module[0].register_forward_hook(lambda *_: None)
    assert describe_module(module) is None
    assert describe_module(MLPFeatures(2, (3,), activation=nn.ELU)) is None
    assert describe_module(nn.utils.parametrizations.orthogonal(nn.Linear(2, 2))) is None


def test_a_module_that_refuses_the_probe_is_saved_without_one(path):
    class Lookup(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(4, 3)

        def forward(self, inputs):
            return self.table((inputs[:, 0] > 0).long() + 10 * (inputs[:, 1].abs() < 0.95).long() * (len(inputs) == 4))

    fit = make_fit(Lookup())
    save_fit(fit, path)
    assert not [name for name in read_container(path).tensors if "probe" in name]
    assert_same_predictions(fit, load_fit(path, feature_map=Lookup()))


def test_the_old_file_stays_whole_until_the_new_one_is(path, monkeypatch):
    save_fit(make_fit(LinearFeatures(2)), path)
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            save_fit(make_fit(LinearFeatures(2, bias=False)), path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    mask = os.umask(0o027)
    try:
        save_fit(make_fit(LinearFeatures(2)), path)
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o640


def test_what_a_file_cannot_hold(path):
    class Stateful(nn.Linear):
        def get_extra_state(self):
            return {"anything": 1}

        def set_extra_state(self, state):
            pass

    with pytest.raises(ModelFileError, match=r"_extra_state' is dict, which a file cannot hold"):
        save_fit(make_fit(Stateful(2, 3)), path)
    with pytest.raises(ModelFileError, match=r"complex128, which a file cannot hold"):
        write_container(path, {}, {"a": torch.zeros(2, dtype=torch.complex128)})
    assert not path.exists()
