"""Predictive distributions: Gaussian, or mixtures of Student's t, with one meaning of interval, density and draw."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .arguments import check_arguments
from .errors import DataError
from .lite.student import variance_of_student

Array = npt.NDArray[np.float64]

# Of the search for a quantile: the most steps, every which of them halves what is left, and when it ends.
_MOST_STEPS, _SLOW, _PRECISION, _TINY = 200, 5, 1e-13, 1e-320
# Ends of intervals: of all components together, of each, and at least of each; and how far out the last ones are, on a
# scale that grows exponentially.
_ALL_ENDS, _ENDS, _LEAST_ENDS, _REACH = 140, 60, 16, 10.0
_MANY_DEGREES = 1e4


@dataclass(frozen=True, eq=False)
class StudentMixture:
    r"""For each row a mixture :math:`\sum_k w_k\,t_{\nu_k}(m_k, s_k)`.

    Attributes:
        weights: ``(components,)``, summing to one; or ``(components, rows)`` where they differ by row.
        means: ``(components, rows)``.
        scales: ``(components, rows)``: not standard deviations, which are :math:`\sqrt{\nu/(\nu - 2)}` times as large.
        degrees_of_freedom: ``(components, rows)`` or ``(components, 1)``, above 2; infinite for a Gaussian.

    Example:
        >>> mixture = StudentMixture(np.ones(1), np.zeros((1, 1)), np.ones((1, 1)), np.array([[5.0]]))
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
        return self._mixed(self.means)

    @property
    def variance(self) -> Array:
        """``(rows,)``."""
        spread = np.square(self.scales) * variance_of_student(self.degrees_of_freedom)
        return self._mixed(spread + np.square(self.means - self.mean))

    def component_log_densities(self, values: Array) -> Array:
        """``(components, rows)`` log densities of one value per row in each component."""
        return log_student((values - self.means) / self.scales, self.degrees_of_freedom) - np.log(self.scales)

    def log_density(self, values: Array) -> Array:
        """``(rows,)`` log densities of one value per row."""
        from scipy.special import logsumexp

        parts = self.component_log_densities(values)
        weights = self.weights if self.weights.ndim == 2 else self.weights[:, None]
        return parts[0] if len(parts) == 1 else np.asarray(logsumexp(parts, axis=0, b=weights))

    def cumulative(self, values: Array) -> Array:
        """``(rows,)`` probabilities of at most these values."""
        parts = student_cumulative((values - self.means) / self.scales, self.degrees_of_freedom)
        return np.clip(self._mixed(parts), 0.0, 1.0)

    def normal_scores(self, values: Array) -> Array:
        """``(rows,)`` standard normal quantiles of :meth:`cumulative`: errors on the scale of a standard normal."""
        return scores_between(self.cumulative(values), replace(self, means=-self.means).cumulative(-values))

    def quantile(self, probability: float | Array) -> Array:
        """``(rows,)`` values that are not exceeded with this probability, or with one per row."""
        wanted = np.asarray(probability, dtype=np.float64)
        if not np.all((wanted > 0.0) & (wanted < 1.0)):
            raise ValueError(f"probability must lie between 0 and 1, but is {probability}.")
        parts = self.means + self.scales * student_quantile(wanted, self.degrees_of_freedom)
        # The quantile of a mixture lies between those of its components.
        low, high = parts.min(axis=0), parts.max(axis=0)
        searched = np.flatnonzero(low < high)
        found: Array = 0.5 * (low + high)
        if len(searched) == 0:
            return found
        least, most = low[searched], high[searched]
        wanted = np.broadcast_to(wanted, found.shape)[searched]
        few, odds = self.take(searched), np.log(wanted) - np.log1p(-wanted)
        errors = [few._log_odds(end) - odds for end in (least, most)]
        for number in range(_MOST_STEPS):
            # The chord of log odds, which are nearly linear (Anderson and Björck, 1973); at times the middle.
            with np.errstate(divide="ignore", invalid="ignore"):
                place = least - errors[0] * (most - least) / (errors[1] - errors[0])
            usable = (place > least) & (place < most) & (number % _SLOW != _SLOW - 1)
            place = np.where(usable, place, 0.5 * (least + most))
            error = few._log_odds(place) - odds
            found[searched] = place
            above = error > 0.0
            # The end that stays counts less, so that it moves next time.
            with np.errstate(divide="ignore", invalid="ignore"):
                shrink = 1.0 - error / np.where(above, errors[1], errors[0])
            shrink = np.where(shrink > 0.0, shrink, 0.5)
            errors = [np.where(above, errors[0] * shrink, error), np.where(above, error, errors[1] * shrink)]
            least, most = np.where(above, least, place), np.where(above, place, most)
            going = (np.abs(error) > _PRECISION) & (most - least > _PRECISION * np.abs(place))
            if not going.any():
                break
            searched, least, most, odds = searched[going], least[going], most[going], odds[going]
            errors, few = [each[going] for each in errors], few.take(going)
        return found

    def _log_odds(self, values: Array) -> Array:
        below = self.cumulative(values)
        return np.asarray(np.log(np.maximum(below, _TINY)) - np.log(np.maximum(1.0 - below, _TINY)))

    def crps(self, values: Array) -> Array:
        r"""``(rows,)`` continuous ranked probability scores :math:`\int (F(x) - 1[x \ge y])^2\,dx`.

        They are :math:`E|X - y| - \int F (1 - F)`: the first is known in closed form, the second is summed over
        intervals that are short where any component has its mass, by Gauss-Legendre in each.
        """
        nodes, weights = np.polynomial.legendre.leggauss(4)
        count = max(_LEAST_ENDS, min(_ENDS, _ALL_ENDS // len(self.means)))
        ends = np.sinh(np.linspace(-_REACH, _REACH, count))
        places = np.sort((self.means + self.scales * ends[:, None, None]).reshape(-1, self.means.shape[1]), axis=0)
        spread = np.zeros(self.means.shape[1])
        for low, high in itertools.pairwise(places):
            middle, half = 0.5 * (low + high), 0.5 * (high - low)
            for place, weight in zip(nodes, weights, strict=True):
                below = self.cumulative(middle + place * half)
                spread += weight * half * below * (1.0 - below)
        return np.maximum(2.0 * self._partial_moment(values) + self.mean - values - spread, 0.0)

    def _partial_moment(self, values: Array) -> Array:
        r""":math:`\int_{-\infty}^y F(x)\,dx`, which is :math:`z F(z) + f(z)(\nu + z^2)/(\nu - 1)` for Student's t."""
        z, freedom = (values - self.means) / self.scales, self.degrees_of_freedom
        with np.errstate(invalid="ignore"):
            spread = np.where(np.isinf(freedom), 1.0, (freedom + np.square(z)) / (freedom - 1.0))
        found = z * student_cumulative(z, freedom) + spread * np.exp(log_student(z, freedom))
        return self._mixed(self.scales * found)

    def draw(self, normal: Array, chosen: Array) -> Array:
        """One value per row with these distributions, from standard normal values and the components to draw from.

        Normal values that are correlated between rows give values that are correlated alike: a Gaussian copula.
        """
        rows = np.arange(self.means.shape[1])
        freedom = np.broadcast_to(self.degrees_of_freedom, self.means.shape)[chosen, rows]
        errors = student_quantile(normal_cumulative(normal), freedom)
        return np.asarray(self.means[chosen, rows] + self.scales[chosen, rows] * errors)

    def in_units(self, shift: float, factor: float) -> StudentMixture:
        """The distribution of ``shift + factor`` times what it is the distribution of."""
        return replace(self, means=shift + factor * self.means, scales=factor * self.scales)

    def take(self, index: slice | npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> StudentMixture:
        """That of some of the rows."""
        freedom = self.degrees_of_freedom
        kept = freedom if freedom.shape[1] == 1 else freedom[:, index]
        weights = self.weights if self.weights.ndim == 1 else self.weights[:, index]
        return StudentMixture(weights, self.means[:, index], self.scales[:, index], kept)

    def with_component(self, share: float, mean: Array, scale: Array, freedom: float) -> StudentMixture:
        """The mixture with one more component of this share."""
        freedoms = np.broadcast_to(self.degrees_of_freedom, (len(self.weights), self.degrees_of_freedom.shape[1]))
        added = np.full((1, freedoms.shape[1]), freedom)
        return StudentMixture(
            np.append((1.0 - share) * self.weights, share),
            np.vstack([self.means, mean]),
            np.vstack([self.scales, scale]),
            np.vstack([freedoms, added]),
        )

    def with_values(self, values: Array, chances: Array, scale: float) -> StudentMixture:
        """The mixture with a Gaussian of this scale around values that rows have with these probabilities."""
        # Where the chance is zero the component is another one again, so that nothing has to be searched between them.
        known, shape = chances > 0.0, self.means.shape
        freedoms = np.broadcast_to(self.degrees_of_freedom, shape)
        weights = self.weights if self.weights.ndim == 2 else np.broadcast_to(self.weights[:, None], shape)
        return StudentMixture(
            np.vstack([(1.0 - chances) * weights, chances]),
            np.vstack([self.means, np.where(known, values, self.means[0])]),
            np.vstack([self.scales, np.where(known, scale, self.scales[0])]),
            np.vstack([freedoms, np.where(known, math.inf, freedoms[0])]),
        )

    def _mixed(self, values: Array) -> Array:
        """``(rows,)`` weighted sums over components."""
        if self.weights.ndim == 1:
            return np.asarray(self.weights @ values)
        return np.asarray(np.einsum("kr,kr->r", self.weights, values))

    @classmethod
    def concatenate(cls, parts: list[StudentMixture]) -> StudentMixture:
        """Of the rows of all parts, one after the other; weights that do not differ by row are those of the first."""
        freedoms = [np.broadcast_to(part.degrees_of_freedom, part.means.shape) for part in parts]
        return cls(
            parts[0].weights if parts[0].weights.ndim == 1 else np.hstack([part.weights for part in parts]),
            np.hstack([part.means for part in parts]),
            np.hstack([part.scales for part in parts]),
            np.hstack(freedoms),
        )


def scores_between(below: Array, above: Array) -> Array:
    """Standard normal values with these probabilities of less, and of more, of which the smaller has the digits."""
    from scipy.special import ndtri

    return np.asarray(np.where(below < above, 1.0, -1.0) * ndtri(np.clip(np.minimum(below, above), 1e-300, 0.5)))


def log_student(values: Array, degrees_of_freedom: Array) -> Array:
    """The log density of Student's t of scale one."""
    from scipy.special import gammaln

    finite = np.where(np.isinf(degrees_of_freedom), 1.0, degrees_of_freedom)
    # With many degrees of freedom the difference of the two is lost in their size; its series is not.
    few = np.minimum(finite, _MANY_DEGREES)
    constant = gammaln(0.5 * (few + 1.0)) - gammaln(0.5 * few) - 0.5 * np.log(math.pi * few)
    constant = np.where(finite > few, -0.5 * math.log(2.0 * math.pi) - 0.25 / finite, constant)
    student = constant - 0.5 * (finite + 1.0) * np.log1p(np.square(values) / finite)
    gaussian = -0.5 * (np.square(values) + math.log(2.0 * math.pi))
    return np.where(np.isinf(degrees_of_freedom), gaussian, student)


def normal_cumulative(values: Array) -> Array:
    """The distribution function of the standard normal, never quite 0 or 1."""
    from scipy.special import ndtr

    return np.asarray(np.clip(ndtr(values), 1e-300, 1.0 - 1e-16))


def student_cumulative(values: Array, degrees_of_freedom: Array) -> Array:
    """The distribution function of Student's t of scale one."""
    from scipy.special import ndtr, stdtr

    infinite = np.isinf(degrees_of_freedom)
    if infinite.all():
        return np.asarray(ndtr(values))
    student = stdtr(np.where(infinite, 1.0, degrees_of_freedom), values)
    return np.where(infinite, ndtr(values), student) if infinite.any() else np.asarray(student)


def student_quantile(probabilities: Array, degrees_of_freedom: Array) -> Array:
    """The values of Student's t of scale one that are not exceeded with these probabilities."""
    from scipy.special import ndtri, stdtrit

    infinite = np.isinf(degrees_of_freedom)
    if infinite.all():
        return np.broadcast_to(ndtri(probabilities), np.broadcast_shapes(np.shape(probabilities), infinite.shape))
    student = stdtrit(np.where(infinite, 1.0, degrees_of_freedom), probabilities)
    return np.where(infinite, ndtri(probabilities), student) if infinite.any() else np.asarray(student)


@check_arguments
@dataclass(frozen=True, eq=False)
class Prediction:
    """Predictions with the two sources of uncertainty kept apart.

    Attributes:
        mean: ``(rows,)`` for one target, ``(rows, t)`` for several.
        epistemic_variance: ``(rows,)``, of what is not known of the function; the same for all targets.
        noise_variance: ``(rows,)``, of observations around the function.
        covariance: ``(rows, rows)`` covariance of the noise-free function, only if it was asked for.
        mixture: The predictive distribution where it is not the Gaussian of this mean and variance; its mean and
            variance are the same.

    Example:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> prediction = Prediction(mean=0 * one, epistemic_variance=0.36 * one, noise_variance=0.64 * one)
        >>> low, high = prediction.interval(0.95)
        >>> float(prediction.std), round(float(high), 2)
        (1.0, 1.96)
    """

    mean: Tensor
    epistemic_variance: Tensor
    noise_variance: Tensor
    covariance: Tensor | None = None
    mixture: StudentMixture | None = None

    @property
    def variance(self) -> Tensor:
        """``(rows,)`` variance of a new observation: epistemic plus noise."""
        return self.epistemic_variance + self.noise_variance

    @property
    def std(self) -> Tensor:
        """``(rows,)`` standard deviation of a new observation."""
        return self.variance.sqrt()

    def quantile(self, probability: float) -> Tensor:
        """The values that new observations do not exceed with this probability, in the shape of ``mean``."""
        if not 0.0 < probability < 1.0:
            raise ValueError(f"probability must lie between 0 and 1, but is {probability}.")
        if self.mixture is not None:
            return torch.from_numpy(self.mixture.quantile(probability)).to(self.mean)
        # Without SciPy, which takes long to import.
        return self.mean + NormalDist().inv_cdf(probability) * self._per_target(self.std)

    def interval(self, coverage: float = 0.9) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the central interval that holds a new observation with this probability."""
        check_coverage(coverage)
        return self.quantile(0.5 - 0.5 * coverage), self.quantile(0.5 + 0.5 * coverage)

    def log_density(self, targets: Tensor) -> Tensor:
        """The log predictive density of each observed target, in the shape of ``mean``."""
        targets = self._checked(targets)
        if self.mixture is not None:
            return torch.from_numpy(self.mixture.log_density(targets.cpu().numpy())).to(self.mean)
        std = self._per_target(self.std)
        return -0.5 * (((targets - self.mean) / std).square() + math.log(2.0 * math.pi)) - std.log()

    def cumulative(self, targets: Tensor) -> Tensor:
        """The probability of an observation at most as large as each target: uniform if predictions are calibrated."""
        targets = self._checked(targets)
        if self.mixture is not None:
            return torch.from_numpy(self.mixture.cumulative(targets.cpu().numpy())).to(self.mean)
        return torch.special.ndtr((targets - self.mean) / self._per_target(self.std))  # type: ignore[no-any-return]

    def normal_scores(self, targets: Tensor) -> Tensor:
        """Errors on the scale of a standard normal: the normal quantiles of :meth:`cumulative`."""
        targets = self._checked(targets)
        if self.mixture is None:
            return (targets - self.mean) / self._per_target(self.std)
        return torch.from_numpy(self.mixture.normal_scores(targets.cpu().numpy())).to(self.mean)

    def crps(self, targets: Tensor) -> Tensor:
        """The continuous ranked probability score of each target, in the target's units."""
        targets = self._checked(targets)
        if self.mixture is not None:
            return torch.from_numpy(self.mixture.crps(targets.cpu().numpy())).to(self.mean)
        std = self._per_target(self.std)
        z = (targets - self.mean) / std
        density = torch.exp(-0.5 * z.square()) / math.sqrt(2.0 * math.pi)
        central: Tensor = z * (2.0 * torch.special.ndtr(z) - 1.0)
        return std * (central + 2.0 * density - 1.0 / math.sqrt(math.pi))

    def with_values(self, values: Array, chances: Array, scale: float) -> Prediction:
        """The prediction of rows that have these values, up to an error of this scale, with these probabilities."""
        mean, std = (each.cpu().numpy()[None] for each in (self.mean, self.std))
        mixture = self.mixture or StudentMixture(np.ones(1), mean, std, np.full((1, 1), math.inf))
        mixture = mixture.with_values(values, chances, scale)
        # What is left of the variance is noise to the same part as before.
        ratio = torch.where(self.variance > 0.0, torch.from_numpy(mixture.variance).to(self.mean) / self.variance, 1.0)
        covariance = None if self.covariance is None else ratio.sqrt()[:, None] * self.covariance * ratio.sqrt()
        return Prediction(
            mean=torch.from_numpy(mixture.mean).to(self.mean),
            epistemic_variance=ratio * self.epistemic_variance,
            noise_variance=ratio * self.noise_variance,
            covariance=covariance,
            mixture=mixture,
        )

    def in_units(self, shift: float, factor: float) -> Prediction:
        """The prediction of ``shift + factor`` times what this is a prediction of."""
        factor = float(factor)
        square = factor * factor  # infinite where the power operator would raise an error
        return Prediction(
            mean=self.mean * factor + shift,
            epistemic_variance=self.epistemic_variance * square,
            noise_variance=self.noise_variance * square,
            covariance=None if self.covariance is None else self.covariance * square,
            mixture=None if self.mixture is None else self.mixture.in_units(shift, factor),
        )

    @classmethod
    def concatenate(cls, parts: list[Prediction]) -> Prediction:
        """Predictions of the rows of all parts, one after the other; a covariance is that of the first part."""
        if len(parts) == 0:
            raise DataError("parts must hold at least one prediction.")
        if len(parts) == 1:
            return parts[0]
        mixtures = [part.mixture for part in parts if part.mixture is not None]
        return cls(
            mean=torch.cat([part.mean for part in parts]),
            epistemic_variance=torch.cat([part.epistemic_variance for part in parts]),
            noise_variance=torch.cat([part.noise_variance for part in parts]),
            covariance=parts[0].covariance,
            mixture=StudentMixture.concatenate(mixtures) if len(mixtures) == len(parts) else None,
        )

    def _checked(self, targets: Tensor) -> Tensor:
        targets = targets.to(self.mean)
        if targets.shape != self.mean.shape:
            raise DataError(
                f"targets must have the shape of the mean {tuple(self.mean.shape)}, but have {tuple(targets.shape)}."
            )
        return targets

    def _per_target(self, values: Tensor) -> Tensor:
        return values if self.mean.ndim == 1 else values[:, None]


def check_coverage(coverage: float) -> float:
    """A probability strictly between 0 and 1."""
    if not 0.0 < coverage < 1.0:
        raise ValueError(f"coverage must lie between 0 and 1, but is {coverage}.")
    return coverage
