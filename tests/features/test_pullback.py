"""The backward passes that feature maps write out, against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from finitegp.features import ComposedFeatures, FourierFeatures, MLPFeatures, PeriodicEmbedding

WITH_PULLBACK = {
    "one layer": lambda: MLPFeatures(3, hidden=(7,), seed=0),
    "three layers": lambda: MLPFeatures(3, hidden=(6, 8, 4), seed=0),
    "tanh": lambda: MLPFeatures(3, hidden=(6, 8), activation="tanh", seed=0),
    "gelu": lambda: MLPFeatures(3, hidden=(6, 8), activation="gelu", seed=0),
    "silu": lambda: MLPFeatures(3, hidden=(6, 8), activation="silu", seed=0),
    "mish": lambda: MLPFeatures(3, hidden=(6, 8), activation="mish", seed=0),
    "fourier": lambda: FourierFeatures(3, 10, length_scales=[0.5, 1.0, 2.0], magnitude=1.7),
    "fourier, all learned": lambda: FourierFeatures(3, 10, ard=False, learn_frequencies=True),
    "fourier, none learned": lambda: FourierFeatures(3, 10, learn_length_scales=False, learn_magnitude=False),
    "embedding": lambda: PeriodicEmbedding(3, num_frequencies=5, width=4, frequency_scale=0.7),
    "embedding and network": lambda: ComposedFeatures(PeriodicEmbedding(3), MLPFeatures(12, hidden=(8, 5), seed=0)),
    "deep kernel": lambda: ComposedFeatures(MLPFeatures(3, hidden=(9, 5), seed=0), FourierFeatures(5, 12, ard=False)),
}


@pytest.mark.parametrize("name", WITH_PULLBACK)
def test_written_out_backward_pass_equals_autograd(name):
    feature_map = WITH_PULLBACK[name]().double()
    assert feature_map.has_pullback
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(11, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    gradient = torch.randn(11, feature_map.num_features, generator=generator, dtype=torch.float64)
    expected_features = feature_map(inputs)
    expected_features.backward(gradient)
    expected = {key: parameter.grad.clone() for key, parameter in feature_map.named_parameters()}
    feature_map.zero_grad()
    features, pullback = feature_map.forward_with_pullback(inputs.detach(), inputs_need_gradient=True)
    torch.testing.assert_close(features, expected_features.detach(), rtol=1e-13, atol=1e-13)
    for times in (1, 2):  # gradients accumulate like autograd's
        torch.testing.assert_close(pullback(gradient), inputs.grad, rtol=1e-12, atol=1e-12)
        for key, parameter in feature_map.named_parameters():
            assert parameter.grad.shape == parameter.shape
            torch.testing.assert_close(parameter.grad, times * expected[key], rtol=1e-12, atol=1e-12)
    feature_map.zero_grad()
    features, pullback = feature_map.forward_with_pullback(inputs.detach())
    assert pullback(gradient) is None
    for key, parameter in feature_map.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[key], rtol=1e-12, atol=1e-12)
    # What is frozen gets no gradient.
    feature_map.requires_grad_(False)
    feature_map.zero_grad()
    feature_map.forward_with_pullback(inputs.detach())[1](gradient)
    assert all(parameter.grad is None for parameter in feature_map.parameters())


def test_no_written_out_backward_pass_where_there_is_none():
    assert not MLPFeatures(3, activation=nn.ELU).has_pullback
    assert not MLPFeatures(3, final_activation=False).has_pullback
    assert not ComposedFeatures(nn.Linear(3, 3), FourierFeatures(3, 10), input_dim=3).has_pullback
