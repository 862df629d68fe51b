"""Conformal intervals: quantiles of the errors on rows that the model had not seen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .errors import ModelFileError
from .predictive import check_coverage

Array = npt.NDArray[np.float64]
# More order statistics than these would make a model's file larger without making an interval better.
_MOST_SCORES = 1000


@dataclass(frozen=True, eq=False)
class ConformalScores:
    r"""Sorted scores of left-out rows: distances of their targets from the prediction, on a scale of its own spread.

    Of ``n`` exchangeable scores, the one with rank :math:`\lceil (n + 1)\,c \rceil` is at least as large as that of a
    new row with probability at least ``c``, whatever the distribution of the errors. That is exact where one model,
    fixed before it saw any of the rows, gives all scores and the interval. After the automatic fit it is approximate:
    each row set aside is judged under what the other half of them chose, each row of a fold by a fit without it, and
    the final model takes in all of them. It holds up to how much these models differ.

    Attributes:
        scores: Sorted, at most a thousand.
        rows: How many rows they come from.
        source: What these rows are.
        in_deviations: Whether scores are distances in standard deviations instead of absolute normal scores.

    Example:
        >>> ConformalScores.of(np.arange(1.0, 100.0), "rows set aside").at(0.9)
        90.0
    """

    scores: Array
    rows: int
    source: str
    in_deviations: bool = False

    @classmethod
    def of(cls, errors: Array, source: str, *, counts: Array | None = None) -> ConformalScores:
        """From normal scores (:meth:`~finitegp.Prediction.normal_scores`) or standardised errors of left-out rows.

        ``counts`` are how many rows each of them stands for; weights that are no whole numbers say nothing of that.
        """
        order = np.argsort(np.abs(errors))
        stands_for = np.ones(len(errors)) if counts is None or bool((counts % 1.0 != 0.0).any()) else counts
        last = np.cumsum(stands_for[order])
        total = int(last[-1]) if len(last) else 0
        ranks = np.arange(1, min(total, _MOST_SCORES) + 1)
        if total > _MOST_SCORES:
            # The k-th of a thousand kept scores has the same rank, rounded up, among all of them.
            ranks = np.minimum(np.ceil(ranks * (total + 1) / (_MOST_SCORES + 1)), total).astype(int)
        return cls(np.abs(errors)[order][np.searchsorted(last, ranks)], total, source)

    def at(self, coverage: float) -> float:
        """The score that a new row does not exceed with at least this probability."""
        count = len(self.scores)
        rank = math.ceil((count + 1) * check_coverage(coverage) - 1e-9)
        if rank > count:
            raise ValueError(
                f"coverage {coverage} cannot be promised by {self.rows} left-out rows: ask for at most "
                f"{count / (count + 1):.3f}, or take the intervals of the predictive distribution."
            )
        return float(self.scores[rank - 1])

    def to_json(self) -> dict[str, object]:
        """The form that :meth:`from_json` takes."""
        return {
            "scores": self.scores.tolist(),
            "rows": self.rows,
            "source": self.source,
            "in_deviations": self.in_deviations,
        }

    @classmethod
    def from_json(cls, stored: object) -> ConformalScores:
        """The scores of a file; in files before version 2 scores are in standard deviations."""
        try:
            if not isinstance(stored, Mapping):
                raise TypeError("they are no object of JSON")
            scores = np.array(stored["scores"], dtype=np.float64)
            if scores.ndim != 1 or len(scores) > _MOST_SCORES or not np.all((scores >= 0.0) & np.isfinite(scores)):
                raise ValueError("they are not distances")
            return cls(
                np.sort(scores), int(stored["rows"]), str(stored["source"]), bool(stored.get("in_deviations", 1))
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ModelFileError(f"The scores for conformal intervals make no sense: {error}") from None
