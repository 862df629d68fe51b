"""Rows and models that the engines are tested with, and feature maps that fail once, for the workers to import."""

import os
import re
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from export_models import intervals, kept, library
from torch import nn

from finitegp import DataError, FeatureGP, FourierFeatures, GPRegressor, InputNoise
from finitegp.features import GaussLegendreFeatures, LandmarkFeatures, LinearFeatures, MLPFeatures

INPUTS = ["width", "the.height", "depth"]
MAPS = {
    "Fourier": lambda: FourierFeatures(3, 32),
    "network": lambda: MLPFeatures(3, (16, 8), seed=0),
    "Gauss-Legendre": lambda: GaussLegendreFeatures(3, 4, tolerance=0.5),
    "linear": lambda: LinearFeatures(3),
    "landmarks": lambda: LandmarkFeatures.at(
        make_table(20, seed=3)[INPUTS].to_numpy().copy(), kernel="matern32", length_scales=[1.0, 1.5, 2.0], variance=1.0
    ),
    "a module of one's own": lambda: OwnMap(),
}


def make_table(rows=3000, seed=0):
    random = np.random.default_rng(seed)
    table = pd.DataFrame(random.normal(size=(rows, 3)), columns=INPUTS)
    table["price"] = np.sin(table["width"]) + 0.1 * random.normal(size=rows)
    table["rent"] = np.cos(table["depth"]) + 0.1 * random.normal(size=rows)
    table["weight"] = 0.5 + random.random(rows)
    table["times"] = random.integers(1, 5, rows)
    table["key"] = [f"row {number}" for number in range(rows)]
    return table


def parts_of(table, targets=("price",), weighted=False):
    """What ``FeatureGP`` takes in one process."""
    parts = [table[INPUTS].to_numpy(), table[list(targets)].to_numpy()]
    return (*parts, table["weight"].to_numpy(), table["times"].to_numpy()) if weighted else tuple(parts)


def make_model(noise_variance=0.01, feature_map=None):
    return FeatureGP(FourierFeatures(3, 32) if feature_map is None else feature_map, noise_variance)


def make_noisy_model():
    torch.manual_seed(0)
    return FeatureGP(FourierFeatures(3, 32), noise_model=InputNoise(nn.Linear(3, 1), reads="inputs", variance=0.02))


def columns_of(fitted, inputs, coverage):
    """What a prediction of one target adds to a frame, by the library in one process."""
    found = fitted.predict(inputs)
    lower, upper = found.interval(coverage)
    deviations = {"epistemic_std": found.epistemic_variance.sqrt(), "noise_std": found.noise_variance.sqrt()}
    return {"mean": found.mean, "lower": lower, "upper": upper, "std": found.std, **deviations}


def frame_of(kind):
    """The model of a kind of ``export_models``, new rows as a data frame, and inputs where it has no names."""
    fitted, new = kept(kind).fitted, kept(kind).new
    frame = pd.DataFrame(new if isinstance(new, dict) else {"a.b": new[:, 0], "c": new[:, 1]})
    if "sold" in frame and kind == "table, log":  # as moments instead of text
        frame["sold"] = pd.to_datetime(
            pd.Series(["2024-05-05", None, "2025-01-01", "2024-02-29T10:30"]), format="ISO8601"
        )
    return fitted, frame.assign(key=np.arange(len(frame))), () if isinstance(new, dict) else ("a.b", "c")


def model_columns(kind, coverage):
    """What the prediction of a kind adds to a frame, by the library in one process."""
    fitted, new = kept(kind).fitted, kept(kind).new
    mean, std, epistemic, noise = library(fitted, new)
    lower, upper = intervals(fitted, new, coverage, "predictive")
    found = {"mean": mean, "std": std, "lower": lower, "upper": upper}
    if epistemic is not None:
        found |= {"epistemic_std": epistemic, "noise_std": noise}
    if mean.ndim == 1:
        return found
    return {f"{name}_{target}": values[:, target] for name, values in found.items() for target in range(2)}


def assert_same_columns(found, expected, before):
    assert set(found.columns) == {*before, *expected}
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-10, atol=1e-10, err_msg=name)


def named_regressor():
    """A regressor that knows its columns by name, in another order than the frame."""
    table = make_table(60)
    inputs = table[["depth", "width"]]
    return GPRegressor(FourierFeatures(2, 20), algorithm="exact", epochs=2, random_state=0).fit(inputs, table["price"])


