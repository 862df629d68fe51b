"""``PaperMinimax``: descent on the parameters and a Gram estimate, ascent on a dual matrix, as the paper ran it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..arguments import check_arguments, check_positive
from ..data.sources import Rows
from ..linalg import cholesky, from_eigen, gram_float64, is_positive_definite, symmetric_eigen
from ..model import FeatureGP
from .base import Algorithm, BatchGradient, push_back, stand_in, weight_gradient
from .minimax import check_box, check_penalty_growth, clamp_to_box


@check_arguments
class PaperMinimax(Algorithm):
    r"""The paper's own iteration: one optimizer, AdaDelta in its experiments, for everything.

    .. math:: \min_{\theta, A}\max_{\|B\| \le 1}\;
        \Psi(\theta, A, B) = g(\theta) + \log|A| + \mu\,\frac{\langle B, A - F(\theta)\rangle}{\|A\|}

    ``A`` is an estimate of :math:`F(\theta)`, ``B`` a dual matrix. Batches give unbiased gradients of :math:`\Psi`
    for any ``(A, B)``. One step takes two separately drawn batches: the first for descent on :math:`(\theta, A)`, the
    second for ascent on ``B``. Projections keep :math:`A \succeq s I`, :math:`\|B\| \le 1`, the noise above its
    floor and everything else inside a box.

    It is here to reproduce the paper; to train, use :class:`Minimax`. Elementwise steps of AdaDelta or Adam are not
    aligned with the eigenvectors of ``A``, each projection raises what they push below ``s``, and so ``A`` grows
    until :math:`\mu B / \|A\|` is nothing: what is trained is a ridge regression on the network's features, without
    the complexity term. (With :math:`\mu = 1` there is no saddle point to settle at: it needs
    :math:`\mu \ge \|F\|\,\|F^{-1}\| \ge d`.)

    ``A`` is kept per row (divided by ``n``), so that entries are of order one whatever the number of rows; the penalty
    does not change.

    Args:
        model: The model to train, in place.
        num_data: The number of rows ``n``.
        penalty: :math:`\mu`: 1.0 in the paper's experiments.
        penalty_growth: The outer loop: the penalty is multiplied by this ...
        penalty_steps: ... every this many steps.
        box: Bound on the absolute value of every weight, network parameter and entry of ``A / n``; None for no bound.
        input_dim: The number of input columns, if the feature map does not know it.
        num_targets: The number of target columns.
        minimum_noise_variance: The noise variance is kept at or above this.
    """

    batches_per_step = 2
    supports_ranks = True

    def __init__(
        self,
        model: FeatureGP,
        num_data: int,
        *,
        penalty: float = 1.0,
        penalty_growth: float = 1.0,
        penalty_steps: int = 1000,
        box: float | None = 1e3,
        input_dim: int | None = None,
        num_targets: int = 1,
        minimum_noise_variance: float = 1e-8,
    ) -> None:
        super().__init__(
            model,
            num_data,
            input_dim=input_dim,
            num_targets=num_targets,
            minimum_noise_variance=minimum_noise_variance,
        )
        check_positive(penalty=penalty)
        check_penalty_growth(penalty_growth, penalty_steps)
        check_box(box)
        self.penalty_growth = penalty_growth
        self.penalty_steps = penalty_steps
        self.box = box
        self.projections = 0  # how often the eigendecomposition was needed
        d, wide = self.num_features, self._wide
        self.weights = nn.Parameter(torch.zeros(d, num_targets, **self._narrow))
        self.gram_estimate = nn.Parameter(torch.eye(d, **wide))
        self.dual_matrix = nn.Parameter(torch.zeros(d, d, **wide))
        self.estimate_inverse = nn.Buffer(torch.eye(d, **wide))  # kept by the projection, used by the next step
        self.penalty = nn.Buffer(torch.tensor(float(penalty), **wide))
        self.steps = nn.Buffer(torch.zeros((), dtype=torch.int64, device=model.device))

    def parameter_groups(self) -> list[dict[str, Any]]:
        """All that descends, and by itself the dual matrix, which ascends."""
        rest = [p for p in self.parameters() if p.requires_grad and p is not self.dual_matrix]
        return [{"params": rest}, {"params": [self.dual_matrix]}]

    @torch.no_grad()
    def initialize(self, batches: Sequence[Rows]) -> None:
        """Start the Gram estimate from the mean of a few batches that no step has used."""
        self.gram_estimate.zero_()
        for batch in batches:
            features, log_scale = self.model(batch.inputs, batch.weights)
            self.gram_estimate.add_(self._batch_gram(features, log_scale), alpha=1.0 / len(batches))
        self._project_gram_estimate()

    def gradient(self, batch: Rows) -> BatchGradient:
        r"""Descent gradients of :math:`\Psi / (2n)` for features, weights, noise, Gram estimate; not the dual."""
        traced = self.model.trace(batch.inputs, batch.weights)
        features, log_scale = traced.features, traced.log_noise_scale
        noise_variance = self.model.noise_variance
        n, d, t, rows = self.num_data, self.num_features, self.num_targets, len(features)
        estimate, dual = self.gram_estimate.detach(), self.dual_matrix.detach()
        norm = float(torch.linalg.vector_norm(estimate))
        ratio = float(self.penalty) / norm  # times the dual matrix: the multiplier of the Gram matrix per row
        weights = self.weights.detach()
        whitened = features @ (dual.to(weights.dtype) * (-ratio / n))  # in place of F^-1
        found, gradients = push_back(traced, batch, weights, whitened, self.model.noise.variance)
        self.weights.grad = weight_gradient(self, features, gradients, weights, noise_variance)
        # <multiplier, A - F_S / n>: the second part is a sum of z'Mz over rows: no Gram matrix is made.
        precise = features if log_scale is None else features * torch.exp(-log_scale)[:, None]
        leverages = float(torch.dot(whitened.reshape(-1), precise.reshape(-1)))
        multiplier_trace = ratio * float(dual.trace())
        batch_part = -n / rows * leverages + noise_variance / n * multiplier_trace
        misfit = (ratio * float(torch.dot(dual.reshape(-1), estimate.reshape(-1))) - batch_part) / norm**2
        half = 0.5 * t / n
        estimate_gradient = self.estimate_inverse * half
        self.gram_estimate.grad = estimate_gradient.add_(dual, alpha=half * ratio).sub_(estimate, alpha=half * misfit)
        noise = self.model.noise.log_variance
        if noise.requires_grad:
            noise.grad = (0.5 * (t * (n - d - noise_variance * multiplier_trace / n) / n - found.loss)).to(noise)
        self.dual_matrix.grad = None
        return found

    @torch.no_grad()
    def dual_gradient(self, batch: Rows) -> None:
        r"""The ascent gradient of :math:`\Psi / (2n)` for the dual matrix, negated for an optimizer that descends."""
        traced = self.model.trace(batch.inputs, batch.weights)
        features = traced.features.double()
        if traced.log_noise_scale is not None:
            features = features * torch.exp(-0.5 * traced.log_noise_scale.double())[:, None]
        estimate = self.gram_estimate.detach()
        norm = float(torch.linalg.vector_norm(estimate))
        factor = -0.5 * self.num_targets / self.num_data * float(self.penalty) / norm
        # factor * (A - F_S / n) in one product.
        gradient = torch.addmm(estimate, features.mT, features, beta=factor, alpha=-factor / len(features))
        gradient.diagonal().sub_(factor * self.model.noise_variance / self.num_data)
        self.dual_matrix.grad = gradient

    def step(self, batches: Sequence[Rows], optimizer: torch.optim.Optimizer) -> float:
        """Descent with the first batch, projection, ascent with the second, projection."""
        loss = super().step(batches[:1], optimizer)
        rows = len(batches[1].inputs)
        self.accumulate_gradients(batches[1] if rows else stand_in(batches[1]), self.dual_gradient)
        self.ranks.mean_gradients([self.dual_matrix], torch.zeros(()), rows)
        self._step_dual(optimizer)
        with torch.no_grad():
            norm = float(torch.linalg.vector_norm(self.dual_matrix))
            if norm > 1.0:
                self.dual_matrix.div_(norm)
            self.steps.add_(1)
            if self.penalty_growth > 1.0 and int(self.steps) % self.penalty_steps == 0:
                self.penalty.mul_(self.penalty_growth)
        return loss

    def _step_dual(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the optimizer move the dual matrix alone."""
        groups, dual = optimizer.param_groups, self.dual_matrix
        own = [group for group in groups if any(parameter is dual for parameter in group["params"])]
        if [len(group["params"]) for group in own] == [1]:
            # Shown only the dual's group, the optimizer does not have to go through all the others.
            optimizer.param_groups = own
            try:
                optimizer.step()
            finally:
                optimizer.param_groups = groups
            return
        gradient = dual.grad
        optimizer.zero_grad()  # optimizers pass over parameters without a gradient
        dual.grad = gradient
        optimizer.step()

    @torch.no_grad()
    def project(self) -> None:
        """Noise floor, box, and the Gram estimate above the noise."""
        super().project()
        clamp_to_box(self.box, [*self.model.feature_map.parameters(), self.weights])
        if self.box is not None and float(self.gram_estimate.diagonal().max()) > self.box:
            # The largest entries are on the diagonal: rows and columns shrink together and the cone is not left.
            shrink = (self.box / self.gram_estimate.diagonal().clamp_min(self.box)).sqrt()
            self.gram_estimate.mul_(shrink).mul_(shrink[:, None])
        self._project_gram_estimate()

    @torch.no_grad()
    def _project_gram_estimate(self) -> None:
        """Raise the eigenvalues of the Gram estimate to the noise per row, and keep its inverse."""
        estimate = self.gram_estimate.data
        floor = self.model.noise_variance / self.num_data
        shifted = estimate.clone()
        shifted.diagonal().sub_(floor)
        # The eigendecomposition costs many times a Cholesky, which shows whether it is needed.
        if is_positive_definite(shifted):
            self.estimate_inverse.copy_(cholesky(estimate).inverse())
            return
        self.projections += 1
        eigenvalues, eigenvectors = symmetric_eigen(estimate)
        # A little above the bound, so that rounding does not call for the next projection at once.
        bound = floor * (1.0 + 1e-6) + 1e-14 * float(eigenvalues[-1])
        raised = eigenvalues.clamp_min(bound)
        low = int((eigenvalues < bound).sum())  # the others stay as they are
        estimate.addmm_(eigenvectors[:, :low] * (raised - eigenvalues)[:low], eigenvectors[:, :low].mT)
        self.estimate_inverse.copy_(from_eigen(raised.reciprocal(), eigenvectors))

    def _batch_gram(self, features: Tensor, log_scale: Tensor | None) -> Tensor:
        """The unbiased estimate of ``F / n`` from one batch."""
        row_scale = None if log_scale is None else torch.exp(-0.5 * log_scale.detach().double())
        estimate, rows = self.ranks.add_rows(gram_float64(features, row_scale=row_scale), len(features))
        estimate.div_(rows)
        estimate.diagonal().add_(self.model.noise_variance / self.num_data)
        return estimate
