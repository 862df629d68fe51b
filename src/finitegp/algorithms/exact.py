"""The exact gradient of the NLML in two passes over the data, and ``Exact``, which trains with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..arguments import check_arguments
from ..data.iterables import as_source
from ..data.sources import Data, Rows, Source
from ..likelihood import MarginalLikelihood, negative_log_marginal_likelihood, regularized_gram_factor
from ..linalg import cholesky
from ..model import FeatureGP
from .base import Algorithm, BatchGradient, push_through, row_gradients

_ROUNDING = 8.0 * torch.finfo(torch.float64).eps


@check_arguments
@dataclass(frozen=True)
class ExactGradient:
    """The results of :func:`exact_gradient` besides the gradients themselves.

    Attributes:
        likelihood: The exact marginal likelihood at the parameters of the gradient.
        gradient_norm: The Euclidean norm of the gradient of the total NLML over all parameters.
    """

    likelihood: MarginalLikelihood
    gradient_norm: float


@check_arguments
def exact_gradient(model: FeatureGP, data: Data) -> ExactGradient:
    r"""Set ``.grad`` of every parameter to the exact gradient of the **total** NLML.

    Pass one sums the statistics and solves :math:`w = F^{-1}c`, :math:`P = F^{-1}`. Pass two pushes
    :math:`(Zw - y)w'/s + ZP` back through the feature map, chunk by chunk. The result equals automatic
    differentiation of the dense formula. The model runs in its own float type and in evaluation mode, so that both
    passes see the same function; use a float64 model for gradients of full accuracy. Fewer rows than features are
    solved through an n x n matrix instead. Of rows that several processes share, each reads its share in both passes;
    all of them get the whole gradient.

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
        likelihood = _few_rows_gradient(model, source)
        if likelihood is None:
            likelihood = _two_pass_gradient(model, source)
    finally:
        model.train(was_training)
    squares = [float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None]
    return ExactGradient(likelihood=likelihood, gradient_norm=math.sqrt(math.fsum(squares)))


def _two_pass_gradient(model: FeatureGP, source: Source) -> MarginalLikelihood:
    sums = source.sums
    with torch.no_grad():
        statistics = model.sum_statistics(source)
    noise_variance = model.noise_variance
    factor = regularized_gram_factor(statistics, noise_variance)
    weights = factor.solve(statistics.projected_targets)
    inverse_gram = factor.inverse()
    model.zero_grad(set_to_none=True)
    residual_squares = 0.0

    def push(rows: Rows) -> None:
        nonlocal residual_squares
        features, log_scale = model.summed_forward(rows)
        whitened = features.detach() @ inverse_gram.to(features)
        residual_squares += _push(rows, features, log_scale, weights, whitened, noise_variance)

    sums.each_chunk(source, push)
    residual_squares = sums.add_number(residual_squares)
    sums.add_gradients(list(model.parameters()))
    _set_noise_gradient(model, residual_squares, float(inverse_gram.trace()), statistics.num_data, weights)
    return negative_log_marginal_likelihood(
        statistics, noise_variance, residual_sum_of_squares=residual_squares, tolerance=math.inf
    )


def _few_rows_gradient(model: FeatureGP, source: Source) -> MarginalLikelihood | None:
    """The same from one pass where all rows are one chunk and fewer than the features; None elsewhere.

    So few rows are not worth sharing out: each of several ranks takes them all.
    """
    if source.num_data is None or source.chunk_size is None or not source.fits_memory:
        return None
    if source.num_data > source.chunk_size:
        return None
    (rows,) = source
    with torch.no_grad():
        # One row shows how many features there are.
        num_features = model.checked_forward(rows.take(slice(0, 1)))[0].shape[1]
    if len(rows.inputs) >= num_features:
        return None
    model.zero_grad(set_to_none=True)
    noise_variance = model.noise_variance
    features, log_scale = model.summed_forward(rows)
    if not bool(torch.isfinite(features.detach().sum())):
        next(model.partial_statistics(source))  # raises the error that names the row
    known_scale = None if log_scale is None else log_scale.detach()
    solved = _solve_few_rows(rows, features.detach(), known_scale, noise_variance)
    whitened = solved.whitened.to(features)
    residual_squares = _push(rows, features, log_scale, solved.weights, whitened, noise_variance)
    _set_noise_gradient(model, residual_squares, solved.inverse_trace, solved.likelihood.num_data, solved.weights)
    return solved.likelihood


def _push(
    rows: Rows, features: Tensor, log_scale: Tensor | None, weights: Tensor, whitened: Tensor, noise_variance: float
) -> float:
    """One backward pass of a chunk's row gradients; returns its scaled squared residuals."""
    known_scale = None if log_scale is None else log_scale.detach()
    counts = None if rows.counts is None else rows.counts.to(features)
    if counts is not None:
        # k equal rows are one row of a k-th of the noise, but for the terms that count rows.
        known_scale = -counts.log() if known_scale is None else known_scale - counts.log()
    gradients = row_gradients(
        features.detach(), rows.observed.to(features), weights.to(features), whitened, noise_variance, known_scale
    )
    scale_gradient = gradients.log_noise_scale
    if scale_gradient is not None and counts is not None:
        scale_gradient = scale_gradient + 0.5 * rows.observed.shape[1] * (counts - 1.0)
    push_through((features, log_scale), (gradients.features, scale_gradient))
    return float(gradients.residual_sum_of_squares)


