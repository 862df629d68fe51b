"""Files of stacked kernels whose header or tensors say what cannot be: each is refused with a reason."""

import json
import math

import numpy as np
import pytest
import torch

from finitegp.automatic import fit_auto
from finitegp.errors import ModelFileError
from finitegp.lite import load
from finitegp.persistence import load_fit, save_fit
from finitegp.persistence.container import read_container, write_container


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    """Header and tensors of two or more kernels with a model of the spread and a variance outside."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(80, 2))
    targets = np.sin(2.0 * inputs[:, 1]) + (0.05 + 0.5 * (inputs[:, 0] > 0)) * random.normal(size=80)
    path = tmp_path_factory.mktemp("stack") / "stack.finitegp"
    save_fit(fit_auto(inputs, targets, effort="low"), path)
    header, tensors = read_container(path)
    assert len(header["fits"][0]["components"]) > 1
    assert {"spread", "excess", "conformal"} <= set(header["fits"][0])
    return header, tensors


def test_as_it_is_it_loads(contents, path):
    write_container(path, *contents)
    load_fit(path)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rows_whose_features_are_all_but_dependent(seed, path):
    """Targets that were solved from such features, three of them equal here, would be noise: the file holds them."""
    random = np.random.default_rng(seed)
    values, gaps = random.uniform(1, 5, size=120).round(3), np.arange(120) % 40 == 0
    inputs = np.column_stack([np.where(gaps, 2.5, values), gaps])
    fit = fit_auto(inputs, np.exp(0.4 * values + 0.2 * random.normal(size=120)), effort="low")
    save_fit(fit, path)
    expected, loaded = fit.predict(inputs), load_fit(path)
    assert torch.equal(loaded.predict(inputs).mean, expected.mean)
    np.testing.assert_allclose(load(path).predict(inputs).mean, expected.mean, rtol=1e-11)
    save_fit(loaded, path)
    assert torch.equal(load_fit(path).predict(inputs).std, expected.std)


HEADERS = [
    (("components",), value, "no GPs, or too many|its parts do not make a model|not a list")
    for value in (None, [], {}, "x", 3, [{}] * 65)
]
HEADERS += [(("components", 0), value, "do not make a model|cannot be used") for value in (None, [], {}, "x")]
HEADERS += [(("components", 0, "weight"), value, "weight") for value in (0.0, -1.0, 0.999, 1e300, None, "x", [], True)]
HEADERS += [(("components", 1, "factor"), value, "factor") for value in (0.0, -1.0, None, "x", True)]
HEADERS += [
    (("components", 1, "degrees_of_freedom"), value, "degrees of freedom") for value in (2.0, 0, -3.0, "x", [], True)
]
HEADERS += [(("components", 1, "scale_degrees"), value, "scale_degrees") for value in (-1.0, None, "x", [])]
HEADERS += [(("components", 1, "noise_variance"), value, "noise_variance") for value in (0.0, -1.0, None)]
HEADERS += [(("spread",), value, "cannot be used") for value in ([], {}, "x", 1)]
HEADERS += [(("spread", "limits"), value, "cannot be used") for value in ([1.0, -1.0], [0.0], None, "ab", [0, 1, 2])]
HEADERS += [(("spread", "share"), value, "make no sense") for value in (-0.1, 1.1)]
HEADERS += [(("spread", "factor"), value, "make no sense|do not make") for value in (0.0, -1.0, "x", None)]
HEADERS += [(("spread", "degrees_of_freedom"), value, "make no sense|do not make") for value in (2.0, None)]
HEADERS += [(("spread", "gp"), value, "do not make a model") for value in (None, {}, [])]
HEADERS += [(("excess",), value, "outside of the training rows|do not make") for value in (None, {}, [], "x")]
HEADERS += [(("excess", "threshold"), value, "outside of the training rows") for value in (-1.0, "x", None)]
HEADERS += [(("excess", "nearness"), value, "outside of the training rows") for value in (-1.0, "x", None)]
HEADERS += [(("conformal",), value, "conformal") for value in ({}, [], "x", 1)]
HEADERS += [(("conformal", "scores"), value, "conformal") for value in ([-1.0], "x", [[1.0]], [0.0] * 1001, {})]
HEADERS += [(("keeps_rows",), value, "training rows") for value in (None, "yes", 1)]
HEADERS += [(("counts_copies_once",), value, "training rows") for value in (None, "no", 0)]
HEADERS += [(("outliers",), value, "training rows|outliers") for value in (None, [], {"a": 0.0}, {"a": "x"})]
HEADERS += [(("record",), value, "record") for value in (None, [], "x")]


@pytest.mark.parametrize(("way", "value", "expected"), HEADERS, ids=str)
def test_headers_that_make_no_sense(contents, path, way, value, expected):
    header = json.loads(json.dumps(contents[0]))
    spot = header["fits"][0]
    for key in way[:-1]:
        spot = spot[key]
    spot[way[-1]] = value
    write_container(path, header, contents[1])
    with pytest.raises(ModelFileError, match=expected):
        load_fit(path)


@pytest.mark.parametrize("key", ["weight", "factor", "degrees_of_freedom", "scale_degrees", "feature_map", "num_data"])
def test_entries_of_a_component_that_are_not_there(contents, path, key):
    header = json.loads(json.dumps(contents[0]))
    del header["fits"][0]["components"][1][key]
    write_container(path, header, contents[1])
    with pytest.raises(ModelFileError):
        load_fit(path)


CHANGES = {
    "absent": lambda values: None,
    "nan": lambda values: values * math.nan,
    "short": lambda values: values[:-1],
    "long": lambda values: torch.cat([values, values[:1]]),
    "float32": lambda values: values.float(),
    "negative": lambda values: -values - 1.0,
    "zero": lambda values: torch.zeros_like(values),
}
TENSORS = [("components.1.landmark_weights", change) for change in CHANGES]
TENSORS += [("spread.landmark_weights", change) for change in CHANGES]
TENSORS += [("components.1.landmark_targets", change) for change in ("nan", "short", "long", "float32")]
TENSORS += [("spread.units", change) for change in CHANGES]
TENSORS += [("spread.centres", change) for change in CHANGES if change not in ("negative", "zero")]
TENSORS += [("excess.effects", change) for change in ("absent", "nan", "short", "long", "negative")]
TENSORS += [("excess.factors", change) for change in ("absent", "nan", "short", "long", "negative")]
TENSORS += [("excess.units", change) for change in ("absent", "nan", "short", "long", "negative", "zero")]
TENSORS += [("excess.run_starts", change) for change in ("absent", "nan", "short", "long")]
TENSORS += [("excess.run_ends", change) for change in ("absent", "nan", "short", "long")]
TENSORS += [("excess.centres", change) for change in ("absent", "nan")]
TENSORS += [("components.1.model.feature_map.maps.2.landmarks", change) for change in ("absent", "nan", "short")]


@pytest.mark.parametrize(("name", "change"), TENSORS)
def test_tensors_that_make_no_sense(contents, path, name, change):
    key = f"fits.0.{name}"
    changed = CHANGES[change](contents[1][key])
    tensors = {each: tensor for each, tensor in contents[1].items() if each != key}
    write_container(path, contents[0], tensors | ({} if changed is None else {key: changed}))
    with pytest.raises(ModelFileError):
        load_fit(path)


def test_ends_before_starts(contents, path):
    starts = contents[1]["fits.0.excess.run_starts"]
    write_container(path, contents[0], contents[1] | {"fits.0.excess.run_ends": starts - 1.0})
    with pytest.raises(ModelFileError, match="make no sense"):
        load_fit(path)


def test_weights_of_landmarks_without_landmarks(contents, path):
    weights = contents[1]["fits.0.components.1.landmark_weights"]
    assert contents[0]["fits"][0]["components"][0]["name"] == "linear"
    write_container(path, contents[0], contents[1] | {"fits.0.components.0.landmark_weights": weights})
    with pytest.raises(ModelFileError, match="weights of landmarks, but no landmarks"):
        load_fit(path)
