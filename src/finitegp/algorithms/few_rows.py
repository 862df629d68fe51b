r"""The exact gradient where rows are fewer than features: everything through an n x n matrix instead of d x d.

With scaled rows :math:`Z, y` and :math:`K = ZZ' + sI`: :math:`w = Z'K^{-1}y`, :math:`ZF^{-1} = K^{-1}Z`,
:math:`\log|F| = \log|K| + (d - n)\log s`, :math:`\mathrm{tr}F^{-1} = \mathrm{tr}K^{-1} + (d - n)/s`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..data import Rows
from ..likelihood import MarginalLikelihood
from ..linalg import cholesky

_ROUNDING = 8.0 * torch.finfo(torch.float64).eps


@dataclass(frozen=True, eq=False)
class FewRowsSolution:
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


def solve_few_rows(
    rows: Rows, features: Tensor, log_noise_scale: Tensor | None, noise_variance: float
) -> FewRowsSolution:
    """Solve for all rows at once; costs ``n^2 d`` instead of ``d^3``.

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
    return FewRowsSolution(
        weights=scaled.mT @ dual_weights,
        whitened=(inverse @ scaled) / root[:, None],
        inverse_trace=inverse_trace + (num_features - num_rows) / noise_variance,
        likelihood=likelihood,
    )
