"""How good predictive distributions are: error, density, calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .error_shape import GAUSSIAN, ErrorShape
from .errors import DataError


@dataclass(frozen=True)
class Scores:
    """Scores of predictive distributions on observed targets; lower is better for the first three.

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


def score(
    mean: Tensor,
    std: Tensor,
    targets: Tensor,
    coverages: Sequence[float] = (0.5, 0.9, 0.95),
    *,
    error_shape: ErrorShape = GAUSSIAN,
) -> Scores:
    """Score predictions with these means and standard deviations, all three of shape ``(rows,)``.

    They are Gaussian unless another ``error_shape`` is given; that of an automatic fit is in its predictions.

    Example:
        >>> import torch
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
    return Scores(
        rmse=float((targets - mean).square().mean().sqrt()),
        nlpd=float((std.log() - error_shape.log_density(standardized)).mean()),
        crps=float((std * error_shape.crps(standardized)).mean()),
        coverage={
            level: float((standardized.abs() <= error_shape.deviations(level)).double().mean()) for level in coverages
        },
        largest_standardized_residual=float(standardized.abs().max()),
    )
