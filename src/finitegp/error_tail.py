"""``ErrorTail``: a share of errors that are wider or lie elsewhere, and the mixture of Student's t that has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .predictive import StudentMixture, variance_of_student

Array = npt.NDArray[np.float64]


class ErrorTail(NamedTuple):
    """A share of errors with another scale and, where errors are skewed, another centre.

    Left-out rows show the errors of noise and function together. Where noise has a smaller part in the variance than in
    nearly all of them, as in a gap, what the function adds is symmetric: with r times the least part that was seen, the
    centres are multiplied by the root of r, and a factor f on the scale becomes r f^2 + 1 - r on its square.

    Attributes:
        share: Of all errors.
        factor: On the scale, for this share.
        degrees_of_freedom: Of their Student's t; infinite for a Gaussian.
        offset: Their centre minus that of the others, in scales; the mean of all stays what it is.
        main_factor: On the scale, for the others.
        least_part: Of noise in the variance of rows that show these errors; zero if that makes no difference.
    """

    share: float
    factor: float
    degrees_of_freedom: float = math.inf
    offset: float = 0.0
    main_factor: float = 1.0
    least_part: float = 0.0

    def error_variance(self, degrees_of_freedom: float) -> float:
        """The variance of all errors in squared scales, given the degrees of freedom of the others."""
        main, own = variance_of_student(np.array([degrees_of_freedom, self.degrees_of_freedom]))
        between = self.share * (1.0 - self.share) * self.offset**2
        return float((1.0 - self.share) * self.main_factor**2 * main + self.share * self.factor**2 * own + between)


def with_tails(mixture: StudentMixture, tails: Sequence[ErrorTail | None], noise_parts: Array) -> StudentMixture:
    """The mixture in which each component has the tail of that place: those of tails follow the others.

    ``noise_parts``, ``(components, rows)``, are those of the squared scales: see ``ErrorTail``.
    """
    own = [number for number, tail in enumerate(tails) if tail is not None]
    if not own:
        return mixture
    found = np.array([ErrorTail(0.0, 1.0) if tail is None else tail for tail in tails])
    shares, factors, freedoms, offsets, main_factors, least = found.T[:, :, None]
    weights, means, scales = mixture.weights, mixture.means, mixture.scales
    parts = np.where(least > 0.0, np.minimum(noise_parts / np.maximum(least, 1e-300), 1.0), 1.0)
    near, far = (np.sqrt(parts * np.square(each) + 1.0 - parts) * scales for each in (main_factors, factors))
    away = offsets * np.sqrt(parts) * scales
    tailed = np.broadcast_to(freedoms[own], (len(own), mixture.degrees_of_freedom.shape[1]))
    return StudentMixture(
        np.concatenate([(1.0 - shares[:, 0]) * weights, shares[own, 0] * weights[own]]),
        np.concatenate([means - shares * away, (means + (1.0 - shares) * away)[own]]),
        np.concatenate([near, far[own]]),
        np.concatenate([mixture.degrees_of_freedom, tailed]),
    )
