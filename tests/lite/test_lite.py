"""``finitegp.lite`` gives what the library gives, of every kind of model, and refuses what it cannot read."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from export_models import KINDS, OLD_SCIPY, file_of, intervals, kept, library
from torch import nn

import finitegp.lite
from finitegp import GPRegressor, TableRegressor
from finitegp.lite import LiteError, load
from finitegp.lite.container import read_file, write_file
from finitegp.lite.model import METHODS
from finitegp.lite.target_scale import Scale
from finitegp.persistence import load_fit, save_fit
from finitegp.scaled import ScaledGP
from finitegp.tables.targets import SCALES, TargetScale

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "tests" / "files"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return str(tmp_path_factory.mktemp("models"))


def close(found, expected, rtol=1e-10):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-12)


@OLD_SCIPY
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_predictions_are_the_librarys(kind, directory):
    model = load(file_of(kind, directory))
    fitted, new = kept(kind).fitted, kept(kind).new
    found = model.predict(new)
    mean, std, epistemic, noise = library(fitted, new)
    close(found.mean, mean)
    close(found.std, std)
    if epistemic is not None:
        close(found.epistemic_std, epistemic)
        close(found.noise_std, noise)
    for coverage in (0.2, 0.9, 0.99):
        for method in METHODS:
            try:
                expected = intervals(fitted, new, coverage, method)
            except ValueError:
                with pytest.raises(LiteError, match=r"conformal|promised"):
                    found.interval(coverage, method)
                continue
            for mine, theirs in zip(found.interval(coverage, method), expected, strict=True):
                close(mine, theirs)


@pytest.mark.parametrize("kind", ["table", "table, log"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_row_with_something_new_is_predicted_as_among_others(kind, directory):
    """What is put into its gaps depends on the row alone, so chunks of a table are predicted as the whole."""
    fitted, new = kept(kind).fitted, kept(kind).new
    model = load(file_of(kind, directory))
    alone = [{name: [cells[row]] for name, cells in new.items()} for row in range(4)]
    for predict in (lambda rows: model.predict(rows).mean, fitted.predict):
        close(np.concatenate([predict(row) for row in alone]), predict(new), rtol=1e-12)


# Of kernels on rows that were kept, RBF kernels among them.
STACKED = ("automatic small", "table of numbers, log, automatic")
UPDATED = (
    "automatic small",
    "automatic large",
    "boosted trees",
    "noise from inputs",
    "several targets",
    "Fourier",
    "table, log",
)


@pytest.mark.parametrize(
    "kind", [kind if kind in UPDATED else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_rows_come_and_go_as_in_the_library(kind, directory, tmp_path):
    path = file_of(kind, directory)
    (rows, targets), new = kept(kind).later, kept(kind).new
    model = load(path)
    more = model.update(rows, targets)
    again = _loaded(path)
    if isinstance(again, ScaledGP):
        again = again.update(rows, targets)
    elif isinstance(again, TableRegressor):
        again.update(rows, targets)
    else:
        again.partial_fit(rows, targets)
    found, (mean, std, *_) = more.predict(new), library(again, new)
    close(found.mean, mean)
    close(found.std, std)
    before = model.predict(new)
    assert np.max(np.abs(found.mean - before.mean)) > 1e-6
    close(more.forget(rows, targets).predict(new).mean, before.mean, rtol=1e-7)  # what was added, rounded, taken away
    assert more.rows == model.rows + len(np.unique(np.asarray(targets), axis=0))
    more.save(tmp_path / "more.finitegp")
    mean, std, *_ = library(_loaded(tmp_path / "more.finitegp"), new)
    # Sums of rows on landmarks are in the coordinates of a factor that this processor's two LAPACKs round differently.
    close(found.mean, mean, rtol=1e-6 if kind in STACKED else 1e-10)
    close(load(tmp_path / "more.finitegp").predict(new).std, found.std)


def _loaded(path):
    kind = read_file(path).header["kind"]
    return {"fit": load_fit, "regressor": GPRegressor.load, "table": TableRegressor.load}[kind](path)


def test_forgetting_an_outlier_as_it_was_trusted(directory, tmp_path):
    from export_models import rows

    from finitegp.automatic import fit_auto

    inputs, targets = rows(60)
    targets[5] += 500.0
    counts = np.where(np.arange(60) < 5, 2.0, 1.0)
    fit = fit_auto(inputs, targets, counts=counts, may_be_copies=False, effort="low")
    assert fit.outliers
    save_fit(fit, tmp_path / "a.finitegp")
    some = inputs[3:9], targets[3:9], counts[3:9]
    less, expected = load(tmp_path / "a.finitegp").forget(*some), fit.forget(*some)
    close(less.predict(inputs).mean, expected.predict(inputs).mean)
    with pytest.raises(LiteError, match="not among"):
        less.forget(*(np.repeat(each, 50, axis=0) for each in some))


@pytest.mark.parametrize("kind", ["Fourier", "automatic large", "several targets", "table, log"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_merging(kind, directory):
    (rows, targets), new = kept(kind).later, kept(kind).new
    model = load(file_of(kind, directory))
    both = model.update(rows, targets).merge(model)
    twice = model.update(rows, targets)
    assert both.rows == twice.rows + model.rows
    close(both.forget(rows, targets).predict(new).mean, model.merge(model).predict(new).mean, rtol=1e-7)
    with pytest.raises(LiteError, match="one fit"):
        model.merge(load(file_of("Gauss-Legendre", directory)))


@pytest.mark.parametrize("path", sorted(FILES.glob("*.finitegp")), ids=lambda path: path.stem)
def test_files_of_earlier_releases(path):
    expected = json.loads(path.with_suffix(".json").read_text())
    found = load(path).predict(expected["inputs"])
    # Written before files held what makes the products with the target on this processor.
    rtol = 1e-6 if path.stem == "kernel-2" else 1e-10
    close(found.mean, expected["mean"], rtol)
    close(found.std, expected["std"], rtol)
    for method in METHODS:
        if method in expected:
            for mine, theirs in zip(found.interval(0.8, method), expected[method], strict=True):
                close(mine, theirs, rtol)


def test_sites_and_own_modules_are_refused(tmp_path):
    with pytest.raises(LiteError, match="'statistics', not a model"):
        load(FILES / "site-2.statistics")

    class Own(nn.Module):
        num_features = 2

        def forward(self, inputs):
            return inputs

    inputs = np.random.default_rng(0).normal(size=(20, 2))
    GPRegressor(Own(), algorithm="exact", epochs=1).fit(inputs, inputs[:, 0]).save(tmp_path / "own.finitegp")
    with pytest.raises(LiteError, match=r"module of one's own.*Own.*make it of the library's"):
        load(tmp_path / "own.finitegp")


def test_every_damaged_byte_is_noticed(directory, tmp_path):
    whole = Path(file_of("noise from inputs", directory)).read_bytes()
    path = tmp_path / "damaged.finitegp"
    random = np.random.default_rng(0)
    for place in [0, 7, 8, *random.integers(8, len(whole), size=60)]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(LiteError):
            load(path)
    for length, words in [(0, "is empty"), (5, "not the whole"), *((n, "truncated") for n in (8, 100, len(whole) - 1))]:
        path.write_bytes(whole[:length])
        with pytest.raises(LiteError, match=words):
            load(path)
    path.write_bytes(whole + b"0")
    with pytest.raises(LiteError, match="damaged"):
        load(path)


def test_lies_of_a_header_are_noticed_before_anything_is_made(directory, tmp_path):
    """With a right checksum: sizes beyond the file, overlaps, other types, shapes that do not fit together."""
    header, arrays = read_file(file_of("noise from inputs", directory))
    path = tmp_path / "lie.finitegp"
    for name, change in (
        ("fits.0.inputs_scaler.scale", np.ones(3)),
        ("fits.0.components.0.statistics.gram", np.eye(4)),
        ("fits.0.components.0.model.feature_map.log_magnitude", np.array(np.nan)),
        ("fits.0.components.0.probe.features", np.ones((4, 3))),
    ):
        write_file(path, header, arrays | {name: change})
        with pytest.raises(LiteError, match="cannot be used"):
            load(path)
    fit = header["fits"][0]
    for newer in ({"new": 1}, {"components": [fit["components"][0] | {"new": 1}]}):
        write_file(path, header | {"fits": [fit | newer]}, arrays)
        with pytest.raises(LiteError, match="holds 'new', which is not known here: use a newer release"):
            load(path)
    for change in ({"format": "other"}, {"format_version": 3}, {"kind": "checkpoint"}, {"fits": []}):
        write_file(path, header | change, arrays)
        with pytest.raises(LiteError):
            load(path)
    outer = {"a": {"dtype": "F64", "shape": [2**60], "data_offsets": [0, 8 * 2**60]}}
    for entry in (outer["a"], {"dtype": "O", "shape": [1], "data_offsets": [0, 8]}, {"shape": -1}, 7):
        text = json.dumps({"__metadata__": {"finitegp": json.dumps(header), "sha256": "0" * 64}, "a": entry}).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text)
        with pytest.raises(LiteError, match=r"truncated|makes no sense"):
            load(path)


def test_bad_rows_are_named(directory):
    model = load(file_of("Fourier", directory))
    with pytest.raises(LiteError, match="Row 1, column 0 is nan"):
        model.predict([[0.0, 1.0], [np.nan, 0.0]])
    with pytest.raises(LiteError, match="2 numbers"):
        model.predict([[0.0, 1.0, 2.0]])
    with pytest.raises(LiteError, match="targets must be"):
        model.update([[0.0, 1.0]], [1.0, 2.0])
    table, new = load(file_of("table, log", directory)), kept("table, log").new
    for change, words in (
        ({"weight": ["heavy"] * 4}, "'weight', row 0 holds 'heavy'"),
        ({"sold": ["5 May 2024"] * 4}, "ISO"),
        ({"sold": ["2024-02-31"] * 4}, "no date"),
        ({"size": [1.0]}, "equally many"),
    ):
        with pytest.raises(LiteError, match=words):
            table.predict(new | change)
    with pytest.raises(LiteError, match="no column 'cut'"):
        table.predict({name: each for name, each in new.items() if name != "cut"})
    with pytest.raises(LiteError, match="impossible"):
        table.update(new, [1.0, 2.0, -3.0, 4.0])


def test_values_of_tables_come_in_many_types(directory):
    """As NumPy's and Python's dates, numbers and booleans, and as a data frame."""
    import pandas as pd

    model, new = load(file_of("table, log", directory)), kept("table, log").new
    plain = dict(new, sold=["2024-05-05", "2024-06-01", "2025-01-01", "2024-02-29"])
    expected = model.predict(plain).mean
    days = np.array(plain["sold"], dtype="datetime64[D]")
    close(model.predict(plain | {"sold": days, "open": [True, False, False, None]}).mean, expected)
    close(model.predict(plain | {"sold": days.astype(object)}).mean, expected)
    close(model.predict(pd.DataFrame(plain | {"size": np.array([2.5, np.nan, 4.0, 9.0])})).mean, expected)


def test_the_package_alone(directory, tmp_path):
    """The files of ``finitegp-lite``: no other import, less than a megabyte, the same predictions."""
    package = tmp_path / "finitegp_lite"
    source = Path(finitegp.lite.__file__).parent
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    assert sum(file.stat().st_size for file in package.rglob("*")) < 1_000_000
    path = file_of("automatic large, heavy tails", directory)
    code = (
        "import json, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "blocked = ['torch', 'scipy', 'sklearn', 'safetensors', 'pyarrow', 'pandas', 'finitegp']\n"
        "sys.modules.update(dict.fromkeys(blocked))\n"
        "import finitegp_lite\n"
        "found = finitegp_lite.load(sys.argv[2]).predict(json.loads(sys.argv[3]))\n"
        "print(json.dumps([found.mean.tolist(), found.interval(0.9)[0].tolist()]))\n"
    )
    new = kept("automatic large, heavy tails").new
    arguments = [sys.executable, "-c", code, str(tmp_path), path, json.dumps(new.tolist())]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    fitted = kept("automatic large, heavy tails").fitted
    mean, lower = json.loads(done.stdout)
    close(mean, fitted.predict(new).mean.numpy())
    close(lower, fitted.interval(new, 0.9)[0].numpy())


@pytest.mark.parametrize("name", SCALES)
def test_scales_of_targets(name):
    """The library's scale is this one; a file keeps it."""
    targets = np.array([0.2, 1.0, 3.0, 3.5, 9.0, 40.0])
    theirs = TargetScale.fitted(name, targets)
    mine = Scale.from_dict(json.loads(json.dumps(theirs.to_dict())))
    np.testing.assert_allclose(mine.forward(targets), theirs.forward(targets), rtol=1e-14)
    np.testing.assert_allclose(mine.inverse(mine.forward(targets)), targets, rtol=1e-12)


