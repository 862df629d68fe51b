"""Diagnostics: how biased the stochastic gradient is, and whether training has arrived."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .algorithms.base import Algorithm
from .algorithms.exact import exact_gradient
from .data.sampling import Sampler
from .data.sources import Data
from .model import FeatureGP


@dataclass(frozen=True)
class GradientBias:
    """The mean stochastic gradient against the exact one, both of the NLML per row, over the model's parameters.

    Attributes:
        angle_degrees: Between the two; zero if only the length differs, 90 if they have nothing in common.
        relative_error: Norm of the difference over the norm of the exact gradient.
        exact_norm: Norm of the exact gradient.
        batch_noise: Root mean square deviation of single batches from their mean, over the norm of the exact gradient.
        nlml: The exact NLML per row.
    """

    angle_degrees: float
    relative_error: float
    exact_norm: float
    batch_noise: float
    nlml: float


def measure_bias(algorithm: Algorithm, sampler: Sampler) -> GradientBias:
    """Compare the algorithm's gradient with the exact one at the present parameters and tracked quantities.

    The mean over the batches of one shuffled epoch is the mean over all rows, without sampling error: what is left is
    bias. Nothing is changed; it costs one epoch and one exact gradient.
    """
    model = algorithm.model
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    mean = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64, device=model.device)
    squares, rows_seen = 0.0, 0
    for batch in sampler.epoch(0, stream=-2):
        for parameter in algorithm.parameters():
            parameter.grad = None
        algorithm.gradient(batch)
        gradient = _flat_gradient(parameters)
        rows = len(batch.inputs)
        mean += rows * gradient
        squares += rows * float(gradient.square().sum())
        rows_seen += rows
    mean /= rows_seen
    exact_found = exact_gradient(model, sampler.data)
    exact = _flat_gradient(parameters) / sampler.num_data
    for parameter in algorithm.parameters():
        parameter.grad = None
    norm = float(exact.norm())
    # The angle from the difference of unit vectors: arccos would lose half the digits near zero.
    difference = float((mean / mean.norm().clamp_min(1e-300) - exact / max(norm, 1e-300)).norm())
    return GradientBias(
        angle_degrees=math.degrees(2.0 * math.asin(min(difference / 2.0, 1.0))),
        relative_error=float((mean - exact).norm()) / max(norm, 1e-300),
        exact_norm=norm,
        batch_noise=math.sqrt(max(squares / rows_seen - float(mean.square().sum()), 0.0)) / max(norm, 1e-300),
        nlml=exact_found.likelihood.nlml,
    )


@dataclass(frozen=True)
class Certificate:
    """Where training has arrived.

    Attributes:
        nlml: The exact NLML per row.
        gradient_norm: The norm of the exact gradient of the NLML per row: near zero at a stationary point.
        noise_gain: How much the NLML per row would still fall if only the noise variance were set to its optimum.
    """

    nlml: float
    gradient_norm: float
    noise_gain: float


def certify(model: FeatureGP, data: Data) -> Certificate:
    """The convergence certificate of a model on its training rows: exact NLML and exact gradient, in float64."""
    exact = model.exact_copy()
    exact.requires_grad_(True)
    found = exact_gradient(exact, data)
    optimum = exact.optimize_noise(data)
    value = found.likelihood.nlml
    return Certificate(value, found.gradient_norm / found.likelihood.num_data, value - optimum.nlml)


def _flat_gradient(parameters: Sequence[Tensor]) -> Tensor:
    parts = [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters]
    return torch.cat([part.double() for part in parts])
