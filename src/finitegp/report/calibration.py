"""Whether error bars keep what they promise: PIT histogram, coverage of intervals, error against predicted spread."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import torch

from ..error_shape import GAUSSIAN, ErrorShape
from .contents import Calibration

Array = npt.NDArray[np.float64]
# Enough for two digits of the ends of a band.
_SIMULATIONS = 1000
_NOMINAL = np.append(np.arange(1, 20) / 20.0, 0.99)


def measure_calibration(mean: Array, std: Array, targets: Array, error_shape: ErrorShape = GAUSSIAN) -> Calibration:
    """Compare predictive distributions with what was observed.

    The bands say where a calibrated model would lie with 95 % probability, each point by itself: counts are binomial,
    and the sum of squared standardized errors of a group is chi-squared if they are Gaussian, or else simulated.

    Example:
        >>> targets = np.random.default_rng(0).normal(size=1000)
        >>> found = measure_calibration(np.zeros(1000), np.ones(1000), targets)
        >>> int(found.bin_counts.sum()), bool(abs(found.observed[9] - 0.5) < 0.05)
        (1000, True)
    """
    from scipy.stats import binom

    rows = len(targets)
    standardized = (targets - mean) / std
    transform = error_shape.cumulative(torch.from_numpy(standardized)).numpy()
    bins = 20 if rows >= 1000 else 10 if rows >= 100 else 5
    counts, edges = np.histogram(transform, bins=bins, range=(0.0, 1.0))
    central = np.abs(2.0 * transform - 1.0)  # the smallest central interval that holds the target
    groups = np.array_split(np.argsort(std, kind="stable"), min(10, max(1, rows // 7)))
    sizes = np.array([len(group) for group in groups])
    predicted = np.array([np.sqrt(np.mean(std[group] ** 2)) for group in groups])
    observed_spread = np.array([np.sqrt(np.mean((targets[group] - mean[group]) ** 2)) for group in groups])
    # Rows of a group have nearly the same spread.
    low, high = np.array([_spread_band(int(size), error_shape) for size in sizes]).T
    return Calibration(
        bin_edges=edges,
        bin_counts=counts,
        bin_band=(float(binom.ppf(0.025, rows, 1 / bins)), float(binom.ppf(0.975, rows, 1 / bins))),
        nominal=_NOMINAL,
        observed=np.array([np.mean(central <= level) for level in _NOMINAL]),
        nominal_low=binom.ppf(0.025, rows, _NOMINAL) / rows,
        nominal_high=binom.ppf(0.975, rows, _NOMINAL) / rows,
        predicted_spread=predicted,
        observed_spread=observed_spread,
        spread_low=predicted * low,
        spread_high=predicted * high,
        spread_rows=sizes,
    )


@functools.cache
def _spread_band(rows: int, error_shape: ErrorShape) -> tuple[float, float]:
    """Between which values the root mean square of this many standardised errors lies with 95 % probability."""
    if error_shape.is_gaussian:
        from scipy.stats import chi2

        low, high = np.sqrt(chi2.ppf([0.025, 0.975], rows) / rows)
    else:
        random = np.random.RandomState(0)
        means = [np.mean(error_shape.draw(random, rows) ** 2) for _ in range(_SIMULATIONS)]
        low, high = np.sqrt(np.quantile(means, [0.025, 0.975]))
    return float(low), float(high)