class OwnMap(nn.Module):
    """A feature map that files do not hold."""

    num_features, input_dim = 3, 3

    def forward(self, inputs):
        return torch.tanh(inputs)


def assert_same_statistics(found, expected):
    for name in ("gram", "projected_targets", "target_sum_of_squares", "log_scale_sum"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-10, atol=1e-10)
    assert found.num_data == expected.num_data


def check_refusals(rows_of, frame, with_mean, table):
    """What is refused whichever engine has the rows.

    Args:
        rows_of: The class of the engine's rows.
        frame: The engine's frame of the table.
        with_mean: The same with a column ``mean``.
        table: The table in pandas.
    """
    fitted = make_model().condition(parts_of(table))
    own = GPRegressor(OwnMap(), algorithm="exact", epochs=1).fit(table[INPUTS], table["price"])
    with pytest.raises(DataError, match="'key' does not hold numbers: encode it"):
        rows_of(frame, [*INPUTS, "key"], "price")
    with pytest.raises(DataError, match="no column 'length' in the frame"):
        rows_of(frame, ["length"], "price")
    with pytest.raises(DataError, match="name the targets as well"):
        rows_of(frame, INPUTS).statistics(make_model())
    with pytest.raises(DataError, match="column 'mean' already: rename or drop"):
        rows_of(with_mean, INPUTS).predict(fitted)
    with pytest.raises(DataError, match="does not know its columns by name: name them in inputs"):
        rows_of(frame).predict(fitted)
    with pytest.raises(DataError, match="takes 3 columns, but there are 2"):
        rows_of(frame, INPUTS[:2]).predict(fitted)
    with pytest.raises(DataError, match="There is no column 'size' in the frame"):
        rows_of(frame).predict(kept("table").fitted)
    with pytest.raises(DataError, match="The model is a dict: pass a FittedGP"):
        rows_of(frame, INPUTS).predict({})
    with pytest.raises(DataError, match=r"cannot load this one: .*OwnMap.*pass a FittedGP instead"):
        rows_of(frame).predict(own)
    with pytest.raises(DataError, match="no inputs, so they can only be predicted: name the inputs"):
        rows_of(frame, targets="price").statistics(make_model())
    with pytest.raises(ValueError, match="coverage must lie between 0 and 1"):
        rows_of(frame, INPUTS).predict(fitted, coverage=90)


def run_block_of_page(number, names, directory, monkeypatch):
    """Run a Python block of the page on engines beside a folder of Parquet files; gives its names."""
    page = (Path(__file__).parents[1] / "docs" / "engines.md").read_text()
    block = re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[number]
    monkeypatch.chdir(directory)
    table = make_table(200)[["width", "depth", "price"]].set_axis(["flow", "pressure", "power"], axis=1)
    (directory / "sensors").mkdir()
    table.to_parquet(directory / "sensors" / "0.parquet")
    regressor = GPRegressor(FourierFeatures(2, 20), algorithm="exact", epochs=1, random_state=0)
    regressor.fit(table[["flow", "pressure"]], table["power"]).save(directory / "pump.finitegp")
    found = {"model": FeatureGP(FourierFeatures(2, 32), 0.1), **names}
    exec(block, found)
    return found


class FailsOnce(nn.Module):
    """Fourier features whose computation fails once, on whichever worker is third to start on some rows.

    Args:
        way: ``"raises"`` an error that has nothing to do with the rows, ``"exits"`` with its process, or
            ``"kills the executor"`` of Spark, the grandparent of its process.
        directory: Where it leaves a file for each call and, when it fails, the file ``failed``.
    """

    def __init__(self, way, directory):
        super().__init__()
        self.features = FourierFeatures(3, 32)
        self.num_features, self.input_dim = 32, 3
        self.way, self.directory = way, str(directory)

    def forward(self, inputs):
        if len(inputs) > 1:  # not the probe for the type of the features
            directory = Path(self.directory)
            (directory / f"{os.getpid()}-{os.urandom(6).hex()}").touch()
            if len(list(directory.iterdir())) >= 3 and _create(directory / "failed"):
                self._fail()
        return self.features(inputs)

    def _fail(self):
        if self.way == "raises":
            raise OSError("the disk was away for a moment")
        if self.way == "exits":
            os._exit(1)
        daemon = os.getppid()
        executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(executor, signal.SIGKILL)
        signal.pause()


def _create(path):
    """Whether this call made the file."""
    try:
        path.open("x").close()
    except FileExistsError:
        return False
    return True
