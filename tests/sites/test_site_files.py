"""Files of row sums: what comes back, what is no such file, what is damaged or makes no sense, and earlier versions."""

from __future__ import annotations

import json
import math
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from site_tables import COUNTS, make_model, make_table

from finitegp import GPRegressor
from finitegp.errors import ModelFileError
from finitegp.features import LinearFeatures
from finitegp.persistence.container import FORMAT_VERSION, read_container, write_container
from finitegp.persistence.gps import encode_statistics
from finitegp.sites import SiteStatistics
from finitegp.tables.model import TableRegressor


@pytest.fixture(scope="module")
def small_bytes(tmp_path_factory):
    """A whole file, small enough to be damaged at every byte."""
    place = tmp_path_factory.mktemp("site") / "north.statistics"
    model = make_model(features=LinearFeatures(4, bias=False))
    model.statistics(make_table(30, seed=0)).save(place)
    return place.read_bytes()


@pytest.fixture
def path(tmp_path, small_bytes):
    place = tmp_path / "north.statistics"
    place.write_bytes(small_bytes)
    return place


def test_a_file_comes_back_to_the_bit(sites, tmp_path):
    sites[0].save(tmp_path / "north.statistics")
    again = SiteStatistics.load(tmp_path / "north.statistics")
    assert (again.name, again.target, again.rows) == ("north.statistics", "price", COUNTS[0])
    assert again.columns == sites[0].columns == ("size", "cut")
    assert (again.fingerprint, again.digest, again.version) == (
        sites[0].fingerprint,
        sites[0].digest,
        sites[0].version,
    )
    for name, values in encode_statistics(sites[0].statistics).items():
        assert torch.equal(encode_statistics(again.statistics)[name], values)


def test_truncated_at_every_length(path, small_bytes):
    for length in reversed(range(len(small_bytes))):
        os.truncate(path, length)
        with pytest.raises(ModelFileError, match=r"empty|only|truncated|damaged"):
            SiteStatistics.load(path)


def test_one_bit_flipped_at_every_byte(path, small_bytes):
    with open(path, "r+b", buffering=0) as opened:
        for position, byte in enumerate(small_bytes):
            os.pwrite(opened.fileno(), bytes([byte ^ (1 << position % 8)]), position)
            with pytest.raises(ModelFileError, match=str(path)):
                SiteStatistics.load(path)
            os.pwrite(opened.fileno(), bytes([byte]), position)
    SiteStatistics.load(path)


def test_declared_larger_than_the_file(path, small_bytes):
    length = int.from_bytes(small_bytes[:8], "little")
    outer = json.loads(small_bytes[8 : 8 + length])
    outer["statistics.gram"] = {"dtype": "F64", "shape": [10**6, 10**6], "data_offsets": [0, 8 * 10**12]}
    text = json.dumps({name: outer[name] for name in ("__metadata__", "statistics.gram")}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(100))
    with pytest.raises(ModelFileError, match="truncated"):
        SiteStatistics.load(path)


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        (b"", r"empty \(0 bytes\), not a site's statistics"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF" + bytes(500), "a JPEG image, not a site's statistics"),
        (pickle.dumps({"a": list(range(100))}), "a pickle"),
        (b"size,price\n" + b"1,2\n" * 100, "is not a site's statistics that finitegp saved"),
    ],
)
def test_other_files_are_named(contents, expected, path):
    path.write_bytes(contents)
    with pytest.raises(ModelFileError, match=expected):
        SiteStatistics.load(path)


def test_models_and_statistics_are_not_mixed_up(model, path):
    with pytest.raises(ModelFileError, match="holds the statistics of a site, not a model: finitegp merge"):
        TableRegressor.load(path)
    with pytest.raises(ModelFileError, match="'statistics', not a regressor"):
        GPRegressor.load(path)
    model.save(path)
    with pytest.raises(ModelFileError, match="holds a 'table', not a site's statistics: the model comes first"):
        SiteStatistics.load(path)


STRANGE_SITES = {
    "no rows": lambda site, sums: site.update(num_data=0),
    "rows that are text": lambda site, sums: site.update(num_data="4"),
    "endless rows": lambda site, sums: site.update(num_data=1e400),
    "no fingerprint": lambda site, sums: site.pop("fingerprint"),
    "a fingerprint that is a number": lambda site, sums: site.update(fingerprint=3),
    "a target that is a list": lambda site, sums: site.update(target=[]),
    "columns that are one text": lambda site, sums: site.update(columns="size"),
    "columns that are numbers": lambda site, sums: site.update(columns=[1, 2]),
    "no Gram matrix": lambda site, sums: sums.pop("statistics.gram"),
    "a Gram matrix of another size": lambda site, sums: sums.update({"statistics.gram": torch.eye(3).double()}),
    "single precision": lambda site, sums: sums.update({"statistics.gram": torch.eye(4)}),
    "not finite": lambda site, sums: sums["statistics.gram"].fill_(math.nan),
    "negative squares": lambda site, sums: sums["statistics.gram"].neg_(),
    "negative target squares": lambda site, sums: sums["statistics.target_sum_of_squares"].neg_(),
    "not symmetric": lambda site, sums: sums["statistics.gram"][0].mul_(0.5),
    "products larger than squares": lambda site, sums: sums["statistics.gram"].fill_diagonal_(1e-3),
    "targets larger than squares": lambda site, sums: sums["statistics.projected_targets"].mul_(1e3),
    "two targets": lambda site, sums: sums.update(
        {
            "statistics.projected_targets": torch.zeros(4, 2).double(),
            "statistics.target_sum_of_squares": torch.ones(2).double(),
        }
    ),
}


@pytest.mark.parametrize("change", STRANGE_SITES)
def test_a_signed_file_with_impossible_sums_is_a_clear_error(change, path):
    header, tensors = read_container(path)
    STRANGE_SITES[change](header["site"], tensors)
    if change == "endless rows":  # what JSON cannot hold is not written either
        with pytest.raises(ValueError, match="not JSON compliant"):
            write_container(path, header, tensors)
        return
    write_container(path, header, tensors)
    with pytest.raises(ModelFileError, match=r"north\.statistics cannot be used: .+\.$"):
        SiteStatistics.load(path)


def test_a_signed_file_without_a_description(path):
    header, tensors = read_container(path)
    for site in (None, [], {}, "x"):
        write_container(path, header | {"site": site}, tensors)
        with pytest.raises(ModelFileError, match="makes no sense"):
            SiteStatistics.load(path)


STORED = sorted((Path(__file__).parents[1] / "files").glob("*.statistics"))


@pytest.mark.parametrize("stored", STORED, ids=lambda file: file.stem)
def test_statistics_of_this_and_earlier_versions_merge_as_they_did(stored):
    """Their fingerprint must stay that of their model, and the sums must be read as they were meant."""
    expected = json.loads(stored.with_suffix(".json").read_text())
    model = TableRegressor.load(stored.with_name(stored.name.replace("site", "table")).with_suffix(".finitegp"))
    joint = model.merge(SiteStatistics.load(stored))
    # A row that holds something new is now claimed less certain than the regressor itself would have it.
    mean, std = joint.regressor_.predict(joint.encoder_.transform(expected["inputs"]), return_std=True)
    np.testing.assert_allclose(mean, expected["mean"], rtol=1e-7)
    np.testing.assert_allclose(std, expected["std"], rtol=1e-7)


def test_there_are_statistics_of_this_version():
    assert f"site-{FORMAT_VERSION}.statistics" in {file.name for file in STORED}
