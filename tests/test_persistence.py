"""Model files: what goes in comes out to the last bit, and what is not a whole model is refused with a reason."""

from __future__ import annotations

import gzip
import json
import math
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

import finitegp.features
from finitegp import DataError, FeatureGP, ScaledGP
from finitegp.atomic import complete_or_absent
from finitegp.automatic import fit_auto
from finitegp.component import Component
from finitegp.data.scaling import Standardizer
from finitegp.errors import ModelFileError
from finitegp.features import (
    ComposedFeatures,
    ConcatenatedFeatures,
    ConstantFeatures,
    FourierFeatures,
    GaussLegendreFeatures,
    LandmarkFeatures,
    LinearFeatures,
    MLPFeatures,
    PeriodicEmbedding,
    SoftClip,
)
from finitegp.noise import ConstantNoise, InputNoise, MeanVariance, SmoothFloor
from finitegp.persistence import load_fit, save_fit
from finitegp.persistence.container import FORMAT_VERSION, read_container, write_container
from finitegp.persistence.fits import decode_fits
from finitegp.persistence.modules import build_module, check_grids, describe_module

QUICK = {
    "small_rows": 100,
    "most_rows_for_both": 0,
    "members": 2,
    "hidden": [16, 16],
    "steps": 60,
    "fourier_features": 16,
    "noise_steps": 20,
}


def make_rows(count=60, columns=2, seed=0):
    generator = np.random.default_rng(seed)
    inputs = generator.normal(size=(count, columns)) * 3 + 1
    return inputs, 50 + 10 * np.sin(inputs[:, 0]) + generator.normal(size=count)


def make_fit(feature_map, noise=None, *, columns=2):
    inputs, targets = make_rows(columns=columns)
    inputs_scaler, target_scaler = Standardizer.fit(inputs), Standardizer.fit(targets)
    model = FeatureGP(feature_map, noise_model=noise or ConstantNoise(0.3), output_scale=1.7)
    fitted = model.condition((inputs_scaler.transform(inputs), target_scaler.transform(targets)))
    record = {"path": "test", "seconds": 1.5, "steps": (1, 2)}
    return ScaledGP((Component(fitted),), inputs_scaler, target_scaler, record=record)


def assert_same_predictions(one, other, columns=2):
    inputs = make_rows(columns=columns, seed=1)[0]
    first, second = one.predict(inputs), other.predict(inputs)
    for name in ("mean", "epistemic_variance", "noise_variance"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name


def network():
    networks = [nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 1)) for _ in range(2)]
    return nn.Sequential(MeanVariance(*networks), SmoothFloor(-3.0))


def landmarks():
    places = np.linspace(-2.0, 2.0, 12).reshape(6, 2)
    return LandmarkFeatures.at(places, kernel="rbf", length_scales=[0.5, 2.0], variance=1.3)


