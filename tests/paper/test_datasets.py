"""Datasets of the experiments: splits, damaged files, downloads that are interrupted."""

import gzip
import http.client
import io
import urllib.error

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from finitegp import DataError
from paper import datasets
from paper.datasets import load_split


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and no connection."""
    monkeypatch.setenv("FINITEGP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets, "_fetch", fail_with(urllib.error.URLError("no route")))
    return tmp_path / "cache"


def fail_with(error):
    def fetch(address):
        raise error

    return fetch


@pytest.fixture
def yacht(uci_dir):
    return pq.read_table(uci_dir / "yacht.parquet")


def upstream_files(table):
    """The two files of a dataset as they are published, by name."""
    columns = [f"x{index}" for index in range(6)] + ["y"]
    values = np.column_stack([table[column].to_numpy() for column in columns])
    masks = np.column_stack([table[f"test{index}"].to_numpy(zero_copy_only=False) for index in range(10)])
    found = {}
    for name, array, style in (("data.csv.gz", values, "%.17g"), ("test_mask.csv.gz", masks, "%d")):
        text = io.StringIO()
        np.savetxt(text, array, delimiter=",", fmt=style)
        found[name] = gzip.compress(text.getvalue().encode())
    return found


def change(table, column, values):
    return table.set_column(table.column_names.index(column), column, pa.array(values))


def equal(one, other):
    names = ("inputs", "targets", "test_inputs", "test_targets")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


def test_split_of_a_parquet_file(uci_dir, yacht):
    split = load_split("yacht", 3, uci_dir)
    test = yacht["test3"].to_numpy(zero_copy_only=False)
    assert split.inputs.shape == ((~test).sum(), 6)
    assert np.array_equal(split.test_targets, yacht["y"].to_numpy()[test])
    assert np.array_equal(split.inputs[:, 5], yacht["x5"].to_numpy()[~test])


def test_upstream_layout_gives_the_same_split(uci_dir, yacht, tmp_path, cache):
    folder = tmp_path / "data" / "yacht"
    folder.mkdir(parents=True)
    for name, contents in upstream_files(yacht).items():
        (folder / name).write_bytes(contents)
    assert equal(load_split("yacht", 0, tmp_path / "data"), load_split("yacht", 0, uci_dir))
    (folder / "test_mask.csv.gz").unlink()
    with pytest.raises(DataError, match="no test_mask"):
        load_split("yacht", 0, tmp_path / "data")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda t: change(t, "x2", [t["x2"][0].as_py() + 1e-9, *t["x2"].to_pylist()[1:]]), "values of yacht"),
        (lambda t: change(t, "y", t["y"].to_pylist()[::-1]), "values of yacht"),
        (lambda t: change(t, "test4", [not value for value in t["test4"].to_pylist()]), "split masks of yacht"),
        (lambda t: t.slice(1), "yacht must have 308 rows, 6 inputs"),
        (lambda t: t.drop_columns(["x5"]), "yacht must have 308 rows, 6 inputs"),
        (lambda t: t.drop_columns(["y"]), "yacht.parquet cannot be read"),
    ],
    ids=["value", "target", "mask", "row", "column", "no target"],
)
def test_damaged_contents_are_refused_by_name(yacht, tmp_path, cache, damage, message):
    pq.write_table(damage(yacht), tmp_path / "yacht.parquet")
    with pytest.raises(DataError, match=message):
        load_split("yacht", 0, tmp_path)


def test_file_that_is_not_parquet_is_refused_by_name(tmp_path, cache):
    (tmp_path / "yacht.parquet").write_bytes(b"no table")
    with pytest.raises(DataError, match=r"yacht\.parquet cannot be read"):
        load_split("yacht", 0, tmp_path)


def test_unknown_dataset_and_split(tmp_path):
    with pytest.raises(DataError, match="'moon' is not known; known are autompg"):
        load_split("moon", 0, tmp_path)
    with pytest.raises(DataError, match="between 0 and 9, but is 10"):
        load_split("yacht", 10, tmp_path)


def test_without_connection_the_message_says_where_to_place_files(tmp_path, cache):
    with pytest.raises(DataError) as found:
        load_split("yacht", 0, tmp_path)
    message = str(found.value)
    assert "no route" in message
    assert f"place yacht.parquet in {tmp_path}" in message
    assert "data.csv.gz and test_mask.csv.gz" in message
    assert str(cache / "yacht") in message
    assert "https://github.com/treforevans/uci_datasets" in message


@pytest.mark.parametrize(
    "interruption",
    [ConnectionResetError("reset"), http.client.IncompleteRead(b"half"), KeyboardInterrupt()],
    ids=["reset", "incomplete", "Ctrl-C"],
)
def test_interrupted_download_leaves_no_final_file_and_can_be_repeated(
    uci_dir, yacht, tmp_path, cache, monkeypatch, interruption
):
    files = upstream_files(yacht)

    def fetch(address, *, broken=True):
        name = address.rsplit("/", 1)[1]
        if broken and name == "data.csv.gz":
            raise interruption
        return files[name]

    monkeypatch.setattr(datasets, "_fetch", fetch)
    with pytest.raises(KeyboardInterrupt if isinstance(interruption, KeyboardInterrupt) else DataError):
        load_split("yacht", 0, tmp_path)
    assert [path.name for path in (cache / "yacht").iterdir()] == ["test_mask.csv.gz"]
    monkeypatch.setattr(datasets, "_fetch", lambda address: fetch(address, broken=False))
    assert equal(load_split("yacht", 0, tmp_path), load_split("yacht", 0, uci_dir))
    monkeypatch.setattr(datasets, "_fetch", fail_with(AssertionError("the cache was not used")))
    load_split("yacht", 1, tmp_path)


def test_stop_while_writing_leaves_nothing_half(yacht, tmp_path, cache, monkeypatch):
    monkeypatch.setattr(datasets, "_fetch", lambda address: upstream_files(yacht)[address.rsplit("/", 1)[1]])
    with monkeypatch.context() as patch:
        patch.setattr(datasets.os, "replace", fail_on_replace)
        with pytest.raises(KeyboardInterrupt):
            load_split("yacht", 0, tmp_path)
    assert list((cache / "yacht").iterdir()) == []


def fail_on_replace(source, target):
    raise KeyboardInterrupt


def test_wrong_file_of_slice_is_refused(tmp_path, cache):
    (tmp_path / "slice").mkdir()
    (tmp_path / "slice" / "data.csv.gz").write_bytes(gzip.compress(b"1,2,3\n"))
    with pytest.raises(DataError, match="not the published file of slice"):
        load_split("slice", 0, tmp_path)


# What the page of results says of the tables.


def test_splits_are_a_ten_fold_partition(uci_dir):
    for name in ("bike", "keggdirected", "yacht"):
        _, masks = datasets._load(name, uci_dir)
        np.testing.assert_array_equal(masks.sum(axis=1), 1)


@pytest.mark.parametrize(
    ("name", "share"), [("keggdirected", 0.73), ("keggundirected", 0.78), ("protein", 0.07), ("wine", 0.19)]
)
def test_copies_among_the_test_rows(uci_dir, name, share):
    split = load_split(name, 0, uci_dir)
    known = {row.tobytes() for row in np.column_stack([split.inputs, split.targets])}
    test_rows = np.column_stack([split.test_inputs, split.test_targets])
    assert np.mean([row.tobytes() in known for row in test_rows]) == pytest.approx(share, abs=0.005)


def test_target_of_bike_is_the_logarithm_of_the_sum_of_two_inputs(uci_dir):
    split = load_split("bike", 0, uci_dir)
    total = split.inputs[:, -2:].sum(axis=1)  # all columns of the file are centred
    assert np.corrcoef(total, np.exp(split.targets))[0, 1] ** 2 > 0.99999999
