"""Feature maps against the exact kernels they stand for, and the contract that all of them share."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

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
from finitegp.features.frequencies import draw_frequencies

KERNELS = ("rbf", "matern12", "matern32", "matern52")
SAMPLINGS = ("iid", "orthogonal", "sobol")


def random_points(rows: int, columns: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(rows, columns, generator=generator, dtype=torch.float64)


def feature_kernel(feature_map: nn.Module, inputs: Tensor, other: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        return feature_map(inputs) @ feature_map(inputs if other is None else other).T


def textbook_kernel(kernel: str, inputs: Tensor, length_scales: list[float], magnitude: float) -> Tensor:
    """Pair by pair from the definition, for comparison with ``exact_kernel``."""
    matrix = torch.empty(len(inputs), len(inputs), dtype=torch.float64)
    for i, j in itertools.product(range(len(inputs)), repeat=2):
        r = math.sqrt(sum(((a - b) / s) ** 2 for a, b, s in zip(inputs[i], inputs[j], length_scales, strict=True)))
        matrix[i, j] = {
            "rbf": math.exp(-(r**2) / 2),
            "matern12": math.exp(-r),
            "matern32": (1 + math.sqrt(3) * r) * math.exp(-math.sqrt(3) * r),
            "matern52": (1 + math.sqrt(5) * r + 5 * r**2 / 3) * math.exp(-math.sqrt(5) * r),
        }[kernel]
    return magnitude * matrix


def mean_squared_errors(kernel: str, sampling: str, num_features: int, input_dim: int, num_seeds: int) -> Tensor:
    """For each seed the squared kernel error, averaged over all pairs of different points."""
    inputs = random_points(60, input_dim, scale=1 / math.sqrt(input_dim))
    pairs = torch.triu_indices(60, 60, 1).unbind()
    errors = []
    for seed in range(num_seeds):
        feature_map = FourierFeatures(input_dim, num_features, kernel=kernel, sampling=sampling, seed=seed).double()
        error = feature_kernel(feature_map, inputs) - feature_map.exact_kernel(inputs, inputs).detach()
        errors.append(error[pairs].square().mean())
    return torch.stack(errors)


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


# Networks and linear features


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


# Fourier features


@pytest.mark.parametrize("kernel", KERNELS)
def test_exact_kernel_is_the_textbook_one(kernel: str) -> None:
    length_scales = [0.5, 1.0, 4.0]
    feature_map = FourierFeatures(3, 2, kernel=kernel, length_scales=length_scales, magnitude=2.0).double()
    inputs = random_points(5, 3)
    expected = textbook_kernel(kernel, inputs, feature_map.length_scales.tolist(), feature_map.magnitude.item())
    torch.testing.assert_close(feature_map.exact_kernel(inputs, inputs), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(feature_map.length_scales.tolist(), length_scales, rtol=1e-6)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_mean_over_seeds_is_the_exact_kernel(kernel: str, sampling: str) -> None:
    # Each draw's rows have the kernel's spectral density, so the mean over draws is the exact kernel,
    # up to the standard error of the mean.
    inputs = random_points(8, 3)
    # 10 frequencies are not a multiple of a block of 3: the last block is cut.
    kernels = []
    for seed in range(300):
        feature_map = FourierFeatures(
            3, 20, kernel=kernel, sampling=sampling, length_scales=[0.5, 1.0, 2.0], magnitude=1.5, seed=seed
        ).double()
        kernels.append(feature_kernel(feature_map, inputs))
    draws = torch.stack(kernels)
    exact = feature_map.exact_kernel(inputs, inputs).detach()
    torch.testing.assert_close(draws.mean(0).diagonal(), exact.diagonal())
    rows, columns = torch.triu_indices(8, 8, 1)
    standard_error = draws.std(0) / math.sqrt(len(draws))
    deviation = ((draws.mean(0) - exact) / standard_error)[rows, columns]
    assert float(deviation.abs().max()) < 4.5
    assert float(standard_error[rows, columns].max()) < 0.03  # small enough for another kernel to fail


@pytest.mark.parametrize("kernel", KERNELS)
def test_error_falls_with_the_root_of_the_number_of_features(kernel: str) -> None:
    errors = [mean_squared_errors(kernel, "iid", m, 3, num_seeds=40).mean().sqrt() for m in (100, 1600)]
    assert 3.4 < float(errors[0] / errors[1]) < 4.6  # sixteen times the features, a quarter of the error


@pytest.mark.parametrize("kernel", KERNELS)
def test_orthogonal_and_sobol_are_better_than_iid_on_average(kernel: str) -> None:
    errors = {sampling: mean_squared_errors(kernel, sampling, 128, 8, num_seeds=100).mean() for sampling in SAMPLINGS}
    assert errors["orthogonal"] < errors["iid"]
    assert errors["sobol"] < errors["iid"]


def test_matern_features_tell_the_materns_apart() -> None:
    inputs = torch.linspace(0, 2, 30, dtype=torch.float64)[:, None]
    maps = {kernel: FourierFeatures(1, 8192, kernel=kernel, sampling="sobol").double() for kernel in KERNELS}
    exact = {kernel: maps[kernel].exact_kernel(inputs, inputs).detach() for kernel in KERNELS}
    for kernel in KERNELS:
        drawn = feature_kernel(maps[kernel], inputs)
        errors = {other: float((drawn - exact[other]).square().mean().sqrt()) for other in KERNELS}
        # Not only the nearest: the others are an order of magnitude away.
        assert all(errors[other] > 10 * errors[kernel] for other in KERNELS if other != kernel), errors


def test_shared_length_scale() -> None:
    shared = FourierFeatures(3, 10, length_scales=2.0, ard=False)
    assert shared.length_scales.shape == (1,)
    separate = FourierFeatures(3, 10, length_scales=2.0)
    assert separate.length_scales.shape == (3,)
    inputs = random_points(4, 3).float()
    assert torch.equal(shared(inputs), separate(inputs))


def test_ard_scales_each_input_by_its_own() -> None:
    inputs = random_points(4, 3).float()
    length_scales = torch.tensor([0.5, 1.0, 4.0])
    scaled = FourierFeatures(3, 10, length_scales=length_scales)
    unit = FourierFeatures(3, 10)
    torch.testing.assert_close(scaled(inputs), unit(inputs / length_scales))
    torch.testing.assert_close(scaled.exact_kernel(inputs, inputs), unit.exact_kernel(*[inputs / length_scales] * 2))


def test_gradients_of_scales_magnitude_and_frequencies() -> None:
    inputs = random_points(4, 3)
    spectral_maps = [
        FourierFeatures(3, 6, kernel="matern52", length_scales=[0.5, 1.0, 2.0], magnitude=2.0, learn_frequencies=True),
        GaussLegendreFeatures(2, nodes_per_dimension=6, length_scales=[0.5, 2.0], tolerance=0.2),
    ]
    for feature_map in spectral_maps:
        feature_map.double()
        names, parameters = zip(*feature_map.named_parameters(), strict=True)

        def features(*values: Tensor, module: nn.Module = feature_map, names: tuple[str, ...] = names) -> Tensor:
            columns = inputs[:, : module.input_dim]
            return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (columns,))

        assert set(names) >= {"log_length_scales", "log_magnitude"}
        assert torch.autograd.gradcheck(features, parameters)
        (inputs_gradient,) = torch.autograd.grad(
            feature_map.exact_kernel(inputs[:, : feature_map.input_dim], inputs[:, : feature_map.input_dim]).sum(),
            feature_map.log_length_scales,
        )
        assert bool(torch.isfinite(inputs_gradient).all())  # also at distance zero, where the root has no slope
    assert "frequencies" in dict(spectral_maps[0].named_parameters())


def test_what_is_not_learned_is_no_parameter_but_is_saved() -> None:
    fixed = FourierFeatures(2, 10, learn_length_scales=False, learn_magnitude=False)
    assert list(fixed.parameters()) == []
    learned = FourierFeatures(2, 10, learn_frequencies=True)
    assert set(dict(learned.named_parameters())) == set(fixed.state_dict()) == set(learned.state_dict())


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_seed_determines_the_frequencies(sampling: str) -> None:
    first, again, other = (FourierFeatures(3, 10, sampling=sampling, seed=seed).frequencies for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_frequencies_of_the_rbf_kernel_are_standard_normal(sampling: str) -> None:
    # Row by row, over seeds: rows of one draw depend on each other, and one may be wrong and the next right.
    draws = torch.stack([draw_frequencies("rbf", 6, 3, sampling, seed) for seed in range(2000)])
    standard_error = 1 / math.sqrt(len(draws))
    assert float(draws.mean(0).abs().max()) < 4.5 * standard_error
    second_moments = draws.permute(1, 2, 0) @ draws.permute(1, 0, 2) / len(draws)
    # The variance of the product of two standard normals is at most two.
    assert float((second_moments - torch.eye(3)).abs().max()) < 4.5 * math.sqrt(2) * standard_error


def test_orthogonal_frequencies_are_orthogonal_in_blocks_with_lengths_of_their_own() -> None:
    blocks = FourierFeatures(4, 80, sampling="orthogonal").double().frequencies.reshape(10, 4, 4)
    products = blocks @ blocks.mT
    lengths = products.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(products, torch.diag_embed(lengths), rtol=0, atol=1e-5)  # drawn in, stored as float32
    assert len(set(lengths.flatten().tolist())) == 40


class Extremes:
    """Stands in for the Sobol engine, with points on the boundary of the cube."""

    MAXDIM = 100

    def __init__(self, dimension: int, **options: object) -> None:
        self.dimension = dimension

    def draw(self, rows: int, dtype: torch.dtype) -> Tensor:
        return (torch.arange(rows * self.dimension) % 2).reshape(rows, self.dimension).to(dtype)


@pytest.mark.parametrize("kernel", KERNELS)
def test_sobol_points_on_the_boundary_give_finite_frequencies(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finitegp.features.frequencies.SobolEngine", Extremes)
    feature_map = FourierFeatures(2, 6, kernel=kernel, sampling="sobol")
    assert bool(torch.isfinite(feature_map.frequencies).all())
    assert bool(torch.isfinite(feature_map(torch.ones(1, 2))).all())


# Gauss-Legendre features


def points_of_box(side: list[float], rows: int) -> Tensor:
    """All corners of a box, its centre and random points."""
    corners = torch.tensor(list(itertools.product((0.0, 1.0), repeat=len(side))), dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    inside = torch.rand(rows, len(side), generator=generator, dtype=torch.float64)
    return torch.cat((corners, corners.mean(0, keepdim=True), inside)) * torch.tensor(side, dtype=torch.float64)


def largest_error(feature_map: GaussLegendreFeatures, scaled_side: float, rows: int = 200) -> float:
    side = [scaled_side * scale for scale in feature_map.length_scales.tolist()]
    inputs = points_of_box(side, rows)
    error = feature_kernel(feature_map, inputs) - feature_map.exact_kernel(inputs, inputs)
    return float(error.detach().abs().max())


@pytest.mark.parametrize(("input_dim", "promised"), [(1, 8.0), (2, 8.0), (3, 3.0)])
def test_quadrature_is_accurate_to_1e6_on_the_stated_box(input_dim: int, promised: float) -> None:
    length_scales = [0.5, 2.0, 1.3][:input_dim]
    feature_map = GaussLegendreFeatures(input_dim, length_scales=length_scales).double()
    assert feature_map.max_scaled_distance >= promised
    assert largest_error(feature_map, feature_map.max_scaled_distance) <= 1e-6
    scaled = GaussLegendreFeatures(input_dim, length_scales=length_scales, magnitude=50.0).double()
    assert largest_error(scaled, scaled.max_scaled_distance, rows=10) <= 50e-6


@pytest.mark.parametrize(("input_dim", "nodes"), [(1, 22), (2, 22), (3, 20)])
def test_quadrature_with_few_nodes_is_accurate_in_its_box_only(input_dim: int, nodes: int) -> None:
    feature_map = GaussLegendreFeatures(input_dim, nodes_per_dimension=nodes).double()
    assert largest_error(feature_map, feature_map.max_scaled_distance) <= 1e-6
    assert largest_error(feature_map, feature_map.max_scaled_distance + 0.5) > 1e-6
    assert largest_error(feature_map, 8.0) > 1e-2


def test_quadrature_tolerance_can_be_tightened() -> None:
    feature_map = GaussLegendreFeatures(1, nodes_per_dimension=80, tolerance=1e-12).double()
    assert feature_map.max_scaled_distance > 8
    # The features are products of numbers rounded to 1e-16: the tolerance is still far above that.
    assert largest_error(feature_map, feature_map.max_scaled_distance) <= 1e-12


def test_quadrature_keeps_its_digits_through_float32() -> None:
    direct = GaussLegendreFeatures(2).double()
    cast = GaussLegendreFeatures(2).double().float().double()
    assert torch.equal(direct.frequencies, cast.frequencies)
    assert largest_error(cast, cast.max_scaled_distance) <= 1e-6
    rounded = direct.frequencies.float().double()
    assert not torch.equal(direct.frequencies, rounded)
    assert copy.deepcopy(direct).frequencies.dtype == torch.float64


def test_quadrature_leaves_out_only_what_is_negligible() -> None:
    feature_map = GaussLegendreFeatures(3).double()
    assert feature_map.num_features < feature_map.nodes_per_dimension**3
    total = float(feature_map.root_weights.square().sum()) / 2
    assert abs(total - 1) <= 1e-6  # at distance zero every cosine is one


def test_quadrature_beats_random_features() -> None:
    quadrature = GaussLegendreFeatures(1).double()
    random = FourierFeatures(1, quadrature.num_features).double()
    inputs = torch.linspace(0, 8, 100, dtype=torch.float64)[:, None]
    error = feature_kernel(random, inputs) - quadrature.exact_kernel(inputs, inputs)
    assert float(error.detach().abs().max()) > 1e3 * largest_error(quadrature, 8.0)


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


def test_he_initialization_keeps_the_scale_of_the_inputs():
    inputs = random_points(2000, 50)
    features = MLPFeatures(50, hidden=(256, 256), initialization="he", seed=0).double()(inputs).detach()
    # The mean square of a ReLU layer's output is that of its input.
    assert 0.8 < float(features.square().mean() / inputs.square().mean()) < 1.25
    smaller = MLPFeatures(50, hidden=(256, 256), seed=0).double()(inputs).detach()
    assert float(smaller.square().mean()) < 0.2
