"""One small fitted model of every kind that the library saves, with rows to predict: for the tests of all exports."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import scipy
import torch
from saved_fits import make_rows as rows
from saved_fits import with_trees
from torch import nn

from finitegp import FeatureGP, GPRegressor, InputNoise, TableRegressor, features
from finitegp.automatic import fit_auto
from finitegp.automatic.boosting import fit_trees
from finitegp.automatic.table import Table
from finitegp.component import student_component
from finitegp.data.scaling import LogScales, Standardizer
from finitegp.error_shape import GAUSSIAN, ErrorShape, TailedShape
from finitegp.estimator import as_regressor
from finitegp.extrapolation import ExcessVariance
from finitegp.noise import MeanVariance, SmoothFloor
from finitegp.scaled import ScaledGP
from finitegp.tables.targets import TargetScale

# Lite is right to the last digits, so it cannot be compared with less.
OLD_SCIPY = pytest.mark.skipif(
    tuple(map(int, scipy.__version__.split(".")[:2])) < (1, 17),
    reason="quantiles of Student's t of SciPy before 1.17 are right to 1e-8 only",
)
QUICK = {
    "small_rows": 40,
    "most_rows_for_both": 0,
    "members": 2,
    "hidden": [12, 8],
    "steps": 60,
    "fourier_features": 16,
    "noise_steps": 30,
}
ACTIVATIONS = ("relu", "tanh", "gelu", "silu", "mish")


@dataclass
class Kept:
    """A fitted object, its inputs for new rows, and rows that come later with their targets."""

    fitted: Any
    new: Any
    later: tuple[Any, Any]


def table(count, seed=0):
    random = np.random.default_rng(seed)
    size = random.uniform(1, 5, size=count).round(3)
    cut = random.choice(["fair", "good", "ideal"], size=count)
    shop = random.integers(0, 30, size=count)
    day = np.datetime64("2024-01-01") + random.integers(0, 700, size=count)
    made = {
        "size": [None if number % 40 == 3 else value for number, value in enumerate(size.tolist())],
        "cut": cut.tolist(),
        "shop": [f"shop {number}" for number in shop],
        "sold": [str(each) for each in day],
        "open": random.choice(["yes", "no"], size=count).tolist(),
        "weight": [f"{value:,.2f} kg" for value in random.uniform(500, 5000, size=count)],
    }
    return made, np.exp(0.4 * size + 0.3 * (cut == "ideal") + 0.1 * random.normal(size=count)).round(3)


NEW_TABLE = {
    "size": [2.5, None, 4.0, 9.0],
    "cut": ["ideal", "new", "fair", None],
    "shop": ["shop 1", "elsewhere", "shop 3", "shop 29"],
    "sold": ["2024-05-05", None, "2025-01-01", "2024-02-29T12:30+02:00"],
    "open": ["yes", "no", "N", None],
    "weight": ["1,234.50 kg", "700", "900 kg", "-"],
}


def scaled(feature_map, *, shape=GAUSSIAN, noise_model=None, count=50):
    """A fit of a feature map as it is, without training: one exact pass."""
    inputs, targets = rows(count)
    torch.manual_seed(0)
    scalers = Standardizer.fit(inputs), Standardizer.fit(targets)
    gp = FeatureGP(feature_map, None if noise_model else 0.05, noise_model=noise_model, output_scale=1.7).double()
    data = torch.from_numpy(scalers[0].transform(inputs)), torch.from_numpy(scalers[1].transform(targets))
    return ScaledGP((student_component(gp.condition(data), shape),), *scalers)


def all_modules():
    """Every module that a file may name, one way or another."""
    layers = [nn.Linear(2, 5), nn.GELU("tanh"), nn.Linear(5, 4, bias=False), nn.SiLU(), nn.Identity()]
    networks = [
        features.MLPFeatures(8, (6, 3), name, index % 2 == 0, seed=index) for index, name in enumerate(ACTIVATIONS)
    ]
    clip = features.SoftClip(2, 0.8, low=[-1.2, -1.1], high=[1.1, 1.3])
    return features.ConcatenatedFeatures(
        nn.Sequential(*layers),
        *(features.ComposedFeatures(features.PeriodicEmbedding(2, 5, 4, seed=3), network) for network in networks),
        features.ComposedFeatures(clip, features.FourierFeatures(2, 6, "matern32", ard=False, learn_frequencies=True)),
        features.LinearFeatures(2, magnitude=[0.5, 2.0], ard=True),
        features.ConstantFeatures(2.0),
        features.GaussLegendreFeatures(2, 6, tolerance=0.5),
        input_dim=2,
    )


def noise(reads="inputs", width=2):
    def network(seed):
        return nn.Sequential(features.MLPFeatures(width, (5,), "relu", seed=seed), nn.Linear(5, 1), SmoothFloor(-1.0))

    torch.manual_seed(1)
    module = MeanVariance(network(0), network(1))
    module = with_trees(module) if reads == "inputs" else module
    return InputNoise(module, reads=reads, variance=0.05, bounds=(-0.9, 2.0))


def landmarks(kernel):
    places = rows(30, seed=5)[0] / 3 - 0.3
    return features.LandmarkFeatures.at(places, kernel=kernel, length_scales=[0.7, 1.1], variance=1.3)


def _large(heavy):
    inputs, targets = rows(200)
    targets = targets + (np.random.default_rng(3).standard_t(2.2, size=200) * 3 if heavy else 0.0)
    return fit_auto(inputs, targets, settings=QUICK)


def _outside(shape):
    """With a variance outside of the rows seen, as large tables have it."""
    fit = scaled(features.LinearFeatures(2), shape=shape)
    inputs = fit.inputs_scaler.transform(rows(50)[0])
    return replace(fit, excess=ExcessVariance.fit(inputs, np.array([0.9, 0.2])))


def _with_trees():
    """With boosted trees that have a part in the mean, as large tables have them."""
    fit = _outside(ErrorShape(5.0))
    inputs, targets = rows(400, seed=2)
    scaled_rows = Table(fit.inputs_scaler.transform(inputs), fit.target_scaler.transform(targets))
    trees = fit_trees(scaled_rows, scaled_rows, 12, seed=0)
    return replace(fit, trees=replace(trees, weight=0.4))


def _given(feature_map, **options):
    return GPRegressor(feature_map, algorithm="exact", epochs=3, random_state=0, **options).fit(*rows(60))


def _several():
    inputs, targets = rows(60)
    both = np.column_stack([targets, inputs[:, 1] ** 2])
    return GPRegressor(features.FourierFeatures(2, 20), algorithm="exact", epochs=3, random_state=0).fit(inputs, both)


def _tables(scale, automatic):
    made, targets = table(120 if automatic else 1200)
    # Columns: size, size missing, three cuts, shop's mean, frequency and place, five parts of the date, open, weight.
    given = None if automatic else features.LinearFeatures(15)
    regressor = None if automatic else GPRegressor(given, algorithm="exact", epochs=3, random_state=0)
    model = TableRegressor(effort="low", random_state=0, target_scale=scale, regressor=regressor)
    return model.fit(made, targets)


def _named(scale="identity", *, automatic=False, zeros=False):
    inputs, targets = rows(60)
    targets = np.maximum(targets - np.median(targets), 0.0) if zeros else targets
    targets = targets if scale == "identity" else np.exp(targets / 20 - 1)
    named = {"length": inputs[:, 0], "width": inputs[:, 1], "power": targets}
    regressor = GPRegressor(features.FourierFeatures(2, 20), algorithm="exact", epochs=3, random_state=0)
    if automatic:
        regressor = GPRegressor(effort="low", random_state=0)
    return TableRegressor(target_scale=scale, regressor=regressor).fit(named, target="power")


def _logarithmic():
    """One of two columns on a logarithmic scale as well."""
    inputs, targets = rows(60)
    logs = LogScales(np.array([0]), np.array([-0.5]), np.array([0.7]))
    scaler = replace(Standardizer.fit(logs.added_to(inputs)), logarithms=logs)
    target = Standardizer.fit(targets)
    data = torch.from_numpy(scaler.transform(inputs)), torch.from_numpy(target.transform(targets))
    fitted = FeatureGP(features.FourierFeatures(3, 20, seed=0)).condition(data)
    return ScaledGP((student_component(fitted),), scaler, target)


def _student_root():
    """Student's t, of which the degrees of freedom depend on the row, on the scale of a square root."""
    scale = TargetScale.fitted("square root", np.array([900.0, 4900.0]))
    return TableRegressor.from_parts(as_regressor(_outside(ErrorShape(5.0))), _named().encoder_, "power", None, scale)


