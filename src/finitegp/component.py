"""The GPs of a fit: ``Component`` predicts the target, ``SpreadModel`` where errors are larger than predicted."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from torch import Tensor

from .error_shape import GAUSSIAN, ErrorShape, ErrorTail, Shape
from .likelihood import MarginalLikelihood, negative_log_marginal_likelihood
from .lite.student import variance_of_student
from .model import FittedGP
from .predictive import Prediction

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
