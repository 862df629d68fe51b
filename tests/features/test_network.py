"""Networks and linear features: layers, activations, initialisation, the kernel of linear regression."""

from __future__ import annotations

import numpy as np
import torch
from feature_kernels import feature_kernel, random_points
from torch import nn

from finitegp.features import LinearFeatures, MLPFeatures


def test_default_network_is_two_layers_of_128_with_relu_after_both() -> None:
    feature_map = MLPFeatures(5, seed=0)
    assert [type(layer) for layer in feature_map.layers] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU]
    assert feature_map.num_features == 128
    assert [tuple(p.shape) for p in feature_map.parameters()] == [(128, 5), (128,), (128, 128), (128,)]
    features = feature_map(random_points(50, 5).float())
    assert float(features.detach().min()) == 0.0
    without = MLPFeatures(5, final_activation=False, seed=0)(random_points(50, 5).float())
    torch.testing.assert_close(features, without.relu())


def test_network_seed_gives_the_initialisation_of_torch() -> None:
    torch.manual_seed(3)
    expected = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2), nn.ReLU())
    seeded = MLPFeatures(4, hidden=(6, 2), seed=3)
    torch.manual_seed(3)
    unseeded = MLPFeatures(4, hidden=(6, 2))
    for a, b, c in zip(expected.parameters(), seeded.parameters(), unseeded.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)
    other = MLPFeatures(4, hidden=(6, 2), seed=4)
    assert not torch.equal(next(other.parameters()), next(seeded.parameters()))


def test_activation_by_name_or_by_callable() -> None:
    for activation, module in (
        ("relu", nn.ReLU),
        ("tanh", nn.Tanh),
        ("gelu", nn.GELU),
        ("silu", nn.SiLU),
        (nn.ELU, nn.ELU),
    ):
        layers = MLPFeatures(2, hidden=(3, 3), activation=activation).layers
        assert isinstance(layers[1], module)
        assert isinstance(layers[3], module)
        assert layers[1] is not layers[3]
    learned = MLPFeatures(2, hidden=(3,), activation=lambda: nn.PReLU(3))
    assert sum(p.numel() for p in learned.parameters()) == 2 * 3 + 3 + 3


def test_linear_features_are_the_kernel_of_bayesian_linear_regression() -> None:
    feature_map = LinearFeatures(4, magnitude=0.3, bias_magnitude=5.0).double()
    inputs = random_points(6, 4)
    magnitude, bias_magnitude = feature_map.magnitude.item(), feature_map.bias_magnitude.item()
    np.testing.assert_allclose([magnitude, bias_magnitude], [0.3, 5.0], rtol=1e-6)
    torch.testing.assert_close(feature_kernel(feature_map, inputs), magnitude * inputs @ inputs.T + bias_magnitude)
    without = LinearFeatures(4, bias=False)
    assert (without.num_features, without.bias_magnitude.item()) == (4, 0.0)


def test_he_initialization_keeps_the_scale_of_the_inputs():
    inputs = random_points(2000, 50)
    features = MLPFeatures(50, hidden=(256, 256), initialization="he", seed=0).double()(inputs).detach()
    # The mean square of a ReLU layer's output is that of its input.
    assert 0.8 < float(features.square().mean() / inputs.square().mean()) < 1.25
    smaller = MLPFeatures(50, hidden=(256, 256), seed=0).double()(inputs).detach()
    assert float(smaller.square().mean()) < 0.2
