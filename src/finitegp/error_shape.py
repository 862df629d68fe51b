"""The shape of predictive distributions: Gaussian, Student's t where a few errors are far larger, or two of these.

``ErrorTail`` is the second of two as a component of a fit has it: a share of errors that are wider or lie elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .lite.student import variance_of_student
from .predictive import StudentMixture, check_coverage, scores_between

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ErrorShape:
    r"""How errors are distributed once they are divided by their standard deviation: mean zero, variance one.

    With degrees of freedom :math:`\nu` that is Student's t, shrunk by :math:`c = \sqrt{(\nu - 2)/\nu}` so that its
    variance is one. The fewer, the more of the variance comes from rare large errors, and the narrower are the
    intervals of most rows for the same standard deviation.

    Attributes:
        degrees_of_freedom: More than 2; None for the Gaussian.

    Example:
        >>> [round(ErrorShape(value).deviations(0.5), 2) for value in (None, 5.0, 2.2)]
        [0.67, 0.56, 0.24]
    """

    degrees_of_freedom: float | None = None

    def __post_init__(self) -> None:
        """Check the degrees of freedom."""
        value = self.degrees_of_freedom
        if value is not None and not (math.isfinite(value) and value > 2.0):
            raise ValueError(f"degrees_of_freedom must be above 2 and finite, or None for the Gaussian, not {value}.")

    @property
    def name(self) -> str:
        """Its name in sentences."""
        if self.degrees_of_freedom is None:
            return "a normal distribution"
        return f"Student's t with {self.degrees_of_freedom:.3g} degrees of freedom"

    def beyond(self, deviations: float) -> float:
        """The probability of an error farther off than this number of standard deviations, to either side.

        Example:
            >>> round(GAUSSIAN.beyond(3.0), 4), round(ErrorShape(3.0).beyond(3.0), 4)
            (0.0027, 0.0138)
        """
        return 2.0 * float(self.cumulative(torch.tensor(-deviations, dtype=torch.float64)))

    def log_density(self, standardized: Tensor) -> Tensor:
        """The log density of standardised errors, in their shape."""
        nu = self.degrees_of_freedom
        if nu is None:
            return -0.5 * (standardized.square() + math.log(2.0 * math.pi))
        constant = math.lgamma(0.5 * (nu + 1.0)) - math.lgamma(0.5 * nu) - 0.5 * math.log(math.pi * (nu - 2.0))
        return constant - 0.5 * (nu + 1.0) * torch.log1p(standardized.square() / (nu - 2.0))

    def pull(self, squares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        r"""How far each squared standardised error pulls towards a larger scale: :math:`-z\,d\log p(z)/dz`.

        Its mean is one where the scale has the best density.
        """
        nu = self.degrees_of_freedom
        return squares if nu is None else (nu + 1.0) * squares / (nu - 2.0 + squares)

    def cumulative(self, standardized: Tensor) -> Tensor:
        """The probability of an error at most as large."""
        if self.degrees_of_freedom is None:
            return torch.special.ndtr(standardized)  # type: ignore[no-any-return]
        from scipy.special import stdtr

        errors = (standardized / self.shrink).detach().cpu().numpy()
        return torch.from_numpy(np.asarray(stdtr(self.degrees_of_freedom, errors))).to(standardized)

    def normal_scores(self, errors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Standardised errors as standard normal ones with the same probabilities."""
        below, above = (self.cumulative(torch.from_numpy(sign * errors)).numpy() for sign in (1.0, -1.0))
        return scores_between(below, above)

    def quantiles(self, probabilities: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The standardised errors that are not exceeded with these probabilities."""
        from scipy.special import ndtri, stdtrit

        if self.degrees_of_freedom is None:
            return np.asarray(ndtri(probabilities))
        return np.asarray(self.shrink * stdtrit(self.degrees_of_freedom, probabilities))

    def deviations(self, coverage: float) -> float:
        """How many standard deviations to each side hold an error with this probability."""
        check_coverage(coverage)
        if self.degrees_of_freedom is None:
            return NormalDist().inv_cdf(0.5 + 0.5 * coverage)  # without SciPy, which takes long to import
        return float(self.quantiles(np.array(0.5 + 0.5 * coverage)))

    def crps(self, standardized: Tensor) -> Tensor:
        r"""The continuous ranked probability score, in standard deviations.

        For Student's t with density f and distribution function F it is :math:`z(2F(z) - 1) + 2f(z)\frac{\nu +
        z^2}{\nu - 1} - \frac{2\sqrt\nu}{\nu - 1}\frac{B(1/2, \nu - 1/2)}{B(1/2, \nu/2)^2}` (Jordan, Krüger and Lerch,
        2019).
        """
        nu = self.degrees_of_freedom
        central = standardized * (2.0 * self.cumulative(standardized) - 1.0)
        density = self.log_density(standardized).exp()
        if nu is None:
            return central + 2.0 * density - 1.0 / math.sqrt(math.pi)
        spread = 2.0 * density * (nu - 2.0 + standardized.square()) / (nu - 1.0)
        ratio = math.exp(_log_beta(0.5, nu - 0.5) - 2.0 * _log_beta(0.5, 0.5 * nu))
        return central + spread - 2.0 * math.sqrt(nu - 2.0) / (nu - 1.0) * ratio

    def draw(self, random: np.random.RandomState, size: int | tuple[int, ...]) -> npt.NDArray[np.float64]:
        """Random standardised errors."""
        if self.degrees_of_freedom is None:
            return np.asarray(random.normal(size=size))
        return self.shrink * np.asarray(random.standard_t(self.degrees_of_freedom, size=size))

    def around(self, mean: npt.NDArray[np.float64], std: npt.NDArray[np.float64]) -> StudentMixture | None:
        """The distribution with this shape around means with these standard deviations; None for the Gaussian."""
        if self.degrees_of_freedom is None:
            return None
        freedom = np.full((1, 1), self.degrees_of_freedom)
        return StudentMixture(np.ones(1), mean[None], self.shrink * std[None], freedom)

    @property
    def shrink(self) -> float:
        """The scale of Student's t with variance one; one for the Gaussian."""
        if self.degrees_of_freedom is None:
            return 1.0
        return math.sqrt((self.degrees_of_freedom - 2.0) / self.degrees_of_freedom)


@dataclass(frozen=True)
class TailedShape:
    """Errors of which a share is of another kind than the others: two shapes, of mean zero and variance one together.

    Where most rows are hit almost exactly and others are not, and inputs do not show which, no single Student's t has
    both the narrow middle and the wide flanks. Where the two have different centres, errors are skewed.

    Attributes:
        main: Of most errors.
        tail: Of the share.
        share: Between 0 and 1.
        ratio: The standard deviation of the share in those of the others.
        offset: The centre of the share minus that of the others, in standard deviations of the others.

    Example:
        >>> shape = TailedShape(ErrorShape(), ErrorShape(), share=0.1, ratio=10.0)
        >>> round(float(shape.cumulative(torch.tensor(-1.0, dtype=torch.float64))), 4)
        0.0375
    """

    main: ErrorShape
    tail: ErrorShape
    share: float
    ratio: float
    offset: float = 0.0

    @property
    def degrees_of_freedom(self) -> float | None:
        """Of most errors."""
        return self.main.degrees_of_freedom

    @property
    def units(self) -> tuple[float, float]:
        """The standard deviations of both kinds of errors."""
        between = self.share * (1.0 - self.share) * self.offset**2
        unit = 1.0 / math.sqrt(1.0 - self.share + self.share * self.ratio**2 + between)
        return unit, unit * self.ratio

    @property
    def centres(self) -> tuple[float, float]:
        """The means of both kinds of errors."""
        away = self.units[0] * self.offset
        return -self.share * away, (1.0 - self.share) * away

    def log_density(self, standardized: Tensor) -> Tensor:
        """The log density of standardised errors."""
        return torch.logaddexp(*self._parts(standardized))

    def pull(self, squares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """As that of :class:`ErrorShape`: the mean of both, by how likely an error is of either kind.

        Only without an offset: squares do not tell the sides of skewed errors.
        """
        logs = self._parts(torch.from_numpy(np.sqrt(squares)))
        share = torch.sigmoid(logs[1] - logs[0]).numpy()
        one, other = (unit**2 for unit in self.units)
        return np.asarray((1.0 - share) * self.main.pull(squares / one) + share * self.tail.pull(squares / other))

    def cumulative(self, standardized: Tensor) -> Tensor:
        """The probability of an error at most as large."""
        main, tail = self._standardized(standardized)
        return (1.0 - self.share) * self.main.cumulative(main) + self.share * self.tail.cumulative(tail)

    def normal_scores(self, errors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Standardised errors as standard normal ones with the same probabilities."""
        above = replace(self, offset=-self.offset).cumulative(torch.from_numpy(-errors)).numpy()
        return scores_between(self.cumulative(torch.from_numpy(errors)).numpy(), above)

    def _parts(self, standardized: Tensor) -> tuple[Tensor, Tensor]:
        (main, tail), (one, other) = self._standardized(standardized), self.units
        near = self.main.log_density(main) + math.log((1.0 - self.share) / one)
        return near, self.tail.log_density(tail) + math.log(self.share / other)

    def _standardized(self, errors: Tensor) -> tuple[Tensor, Tensor]:
        """Errors as each of both kinds would have them."""
        (one, other), (near, far) = self.units, self.centres
        return (errors - near) / one, (errors - far) / other


Shape = ErrorShape | TailedShape
#: The shape of all predictions, unless another has the better density on left-out rows.
GAUSSIAN = ErrorShape()


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


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
