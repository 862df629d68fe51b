"""The GPs of a fit: ``Component`` predicts the target, ``SpreadModel`` where errors are larger than predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .error_shape import GAUSSIAN, ErrorShape, ErrorTail, Shape, with_tails
from .extrapolation import ExcessVariance
from .likelihood import MarginalLikelihood, negative_log_marginal_likelihood
from .lite.student import variance_of_student
from .model import FittedGP
from .predictive import Prediction, StudentMixture

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Component:
    """One GP of a fit, with what was learned of its error bars from left-out rows.

    Attributes:
        fitted: The exact posterior on scaled inputs and targets.
        name: Of its kernel or features.
        weight: Its weight in the predictive mixture.
        factor: On its standard deviations, which gives the scale of its Student's t.
        degrees_of_freedom: Of its predictive Student's t; infinite for a Gaussian.
        scale_degrees: Degrees of freedom of the prior of a common factor on all variances that is integrated out; zero
            if there is none.
        landmark_weights: Where the rows that the posterior has seen are the landmarks of its features, in their order:
            what each of them weighs in the row sums. A file then needs no sums.
        landmark_targets: ``(landmarks, 1)`` their targets times these weights; None in files of older releases.
        tail: A share of errors that are of another size than the others, or None.
    """

    fitted: FittedGP
    name: str = "features"
    weight: float = 1.0
    factor: float = 1.0
    degrees_of_freedom: float = math.inf
    scale_degrees: float = 0.0
    landmark_weights: Tensor | None = None
    landmark_targets: Tensor | None = None
    tail: ErrorTail | None = None

    @property
    def error_variance(self) -> float:
        """The variance of errors in squared scales."""
        if self.tail is not None:
            return self.tail.error_variance(self.degrees_of_freedom)
        return float(variance_of_student(np.array(self.degrees_of_freedom)))

    @property
    def variance_factor(self) -> float:
        """The posterior mean of the common factor on all variances, times the square of ``factor``."""
        if not self.scale_degrees:
            return self.factor**2
        degrees = self.scale_degrees + self.fitted.posterior.statistics.num_data
        return self.factor**2 * (self.scale_degrees + self._fit_term()) / degrees

    def variance_factors_without(
        self, targets: Tensor, inside: Prediction, left_out: Prediction, noises: Tensor
    ) -> Array:
        """``(rows,)`` what ``variance_factor`` is without each row, given its predictions with and without it.

        ``noises`` are the variances of the rows' noise in the sums.
        """
        if not self.scale_degrees:
            return np.full(len(targets), self.factor**2)
        # With residual r and leverage h, the row's part in y' R^-1 y is r^2 / (1 - h) / s.
        parts = (targets - inside.mean) * (targets - left_out.mean) / noises
        squares = self._fit_term() - parts.cpu().numpy()
        degrees = self.scale_degrees + self.fitted.posterior.statistics.num_data - 1.0
        return self.factor**2 * (self.scale_degrees + np.maximum(squares, 0.0)) / degrees

    def log_evidence(self, likelihood: MarginalLikelihood | None = None) -> float:
        """The log marginal likelihood of the scaled targets, the common factor integrated out if there is one."""
        posterior = self.fitted.posterior
        found = likelihood or negative_log_marginal_likelihood(posterior.statistics, posterior.noise_variance)
        if not self.scale_degrees:
            return -found.total_nlml
        prior, rows = self.scale_degrees, found.num_data
        squares = 2.0 * found.fit
        normalizer = (
            math.lgamma(0.5 * (prior + rows)) - math.lgamma(0.5 * prior) - 0.5 * rows * math.log(math.pi * prior)
        )
        return normalizer - found.complexity - 0.5 * (prior + rows) * math.log1p(squares / prior)

    def _fit_term(self) -> float:
        """``y' R^-1 y`` for the covariance R of the targets, the factor taken out."""
        posterior = self.fitted.posterior
        statistics = posterior.statistics
        explained = (statistics.projected_targets * posterior.weight_mean).sum()
        return max(float(statistics.target_sum_of_squares.sum() - explained), 0.0) / posterior.noise_variance


def student_component(fitted: FittedGP, shape: Shape = GAUSSIAN) -> Component:
    """A GP whose standard deviations are right, with errors of this shape around them."""
    if isinstance(shape, ErrorShape):
        return Component(fitted, factor=shape.shrink, degrees_of_freedom=shape.degrees_of_freedom or math.inf)
    main, unit = student_component(fitted, shape.main), shape.units[0]
    tail = ErrorTail(
        shape.share,
        shape.ratio * shape.tail.shrink / shape.main.shrink,
        shape.tail.degrees_of_freedom or math.inf,
    )
    if shape.offset == 0.0:
        return replace(main, factor=unit * main.factor, tail=tail)
    # Of noise alone, so that the scale is that of all errors.
    away = unit * shape.offset / shape.main.shrink
    return replace(main, tail=tail._replace(factor=unit * tail.factor, offset=away, main_factor=unit))


