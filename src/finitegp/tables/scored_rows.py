"""Scores of predictive distributions that are known by their quantiles and densities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..lite.target_scale import COVERAGES, NODE_WEIGHTS
from ..metrics import Scores, score_rows

Array = npt.NDArray[np.float64]
SCORED_COVERAGES = (0.5, 0.9, 0.95)


def quantile_crps(lower: Array, upper: Array, targets: Array) -> Array:
    """The continuous ranked probability score of each row: twice the mean pinball loss over all quantiles."""
    levels, weights = 0.5 + 0.5 * np.array(COVERAGES), np.array(NODE_WEIGHTS)
    above, below = targets[:, None] - upper, targets[:, None] - lower
    losses = np.maximum(levels * above, (levels - 1.0) * above) + np.maximum((1.0 - levels) * below, -levels * below)
    result: Array = 2.0 * losses @ weights
    return result


class ScoredRows(NamedTuple):
    """Predictions for rows whose targets are known.

    Attributes:
        mean: ``(rows,)``.
        std: Standard deviations.
        log_density: Of the observed targets.
        lower: Ends of intervals at ``(*COVERAGES, *SCORED_COVERAGES)``, ``(rows, coverages)``.
        upper: The other ends.
        targets: What was observed.
    """

    mean: Array
    std: Array
    log_density: Array
    lower: Array
    upper: Array
    targets: Array

    @classmethod
    def joined(cls, parts: Sequence[ScoredRows]) -> ScoredRows:
        """The rows of several, such as those of folds, one after the other."""
        return cls(*(np.concatenate(each) for each in zip(*parts, strict=True)))

    @property
    def width(self) -> float:
        """The median width of the 90 % intervals."""
        place = len(COVERAGES) + SCORED_COVERAGES.index(0.9)
        return float(np.median(self.upper[:, place] - self.lower[:, place]))

    def scores(self, name: str = "this model") -> Scores:
        """The scores."""
        count = len(COVERAGES)
        inside = (self.lower <= self.targets[:, None]) & (self.targets[:, None] <= self.upper)
        return score_rows(
            name,
            self.mean,
            self.std,
            self.targets,
            density=self.log_density,
            crps=quantile_crps(self.lower[:, :count], self.upper[:, :count], self.targets),
            inside=dict(zip(SCORED_COVERAGES, inside[:, count:].T, strict=True)),
        )
