"""Rows that nothing was trained on set how much the weights are shrunk and how wide the error bars are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..error_shape import GAUSSIAN, ErrorShape
from ..model import FeatureGP
from ..posterior import WeightPosterior
from ..predictive import Prediction
from ..statistics import FeatureStatistics
from .conformal import conformal_record
from .table import Array, Table
from .tails import choose_error_shape

# Networks fit the rows that they were trained on too well, so the noise variance that is best for these rows shrinks
# the weights too little for new ones, often by orders of magnitude.
_RATIOS = tuple(10.0 ** (0.5 * power) for power in range(11))


@dataclass(frozen=True, eq=False)
class LeftOutResiduals:
    """Many more rows than the held-out ones, seen only by a single network without them: they show what is rare.

    Attributes:
        squares: ``(rows,)`` squared residuals of rows that the network which predicts them was trained without.
        log_variance: ``(rows,)`` their noise variances, by noise networks that did not see them either.
        held_out_squares: ``(networks, held-out rows)`` squared residuals of the same single networks.
        held_out_log_variance: ``(held-out rows,)`` noise variances.
    """

    squares: Array
    log_variance: Array
    held_out_squares: Array
    held_out_log_variance: Array


def calibrate(
    model: FeatureGP,
    training: Table,
    held_out: Table,
    left_out: LeftOutResiduals | None = None,
    *,
    heavy_tails: bool = True,
) -> dict[str, Any]:
    r"""Set noise variance and output scale to those with the best predictive density on held-out rows.

    With noise variance :math:`\rho s` and kernel :math:`a k`, the mean depends only on their ratio; multiplying both by
    a factor multiplies every predictive variance by it. So the ratio is searched on a grid, from the one that is best
    for the training rows upwards, each with its best factor :math:`T = \text{mean}(r^2 / \sigma^2)` in closed form.

    Where one row in thousands lies far outside of its error bar, the held-out rows are too few to tell. The final
    factor then is half way, as a geometric mean, to the one that left-out residuals ask for too. Those of single
    networks are larger than those of the whole model: they are scaled by how both compare on the held-out rows, in a
    way that single rows cannot sway.

    With the standard deviations settled, the shape of the distribution around them is chosen from the same rows: a
    Gaussian, or Student's t with the same standard deviations.

    Args:
        model: Changed in place.
        training: The rows that the posterior is conditioned on.
        held_out: Rows that neither the features nor the noise were trained on.
        left_out: Residuals of rows that single networks were trained without.
        heavy_tails: Whether another shape than the Gaussian may be chosen.

    Returns:
        The ratio, the factor, the degrees of freedom (None for the Gaussian), the negative log predictive density of
        the held-out rows and of all rows that were used here, and what conformal intervals need.
    """
    fitted = model.condition(training.source(), optimize_noise=True)
    features, log_scales = fitted.features(held_out.inputs)
    return calibrate_posterior(
        model,
        fitted.posterior.statistics,
        held_out,
        lambda posterior: posterior.predict(features, log_scales),
        left_out,
        heavy_tails=heavy_tails,
    )


def calibrate_posterior(
    model: FeatureGP,
    statistics: FeatureStatistics,
    held_out: Table,
    predict: Callable[[WeightPosterior], Prediction],
    left_out: LeftOutResiduals | None = None,
    *,
    heavy_tails: bool = True,
) -> dict[str, Any]:
    """What :func:`calibrate` does, from the row sums of the training rows, at whose optimum the model's noise is.

    Args:
        model: Changed in place.
        statistics: Of the training rows.
        held_out: Other rows.
        predict: What a posterior predicts for these.
        left_out: As in :func:`calibrate`.
        heavy_tails: Likewise.
    """
    noise_variance = model.noise_variance
    observed = torch.from_numpy(held_out.targets)
    best: tuple[float, float, Array, Array] | None = None
    for ratio in _RATIOS:
        prediction = predict(WeightPosterior(statistics, noise_variance * ratio))
        squares = (observed - prediction.mean).square().numpy()
        log_variance = prediction.variance.log().numpy()
        density = _density(held_out, squares, log_variance, _factor(held_out, squares, log_variance), GAUSSIAN)
        if best is None or density < best[0]:
            best = density, ratio, squares, log_variance
    assert best is not None
    _, ratio, squares, log_variance = best
    every, every_square, every_log_variance = held_out, squares, log_variance
    if left_out is not None:
        offset = held_out.mean(log_variance - left_out.held_out_log_variance)
        single = left_out.held_out_squares * np.exp(-left_out.held_out_log_variance - offset)
        gain = _gain(squares * np.exp(-log_variance), single)
        every = held_out.with_more_rows(len(left_out.squares))
        every_square = np.concatenate([squares, gain * left_out.squares])
        every_log_variance = np.concatenate([log_variance, left_out.log_variance + offset])
    # Half way: held-out rows are few, and left-out rows in single networks are worse off than in the whole model.
    factor = math.sqrt(_factor(held_out, squares, log_variance) * _factor(every, every_square, every_log_variance))
    model.noise.set_variance(noise_variance * ratio * factor)
    model.set_output_scale(model.output_scale * factor)
    standardized = np.sqrt(squares * np.exp(-log_variance) / factor)
    every_standardized = np.sqrt(every_square * np.exp(-every_log_variance) / factor)
    shape = GAUSSIAN
    if heavy_tails:
        samples = [(standardized, held_out.mean), (every_standardized, every.mean)]
        shape = choose_error_shape(samples, held_out.total)
    return {
        "noise_ratio": ratio,
        "variance_factor": factor,
        "degrees_of_freedom": shape.degrees_of_freedom,
        "validation_nlpd": _density(held_out, squares, log_variance, factor, shape),
        "calibration_nlpd": _density(every, every_square, every_log_variance, factor, shape),
        "conformal": conformal_record(standardized, "validation rows"),
    }


def _factor(rows: Table, squares: Array, log_variance: Array) -> float:
    return max(rows.mean(squares * np.exp(-log_variance)), 1e-12)


def _density(rows: Table, squares: Array, log_variance: Array, factor: float, shape: ErrorShape) -> float:
    """The mean negative log density."""
    standardized = torch.from_numpy(np.sqrt(squares * np.exp(-log_variance) / factor))
    return rows.mean(0.5 * (math.log(factor) + log_variance) - shape.log_density(standardized).numpy())


def _gain(whole: Array, single: Array) -> float:
    """How much smaller squared standardised residuals of the whole model are than those of single networks.

    For typical rows, by geometric means, and for bad ones, by the 99 % quantile, whichever is less: averaging takes
    more off the errors of networks that disagree than off those of rows that nothing could foresee.
    """
    typical = float(np.exp(np.mean(np.log(np.maximum(whole, 1e-20))) - np.mean(np.log(np.maximum(single, 1e-20)))))
    bad = float(np.quantile(whole, 0.99) / max(float(np.quantile(single, 0.99)), 1e-20))
    return min(typical, bad, 1.0)
