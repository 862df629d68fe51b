"""Makes the model files of the present version, each with the predictions that every later version must give.

Run it only when the version of the file format changes, and keep the old files: ``python tests/files/make_files.py``.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from finitegp import GPRegressor
from finitegp.automatic import fit_auto
from finitegp.features import ConcatenatedFeatures, FourierFeatures, GaussLegendreFeatures, MLPFeatures
from finitegp.persistence import load_fit, save_fit
from finitegp.persistence.container import FORMAT_VERSION
from finitegp.scaled import INTERVAL_METHODS
from finitegp.sites import SiteStatistics
from finitegp.tables.encoder import TableEncoder
from finitegp.tables.model import TableRegressor

HERE = Path(__file__).parent
QUICK = {
    "small_rows": 100,
    "members": 2,
    "hidden": [16, 12],
    "steps": 200,
    "fourier_features": 16,
    "noise_steps": 50,
}

NEW_TABLE = {"cut": ["ideal", "new", "fair"], "size": [2.5, None, 4.0], "sold": ["2024-05-05", None, "2025-01-01"]}


def make_rows(count, seed=0):
    generator = np.random.default_rng(seed)
    inputs = generator.normal(size=(count, 2)) * 3 + 1
    return inputs, 50 + 10 * np.sin(inputs[:, 0]) + generator.normal(size=count)


def make_table(count, seed=0):
    generator = np.random.default_rng(seed)
    size = generator.uniform(1, 5, size=count).round(3)
    cut = generator.choice(["fair", "good", "ideal"], size=count)
    day = np.datetime64("2024-01-01") + generator.integers(0, 700, size=count)
    table = {"size": size.tolist(), "cut": cut.tolist(), "sold": [str(each) for each in day]}
    table["size"][3] = None
    return table, (10 * size + 5 * (cut == "ideal") + generator.normal(size=count)).round(2).tolist()


def write_expected(name, inputs, mean, std):
    expected = {"inputs": inputs, "mean": np.asarray(mean).tolist(), "std": np.asarray(std).tolist()}
    if "kernel" in name or name == "networks":
        fit = load_fit(HERE / f"{name}-{FORMAT_VERSION}.finitegp")
        expected["observed"] = observed = np.linspace(40.0, 60.0, len(inputs)).tolist()
        expected["log_density"] = fit.log_density(inputs, observed).tolist()
        for method in INTERVAL_METHODS:
            expected[method] = [end.tolist() for end in fit.interval(inputs, 0.8, method=method)]
    (HERE / f"{name}-{FORMAT_VERSION}.json").write_text(json.dumps(expected) + "\n")


def make_site(model):
    """The statistics of a site for the stored model of a table, and what the joint model predicts."""
    table, targets = make_table(60, seed=1)
    model.statistics(table | {"price": targets}).save(HERE / f"site-{FORMAT_VERSION}.statistics")
    joint = model.merge(SiteStatistics.load(HERE / f"site-{FORMAT_VERSION}.statistics"))
    chunk = next(joint.predict(NEW_TABLE))
    write_expected("site", NEW_TABLE, chunk.mean, chunk.std)


def main():
    new = make_rows(6, seed=1)[0]
    inputs, targets = make_rows(60)
    targets[5] += 500.0  # an outlier
    counts = np.where(np.arange(60) < 5, 2.0, 1.0)
    for name, fit in (
        ("kernel", fit_auto(inputs, targets, counts=counts, may_be_copies=False)),
        ("kernel_without_rows", fit_auto(*make_rows(60), keep_rows=False)),
        ("networks", fit_auto(*make_rows(300), settings=QUICK)),
    ):
        save_fit(fit, HERE / f"{name}-{FORMAT_VERSION}.finitegp")
        prediction = fit.predict(new)
        write_expected(name, new.tolist(), prediction.mean, prediction.std)
    features = ConcatenatedFeatures(
        FourierFeatures(2, 20, kernel="matern12"), GaussLegendreFeatures(2, 8, tolerance=0.3)
    )
    regressor = GPRegressor(features, algorithm="exact", noise="input", epochs=5, random_state=0).fit(*make_rows(80))
    regressor.save(HERE / f"regressor-{FORMAT_VERSION}.finitegp")
    write_expected("regressor", new.tolist(), *regressor.predict(new, return_std=True))
    table, targets = make_table(200)
    encoder = TableEncoder.fit(table, missing="impute")
    features = MLPFeatures(len(encoder.feature_names_out), (16,), activation="tanh", seed=0)
    regressor = GPRegressor(features, algorithm="lagged", epochs=20, random_state=0)
    model = TableRegressor.from_parts(regressor.fit(encoder.transform(table), targets), encoder, "price", {"rows": 200})
    model.save(HERE / f"table-{FORMAT_VERSION}.finitegp")
    chunk = next(model.predict(NEW_TABLE))
    write_expected("table", NEW_TABLE, chunk.mean, chunk.std)
    make_site(TableRegressor.load(HERE / f"table-{FORMAT_VERSION}.finitegp"))


if __name__ == "__main__":
    main()