def _set_noise_gradient(
    model: FeatureGP, residual_squares: float, inverse_trace: float, num_data: float, weights: Tensor
) -> None:
    r"""Set the total NLML's gradient in :math:`\log s`: :math:`\tfrac12[-\|r\|^2/s + t(n - d) + t s\,\mathrm{tr}P]`."""
    parameter = model.noise.log_variance
    if parameter.requires_grad:
        (d, t), noise_variance = weights.shape, model.noise_variance
        degrees = t * (num_data - d + noise_variance * inverse_trace)
        parameter.grad = torch.full_like(parameter, 0.5 * (degrees - residual_squares / noise_variance))


@dataclass(frozen=True, eq=False)
class _FewRowsSolution:
    """Factors that the exact gradient needs, in float64.

    Attributes:
        weights: ``(d, t)``, the posterior mean of the weights.
        whitened: ``(rows, d)``, the unscaled features times ``F^-1``.
        inverse_trace: The trace of ``F^-1``.
        likelihood: The exact marginal likelihood.
    """

    weights: Tensor
    whitened: Tensor
    inverse_trace: float
    likelihood: MarginalLikelihood


def _solve_few_rows(
    rows: Rows, features: Tensor, log_noise_scale: Tensor | None, noise_variance: float
) -> _FewRowsSolution:
    r"""Solve for all rows at once through an n x n matrix; costs ``n^2 d`` instead of ``d^3``.

    With scaled rows :math:`Z, y` and :math:`K = ZZ' + sI`: :math:`w = Z'K^{-1}y`, :math:`ZF^{-1} = K^{-1}Z`,
    :math:`\log|F| = \log|K| + (d - n)\log s`, :math:`\mathrm{tr}F^{-1} = \mathrm{tr}K^{-1} + (d - n)/s`.

    Args:
        rows: All rows there are.
        features: ``(rows, d)``, detached.
        log_noise_scale: ``(rows,)``, detached, without counts; or None.
        noise_variance: The noise variance ``s``.
    """
    wide = features.to(torch.float64)
    targets = rows.observed.to(wide)
    num_rows, num_features = wide.shape
    num_targets = targets.shape[1]
    root = wide.new_ones(num_rows)
    num_data, log_scale_sum = float(num_rows), 0.0
    if log_noise_scale is not None:
        log_scale = log_noise_scale.to(torch.float64)
        root = torch.exp(-0.5 * log_scale)
        log_scale_sum = float(log_scale.sum())
    if rows.counts is not None:
        counts = rows.counts.to(wide)
        root = root * counts.sqrt()
        num_data = float(counts.sum())
        log_scale_sum = 0.0 if log_noise_scale is None else float(log_scale @ counts)
    scaled, scaled_targets = wide * root[:, None], targets * root[:, None]
    covariance = scaled @ scaled.mT
    covariance.diagonal().add_(noise_variance)
    factor = cholesky(covariance, noise_variance=noise_variance)
    dual_weights = factor.solve(scaled_targets)
    inverse = factor.inverse()
    inverse_trace = float(inverse.trace())
    log_determinant = float(factor.log_determinant())
    log_noise = math.log(noise_variance)
    error = _ROUNDING * float(covariance.trace()) + factor.jitter
    likelihood = MarginalLikelihood(
        fit=0.5 * float((scaled_targets * dual_weights).sum()),
        complexity=0.5 * num_targets * (log_determinant + (num_data - num_rows) * log_noise + log_scale_sum),
        constant=0.5 * num_targets * num_data * math.log(2.0 * math.pi),
        num_data=num_data,
        rounding_error=0.5 * error * (float(dual_weights.square().sum()) + num_targets * inverse_trace),
    )
    return _FewRowsSolution(
        weights=scaled.mT @ dual_weights,
        whitened=(inverse @ scaled) / root[:, None],
        inverse_trace=inverse_trace + (num_features - num_rows) / noise_variance,
        likelihood=likelihood,
    )


@check_arguments
class Exact(Algorithm):
    """The exact gradient as a training algorithm: every step reads all rows twice; an epoch is one step.

    The reference for the stochastic algorithms, and the choice for small tables.

    Args:
        model: The model to train, in place.
        data: All training rows, any source.
        input_dim: The number of input columns; by default that of the data.
        num_targets: The number of target columns.
        minimum_noise_variance: The noise variance is kept at or above this.
    """

    batches_per_step = 0
    supports_ranks = True

    def __init__(
        self,
        model: FeatureGP,
        data: Data,
        *,
        input_dim: int | None = None,
        num_targets: int = 1,
        minimum_noise_variance: float = 1e-8,
    ) -> None:
        self.source = as_source(data)
        shapes = [rows.inputs.shape for rows in self.source]
        super().__init__(
            model,
            sum(rows for rows, _ in shapes),
            input_dim=shapes[0][1] if input_dim is None else input_dim,
            num_targets=num_targets,
            minimum_noise_variance=minimum_noise_variance,
        )

    def gradient(self, batch: Rows | None = None) -> BatchGradient:
        """The exact gradient of the NLML per row; ``batch`` is not used."""
        found = exact_gradient(self.model, self.ranks.shard(self.source))
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(self.num_data)
        # The residuals' share of the fit: 2 fit = |r|^2 / s + |w|^2.
        loss = torch.tensor(2.0 * found.likelihood.fit / (self.num_data * self.num_targets))
        return BatchGradient(torch.empty(0, self.num_features), None, loss, self.model.noise_variance)

    def step(self, batches: Sequence[Rows], optimizer: torch.optim.Optimizer) -> float:
        """One step with the exact gradient."""
        optimizer.zero_grad()
        found = self.gradient()
        optimizer.step()
        self.project()
        return found.loss.item()
