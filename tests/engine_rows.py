"""Rows and models that the engines are tested with, and feature maps that fail once, for the workers to import."""

import os
import re
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

from finitegp import FeatureGP, FourierFeatures, InputNoise

INPUTS = ["width", "the.height", "depth"]


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


def assert_same_statistics(found, expected):
    for name in ("gram", "projected_targets", "target_sum_of_squares", "log_scale_sum"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-10, atol=1e-10)
    assert found.num_data == expected.num_data


def run_block_of_page(number, names, directory, monkeypatch):
    """Run a Python block of the page on engines beside a folder of Parquet files; gives its names."""
    page = (Path(__file__).parents[1] / "docs" / "engines.md").read_text()
    block = re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[number]
    monkeypatch.chdir(directory)
    table = make_table(200)[["width", "depth", "price"]].set_axis(["flow", "pressure", "power"], axis=1)
    (directory / "sensors").mkdir()
    table.to_parquet(directory / "sensors" / "0.parquet")
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
