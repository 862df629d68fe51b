"""One predictive distribution from those of several GPs, of the spread of their errors and of what lies outside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .component import Component, SpreadModel
from .error_shape import with_tails
from .extrapolation import ExcessVariance
from .lite.student import variance_of_student
from .predictive import Prediction, StudentMixture

Array = npt.NDArray[np.float64]


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
