"""``SCGD``: stochastic compositional gradient descent, as in the paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor, nn

from ..arguments import check_arguments
from ..data.sources import Rows
from ..errors import DataError
from ..linalg import CholeskyFactor, cholesky, gram_float64, inverse_root, update_gram
from ..model import FeatureGP
from .base import Algorithm, BatchGradient, check_pending, check_tensors, noise_gradient, push_back, weight_gradient

# A batch is dropped when all it can still change of the inverse is this share.
_FORGOTTEN = 1e-9


@check_arguments
class SCGD(Algorithm):
    r"""Trained weights :math:`w`, and :math:`P = \tilde F^{-1}` from a tracked Gram matrix.

    .. math::
        \theta \leftarrow \theta - a_t \nabla\Big[\tfrac{n}{b}\sum_{i \in S}(g_i(\theta) + \langle \tilde F^{-1},
        F_i(\theta)\rangle)\Big], \qquad
        \tilde F \leftarrow (1 - b_t)\tilde F + b_t \tfrac{n}{b}\sum_{i \in S} F_i(\theta)

    The step uses :math:`\tilde F` from *before* its own batch, so it is unbiased given :math:`\tilde F`; with
    :math:`\tilde F = F` it is an unbiased gradient of the paper's objective :math:`l(\theta)`, whose minimum over ``w``
    is the NLML. Every step factorises a ``d x d`` matrix; or, with many features, small batches and a high tracking
    rate, the much smaller one of the few rows that the tracked matrix still remembers (:class:`RecentBatches`).

    Args:
        model: The model to train, in place.
        num_data: The number of rows ``n``.
        tracking_rate: :math:`b_t`: a constant (0.9 in the paper's experiments), or ``"theory"`` for
            :math:`t^{-1/2}`, which goes with the learning rate :math:`t^{-3/4}`
            (:func:`finitegp.schedules.theory_decay`).
        input_dim: The number of input columns, if the feature map does not know it.
        num_targets: The number of target columns.
        minimum_noise_variance: The noise variance is kept at or above this.
    """

    supports_ranks = True

    def __init__(
        self,
        model: FeatureGP,
        num_data: int,
        *,
        tracking_rate: float | str = 0.9,
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
        if tracking_rate != "theory":
            if not isinstance(tracking_rate, Real):
                raise ValueError(f"tracking_rate must be a number or 'theory', but is {tracking_rate!r}.")
            if not 0.0 < tracking_rate <= 1.0:
                raise ValueError(f"tracking_rate must lie in (0, 1], but is {tracking_rate}.")
            tracking_rate = float(tracking_rate)
        self.tracking_rate = tracking_rate
        d = self.num_features
        self.weights = nn.Parameter(torch.zeros(d, num_targets, **self._narrow))
        # float64: with a rate of 0.9 and few rows the matrix is nearly singular, and float32 loses definiteness.
        self.tracked_gram = nn.Buffer(torch.eye(d, **self._wide))
        self.steps = nn.Buffer(torch.zeros((), dtype=torch.int64, device=model.device))
        self.recent: RecentBatches | None = None  # instead of tracked_gram where that is cheaper

    @torch.no_grad()
    def initialize(self, batches: Sequence[Rows]) -> None:
        """Start the tracked Gram matrix from the mean of a few batches that no step has used."""
        self.tracked_gram.zero_()
        self.recent = None
        for index, batch in enumerate(batches):
            features, log_scale = self.model(batch.inputs, batch.weights)
            if index == 0 and self._remembers_few_rows(features, log_scale):
                self.recent = RecentBatches(self.num_features, self.model.noise_variance, self.model.device)
            if self.recent is not None:
                self.recent.take_up(_scaled(features, log_scale), self.num_data / (len(features) * len(batches)))
            else:
                self.tracked_gram.add_(self._batch_estimate(features, log_scale), alpha=1.0 / len(batches))

    def gradient(self, batch: Rows) -> BatchGradient:
        """Gradients for features, weights and noise with the Gram matrix tracked so far."""
        traced = self.model.trace(batch.inputs, batch.weights)
        weights = self.weights.detach()
        whitened, inverse_trace = self._times_inverse(traced.features, self.model.noise_variance)
        found, gradients = push_back(traced, batch, weights, whitened, self.model.noise.variance)
        self.weights.grad = weight_gradient(self, found.features, gradients, weights, found.noise_variance)
        noise_gradient(self, found.loss, inverse_trace, found.noise_variance)
        return found

    @torch.no_grad()
    def track(self, batch: Rows, found: BatchGradient) -> None:
        """Average the batch into the tracked Gram matrix."""
        self.steps.add_(1)
        rate = self.tracking_rate if isinstance(self.tracking_rate, float) else float(self.steps) ** -0.5
        log_scale = found.log_noise_scale
        if self.recent is not None:
            self.recent.set_noise((1.0 - rate) * self.recent.noise + rate * found.noise_variance)
            weight = rate * self.num_data / len(found.features)
            self.recent.take_up(_scaled(found.features, log_scale), weight, keep=1.0 - rate)
            return
        row_scale = None if log_scale is None else torch.exp(-0.5 * log_scale.double())
        if self.ranks.world_size == 1:
            weight = rate * self.num_data / len(found.features)
            update_gram(self.tracked_gram, found.features, keep=1.0 - rate, weight=weight, row_scale=row_scale)
        else:
            gram, rows = self.ranks.add_rows(gram_float64(found.features, row_scale=row_scale), len(found.features))
            self.tracked_gram.mul_(1.0 - rate).add_(gram, alpha=rate * self.num_data / rows)
        self.tracked_gram.diagonal().add_(rate * found.noise_variance)

    def pending_state(self) -> dict[str, Tensor]:
        """The rows that are remembered, where they are kept instead of the matrix."""
        return {} if self.recent is None else self.recent.state()

    def load_pending_state(self, state: dict[str, Tensor]) -> None:
        """Take back what :meth:`pending_state` gave."""
        check_tensors(state)
        rows = len(state["features"]) if "features" in state else 0
        shapes = {"features": (rows, self.num_features), "weights": (rows,), "noise": ()}
        if state and set(state) != set(shapes):
            raise DataError(f"the pending state should hold {', '.join(shapes)}, but holds {', '.join(sorted(state))}")
        check_pending(state, shapes, dict.fromkeys(shapes, torch.float64))
        self.recent = RecentBatches.from_state(state, self.model.device) if state else None

    def _times_inverse(self, features: Tensor, noise_variance: float) -> tuple[Tensor, float]:
        """Features times the inverse of the tracked matrix, and its trace."""
        if self.recent is not None:
            return self.recent.times_inverse(features).to(features), self.recent.inverse_trace()
        # Factorised in float64; the inverse is then two products with its root in the network's own type.
        root = inverse_root(self.tracked_gram, features.dtype, noise_variance=noise_variance)
        few = len(features) < self.num_features
        whitened = features @ root.mT @ root if few else features @ (root.mT @ root)
        return whitened, float(torch.linalg.vector_norm(root)) ** 2

    def _remembers_few_rows(self, features: Tensor, log_scale: Tensor | None) -> bool:
        """Whether rows are cheaper than the matrix: up to about six tenths of the number of features."""
        if not isinstance(self.tracking_rate, float) or self.ranks.world_size > 1:
            return False
        mean_square = float(_scaled(features, log_scale).square().sum()) / len(features)
        batches = RecentBatches.batches_remembered(
            self.tracking_rate, self.num_data, mean_square, self.model.noise_variance
        )
        return batches * len(features) <= 0.6 * self.num_features

    def _batch_estimate(self, features: Tensor, log_scale: Tensor | None) -> Tensor:
        """The unbiased estimate of ``F`` from one batch."""
        row_scale = None if log_scale is None else torch.exp(-0.5 * log_scale.double())
        estimate, rows = self.ranks.add_rows(gram_float64(features, row_scale=row_scale), len(features))
        estimate.mul_(self.num_data / rows)
        estimate.diagonal().add_(self.model.noise_variance)
        return estimate


def _scaled(features: Tensor, log_scale: Tensor | None) -> Tensor:
    """Rows divided by the root of their noise scale."""
    return features if log_scale is None else features * torch.exp(-0.5 * log_scale)[:, None]


class RecentBatches:
    r"""The matrix :math:`\tilde F = \tilde s I + \sum_j \omega_j z_j z_j'` of an exponential average, and its inverse.

    With a tracking rate of 0.9 the average forgets nine tenths at every step, so that after a dozen batches nothing is
    left of one. With few rows ``m`` left and many features ``d``, Woodbury's formula

    .. math:: \tilde F^{-1} Z' = \big(Z' - U'(D + UU')^{-1} U Z'\big) / \tilde s, \qquad
        D = \tilde s\,\mathrm{diag}(1 / \omega)

    costs :math:`O(m^2 (m + d))` instead of the :math:`O(d^3)` of a factorisation. The rows of ``U`` are those whose
    weight :math:`\omega |z|^2` is not yet lost beside :math:`\tilde s`: nothing is approximated beyond that.

    Args:
        num_features: The number of features ``d``.
        noise: :math:`\tilde s` at the start.
        device: Where the rows live.
    """

    def __init__(self, num_features: int, noise: float, device: torch.device) -> None:
        self.features = torch.zeros(0, num_features, dtype=torch.float64, device=device)
        self.weights = self.features.new_zeros(0)
        self.products = self.features.new_zeros(0, 0)  # U U'
        self.noise = noise
        self._factor: CholeskyFactor | None = None

    @staticmethod
    def batches_remembered(rate: float, num_data: float, mean_square_norm: float, noise_variance: float) -> float:
        """How many batches are kept at a constant tracking rate, for rows of this mean squared length."""
        if rate >= 1.0:
            return 1.0
        loudest = max(rate * num_data * mean_square_norm / (_FORGOTTEN * noise_variance), 1.0)
        return 1.0 + math.log(loudest) / -math.log1p(-rate)

    def times_inverse(self, features: Tensor) -> Tensor:
        """``(rows, d)`` features times the inverse, in float64."""
        wide = features.double()
        if not len(self.features):
            return wide / self.noise
        solved = self._factorised().solve(self.features @ wide.mT)
        return torch.addmm(wide, solved.mT, self.features, beta=1.0 / self.noise, alpha=-1.0 / self.noise)

    def inverse_trace(self) -> float:
        """The trace of the inverse."""
        num_rows, num_features = self.features.shape
        # tr (D + S)^-1 S = m - tr (D + S)^-1 D
        lost = float((self._factorised().inverse().diagonal() / self.weights).sum()) * self.noise if num_rows else 0.0
        return (num_features - num_rows + lost) / self.noise

    def take_up(self, features: Tensor, weight: float, *, keep: float = 1.0) -> None:
        """``keep`` times the sum over rows so far, plus ``weight`` times that of the batch."""
        wide = features.double()
        self.weights = self.weights * keep
        lengths = self.products.diagonal()
        kept = self.weights * lengths > _FORGOTTEN * self.noise / max(len(features), 1)
        if not bool(kept.all()):
            self.features, self.weights = self.features[kept], self.weights[kept]
            self.products = self.products[kept][:, kept]
        cross = self.features @ wide.mT
        self.products = torch.cat(
            (torch.cat((self.products, cross), dim=1), torch.cat((cross.mT, wide @ wide.mT), dim=1))
        )
        self.features = torch.cat((self.features, wide))
        self.weights = torch.cat((self.weights, self.weights.new_full((len(wide),), weight)))
        self._factor = None

    def set_noise(self, noise: float) -> None:
        """Set the multiple of the identity."""
        self.noise = noise
        self._factor = None

    def state(self) -> dict[str, Tensor]:
        """The tensors to store."""
        noise = self.features.new_tensor(self.noise)
        return {"features": self.features, "weights": self.weights, "noise": noise}

    @classmethod
    def from_state(cls, state: dict[str, Tensor], device: torch.device) -> RecentBatches:
        """The matrix whose tensors :meth:`state` returned."""
        found = cls(state["features"].shape[1], float(state["noise"]), device)
        found.features, found.weights = state["features"].to(device), state["weights"].to(device)
        found.products = found.features @ found.features.mT
        return found

    def _factorised(self) -> CholeskyFactor:
        if self._factor is None:
            matrix = self.products.clone()
            matrix.diagonal().add_(self.noise / self.weights)
            self._factor = cholesky(matrix, noise_variance=self.noise)
        return self._factor
