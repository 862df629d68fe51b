"""Whether error bars keep what they promise: PIT histogram, coverage of intervals, error against predicted spread."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .contents import Calibration

Array = npt.NDArray[np.float64]
_NOMINAL = np.append(np.arange(1, 20) / 20.0, 0.99)


def measure_calibration(mean: Array, std: Array, targets: Array) -> Calibration:
    """Compare predictions ``N(mean, std^2)`` with what was observed.

    The bands say where a calibrated model would lie with 95 % probability, each point by itself: counts are binomial,
    and the sum of squared standardized errors of a group is chi-squared.

    Example:
        >>> targets = np.random.default_rng(0).normal(size=1000)
        >>> found = measure_calibration(np.zeros(1000), np.ones(1000), targets)
        >>> int(found.bin_counts.sum()), bool(abs(found.observed[9] - 0.5) < 0.05)
        (1000, True)
    """
    from scipy.special import ndtr
    from scipy.stats import binom, chi2

    rows = len(targets)
    standardized = (targets - mean) / std
    transform = ndtr(standardized)
    bins = 20 if rows >= 1000 else 10 if rows >= 100 else 5
    counts, edges = np.histogram(transform, bins=bins, range=(0.0, 1.0))
    central = np.abs(2.0 * transform - 1.0)  # the smallest central interval that holds the target
    groups = np.array_split(np.argsort(std, kind="stable"), min(10, max(1, rows // 7)))
    sizes = np.array([len(group) for group in groups])
    predicted = np.array([np.sqrt(np.mean(std[group] ** 2)) for group in groups])
    observed_spread = np.array([np.sqrt(np.mean((targets[group] - mean[group]) ** 2)) for group in groups])
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
        # Rows of a group have nearly the same spread, so the sum of their squares is nearly chi-squared.
        spread_low=predicted * np.sqrt(chi2.ppf(0.025, sizes) / sizes),
        spread_high=predicted * np.sqrt(chi2.ppf(0.975, sizes) / sizes),
        spread_rows=sizes,
    )