MAPS = {
    "MLPFeatures": lambda: MLPFeatures(2, (6, 5), activation="gelu", seed=1),
    "MLPFeatures, no last activation": lambda: MLPFeatures(2, (6,), final_activation=False, seed=1),
    "LinearFeatures": lambda: LinearFeatures(2, magnitude=0.2, bias_magnitude=3.0),
    "LinearFeatures, no bias": lambda: LinearFeatures(2, bias=False),
    "ConstantFeatures": lambda: ConstantFeatures(2.5),
    "PeriodicEmbedding": lambda: PeriodicEmbedding(2, num_frequencies=3, width=3, seed=4),
    "FourierFeatures": lambda: FourierFeatures(2, 10, kernel="matern32", length_scales=[0.5, 2.0], seed=5),
    "FourierFeatures, fixed": lambda: FourierFeatures(
        2, 10, ard=False, sampling="orthogonal", learn_length_scales=False, learn_frequencies=True
    ),
    "LandmarkFeatures": landmarks,
    "SoftClip": lambda: SoftClip(2, limit=2.0, low=[-3.0, -2.5], high=[1.0, 4.0]),
    "GaussLegendreFeatures": lambda: GaussLegendreFeatures(2, 22, length_scales=[1.5, 2.0], magnitude=0.7),
    "ComposedFeatures": lambda: ComposedFeatures(PeriodicEmbedding(2, 3, 3), MLPFeatures(6, (7,), seed=2)),
    "ConcatenatedFeatures": lambda: ConcatenatedFeatures(
        nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Identity(), nn.SiLU(), nn.Mish()), ConstantFeatures(), input_dim=2
    ),
}
NOISES = {
    "ConstantNoise": lambda: ConstantNoise(0.25),
    "InputNoise": lambda: InputNoise(network(), reads="inputs", variance=0.2, max_log_scale=5.0),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "price.finitegp"


@pytest.fixture(scope="module")
def linear_bytes(tmp_path_factory):
    """A whole file, small enough to be damaged at every byte."""
    place = tmp_path_factory.mktemp("linear") / "linear.finitegp"
    save_fit(make_fit(LinearFeatures(2)), place)
    return place.read_bytes()


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


def test_truncated_at_every_length(linear_bytes, path):
    path.write_bytes(linear_bytes)
    for length in reversed(range(len(linear_bytes))):
        os.truncate(path, length)
        with pytest.raises(ModelFileError, match=r"empty|only|truncated|damaged"):
            load_fit(path)


def test_bytes_after_the_end(linear_bytes, path):
    path.write_bytes(linear_bytes + b"more")
    with pytest.raises(ModelFileError, match="4 bytes after its end"):
        load_fit(path)


@pytest.mark.parametrize("mask", [0x01, 0x20, 0x80])
def test_one_bit_flipped_at_every_byte(linear_bytes, path, mask):
    path.write_bytes(linear_bytes)
    with open(path, "r+b", buffering=0) as opened:
        for position, byte in enumerate(linear_bytes):
            os.pwrite(opened.fileno(), bytes([byte ^ mask]), position)
            with pytest.raises(ModelFileError, match=str(path)):
                load_fit(path)
            os.pwrite(opened.fileno(), bytes([byte]), position)
    load_fit(path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_stretches_overwritten_or_cut_out(linear_bytes, path, data):
    start = data.draw(st.integers(0, len(linear_bytes) - 1))
    stop = data.draw(st.integers(start, min(start + 200, len(linear_bytes))))
    filling = data.draw(st.binary(max_size=200))
    changed = linear_bytes[:start] + filling + linear_bytes[stop:]
    path.write_bytes(changed)
    if changed == linear_bytes:
        load_fit(path)
    else:
        with pytest.raises(ModelFileError):
            load_fit(path)


def places(value, way=()):
    """Every place in nested JSON."""
    yield way
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in entries:
        yield from places(each, (*way, key))


STRANGE = [None, -1, 0, 10**15, 0.5, math.pi * 1e300, "x", "Linear", [], [[]], {}, {"type": "MLPFeatures"}, True]


def check_strange_headers(path, choose):
    """Whoever can write a checksum can write anything: still no other error, and no module larger than the file."""
    maps = [MAPS[name]() for name in ("ComposedFeatures", "FourierFeatures", "LinearFeatures", "ConcatenatedFeatures")]
    maps.append(GaussLegendreFeatures(2, 16, frequency_cutoff=3.0, tolerance=0.01))
    save_fit(make_fit(ConcatenatedFeatures(*maps), NOISES["InputNoise"]()), path)
    header, tensors = read_container(path)
    text = json.dumps(header)
    refused = 0
    for number, way in enumerate(places(header["fits"])):
        for strange in choose(number):
            changed = json.loads(text)
            spot = changed
            for key in ("fits", *way)[:-1]:
                spot = spot[key]
            spot[("fits", *way)[-1]] = strange
            try:
                assert isinstance(decode_fits(path, changed, tensors)[0], ScaledGP)
            except ModelFileError:
                refused += 1
    assert refused > number / 2


def test_a_signed_header_with_anything_in_it_makes_a_fit_or_a_clear_error(path):
    check_strange_headers(path, lambda number: [STRANGE[number % len(STRANGE)]])


@pytest.mark.slow
def test_a_signed_header_with_everything_in_it_makes_a_fit_or_a_clear_error(path):
    check_strange_headers(path, lambda number: STRANGE)


@pytest.mark.parametrize(
    "name", ["statistics.gram", "inputs_scaler.scale", "probe.features", "model.noise.log_variance"]
)
@pytest.mark.parametrize("strange", ["absent", "nan", "short", "float32", "negative"])
def test_a_signed_file_with_strange_tensors_is_a_fit_or_a_clear_error(name, strange, path, linear_bytes):
    path.write_bytes(linear_bytes)
    header, tensors = read_container(path)
    name = name if name.startswith("inputs_scaler") else f"components.0.{name}"
    values = tensors[f"fits.0.{name}"]
    changed = {
        "absent": None,
        "nan": values * math.nan,
        "short": values.reshape(-1)[:1],
        "float32": values.float(),
        "negative": -values,
    }[strange]
    tensors = {key: tensor for key, tensor in tensors.items() if key != f"fits.0.{name}"}
    write_container(path, header, tensors | ({} if changed is None else {f"fits.0.{name}": changed}))
    if name.endswith("model.noise.log_variance") and strange in ("negative", "float32"):
        load_fit(path)  # another noise, but a possible one; float32 is cast
        return
    with pytest.raises(ModelFileError):
        load_fit(path)


def test_a_small_file_cannot_ask_for_much_memory(path):
    save_fit(make_fit(MLPFeatures(2, (3,))), path)
    header, tensors = read_container(path)
    for key, value in (("hidden", [10**12]), ("hidden", [40, 3]), ("input_dim", 10**12)):
        changed = json.loads(json.dumps(header))
        changed["fits"][0]["components"][0]["feature_map"]["arguments"][key] = value
        write_container(path, changed, tensors)
        with pytest.raises(ModelFileError, match=r"more than the file has numbers|no tensor 'layers.2.bias'"):
            load_fit(path)
    # Tensors that are declared larger than the file, in the safetensors header itself.
    outer = {"__metadata__": {"finitegp": json.dumps({"format": "finitegp-model", "format_version": 1})}}
    outer["__metadata__"]["sha256"] = "0" * 64
    outer["gram"] = {"dtype": "F64", "shape": [10**6, 10**6], "data_offsets": [0, 8 * 10**12]}
    text = json.dumps(outer).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(100))
    with pytest.raises(ModelFileError, match="truncated"):
        load_fit(path)
    path.write_bytes((10**15).to_bytes(8, "little") + text)
    with pytest.raises(ModelFileError, match="first bytes are damaged"):
        load_fit(path)


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        (MLPFeatures(2, (3,)), {"input_dim": 50_000, "hidden": [50_000] * 20}),
        (MLPFeatures(2, (3,)), {"input_dim": 50_000, "hidden": [50_000] * 20, "seed": 0}),
        (nn.Sequential(nn.Linear(2, 3)), {"in_features": 50_000, "out_features": 50_000}),
        (nn.Sequential(nn.Linear(2, 3)), {"in_features": 50_000, "out_features": 50_000, "device": "cpu"}),
        (PeriodicEmbedding(2, 3, 3), {"input_dim": 50_000, "num_frequencies": 50_000, "width": 50_000}),
        (FourierFeatures(2, 4), {"input_dim": 50_000, "num_features": 50_000, "sampling": "orthogonal"}),
        (FourierFeatures(2, 4), {"input_dim": 20_000, "num_features": 50_000, "sampling": "sobol"}),
        (GaussLegendreFeatures(2, 22), {"nodes_per_dimension": 10_000}),
        (GaussLegendreFeatures(2, 22), {"frequency_cutoff": 1e-9}),
    ],
)
def test_no_arguments_allocate_more_than_the_file_has(module, arguments):
    """Also where every number is allowed: all of these are 1 GB or more if they are made with values."""
    description = describe_module(module)
    tensors = {f"model.{name}": tensor.double() for name, tensor in module.state_dict().items()}
    inner = description["children"].get("0", description)
    inner["arguments"] |= arguments
    tensors["more"] = torch.zeros(1).expand(10**12)  # numbers that the limit counts, and no memory
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def build():
        check_grids(description)
        build_module(description, tensors, "model.")

    with pytest.raises(ModelFileError):
        build()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


