"""``BSGD``: the biased baseline."""

from __future__ import annotations

import torch

from ..arguments import check_arguments
from ..data.sources import Rows
from ..linalg import cholesky
from .base import Algorithm, BatchGradient, RowGradients, push


@check_arguments
class BSGD(Algorithm):
    r"""Biased stochastic gradient descent: the NLML of the batch alone, as if it were all the data.

    The baseline of the paper. Its gradient is that of

    .. math:: \tfrac{1}{b}\,\mathrm{NLML}(Z_S, y_S), \qquad
        \nabla_{Z_S} = K^{-1}Z_S - \alpha\alpha'Z_S, \quad K = Z_S Z_S' + s I_b, \quad \alpha = K^{-1}y_S,

    and its mean over batches is *not* the gradient of the NLML of all rows: a small batch sees a much weaker
    determination of the weights than all rows together. It costs ``O(b^3)`` instead of ``O(d^3)``.
    """

    has_mean_gradient = False  # rows of a batch meet in its covariance

    def gradient(self, batch: Rows) -> BatchGradient:
        """Gradients of the batch's own NLML per row."""
        traced = self.model.trace(batch.inputs, batch.weights)
        features, log_scale = traced.features, traced.log_noise_scale
        rows, t = len(features), batch.observed.shape[1]
        noise_variance = self.model.noise_variance
        plain = features.double()
        targets = batch.observed.double()
        row_scale = None if log_scale is None else torch.exp(-0.5 * log_scale.double())[:, None]
        if row_scale is not None:
            plain, targets = plain * row_scale, targets * row_scale
        covariance = plain @ plain.mT
        covariance.diagonal().add_(noise_variance)
        inverse = cholesky(covariance, noise_variance=noise_variance).inverse()
        solved = inverse @ targets
        by_covariance = t * inverse - solved @ solved.mT  # twice the gradient of the batch's NLML in its covariance
        feature_gradient = (by_covariance @ plain).div_(rows)
        scale_gradient = None
        if row_scale is not None:
            # Row i of the scaled features and targets carries exp(-log v_i / 2).
            along_features = (feature_gradient * plain).sum(dim=1)
            along_targets = (solved * targets).sum(dim=1) / rows
            scale_gradient = (0.5 * (t / rows - along_features - along_targets)).to(features)
            feature_gradient = feature_gradient * row_scale
        residual_squares = noise_variance**2 * solved.square().sum()
        push(traced, RowGradients(feature_gradient.to(features), scale_gradient, solved, residual_squares))
        noise = self.model.noise.log_variance
        if noise.requires_grad:
            noise.grad = (0.5 * noise_variance / rows * by_covariance.trace()).to(noise)
        loss = residual_squares / (rows * noise_variance)
        return BatchGradient(features, log_scale, loss, noise_variance)
