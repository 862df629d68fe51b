"""The contract that all feature maps share, and what they say about wrong arguments."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from feature_kernels import random_points
from torch import nn

from finitegp.features import (
    ComposedFeatures,
    ConcatenatedFeatures,
    ConstantFeatures,
    FourierFeatures,
    GaussLegendreFeatures,
    LinearFeatures,
    MLPFeatures,
    PeriodicEmbedding,
    count_features,
)


def all_maps() -> list[Callable[[], nn.Module]]:
    """One of each feature map on three inputs."""
    return [
        lambda: MLPFeatures(3, hidden=(8, 6), activation="tanh", seed=0),
        lambda: LinearFeatures(3, magnitude=2.0),
        lambda: LinearFeatures(3, bias=False),
        lambda: FourierFeatures(3, 20, kernel="matern32", length_scales=[0.5, 1.0, 2.0]),
        lambda: FourierFeatures(3, 20, sampling="orthogonal", ard=False, learn_frequencies=True),
        lambda: FourierFeatures(3, 20, sampling="sobol", learn_length_scales=False, learn_magnitude=False),
        lambda: GaussLegendreFeatures(3, nodes_per_dimension=12, tolerance=1e-2),
        lambda: PeriodicEmbedding(3, num_frequencies=5, width=3, frequency_scale=0.5),
        lambda: ComposedFeatures(MLPFeatures(3, seed=1), FourierFeatures(128, 20, ard=False)),
        lambda: ConcatenatedFeatures(LinearFeatures(3, bias=False), ConstantFeatures(3.0)),
        lambda: ConstantFeatures(2.0),
    ]


# What every feature map does


@pytest.mark.parametrize("make", all_maps())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shape_dtype_and_finite_gradients(make: Callable[[], nn.Module], dtype: torch.dtype) -> None:
    feature_map = make().to(dtype)
    features = feature_map(random_points(5, 3).to(dtype))
    assert features.shape == (5, feature_map.num_features)
    assert features.dtype == dtype
    assert count_features(feature_map, 3) == feature_map.num_features
    for name, parameter in feature_map.named_parameters():
        weights = random_points(*features.shape, seed=1).to(dtype)
        (gradient,) = torch.autograd.grad((features * weights).sum(), parameter, retain_graph=True)
        assert bool(torch.isfinite(gradient).all()), name
        assert bool((gradient != 0).any()), name


@pytest.mark.parametrize("make", all_maps())
def test_float32_and_float64_agree(make: Callable[[], nn.Module]) -> None:
    feature_map = make()
    inputs = random_points(5, 3)
    single = feature_map(inputs.float())
    double = copy.deepcopy(feature_map).double()(inputs)
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", all_maps())
def test_state_dict_round_trip(make: Callable[[], nn.Module]) -> None:
    original = make()
    inputs = random_points(5, 3).float()
    with torch.no_grad():
        for index, parameter in enumerate(original.parameters()):
            parameter.add_(0.1 * random_points(1, max(parameter.numel(), 1), index).float().reshape(parameter.shape))
    expected = original(inputs)
    loaded = make()
    if list(original.parameters()):
        assert not torch.equal(loaded(inputs), expected)  # otherwise loading would have nothing to do
    loaded.load_state_dict(original.state_dict())
    assert torch.equal(loaded(inputs), expected)


@pytest.mark.parametrize("make", all_maps()[:-1])
def test_wrong_input_width_is_named(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(ValueError, match=r"inputs must be \(rows, 3\), but have shape \(5, 4\)"):
        make()(torch.zeros(5, 4))
    with pytest.raises(ValueError, match=r"inputs must be \(rows, 3\), but have shape \(3,\)"):
        make()(torch.zeros(3))


@pytest.mark.parametrize("make", all_maps())
def test_construction_leaves_the_global_random_state_and_repeats(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    inputs = random_points(4, 3).float()
    first = make()(inputs)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(8)
    assert torch.equal(make()(inputs), first)


@pytest.mark.parametrize("make", all_maps())
def test_default_device_is_respected(make: Callable[[], nn.Module]) -> None:
    with torch.device("meta"):
        feature_map = make()
    tensors = [*feature_map.parameters(), *feature_map.buffers()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


# Wrong arguments


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLPFeatures(0), "input_dim must be a whole number of at least 1, but is 0"),
        (lambda: MLPFeatures(2.5), "input_dim must be a whole number"),
        (lambda: MLPFeatures(True), "input_dim must be a whole number"),
        (lambda: MLPFeatures(2, hidden=()), "hidden must list at least one layer width"),
        (lambda: MLPFeatures(2, hidden=128), "hidden must list at least one layer width"),
        (
            lambda: MLPFeatures(2, hidden=(8, -1)),
            r"hidden\[1\] must be a whole number of at least 1, but is -1",
        ),
        (
            lambda: MLPFeatures(2, activation="swoosh"),
            r"activation must be one of \['gelu', .*but is 'swoosh'",
        ),
        (lambda: MLPFeatures(2, activation=nn.ReLU()), "activation must be a name or a callable"),
        (lambda: MLPFeatures(2, activation=lambda: torch.relu), "activation must be a name or a callable"),
        (lambda: MLPFeatures(2, activation=3), "activation must be a name or a callable"),
        (lambda: LinearFeatures(-1), "input_dim must be a whole number"),
        (lambda: LinearFeatures(2, magnitude=0.0), "magnitude must be positive and finite, but is 0.0"),
        (lambda: LinearFeatures(2, magnitude=[1.0, 2.0]), "magnitude must be one number"),
        (lambda: LinearFeatures(2, bias_magnitude=-1.0), "bias_magnitude must be positive and finite"),
        (lambda: ConstantFeatures(-2.0), "magnitude must be positive and finite, but is -2.0"),
        (lambda: ConstantFeatures(math.nan), "magnitude must be positive and finite, but is nan"),
        (lambda: ConstantFeatures("one"), "magnitude must be a positive number"),
        (lambda: FourierFeatures(0), "input_dim must be a whole number"),
        (lambda: FourierFeatures(2, 0), "num_features must be a whole number of at least 1, but is 0"),
        (lambda: FourierFeatures(2, 11), r"num_features must be even .* but is 11: use 12"),
        (lambda: FourierFeatures(2, kernel="matern"), r"kernel must be one of \['rbf', .* but is 'matern'"),
        (
            lambda: FourierFeatures(2, sampling="halton"),
            r"sampling must be one of \['iid', .* but is 'halton'",
        ),
        (lambda: FourierFeatures(2, magnitude=math.inf), "magnitude must be positive and finite, but is inf"),
        (lambda: FourierFeatures(2, magnitude=[1.0, 2.0]), "magnitude must be one number"),
        (lambda: FourierFeatures(2, length_scales=0.0), "length_scales must be positive and finite"),
        (lambda: FourierFeatures(2, length_scales=[1.0, -1.0]), "length_scales must be positive and finite"),
        (
            lambda: FourierFeatures(2, length_scales=[1.0] * 3),
            r"one number or 2 numbers, one per input.*\(3,\)",
        ),
        (lambda: FourierFeatures(2, length_scales=[[1.0, 1.0]]), r"one number or 2 numbers.*\(1, 2\)"),
        (lambda: FourierFeatures(2, length_scales=[1.0, 1.0], ard=False), "one number.*needs ard=True"),
        (lambda: FourierFeatures(30000, 2, sampling="sobol"), "use sampling='orthogonal'"),
        (lambda: GaussLegendreFeatures(0), "input_dim must be a whole number"),
        (lambda: GaussLegendreFeatures(4), "input_dim must be 1, 2 or 3 .* but is 4: use FourierFeatures"),
        (lambda: GaussLegendreFeatures(1, 0), "nodes_per_dimension must be a whole number"),
        (lambda: GaussLegendreFeatures(1, 21), "nodes_per_dimension must be even .* but is 21: use 22"),
        (lambda: GaussLegendreFeatures(1, 4), "nodes_per_dimension=4 .* does not reach tolerance=1e-06"),
        (
            lambda: GaussLegendreFeatures(1, frequency_cutoff=2.0),
            "frequency_cutoff=2 does not reach tolerance",
        ),
        (lambda: GaussLegendreFeatures(1, frequency_cutoff=-1.0), "frequency_cutoff must be positive"),
        (lambda: GaussLegendreFeatures(1, tolerance=0.0), "tolerance must be between 0 and 1, but is 0.0"),
        (lambda: GaussLegendreFeatures(2, length_scales=[1.0] * 3), "one number or 2 numbers"),
        (lambda: GaussLegendreFeatures(2, magnitude=0.0), "magnitude must be positive"),
        (
            lambda: ComposedFeatures(MLPFeatures(2), FourierFeatures(3)),
            "first has 128 features, but second takes",
        ),
        (lambda: ComposedFeatures(nn.ReLU(), nn.ReLU()), "give input_dim"),
        (lambda: ComposedFeatures(torch.relu, nn.ReLU()), "first must be a torch.nn.Module"),
        (lambda: ComposedFeatures(nn.ReLU(), torch.relu), "second must be a torch.nn.Module"),
        (
            lambda: ComposedFeatures(MLPFeatures(2), nn.ReLU(), input_dim=3),
            r"3 \(the argument input_dim\), 2 \(MLP",
        ),
        (lambda: MLPFeatures(2, initialization="xavier"), "initialization must be 'torch' or 'he'"),
        (lambda: PeriodicEmbedding(0), "input_dim must be a whole number"),
        (lambda: PeriodicEmbedding(2, width=1), "width must be at least 2"),
        (lambda: PeriodicEmbedding(2, frequency_scale=0.0), "frequency_scale must be positive"),
        (lambda: ConcatenatedFeatures(), "maps must hold at least one"),
        (lambda: ConcatenatedFeatures(nn.ReLU(), 3), r"maps\[1\] must be a torch.nn.Module, but is 3"),
        (lambda: ConcatenatedFeatures(nn.ReLU()), r"maps\[0\] \(ReLU\) has no num_features: give input_dim"),
        (lambda: ConcatenatedFeatures(LinearFeatures(2), LinearFeatures(3)), "input_dim must be the same"),
        (lambda: ConcatenatedFeatures(nn.ReLU(), input_dim=0), "input_dim must be a whole number"),
        (lambda: count_features(torch.relu, 3), "feature_map must be a torch.nn.Module"),
        (lambda: count_features(nn.Linear(3, 2), 0), "input_dim must be a whole number"),
    ],
)
def test_wrong_arguments_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_exact_kernel_checks_both_inputs() -> None:
    feature_map = FourierFeatures(2, 10)
    for shapes in (((3, 1), (3, 2)), ((3, 2), (3, 1))):
        with pytest.raises(ValueError, match=r"inputs must be \(rows, 2\)"):
            feature_map.exact_kernel(*(torch.zeros(shape) for shape in shapes))