def test_many_grids_in_one_file_have_one_limit(path):
    save_fit(make_fit(GaussLegendreFeatures(2, 22)), path)
    header, tensors = read_container(path)
    component = header["fits"][0]["components"][0]
    grid = component["feature_map"]
    grid["arguments"] |= {"nodes_per_dimension": 256, "input_dim": 1}
    component["feature_map"] = {
        "type": "ConcatenatedFeatures",
        "arguments": {"input_dim": 1},
        "children": {str(number): grid for number in range(2000)},
    }
    write_container(path, header, tensors)
    with pytest.raises(ModelFileError, match="quadrature grids need"):
        load_fit(path)


WRONG_FILES = {
    "empty": (b"", "empty"),
    "jpeg": (b"\xff\xd8\xff\xe0\x00\x10JFIF" + bytes(500), "a JPEG image"),
    "png": (b"\x89PNG\r\n\x1a\n" + bytes(500), "a PNG image"),
    "json": (b'{"model": 1}', "JSON text"),
    "page": (b"<!doctype html><title>login</title>", "a web page"),
    "gzip": (gzip.compress(b"a,b\n1,2\n", mtime=0), "a gzip archive"),
    "pickle": (pickle.dumps({"a": list(range(100))}), "a pickle"),
    "csv": (b"carat,price\n" + b"0.3,500\n" * 100, "not a model that finitegp saved"),
    "zeros": (bytes(1000), "damaged"),
}


