"""``Minimax``: the paper's saddle point, with a Gram estimate and a multiplier that take steps of their own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from ..arguments import check_arguments, check_at_least_one
from ..data.sources import Rows
from ..linalg import cholesky, congruent, eigen_between, is_positive_definite, update_gram
from ..model import FeatureGP
from .base import Algorithm, BatchGradient, noise_gradient, push_back, weight_gradient

# In rows per feature: what the estimate averages over at the start, and by default at most; and what it moves after.
# A step of A and P takes some ten products of d x d matrices, so that all costs per row are O(d^2). With half the rows
# of a move results are the same, at twice the cost.
_FIRST_WINDOW, _LAST_WINDOW = 32, 64
_ROWS_PER_MOVE = 4
_FASTEST_MOVE = 0.25


@check_arguments
class Minimax(Algorithm):
    r"""The NLML as a saddle point whose objective is a sum over rows, so that any batch gives unbiased gradients.

    .. math:: \min_{\theta, A}\max_{B}\; g(\theta) + \log|A| + \mu\,\langle B, A - F(\theta)\rangle_A
        + \tfrac{\rho}{2}\,\|A - F(\theta)\|_A^2

    ``A`` is an estimate of :math:`F(\theta)`, ``B`` the dual matrix of the constraint :math:`A = F`, and
    :math:`P = -\mu B` takes the place of :math:`F^{-1}` in the gradient of :math:`\theta`. One step takes two
    separately drawn batches, the first for descent on :math:`(\theta, A)`, the second for ascent on ``B``.

    Three things differ from the paper's iteration (:class:`PaperMinimax`), whose saddle point is not stable:

    - The metric is that of ``A``: with :math:`W'AW = I`, matrices are compared as :math:`W'FW` and
      :math:`W^{-1}PW^{-T}`, and the ball of ``B`` is that of the spectral norm. Nothing then depends on the scale or
      condition of ``F``, and the penalty is exact from :math:`\mu = 1` on, where the paper needs
      :math:`\mu \ge \|F\|\,\|F^{-1}\| \ge d`.
    - :math:`\log|A|` is concave, so that descent in ``A`` and ascent in ``B`` drift apart; the quadratic term makes the
      saddle point an attractor for :math:`\rho > 1`, and is zero at :math:`A = F`.
    - ``A`` and ``B`` take plain steps of their own, whatever optimizer trains the rest. In the metric of ``A`` they are

      .. math:: A \leftarrow (1 - a - a\rho) I + a P + a\rho F_S, \qquad
          P \leftarrow P - \tfrac{a}{4}(\rho - 1)^2 (A - F_{S'})

      so ``A`` stays positive definite, and below :math:`\rho / (1 + \rho - \mu)` times the mean of the :math:`F_S`.

    At the saddle point :math:`A = F`, :math:`P = F^{-1}`: the exact gradient of the NLML. For fixed
    :math:`\theta` the errors of ``A`` and ``P``, in that metric, are noise of relative size
    :math:`\sqrt{4.3 d/m}` and :math:`\sqrt{1.3 d/m}` with :math:`a = 2b/m` and :math:`\rho = 2`, where ``m`` is the
    window: they fall with its root and do not depend on the batch size.

    Args:
        model: The model to train, in place.
        num_data: The number of rows ``n``.
        penalty: :math:`\mu`, less than ``1 + damping``. Below 1 the complexity term is weaker than it should be, by
            this factor; from 1 on it is exact.
        penalty_growth: The outer loop: the penalty is multiplied by this, up to ``1 + damping / 2``, ...
        penalty_steps: ... every this many steps.
        damping: :math:`\rho`, more than 1. Larger values make ``A`` less and ``P`` more noisy.
        window: ``m``, the rows that ``A`` and ``P`` average over; 64 per feature by default. It starts at 32 per
            feature and grows to a sixteenth of the rows seen; with ``math.inf`` it never stops growing.
        box: Bound on the absolute value of every weight and network parameter; None for no bound.
        input_dim: The number of input columns, if the feature map does not know it.
        num_targets: The number of target columns.
        minimum_noise_variance: The noise variance is kept at or above this.

    Example:
        >>> from finitegp.features import MLPFeatures
        >>> model = FeatureGP(MLPFeatures(2, hidden=(8,), seed=0), noise_variance=0.1)
        >>> algorithm = Minimax(model, num_data=100)
        >>> descent, ascent = (Rows(torch.randn(10, 2), torch.randn(10, 1)) for _ in range(2))
        >>> algorithm.initialize([descent])
        >>> optimizer = torch.optim.Adam(algorithm.parameter_groups(), lr=1e-3)
        >>> algorithm.step([descent, ascent], optimizer) > 0
        True
    """

    batches_per_step = 2
    supports_ranks = True

    def __init__(
        self,
        model: FeatureGP,
        num_data: int,
        *,
        penalty: float = 2.0,
        penalty_growth: float = 1.0,
        penalty_steps: int = 1000,
        damping: float = 2.0,
        window: float | None = None,
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
        if not 1.0 < damping < math.inf:
            raise ValueError(f"damping must be more than 1 and finite, but is {damping}.")
        if not 0.0 < penalty < 1.0 + damping:
            raise ValueError(
                f"penalty must lie between 0 and 1 + damping ({1.0 + damping:g}), beyond which the estimate would grow "
                f"without bound, but is {penalty}. From 1 on it is exact."
            )
        check_penalty_growth(penalty_growth, penalty_steps)
        d, wide, narrow = self.num_features, self._wide, self._narrow
        if window is not None and not window >= d:
            raise ValueError(f"window must be at least the number of features ({d} rows), but is {window}.")
        check_box(box)
        self.penalty_growth = penalty_growth
        self.penalty_steps = penalty_steps
        self.damping = damping
        self.window = _LAST_WINDOW * d if window is None else window
        self.box = box
        self.projections = 0  # how often an eigendecomposition was needed
        self.weights = nn.Parameter(torch.zeros(d, num_targets, **narrow))
        # W, with W'(A / n)W = I: this is A. And P in its metric.
        self.whitening = nn.Buffer(torch.eye(d, **wide))
        self.multiplier = nn.Buffer(torch.eye(d, **wide))
        # P itself, as the gradient needs it.
        self.inverse_gram = nn.Buffer(torch.eye(d, **narrow))
        self.inverse_trace = nn.Buffer(torch.zeros((), **wide))
        # Sums over the rows since A and P last moved: [descent, ascent].
        self.pending_grams = nn.Buffer(torch.zeros(2, d, d, **wide))
        self.pending_noise = nn.Buffer(torch.zeros(2, **wide))
        self.pending_rows = nn.Buffer(torch.zeros(2, **wide))
        self.rows_seen = nn.Buffer(torch.zeros((), **wide))
        self.penalty = nn.Buffer(torch.tensor(float(penalty), **wide))
        self.steps = nn.Buffer(torch.zeros((), dtype=torch.int64, device=model.device))

    @property
    def gram_estimate(self) -> Tensor:
        """``A``, the estimate of ``F``."""
        inverse_root: Tensor = torch.linalg.inv(self.whitening)
        return self.num_data * inverse_root.mT @ inverse_root

    @torch.no_grad()
    def initialize(self, batches: Sequence[Rows]) -> None:
        """Start ``A`` from the mean of a few batches that no step has used, and ``P`` from its inverse."""
        d = self.num_features
        parts = (self.model(batch.inputs, batch.weights) for batch in batches)
        estimate, rows = self._sum(parts, torch.zeros_like(self.whitening))
        estimate.div_(rows)
        # Few rows hold nothing on weak directions, where P would be far too large: the mean eigenvalue over the rows is
        # about how far off they can be.
        estimate.diagonal().add_(self.model.noise_variance / self.num_data + float(estimate.trace()) / rows)
        self.whitening.copy_(cholesky(estimate).transposed_half_solve(torch.eye(d).to(estimate)))
        self.multiplier.copy_(torch.eye(d))
        self._set_inverse()

    def gradient(self, batch: Rows) -> BatchGradient:
        """Gradients for features, weights and noise with the present multiplier."""
        traced = self.model.trace(batch.inputs, batch.weights)
        weights = self.weights.detach()
        whitened = traced.features @ self.inverse_gram
        found, gradients = push_back(traced, batch, weights, whitened, self.model.noise.variance)
        self.weights.grad = weight_gradient(self, found.features, gradients, weights, found.noise_variance)
        noise_gradient(self, found.loss, float(self.inverse_trace), found.noise_variance)
        return found

    def track(self, batch: Rows, found: BatchGradient) -> None:
        """Add the batch of the descent to the sums."""
        self._take_up(0, [(found.features, found.log_noise_scale)], found.noise_variance)

    @torch.no_grad()
    def step(self, batches: Sequence[Rows], optimizer: torch.optim.Optimizer) -> float:
        """Descent with the first batch; the second is for the ascent, which comes once for every few batches."""
        with torch.enable_grad():
            loss = super().step(batches[:1], optimizer)
        inputs, weights = batches[1].inputs, batches[1].weights
        size = self.micro_batch_size or max(len(inputs), 1)
        cuts = [slice(start, start + size) for start in range(0, len(inputs), size)]
        parts = (self.model(inputs[cut], None if weights is None else weights[cut]) for cut in cuts)
        self._take_up(1, parts, self.model.noise_variance)
        self.end_step()
        return loss

    @torch.no_grad()
    def end_step(self) -> None:
        """Count the step, let the penalty grow, and move ``A`` and ``P`` if there are enough rows."""
        self.steps.add_(1)
        if self.penalty_growth > 1.0 and int(self.steps) % self.penalty_steps == 0:
            # Beyond 1 the penalty is exact and more of it gains nothing; at 1 + damping the estimate is unbounded.
            limit = max(float(self.penalty), 1.0 + 0.5 * self.damping)
            self.penalty.mul_(self.penalty_growth).clamp_(max=limit)
        if float(self.pending_rows.min()) >= _ROWS_PER_MOVE * self.num_features:
            self._move()

    @torch.no_grad()
    def project(self) -> None:
        """Noise floor and box; the estimate and the multiplier are projected where they move."""
        super().project()
        clamp_to_box(self.box, [*self.model.feature_map.parameters(), self.weights])

    def _take_up(self, stream: int, parts: Iterable[tuple[Tensor, Tensor | None]], noise_variance: float) -> None:
        """Add the features and noise scales of a batch to the sums."""
        gram, rows = self._sum(parts, self.pending_grams[stream])
        self.pending_grams[stream] = gram
        self.count_rows(stream, rows, noise_variance)

    def count_rows(self, stream: int, rows: float, noise_variance: float) -> None:
        """Count rows whose products were added to the sums: those of descent (0) or ascent (1)."""
        self.pending_noise[stream] += noise_variance * rows
        self.pending_rows[stream] += rows

    def _sum(self, parts: Iterable[tuple[Tensor, Tensor | None]], start: Tensor) -> tuple[Tensor, float]:
        """``start`` plus ``Z'Z`` of rows divided by their noise scale, and the number of rows, over all ranks."""
        alone = self.ranks.world_size == 1
        total, rows = start if alone else torch.zeros_like(start), 0
        for features, log_scale in parts:
            row_scale = None if log_scale is None else torch.exp(-0.5 * log_scale.double())
            update_gram(total, features, keep=1.0, weight=1.0, row_scale=row_scale)
            rows += len(features)
        if alone:
            return total, rows
        total, all_rows = self.ranks.add_rows(total, rows)
        return total.add_(start), all_rows

    def _move(self) -> None:
        """One step of ``A`` and ``P`` with the rows since the last, in the metric of ``A``, which then changes."""
        d, rows = self.num_features, float(self.pending_rows.mean())
        self.rows_seen.add_(rows)
        window = min(max(_FIRST_WINDOW * d, float(self.rows_seen) / 16.0), self.window)
        rate, damping = min(2.0 * rows / window, _FASTEST_MOVE), self.damping
        means = self.pending_grams / self.pending_rows[:, None, None]
        means.diagonal(dim1=1, dim2=2).add_((self.pending_noise / self.pending_rows)[:, None] / self.num_data)
        means = torch.stack([congruent(mean, self.whitening, upper=True) for mean in means])
        estimate = rate * (self.multiplier + damping * means[0])
        estimate.diagonal().add_(1.0 - rate - rate * damping)
        # A quarter of (damping - 1)^2 is the fastest that does not swing.
        self.multiplier.sub_(estimate - means[1], alpha=0.25 * rate * (damping - 1.0) ** 2)
        factor = cholesky(estimate)
        self.multiplier.copy_(congruent(self.multiplier, factor.lower, upper=False))
        self.whitening.copy_(factor.half_solve(self.whitening.mT).mT)
        self._bound_multiplier()
        self._set_inverse()
        for pending in (self.pending_grams, self.pending_noise, self.pending_rows):
            pending.zero_()

    def _bound_multiplier(self) -> None:
        """Keep ``P`` between zero and the penalty: the ball of ``B``, of which the constraint needs one half."""
        multiplier, penalty = self.multiplier, float(self.penalty)
        rest = -multiplier
        rest.diagonal().add_(penalty)
        beyond = 0
        for inside, least, most, bound in ((multiplier, -math.inf, 0.0, 0.0), (rest, penalty, math.inf, penalty)):
            # Eigenvalues cost many times a Cholesky, which shows whether they are needed.
            if not is_positive_definite(inside):
                eigenvalues, eigenvectors = eigen_between(multiplier, least, most)  # of a few
                multiplier.addmm_(eigenvectors * (bound - eigenvalues), eigenvectors.mT)
                beyond += 1
        self.projections += beyond > 0

    def _set_inverse(self) -> None:
        inverse = congruent(self.multiplier, self.whitening, upper=True, transposed=True) / self.num_data
        self.inverse_gram.copy_(0.5 * (inverse + inverse.mT))
        self.inverse_trace.copy_(inverse.trace())


def check_penalty_growth(penalty_growth: float, penalty_steps: int) -> None:
    """Refuse an outer loop that would lower the penalty or never come round."""
    check_at_least_one(penalty_growth=penalty_growth, penalty_steps=penalty_steps)


def check_box(box: float | None) -> None:
    """Refuse a box that holds nothing."""
    if box is not None and not box > 0.0:
        raise ValueError(f"box must be positive or None, but is {box}.")


def clamp_to_box(box: float | None, tensors: list[Tensor]) -> None:
    """Bring every entry of what is trained into the box, in place."""
    tensors = [tensor for tensor in tensors if tensor.requires_grad]
    if box is not None and tensors:
        torch._foreach_clamp_max_(tensors, box)
        torch._foreach_clamp_min_(tensors, -box)
