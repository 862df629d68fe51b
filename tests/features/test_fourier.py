"""Fourier features against the exact kernels that they stand for, and the frequencies that they draw."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from feature_kernels import feature_kernel, random_points
from torch import Tensor, nn

from finitegp.features import FourierFeatures, GaussLegendreFeatures
from finitegp.features.fourier import draw_frequencies

KERNELS = ("rbf", "matern12", "matern32", "matern52")
SAMPLINGS = ("iid", "orthogonal", "sobol")


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
    monkeypatch.setattr("finitegp.features.fourier.SobolEngine", Extremes)
    feature_map = FourierFeatures(2, 6, kernel=kernel, sampling="sobol")
    assert bool(torch.isfinite(feature_map.frequencies).all())
    assert bool(torch.isfinite(feature_map(torch.ones(1, 2))).all())