@pytest.mark.parametrize("kind", WRONG_FILES)
def test_other_files_are_named(kind, path):
    contents, expected = WRONG_FILES[kind]
    path.write_bytes(contents)
    with pytest.raises(ModelFileError, match=expected):
        load_fit(path)


def test_directories_missing_files_and_other_safetensors(tmp_path, path):
    with pytest.raises(ModelFileError, match="is a directory"):
        load_fit(tmp_path)
    with pytest.raises(ModelFileError, match="There is no file"):
        load_fit(path)
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(ModelFileError, match="a safetensors file, but not a model"):
        load_fit(path)
    save_file({"a": torch.zeros(2)}, path, {"finitegp": json.dumps({"format": "finitegp-checkpoint-1"})})
    with pytest.raises(ModelFileError, match="checkpoint of a training run"):
        load_fit(path)
    write_container(path, {"format": "something"}, {})
    with pytest.raises(ModelFileError, match="its format is 'something'"):
        load_fit(path)
    assert issubclass(ModelFileError, DataError)


@pytest.mark.parametrize(
    ("version", "expected"), [(FORMAT_VERSION + 1, "newer finitegp .9.0.*pip install --upgrade"), (0, "damaged")]
)
def test_other_versions(version, expected, path):
    save_fit(make_fit(LinearFeatures(2)), path)
    header, tensors = read_container(path)
    write_container(path, header | {"format_version": version, "versions": {"finitegp": "9.0"}}, tensors)
    with pytest.raises(ModelFileError, match=expected):
        load_fit(path)


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


def test_links_keep_pointing_at_the_file(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with complete_or_absent(tmp_path / "link") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="is a device or pipe"):
        load_fit(tmp_path / "pipe")


def test_places_where_no_file_can_be(tmp_path):
    with pytest.raises(DataError, match=r"is a directory"), complete_or_absent(tmp_path):
        pass
    with pytest.raises(DataError, match=r"There is no directory .*create it"), complete_or_absent(tmp_path / "a" / "b"):
        pass


def test_without_permission_the_first_of_two_writers_keeps_the_place(tmp_path):
    path = tmp_path / "file"

    def race():
        with complete_or_absent(path, overwrite=False) as slow:
            slow.write_text("second")
            with complete_or_absent(path, overwrite=False) as quick:
                quick.write_text("first")

    with pytest.raises(FileExistsError, match=r"file exists already: .*set overwrite=True"):
        race()
    assert path.read_text() == "first"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    with complete_or_absent(path) as temporary:
        temporary.write_text("third")
    assert path.read_text() == "third"


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_exactly_one_of_many_writers_at_once_succeeds(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError("no links here")))
    path, barrier, outcomes = tmp_path / "file", threading.Barrier(8), []

    def write(number):
        try:
            with complete_or_absent(path, overwrite=False) as temporary:
                temporary.write_text(str(number))
                barrier.wait()
            outcomes.append(number)
        except FileExistsError:
            pass

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 1
    assert path.read_text() == str(outcomes[0])
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_no_temporary_file_and_ends_the_process(tmp_path, sent):
    (tmp_path / "mine.part").write_text("of somebody else")
    program = (
        "import sys, time\n"
        "from finitegp.atomic import complete_or_absent\n"
        "with complete_or_absent(sys.argv[1]) as one, complete_or_absent(sys.argv[1] + '2') as other:\n"
        "    one.write_text('half')\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "file")], **options)
    assert process.stdout.readline() == b"ready\n"
    assert len(list(tmp_path.iterdir())) == 3
    process.send_signal(sent)
    assert process.wait(timeout=60) == -sent
    assert [file.name for file in tmp_path.iterdir()] == ["mine.part"]


def test_handlers_of_signals_are_as_before(tmp_path):
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with complete_or_absent(tmp_path / "file"):
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    def mine(*_):
        pass

    signal.signal(signal.SIGTERM, mine)
    try:
        with complete_or_absent(tmp_path / "file"):
            assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