KINDS = {
    "automatic small": lambda: fit_auto(*rows(60), effort="low"),
    "automatic small without rows": lambda: fit_auto(*rows(60), effort="low", keep_rows=False),
    "automatic large": lambda: _large(False),
    "automatic large, heavy tails": lambda: _large(True),
    "every module": lambda: scaled(all_modules()),
    "noise from inputs": lambda: scaled(features.LinearFeatures(2), noise_model=noise(), shape=ErrorShape(4.0)),
    "two shapes of errors": lambda: _outside(TailedShape(ErrorShape(5.0), GAUSSIAN, share=0.1, ratio=6.0)),
    "skewed errors": lambda: _outside(TailedShape(ErrorShape(5.0), ErrorShape(5.0), share=0.2, ratio=3.0, offset=1.5)),
    "logarithmic columns": _logarithmic,
    "boosted trees": _with_trees,
    "noise from features": lambda: scaled(features.LinearFeatures(2), noise_model=noise("features", 3)),
    **{f"{kernel} on landmarks": lambda kernel=kernel: scaled(landmarks(kernel)) for kernel in ("rbf", "matern32")},
    "given network": lambda: _given(features.MLPFeatures(2, (16, 8), seed=0), noise="input"),
    "Fourier": lambda: _given(features.FourierFeatures(2, 60, seed=1)),
    "Gauss-Legendre": lambda: _given(features.GaussLegendreFeatures(2, 8, tolerance=0.3)),
    "several targets": _several,
    "table of numbers": _named,
    "table of numbers and zeros": lambda: _named(zeros=True),
    "table of numbers, log": lambda: _named("log"),
    "table of numbers, log, automatic": lambda: _named("log", automatic=True),
    "table of numbers, Yeo-Johnson": lambda: _named("yeo-johnson"),
    "table of numbers, square root": _student_root,
    "table": lambda: _tables("identity", True),
    "table, log": lambda: _tables("log", False),
}


