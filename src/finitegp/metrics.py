"""How good Gaussian predictions are: error, density, calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from .errors import DataError


@dataclass(frozen=True)
class Scores:
    """Scores of Gaussian predictions on observed targets; lower is better for the first three.

    Attributes:
        rmse: Root mean squared error.
        nlpd: Mean negative log predictive density, in nats.
        crps: Mean continuous ranked probability score, in the target's units.
        coverage: For each asked-for interval, the share of targets inside.
        largest_standardized_residual: The largest ``|target - mean| / std``: a collapsed variance shows here.
    """

    rmse: float
    nlpd: float
    crps: float
    coverage: dict[float, float]
    largest_standardized_residual: float


def score(mean: Tensor, std: Tensor, targets: Tensor, coverages: Sequence[float] = (0.5, 0.9, 0.95)) -> Scores:
    """Score predictions ``N(mean, std^2)``, all three of shape ``(rows,)``.

    Example:
        >>> zero, one = torch.zeros(1), torch.ones(1)
        >>> found = score(zero, one, zero)
        >>> round(found.nlpd, 4), round(found.crps, 4), found.coverage[0.9]
        (0.9189, 0.2337, 1.0)
    """
    mean, std, targets = (values.detach().double().cpu() for values in (mean, std, targets))
    if not (mean.shape == std.shape == targets.shape and mean.ndim == 1 and len(mean)):
        raise DataError(
            "mean, std and targets must be one number per row each, but have shapes "
            f"{tuple(mean.shape)}, {tuple(std.shape)}, {tuple(targets.shape)}."
        )
    if not bool((std > 0).all()):
        raise DataError(f"std must be positive, but row {int((std <= 0).nonzero()[0])} is not.")
    standardized = (targets - mean) / std
    log_density = -0.5 * (standardized.square() + math.log(2.0 * math.pi))
    cumulative = torch.special.ndtr(standardized)
    crps = std * (standardized * (2 * cumulative - 1) + 2 * log_density.exp() - 1 / math.sqrt(math.pi))
    return Scores(
        rmse=float((targets - mean).square().mean().sqrt()),
        nlpd=float((std.log() - log_density).mean()),
        crps=float(crps.mean()),
        coverage={
            level: float((standardized.abs() <= NormalDist().inv_cdf(0.5 + level / 2)).double().mean())
            for level in coverages
        },
        largest_standardized_residual=float(standardized.abs().max()),
    )
