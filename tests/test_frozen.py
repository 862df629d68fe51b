"""Frozen maps give what their modules give, and frozen GPs what the posterior gives."""

import numpy as np
import pytest
import torch
from saved_fits import with_trees
from torch import nn

from finitegp import FeatureGP, features
from finitegp.frozen import PIECE_ROWS, frozen_map, frozen_noise
from finitegp.noise import ConstantNoise, InputNoise, MeanVariance, SmoothFloor

COLUMNS = 3


def network(seed, activation="mish"):
    embedding = features.PeriodicEmbedding(COLUMNS, 5, 4, frequency_scale=1.0, seed=seed)
    layers = features.MLPFeatures(embedding.num_features, (8, 6), activation=activation, seed=seed)
    return features.ComposedFeatures(embedding, layers)


def clip(high):
    return features.SoftClip(COLUMNS, low=[-4.5] * COLUMNS, high=[high] * COLUMNS)


def joined():
    # Two of the clips are equal, and one is not.
    networks = [features.ComposedFeatures(clip(high), network(seed)) for seed, high in enumerate((5.0, 5.0, 0.5))]
    waves = features.FourierFeatures(COLUMNS, 10, "matern32", [0.5, 1.0, 2.0], magnitude=3.0, seed=1)
    line = features.LinearFeatures(COLUMNS, bias=False, magnitude=torch.tensor([1.0, 2.0, 3.0]), ard=True)
    rest = features.ConcatenatedFeatures(
        waves, line, features.LinearFeatures(COLUMNS, 2.0), features.ConstantFeatures(4.0)
    )
    return features.ConcatenatedFeatures(
        *networks, features.ComposedFeatures(features.SoftClip(COLUMNS), rest), input_dim=COLUMNS
    )


def noise_module():
    heads = [nn.Sequential(network(seed, "relu"), nn.Linear(6, 1), SmoothFloor(-2.0)) for seed in (3, 4)]
    return nn.Sequential(clip(5.0), with_trees(MeanVariance(*heads), COLUMNS), SmoothFloor(-1.0))


def rows(count=2 * PIECE_ROWS + 7):
    found = 2.0 * np.random.default_rng(0).normal(size=(count, COLUMNS))
    found[:4] = [[-1e8, 4.0, 4.5], [1e3, 0.0, -4.0], [0.0, 0.0, 0.0], [30.0, -30.0, 5.0]]  # far outside, and at limits
    return torch.from_numpy(found)


@pytest.mark.parametrize("make", [joined, noise_module, lambda: features.MLPFeatures(COLUMNS, (4,))])
def test_a_frozen_map_is_its_module(make):
    module, inputs = make().double(), rows()
    step = frozen_map(module)
    before = np.ascontiguousarray(inputs.numpy().T)
    found = step(before)
    np.testing.assert_array_equal(before, inputs.numpy().T)  # left as it was
    with torch.no_grad():
        np.testing.assert_allclose(found.T, module(inputs), rtol=1e-12, atol=1e-13)


def test_large_activations_do_not_overflow():
    values = torch.tensor([-1e4, -700.0, -30.0, 0.0, 19.0, 21.0, 800.0, 1e4], dtype=torch.float64)
    found = frozen_map(nn.Mish())(values.numpy()[None])[0]
    np.testing.assert_allclose(found, nn.functional.mish(values), rtol=1e-14, atol=1e-300)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(COLUMNS, 2), nn.Tanh()),
        features.MLPFeatures(COLUMNS, (4,), activation=nn.ELU),
        features.ConcatenatedFeatures(network(0), nn.Identity(), input_dim=COLUMNS),
        type("OwnLinear", (nn.Linear,), {})(COLUMNS, 2),  # its forward might be another
    ],
)
def test_other_modules_are_not_frozen(module):
    assert frozen_map(module.double()) is None


def test_only_float64_is_frozen():
    assert frozen_map(network(0)) is None


@pytest.mark.parametrize("reads", ["inputs", "features"])
@pytest.mark.parametrize("bounds", [None, (-0.5, 0.5)])
def test_frozen_noise_is_the_noise(reads, bounds):
    width = COLUMNS if reads == "inputs" else 5
    module = noise_module() if reads == "inputs" else nn.Sequential(nn.Linear(width, 1))
    noise = InputNoise(module, reads=reads, max_log_scale=2.0, bounds=bounds).double()
    inputs, made = rows(), torch.randn(len(rows()), 5, dtype=torch.float64)
    found = frozen_noise(noise)(inputs.numpy().T.copy(), made.numpy().T.copy())
    with torch.no_grad():
        np.testing.assert_allclose(found, noise.log_scale(inputs, made), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize(
    "noise",
    [
        ConstantNoise(0.3),
        InputNoise(noise_module(), reads="inputs", variance=0.3),
        InputNoise(nn.Linear(36, 1), reads="features", variance=0.3),
    ],
)
def test_predictions_are_those_of_features_and_posterior(targets, noise):
    inputs = rows(300)[4:]
    observed = torch.randn(len(inputs), targets, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    fitted = FeatureGP(joined(), noise_model=noise, output_scale=2.5).condition((inputs, observed))
    new = rows()
    with torch.no_grad():
        made, log_scale = fitted.model(new)
    expected = fitted.posterior.predict(made, log_scale)
    found = fitted.predict(new)
    assert found.mean.shape == expected.mean.shape
    for name in ("mean", "epistemic_variance", "noise_variance"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(fitted.predict_mean(new), expected.mean, rtol=1e-10, atol=1e-11)
    # Updates make another posterior, which is the one that predicts.
    more = fitted.update((new[10:], torch.ones(len(new) - 10, targets, dtype=torch.float64)))
    with torch.no_grad():
        torch.testing.assert_close(more.predict(new).mean, more.posterior.predict(made, log_scale).mean)
    assert not torch.allclose(more.predict(new).mean, found.mean)
