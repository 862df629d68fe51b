"""``RecentBatches``: a tracked Gram matrix that forgets quickly, kept as the rows that it still remembers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..linalg import CholeskyFactor, cholesky

# A batch is dropped when all it can still change of the inverse is this share.
_FORGOTTEN = 1e-9


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
