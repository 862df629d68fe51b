"""The exact gradient of the NLML in two passes over the data, and ``Exact``, which trains with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..data import Rows, as_source
from ..likelihood import (
    MarginalLikelihood,
    log_noise_gradient,
    negative_log_marginal_likelihood,
    regularized_gram_factor,
    row_gradients,
)
from ..model import FeatureGP
from ..statistics import sum_statistics
from .base import Algorithm, BatchGradient


@dataclass(frozen=True)
class ExactGradient:
    """What :func:`exact_gradient` found besides the gradients themselves.

    Attributes:
        likelihood: The exact marginal likelihood at the parameters of the gradient.
        gradient_norm: The Euclidean norm of the gradient of the total NLML over all parameters.
    """

    likelihood: MarginalLikelihood
    gradient_norm: float


def exact_gradient(model: FeatureGP, data: Any) -> ExactGradient:
    r"""Set ``.grad`` of every parameter to the exact gradient of the **total** NLML.

    Pass one sums the statistics and solves :math:`w = F^{-1}c`, :math:`P = F^{-1}`. Pass two pushes
    :math:`(Zw - y)w'/s + ZP` back through the feature map, chunk by chunk. The result equals automatic
    differentiation of the dense formula. The model runs in its own float type and in evaluation mode, so that both
    passes see the same function; use a float64 model for gradients of full accuracy.

    Example:
        >>> model = FeatureGP(torch.nn.Linear(2, 3), noise_variance=0.5).double()
        >>> found = exact_gradient(model, (torch.ones(4, 2), torch.arange(4.0)))
        >>> found.gradient_norm > 0 and model.feature_map.weight.grad.shape == (3, 2)
        True
    """
    source = as_source(data)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            statistics = sum_statistics(model.partial_statistics(source))
        noise_variance = model.noise_variance
        factor = regularized_gram_factor(statistics, noise_variance)
        weights = factor.solve(statistics.projected_targets)
        inverse_gram = factor.inverse()
        model.zero_grad(set_to_none=True)
        residual_squares = 0.0
        for rows in source:
            features, log_scale = model.checked_forward(rows)
            known_scale = None if log_scale is None else log_scale.detach()
            if rows.counts is not None:
                # k equal rows are one row of a k-th of the noise, but for the terms that count rows.
                counts = rows.counts.to(features)
                known_scale = -counts.log() if known_scale is None else known_scale - counts.log()
            gradients = row_gradients(
                features.detach(),
                rows.targets.to(features),
                weights.to(features),
                features.detach() @ inverse_gram.to(features),
                noise_variance,
                known_scale,
            )
            residual_squares += float(gradients.residual_sum_of_squares)
            outputs, pushed = [features], [gradients.features]
            if log_scale is not None and log_scale.requires_grad:
                assert gradients.log_noise_scale is not None
                scale_gradient = gradients.log_noise_scale
                if rows.counts is not None:
                    scale_gradient = scale_gradient + 0.5 * rows.targets.shape[1] * (counts - 1.0)
                outputs.append(log_scale)
                pushed.append(scale_gradient)
            if any(output.requires_grad for output in outputs):
                torch.autograd.backward(outputs, pushed)
    finally:
        model.train(was_training)
    noise_parameter = model.noise.log_variance
    if noise_parameter.requires_grad:
        noise_parameter.grad = torch.full_like(
            noise_parameter,
            float(
                log_noise_gradient(
                    residual_squares,
                    float(inverse_gram.trace()),
                    noise_variance,
                    statistics.num_data,
                    statistics.num_features,
                    statistics.num_targets,
                )
            ),
        )
    likelihood = negative_log_marginal_likelihood(
        statistics, noise_variance, residual_sum_of_squares=residual_squares, tolerance=math.inf
    )
    squares = [float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None]
    return ExactGradient(likelihood=likelihood, gradient_norm=math.sqrt(math.fsum(squares)))


class Exact(Algorithm):
    """The exact gradient as a training algorithm: every step reads all rows twice; an epoch is one step.

    The reference for the stochastic algorithms, and the choice for small tables.

    Args:
        model: The model to train, in place.
        data: All training rows, any source.
        input_dim: The number of input columns, if the feature map does not know it.
        num_targets: The number of target columns.
        minimum_noise_variance: The noise variance is kept at or above this.
    """

    batches_per_step = 0

    def __init__(
        self,
        model: FeatureGP,
        data: Any,
        *,
        input_dim: int | None = None,
        num_targets: int = 1,
        minimum_noise_variance: float = 1e-8,
    ) -> None:
        self.source = as_source(data)
        super().__init__(
            model,
            sum(len(rows.inputs) for rows in self.source),
            input_dim=input_dim,
            num_targets=num_targets,
            minimum_noise_variance=minimum_noise_variance,
        )

    def gradient(self, batch: Rows | None = None) -> BatchGradient:
        """The exact gradient of the NLML per row; ``batch`` is not used."""
        found = exact_gradient(self.model, self.source)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(self.num_data)
        # The residuals' share of the fit: 2 fit = |r|^2 / s + |w|^2.
        loss = torch.tensor(2.0 * found.likelihood.fit / (self.num_data * self.num_targets))
        return BatchGradient(torch.empty(0, self.num_features), None, loss)

    def step(self, batches: Sequence[Rows], optimizer: torch.optim.Optimizer) -> float:
        """One step with the exact gradient."""
        optimizer.zero_grad()
        found = self.gradient()
        optimizer.step()
        self.project()
        return found.loss.item()
