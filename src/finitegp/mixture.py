"""``StudentMixture``: a weighted mixture of Student's t for each row, as one predictive distribution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_BISECTIONS = 60


@dataclass(frozen=True, eq=False)
class StudentMixture:
    r"""For each row a mixture :math:`\sum_k w_k\,t_{\nu_k}(m_k, s_k)`.

    Attributes:
        weights: ``(components,)``, summing to one.
        means: ``(components, rows)``.
        scales: ``(components, rows)``: not standard deviations, which are :math:`\sqrt{\nu/(\nu - 2)}` times as large.
        degrees_of_freedom: ``(components,)``, above 2.

    Example:
        >>> mixture = StudentMixture(np.ones(1), np.zeros((1, 1)), np.ones((1, 1)), np.array([5.0]))
        >>> round(float(mixture.quantile(0.95)[0]), 3)
        2.015
    """

    weights: Array
    means: Array
    scales: Array
    degrees_of_freedom: Array

    @property
    def mean(self) -> Array:
        """``(rows,)``."""
        return self.weights @ self.means

    @property
    def variance(self) -> Array:
        """``(rows,)``."""
        freedom = self.degrees_of_freedom[:, None]
        spread = np.square(self.scales) * freedom / (freedom - 2.0)
        return np.asarray(self.weights @ (spread + np.square(self.means - self.mean)))

    def log_density(self, values: Array) -> Array:
        """``(rows,)`` log densities of one value per row."""
        from scipy.special import logsumexp
        from scipy.stats import t

        parts = t.logpdf(values, self.degrees_of_freedom[:, None], self.means, self.scales)
        return np.asarray(logsumexp(parts, axis=0, b=self.weights[:, None]))

    def cumulative(self, values: Array) -> Array:
        """``(rows,)`` probabilities of at most these values."""
        from scipy.special import stdtr

        standardized = (values - self.means) / self.scales
        return np.asarray(self.weights @ stdtr(self.degrees_of_freedom[:, None], standardized))

    def quantile(self, probability: float) -> Array:
        """``(rows,)`` values that are not exceeded with this probability."""
        from scipy.special import stdtrit

        if not 0.0 < probability < 1.0:
            raise ValueError(f"probability must lie between 0 and 1, but is {probability}.")
        parts = self.means + self.scales * stdtrit(self.degrees_of_freedom, probability)[:, None]
        # The quantile of a mixture lies between those of its components.
        low, high = parts.min(axis=0), parts.max(axis=0)
        for _ in range(_BISECTIONS if len(self.weights) > 1 else 0):
            middle = 0.5 * (low + high)
            below = self.cumulative(middle) < probability
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.asarray(0.5 * (low + high))

    def draw(self, random: np.random.Generator, count: int) -> Array:
        """``(count, rows)`` independent draws for each row."""
        rows = self.means.shape[1]
        chosen = random.choice(len(self.weights), size=(count, rows), p=self.weights)
        column = np.arange(rows)
        errors = random.standard_t(self.degrees_of_freedom[chosen])
        return self.means[chosen, column] + self.scales[chosen, column] * errors

    def in_units(self, shift: float, factor: float) -> StudentMixture:
        """The distribution of ``shift + factor`` times what it is the distribution of."""
        return StudentMixture(self.weights, shift + factor * self.means, factor * self.scales, self.degrees_of_freedom)
