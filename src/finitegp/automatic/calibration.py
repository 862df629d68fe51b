"""Rows that nothing was trained on set how much the weights are shrunk and how wide the error bars are."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..model import FeatureGP, FittedGP
from ..posterior import WeightPosterior
from .conformal import conformal_record
from .table import Table

# Networks fit the rows that they were trained on too well, so the noise variance that is best for these rows shrinks
# the weights too little for new ones, often by orders of magnitude.
_RATIOS = tuple(10.0 ** (0.5 * power) for power in range(11))


def calibrate(model: FeatureGP, training: Table, held_out: Table) -> dict[str, Any]:
    r"""Set noise variance and output scale to those with the best predictive density on held-out rows.

    With noise variance :math:`\rho s` and kernel :math:`a k`, the mean depends only on their ratio; multiplying both by
    a factor multiplies every predictive variance by it. So the ratio is searched on a grid, from the one that is best
    for the training rows upwards, each with its best factor :math:`T = \text{mean}(r^2 / \sigma^2)` in closed form.

    Args:
        model: Changed in place.
        training: The rows that the posterior is conditioned on.
        held_out: Rows that neither the features nor the noise were trained on.

    Returns:
        The ratio, the factor, the held-out negative log predictive density, and what conformal intervals need.
    """
    fitted = model.condition(training.source())
    noise_variance = fitted.model.noise_variance
    statistics = fitted.posterior.statistics
    observed = torch.from_numpy(held_out.targets)
    best: tuple[float, float, float, Any] | None = None
    for ratio in _RATIOS:
        prediction = FittedGP(fitted.model, WeightPosterior(statistics, noise_variance * ratio)).predict(
            held_out.inputs
        )
        standardized = ((observed - prediction.mean) / prediction.std).numpy()
        factor = max(held_out.mean(standardized**2), 1e-12)
        log_variances = prediction.variance.log().numpy()
        density = 0.5 * (math.log(2.0 * math.pi * factor) + 1.0 + held_out.mean(log_variances))
        if best is None or density < best[0]:
            best = density, ratio, factor, standardized
    assert best is not None
    density, ratio, factor, standardized = best
    model.noise.set_variance(noise_variance * ratio * factor)
    model.set_output_scale(model.output_scale * factor)
    return {
        "noise_ratio": ratio,
        "variance_factor": factor,
        "validation_nlpd": density,
        "conformal": conformal_record(standardized / math.sqrt(factor), "validation rows"),
    }