def test_the_wheel_is_made_of_these_files():
    """The version of ``lite/pyproject.toml`` is the library's, and it names this directory."""
    text = (ROOT / "lite" / "pyproject.toml").read_text()
    assert f'version = "{finitegp.__version__}"' in text
    (place,) = re.findall(r'^"(\S+)" = "finitegp_lite"$', text, re.MULTILINE)
    assert (ROOT / "lite" / place).resolve() == Path(finitegp.lite.__file__).resolve().parent


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("inputs_scaler.mean", lambda tensor: tensor[:, None]),
        ("inputs_scaler.scale", lambda tensor: -tensor),
        ("target_scaler.mean", lambda tensor: None),
        ("target_scaler.mean", lambda tensor: tensor[None]),
        ("target_scaler.scale", lambda tensor: tensor * 1e200),
        ("excess.effects", lambda tensor: None),
        ("excess.centres", lambda tensor: tensor.reshape(-1)),
        ("excess.units", lambda tensor: -tensor),
    ],
)
def test_arrays_that_make_no_model_are_refused_on_loading(name, change, tmp_path):
    from finitegp.persistence.container import read_container, write_container

    path = tmp_path / "crafted.finitegp"
    header, tensors = read_container(Path(__file__).parents[1] / "files" / "networks-2.finitegp")
    changed = {f"fits.0.{name}": change(tensors[f"fits.0.{name}"])}
    write_container(path, header, {key: each for key, each in (tensors | changed).items() if each is not None})
    with pytest.raises(LiteError, match="cannot be used"):
        load(path)


