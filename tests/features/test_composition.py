"""Composed, concatenated and constant features, and counting the features of any module."""

from __future__ import annotations

import copy

import pytest
import torch
from feature_kernels import feature_kernel, random_points
from torch import Tensor, nn

from finitegp.features import (
    ComposedFeatures,
    ConcatenatedFeatures,
    ConstantFeatures,
    FourierFeatures,
    LinearFeatures,
    MLPFeatures,
    count_features,
)

# Combinations


def test_composed_features_are_one_after_the_other() -> None:
    network, fourier = MLPFeatures(4, hidden=(16, 8), seed=0), FourierFeatures(8, 30, ard=False)
    composed = ComposedFeatures(network, fourier)
    inputs = random_points(5, 4).float()
    assert torch.equal(composed(inputs), fourier(network(inputs)))
    assert (composed.input_dim, composed.num_features) == (4, 30)
    assert ComposedFeatures(nn.Linear(4, 8), fourier).num_features == 30
    assert ComposedFeatures(network, nn.Linear(8, 5)).num_features == 5
    assert ComposedFeatures(nn.Linear(4, 8), nn.Linear(8, 5), input_dim=4).num_features == 5
    nested = ComposedFeatures(composed, LinearFeatures(30))
    assert (nested.input_dim, nested.num_features) == (4, 31)


def test_concatenated_features_add_the_kernels() -> None:
    maps = [FourierFeatures(3, 40, magnitude=2.0), LinearFeatures(3), ConstantFeatures(0.7), nn.Linear(3, 6)]
    concatenated = ConcatenatedFeatures(*maps).double()
    inputs = random_points(7, 3)
    torch.testing.assert_close(feature_kernel(concatenated, inputs), sum(feature_kernel(part, inputs) for part in maps))
    assert (concatenated.input_dim, concatenated.num_features) == (3, 40 + 4 + 1 + 6)
    assert ConcatenatedFeatures(nn.Linear(3, 6), nn.Linear(3, 2), input_dim=3).num_features == 8


def test_constant_features_are_an_intercept_with_its_prior_variance() -> None:
    feature_map = ConstantFeatures(magnitude=0.3).double()
    kernel = feature_kernel(feature_map, random_points(3, 9))
    torch.testing.assert_close(kernel, torch.full((3, 3), feature_map.magnitude.item(), dtype=torch.float64))
    assert abs(feature_map.magnitude.item() - 0.3) < 1e-6


# The probe


class Restless(nn.Module):
    """Changes its buffers, in place and by rebinding, and draws random numbers, whatever its mode."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("total", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls.add_(1)
        self.total = self.total + inputs.sum() + 1
        return inputs + torch.rand_like(inputs)


class Returns(nn.Module):
    """Returns what it is told to, whatever the inputs."""

    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value

    def forward(self, inputs: Tensor) -> object:
        return self.value


def test_probe_leaves_modes_buffers_and_random_state() -> None:
    frozen = nn.BatchNorm1d(5).eval()
    module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), frozen, Restless())
    module(torch.randn(10, 3))  # running statistics that are not the initial ones
    state = copy.deepcopy(module.state_dict())
    buffers = dict(module.named_buffers())
    random_state = torch.get_rng_state()
    assert count_features(module, 3) == 5
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    assert all(buffer is buffers[name] for name, buffer in module.named_buffers())
    assert [part.training for part in module] == [True, True, True, False, True]
    assert module.training
    # The same module does change when it is simply called: there was something to leave alone.
    module(torch.zeros(2, 3))
    assert not torch.equal(torch.get_rng_state(), random_state)
    assert not torch.equal(module.state_dict()["1.running_mean"], state["1.running_mean"])


def test_probe_restores_also_after_a_failure() -> None:
    module = nn.Sequential(Restless(), nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"failed on inputs of shape \(2, 3\)") as caught:
        count_features(module, 3)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert float(module[0].calls) == 0
    assert module.training


def test_probe_uses_eval_mode_no_gradients_and_the_dtype_of_the_module() -> None:
    seen = []
    watched = nn.Linear(3, 4)
    watched.register_forward_hook(lambda module, *_: seen.append((module.training, torch.is_grad_enabled())))
    assert count_features(watched, 3) == 4
    assert seen == [(False, False)]
    assert count_features(nn.Linear(3, 4).double(), 3) == 4
    assert count_features(nn.Linear(3, 4).to(torch.bfloat16), 3) == 4
    assert count_features(nn.Flatten(), 3) == 3
    assert count_features(nn.Sequential(nn.LazyLinear(6), nn.LazyBatchNorm1d()), 3) == 6


def test_a_declared_number_of_features_is_taken_without_a_call() -> None:
    module = Returns(None)
    module.num_features = 17
    assert count_features(module, 3) == 17


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((torch.zeros(2, 3), 1), "must return one tensor .* but returned tuple"),
        (torch.zeros(2), r"but mapped \(2, 3\) to \(2,\)"),
        (torch.zeros(3, 4), r"but mapped \(2, 3\) to \(3, 4\)"),
        (torch.zeros(2, 4, 1), r"but mapped \(2, 3\) to \(2, 4, 1\)"),
        (torch.zeros(2, 0), r"but mapped \(2, 3\) to \(2, 0\)"),
    ],
)
def test_probe_refuses_what_is_no_feature_matrix(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        count_features(Returns(value), 3)
