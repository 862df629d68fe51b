"""All features in one exact GP: networks, a Fourier kernel, a line."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..features import (
    ComposedFeatures,
    ConcatenatedFeatures,
    ConstantFeatures,
    FourierFeatures,
    LinearFeatures,
    SoftClip,
)
from ..model import FeatureGP, FittedGP
from ..noise import NoiseModel
from ..posterior import WeightPosterior
from ..statistics import FeatureStatistics
from .table import Array

# Of the two halves of the Fourier features, with all columns together weighted to one.
_SHORT, _LONG = 0.5, 2.0
# What a column without any effect still counts, as a share of all effects.
_LEAST_EFFECT = 0.01


class Blocks(NamedTuple):
    """How many features there are of each kind, in this order: networks, Fourier, and line with constant."""

    networks: int
    fourier: int
    line: int

    def scales(self, prior: Prior) -> Tensor:
        """``(features,)`` standard deviations of the weights of features with unit priors."""
        values = (prior.network, prior.fourier, 1.0)
        sizes = torch.tensor(list(self))
        return torch.tensor(values, dtype=torch.float64).sqrt().repeat_interleave(sizes)


class Prior(NamedTuple):
    """Prior variances of the weights of network and of Fourier features, and the noise variance."""

    network: float
    fourier: float
    noise: float


def column_weights(effects: Array) -> Array:
    """Columns weighted by the root of their effect, none entirely absent; the squares add up to one."""
    total = float(effects.sum())
    squares = effects + _LEAST_EFFECT * total if total > 0.0 else np.ones(len(effects))
    weights: Array = np.sqrt(squares / squares.sum())
    return weights


def join_features(
    networks: list[nn.Module], effects: Array, num_fourier: int, *, seed: int
) -> tuple[ConcatenatedFeatures, Blocks]:
    """Networks beside Matérn-3/2 Fourier features of two length scales, weighted columns, and a constant.

    The weights of all features have unit prior variance, but for the slopes, whose variance is that of their columns'
    weights.
    """
    columns = len(effects)
    weights = torch.from_numpy(column_weights(effects))
    kernels = [
        FourierFeatures(
            columns,
            num_fourier // 2,
            "matern32",
            length / weights,
            magnitude=0.5,
            learn_length_scales=False,
            learn_magnitude=False,
            seed=seed + number,
        )
        for number, length in enumerate((_SHORT, _LONG))
    ]
    line = LinearFeatures(columns, bias=False, magnitude=weights.square(), ard=True)
    plain = ComposedFeatures(SoftClip(columns), ConcatenatedFeatures(*kernels, line, ConstantFeatures()))
    joined = ConcatenatedFeatures(*networks, plain, input_dim=columns).double().requires_grad_(False)
    return joined, Blocks(joined.num_features - plain.num_features, num_fourier, columns + 1)


def rescale(statistics: FeatureStatistics, scales: Tensor) -> FeatureStatistics:
    """The sums of features that are multiplied by these scales: no row is read again."""
    return replace(
        statistics,
        gram=(statistics.gram * scales[:, None]).mul_(scales),
        projected_targets=statistics.projected_targets * scales[:, None],
    )


def with_prior(
    model: FeatureGP, statistics: FeatureStatistics, blocks: Blocks, prior: Prior, *, chunk_size: int = 4096
) -> FittedGP:
    """The posterior under this prior, from sums under the unit prior; the model itself gets the prior, too."""
    model.noise.set_variance(prior.noise)
    model.set_output_scale(prior.network)
    features = model.feature_map
    assert isinstance(features, ConcatenatedFeatures)
    plain = features.maps[-1]
    assert isinstance(plain, ComposedFeatures)
    with torch.no_grad():
        # The output scale multiplies everything; what is not a network has to be divided by it.
        for part, variance in zip(plain.second.maps, (prior.fourier, prior.fourier, 1.0, 1.0), strict=True):  # type: ignore[arg-type]
            part.log_magnitude += math.log(variance) - model.log_output_scale
    exact = model.exact_copy().requires_grad_(False)
    posterior = WeightPosterior(rescale(statistics, blocks.scales(prior)), exact.noise_variance)
    return FittedGP(exact, posterior, chunk_size=chunk_size)


def make_joined_model(
    networks: list[nn.Module], effects: Array, num_fourier: int, noise: NoiseModel, *, seed: int
) -> tuple[FeatureGP, Blocks]:
    """A GP on joined features with unit priors."""
    features, blocks = join_features(networks, effects, num_fourier, seed=seed)
    return FeatureGP(features, noise_model=noise).double(), blocks