@dataclass(frozen=True, eq=False)
class SpreadModel:
    """How much larger or smaller errors are than predicted, by a kernel GP on the log of squared out-of-fold errors.

    Attributes:
        fitted: The GP of the standardised log squares, given inputs, log variance and mean of the prediction.
        shift: Mean of the log squares.
        unit: Their standard deviation.
        centres: Of log variance and mean.
        units: Of log variance and mean.
        limits: Between which its values are kept.
        strength: By what it is multiplied.
        factor: On the scales.
        degrees_of_freedom: Of the predictions.
        share: Its weight beside the mixture without it.
        landmark_weights: What each landmark weighs in the row sums of ``fitted``; see ``Component``.
        landmark_targets: Targets of ``fitted`` times these weights; see ``Component``.
        tail: A share of errors that are of another size than the others, or None.
    """

    fitted: FittedGP
    shift: float
    unit: float
    centres: Array
    units: Array
    limits: tuple[float, float]
    strength: float
    factor: float
    degrees_of_freedom: float
    share: float
    landmark_weights: Tensor | None = None
    landmark_targets: Tensor | None = None
    tail: ErrorTail | None = None

    def log_factors(self, inputs: Array, mean: Array, variance: Array) -> Array:
        """The logarithm of the factor on each row's variance."""
        extra = np.clip((np.column_stack([np.log(variance), mean]) - self.centres) / self.units, -4.0, 4.0)
        found = self.fitted.predict(np.column_stack([inputs, extra])).mean.numpy() * self.unit + self.shift
        return self.strength * np.clip(found, *self.limits)


def combine(
    scaled: Array,
    predicted: Sequence[Prediction],
    components: Sequence[Component],
    spread: SpreadModel | None,
    excess: ExcessVariance | None,
    factors: Array | None = None,
) -> Prediction:
    """One predictive distribution of scaled targets from those of the components.

    ``factors``, ``(components, rows)``, are those on variances; None takes those of the components.
    """
    first = components[0]
    plain = len(components) == 1 and first.variance_factor == 1.0 and math.isinf(first.degrees_of_freedom)
    if plain and first.tail is None and spread is None and excess is None:
        return predicted[0]
    if factors is None:
        factors = np.array([component.variance_factor for component in components])[:, None]
    weights = np.array([component.weight for component in components])
    freedom = np.array([[component.degrees_of_freedom] for component in components])
    means = np.stack([part.mean.cpu().numpy() for part in predicted])
    squares = factors * np.stack([part.variance.cpu().numpy() for part in predicted])
    plainly, tails = StudentMixture(weights, means, np.sqrt(squares), freedom), [each.tail for each in components]
    noises = factors * np.stack([part.noise_variance.cpu().numpy() for part in predicted])
    mixture = with_tails(plainly, tails, noises / squares)
    spreads = np.array([[component.error_variance] for component in components])
    noise = weights @ (spreads * noises)
    if spread is not None:
        mean, variance = pooled(plainly)
        share = noise / mixture.variance
        deviations = spread.factor * np.sqrt(variance) * np.exp(0.5 * spread.log_factors(scaled, mean, variance))
        plainly = plainly.with_component(spread.share, mean, deviations, spread.degrees_of_freedom)
        parts = np.vstack([noises / squares, noise_part(weights, squares, noises)])
        mixture = with_tails(plainly, [*tails, spread.tail], parts)
        noise = share * mixture.variance
    covariance = _covariance(predicted, means, weights, factors * spreads)
    if covariance is not None and (spread is not None or any(tail is not None and tail.least_part for tail in tails)):
        ratios = torch.from_numpy(mixture.variance - noise) / covariance.diagonal().clamp_min(1e-300)
        covariance = ratios.sqrt()[:, None] * covariance * ratios.sqrt()
    if excess is not None:
        added = excess.variance(torch.from_numpy(scaled))
        mixture = widened(mixture, added.numpy())
        covariance = None if covariance is None else covariance + torch.diag(added)
    noise_variance = torch.from_numpy(noise)
    return Prediction(
        mean=torch.from_numpy(mixture.mean),
        epistemic_variance=(torch.from_numpy(mixture.variance) - noise_variance).clamp_min(0.0),
        noise_variance=noise_variance,
        covariance=covariance,
        mixture=mixture,
    )


def pooled(mixture: StudentMixture) -> tuple[Array, Array]:
    """Mean, and the squared scale that takes the disagreement of the components in."""
    mean = mixture.mean
    return mean, mixture.weights @ (np.square(mixture.scales) + np.square(mixture.means - mean))


def widened(mixture: StudentMixture, variance: Array) -> StudentMixture:
    r"""The mixture with an independent Gaussian error of this variance added to every component.

    A sum of Student's t and a Gaussian has no density in closed form. It is taken as Student's t of the variance of the
    sum, with :math:`1/\nu' = (1/\nu)\,(\sigma^2/(\sigma^2 + V))^2`, the rate at which the kurtosis of a sum falls.
    """
    if not variance.any():
        return mixture
    freedom = np.broadcast_to(mixture.degrees_of_freedom, mixture.means.shape)
    before = np.square(mixture.scales) * variance_of_student(freedom)
    after = before + variance
    widened_freedom = freedom * np.square(after / before)
    scales = np.sqrt(after / variance_of_student(widened_freedom))
    return replace(mixture, scales=scales, degrees_of_freedom=widened_freedom)


def noise_part(weights: Array, squares: Array, noises: Array) -> Array:
    """``(rows,)`` of the squared scales of all components, the part that is noise."""
    return np.asarray((weights @ noises) / (weights @ squares))


def _covariance(predicted: Sequence[Prediction], means: Array, weights: Array, factors: Array) -> Tensor | None:
    """Of the function, if it was asked for: that within components, and that between their means."""
    parts = [part.covariance for part in predicted if part.covariance is not None]
    if len(parts) < len(predicted):
        return None
    deviations = torch.from_numpy(means - weights @ means)
    total = torch.einsum("k,kr,ks->rs", torch.from_numpy(weights), deviations, deviations)
    for weight, factor, part in zip(weights, factors[:, 0], parts, strict=True):
        total = total + float(weight * factor) * part.cpu()
    return total
