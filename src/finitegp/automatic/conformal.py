"""Intervals whose coverage is counted on held-out rows instead of taken from the Gaussian."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .table import Array

# More order statistics than these would make a model's file larger without making an interval better.
_MOST_SCORES = 1000


def conformal_record(standardized_residuals: Array, source: str) -> dict[str, Any]:
    """What :func:`conformal_multiplier` needs, as JSON: sorted absolute standardised residuals, at most a thousand.

    Args:
        standardized_residuals: ``(rows,)`` residuals of rows the model did not see, in predicted standard deviations.
        source: Where these rows come from.
    """
    scores = np.sort(np.abs(standardized_residuals))
    if len(scores) > _MOST_SCORES:
        # The k-th of a thousand kept scores has the same rank, rounded up, among all of them.
        ranks = np.ceil(np.arange(1, _MOST_SCORES + 1) * (len(scores) + 1) / (_MOST_SCORES + 1)).astype(int)
        scores = scores[np.minimum(ranks, len(scores)) - 1]
    return {"scores": scores.tolist(), "rows": len(standardized_residuals), "source": source}


def conformal_multiplier(record: Mapping[str, Any], coverage: float) -> float:
    r"""How many predicted standard deviations to each side hold a new observation with this probability.

    Split conformal prediction: of ``n`` exchangeable scores, the one with rank :math:`\lceil (n + 1)\,c \rceil` is at
    least as large as that of a new row with probability at least ``c``, whatever the distribution of the residuals.

    Example:
        >>> record = conformal_record(np.arange(1.0, 100.0), "validation")
        >>> conformal_multiplier(record, 0.9)
        90.0
    """
    if not 0.0 < coverage < 1.0:
        raise ValueError(f"coverage must lie between 0 and 1, but is {coverage}.")
    scores = record["scores"]
    rank = math.ceil((len(scores) + 1) * coverage - 1e-9)
    if rank > len(scores):
        raise ValueError(
            f"coverage {coverage} cannot be promised by {record['rows']} held-out rows: ask for at most "
            f"{len(scores) / (len(scores) + 1):.3f}, or use the Gaussian interval."
        )
    return float(scores[rank - 1])
