"""Whether error bars keep what they promise: PIT histogram, coverage of intervals, error against predicted spread."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .contents import Calibration
from .reported_model import Predicted

Array = npt.NDArray[np.float64]
_NOMINAL = np.append(np.arange(1, 20) / 20.0, 0.99)


def measure_calibration(predicted: Predicted, targets: Array) -> Calibration:
    """Compare predictive distributions with what was observed.

    The bands show where a calibrated model would lie with 95 % probability, each point by itself: counts are binomial,
    and the sum of squared normal scores of a group is chi-squared. The observed spread of a group is its predicted
    spread times the root mean square of its normal scores, so that one row of a heavy tail does not drown the others.

    Example:
        >>> targets = np.random.default_rng(0).normal(size=1000)
        >>> found = measure_calibration(Predicted(np.zeros(1000), np.ones(1000)), targets)
        >>> int(found.bin_counts.sum()), bool(abs(found.observed[9] - 0.5) < 0.05)
        (1000, True)
    """
    from scipy.special import ndtr
    from scipy.stats import binom, chi2

    rows, std = len(targets), predicted.std
    scores = predicted.normal_scores(targets)
    transform = ndtr(scores)
    bins = 20 if rows >= 1000 else 10 if rows >= 100 else 5
    counts, edges = np.histogram(transform, bins=bins, range=(0.0, 1.0))
    central = np.abs(2.0 * transform - 1.0)  # the smallest central interval that holds the target
    groups = np.array_split(np.argsort(std, kind="stable"), min(10, max(1, rows // 7)))
    sizes = np.array([len(group) for group in groups])
    spread = np.array([np.sqrt(np.mean(std[group] ** 2)) for group in groups])
    observed = spread * np.array([np.sqrt(np.mean(scores[group] ** 2)) for group in groups])
    # Rows of a group have nearly the same spread.
    low, high = np.sqrt(chi2.ppf([[0.025], [0.975]], sizes) / sizes)
    return Calibration(
        bin_edges=edges,
        bin_counts=counts,
        bin_band=(float(binom.ppf(0.025, rows, 1 / bins)), float(binom.ppf(0.975, rows, 1 / bins))),
        nominal=_NOMINAL,
        observed=np.array([np.mean(central <= level) for level in _NOMINAL]),
        nominal_low=binom.ppf(0.025, rows, _NOMINAL) / rows,
        nominal_high=binom.ppf(0.975, rows, _NOMINAL) / rows,
        predicted_spread=spread,
        observed_spread=observed,
        spread_low=spread * low,
        spread_high=spread * high,
        spread_rows=sizes,
    )
