"""Gauss-Legendre features: their kernel is exact to the tolerance, in the box that they state."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from feature_kernels import feature_kernel
from torch import Tensor

from finitegp.features import FourierFeatures, GaussLegendreFeatures


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