@cache
def kept(kind):
    """The model of a kind, made once."""
    torch.manual_seed(0)
    fitted = KINDS[kind]()
    if kind.startswith("table of numbers"):
        names = ("length", "width")
        new, (later, targets) = rows(9, seed=1)[0] * 1.5, rows(12, seed=2)
        tables = [dict(zip(names, each.T, strict=True)) for each in (new, later)]
        return Kept(fitted, tables[0], (tables[1], targets))
    if kind.startswith("table"):
        later, targets = table(20, seed=2)
        return Kept(fitted, NEW_TABLE, (later, targets))
    new, (inputs, targets) = rows(9, seed=1)[0] * 1.5, rows(12, seed=2)
    return Kept(fitted, new, (inputs, np.column_stack([targets] * 2) if kind == "several targets" else targets))


@cache
def file_of(kind, directory):
    """The file of a model."""
    from finitegp.persistence import save_fit

    path = f"{directory}/{kind}.finitegp"
    fitted = kept(kind).fitted
    fitted.save(path) if hasattr(fitted, "save") else save_fit(fitted, path)
    return path


def library(fitted, new):
    """Mean, standard deviation, and of models of arrays the epistemic and noise deviations, by the library."""
    if isinstance(fitted, TableRegressor):
        return *fitted.predict(new, return_std=True), None, None
    fits = fitted.fits_ if isinstance(fitted, GPRegressor) else [fitted]
    found = [fit.predict(new) for fit in fits]
    parts = [[each.mean, each.std, each.epistemic_variance.sqrt(), each.noise_variance.sqrt()] for each in found]
    return tuple(np.stack([part.numpy() for part in each], axis=-1).squeeze() for each in zip(*parts, strict=True))


def intervals(fitted, new, coverage, method):
    """Ends of intervals by the library."""
    if isinstance(fitted, ScaledGP):
        return tuple(end.numpy() for end in fitted.interval(new, coverage, method=method))
    return fitted.predict_interval(new, coverage, method)
