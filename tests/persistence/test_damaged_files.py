"""Files that are no whole model are refused with a reason, and take no memory."""

from __future__ import annotations

import gzip
import json
import math
import os
import pickle
import resource

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from saved_fits import MAPS, NOISES, make_fit
from torch import nn

from finitegp import DataError, ScaledGP
from finitegp.errors import ModelFileError
from finitegp.features import (
    ConcatenatedFeatures,
    FourierFeatures,
    GaussLegendreFeatures,
    LinearFeatures,
    MLPFeatures,
    PeriodicEmbedding,
)
from finitegp.persistence import load_fit, save_fit
from finitegp.persistence.container import FORMAT_VERSION, read_container, write_container
from finitegp.persistence.fits import decode_fits
from finitegp.persistence.gps import build_module, check_grids, describe_module


@pytest.fixture(scope="module")
def linear_bytes(tmp_path_factory):
    """A whole file, small enough to be damaged at every byte."""
    place = tmp_path_factory.mktemp("linear") / "linear.finitegp"
    save_fit(make_fit(LinearFeatures(2)), place)
    return place.read_bytes()


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
