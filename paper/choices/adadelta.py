"""AdaDelta on one flat vector."""

from __future__ import annotations

from typing import Any

import numpy as np


class AdaDelta:
    """torch.optim.Adadelta on one flat vector."""

    def __init__(self, size: int, rate: float, rho: float, eps: float, dtype: Any) -> None:
        self.rate, self.rho, self.eps = rate, rho, eps
        self.square, self.moved = np.zeros(size, dtype), np.zeros(size, dtype)
        self.a, self.b = np.empty(size, dtype), np.empty(size, dtype)

    def step(self, flat: np.ndarray, gradient: np.ndarray) -> None:
        """One update of ``flat`` in place."""
        a, b, square, moved, rho = self.a, self.b, self.square, self.moved, self.rho
        np.multiply(gradient, gradient, out=a)
        a *= 1 - rho
        square *= rho
        square += a
        np.add(moved, self.eps, out=a)
        np.add(square, self.eps, out=b)
        a /= b
        np.sqrt(a, out=a)
        a *= gradient
        np.multiply(a, a, out=b)
        b *= 1 - rho
        moved *= rho
        moved += b
        a *= self.rate
        flat -= a