def test_numbers_of_a_header_that_make_no_model_are_refused_on_loading(tmp_path):
    from finitegp.persistence.container import read_container, write_container

    path = tmp_path / "crafted.finitegp"
    for name, entry, key, value in (
        ("networks-2", "excess", "nearness", ""),
        ("kernel-2", "spread", "factor", 1e300),
    ):
        header, tensors = read_container(Path(__file__).parents[1] / "files" / f"{name}.finitegp")
        header["fits"][0][entry][key] = value
        write_container(path, header, tensors)
        with pytest.raises(LiteError, match="cannot be used"):
            load(path)


def test_odd_arguments_are_refused_by_name():
    path = Path(__file__).parents[1] / "files" / "networks-2.finitegp"
    model = load(path)
    rows = json.loads(path.with_suffix(".json").read_text())["inputs"]
    targets = np.zeros(len(rows))
    for call, name in (
        (lambda: load(3), "path"),
        (lambda: load("a\0b"), "path"),
        (lambda: model.save(None), "path"),
        (lambda: model.save("no such directory/model.finitegp"), "path"),
        (lambda: model.merge(None), "other"),
        (lambda: model.predict("x"), "rows"),
        (lambda: model.update(rows, "x"), "targets"),
        (lambda: model.update(rows, targets, counts="x"), "counts"),
        (lambda: model.update(rows, targets, counts=[1.0]), "counts"),
        (lambda: model.update(rows, targets, counts=-np.ones(len(rows))), "counts"),
        (lambda: load(path.parent / "table-2.finitegp").predict({"cut": 1}), "Column 'cut'"),
    ):
        with pytest.raises(LiteError, match=f"^{name} must"):
            call()
