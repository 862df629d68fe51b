"""Small fits of every feature map and noise, which the tests of files share."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from finitegp import FeatureGP, ScaledGP, features
from finitegp.component import Component
from finitegp.data.scaling import Standardizer
from finitegp.noise import ConstantNoise, InputNoise, MeanVariance, SmoothFloor
from finitegp.trees import BoostedTrees


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


def with_trees(module, columns=2, count=20, depth=2):
    """The module with trees added to its output."""
    random, nodes = np.random.default_rng(6), 2**depth - 1
    looked_at, leaves = random.integers(0, columns, size=(count, nodes)), random.normal(size=(count, nodes + 1))
    return BoostedTrees(looked_at, random.normal(size=(count, nodes)), 0.1 * leaves).added_to(module)


def network():
    networks = [nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 1)) for _ in range(2)]
    return nn.Sequential(with_trees(MeanVariance(*networks)), SmoothFloor(-3.0))


def landmarks():
    places = np.linspace(-2.0, 2.0, 12).reshape(6, 2)
    return features.LandmarkFeatures.at(places, kernel="rbf", length_scales=[0.5, 2.0], variance=1.3)


MAPS = {
    "MLPFeatures": lambda: features.MLPFeatures(2, (6, 5), activation="gelu", seed=1),
    "MLPFeatures, no last activation": lambda: features.MLPFeatures(2, (6,), final_activation=False, seed=1),
    "LinearFeatures": lambda: features.LinearFeatures(2, magnitude=0.2, bias_magnitude=3.0),
    "LinearFeatures, no bias": lambda: features.LinearFeatures(2, bias=False),
    "ConstantFeatures": lambda: features.ConstantFeatures(2.5),
    "PeriodicEmbedding": lambda: features.PeriodicEmbedding(2, num_frequencies=3, width=3, seed=4),
    "FourierFeatures": lambda: features.FourierFeatures(2, 10, kernel="matern32", length_scales=[0.5, 2.0], seed=5),
    "FourierFeatures, fixed": lambda: features.FourierFeatures(
        2, 10, ard=False, sampling="orthogonal", learn_length_scales=False, learn_frequencies=True
    ),
    "LandmarkFeatures": landmarks,
    "SoftClip": lambda: features.SoftClip(2, limit=2.0, low=[-3.0, -2.5], high=[1.0, 4.0]),
    "GaussLegendreFeatures": lambda: features.GaussLegendreFeatures(2, 22, length_scales=[1.5, 2.0], magnitude=0.7),
    "ComposedFeatures": lambda: features.ComposedFeatures(
        features.PeriodicEmbedding(2, 3, 3), features.MLPFeatures(6, (7,), seed=2)
    ),
    "ConcatenatedFeatures": lambda: features.ConcatenatedFeatures(
        nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Identity(), nn.SiLU(), nn.Mish()),
        features.ConstantFeatures(),
        input_dim=2,
    ),
}


NOISES = {
    "ConstantNoise": lambda: ConstantNoise(0.25),
    "InputNoise": lambda: InputNoise(network(), reads="inputs", variance=0.2, max_log_scale=5.0),
}
