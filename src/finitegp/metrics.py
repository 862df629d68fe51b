"""How good predictive distributions are: error, density, calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from .arguments import check_arguments
from .errors import DataError
from .predictive import Prediction, StudentMixture

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """Scores of predictive distributions on observed targets; lower is better for errors, NLPD and CRPS.

    Attributes:
        name: Of the model.
        rmse: Root mean squared error.
        mae: Mean absolute error.
        r_squared: Share of the variance of the targets that is explained; None if they do not vary.
        nlpd: Mean negative log predictive density, in nats.
        crps: Mean continuous ranked probability score, in the target's units.
        coverage: For each asked-for interval, the share of targets inside.
        largest_standardized_residual: The largest ``|target - mean| / std``: a collapsed variance shows here.
        rmse_error: Standard error of ``rmse`` from the sampling of the rows.
        mae_error: Standard error of ``mae``.
        nlpd_error: Standard error of ``nlpd``.
    """

    name: str
    rmse: float
    mae: float
    r_squared: float | None
    nlpd: float
    crps: float
    coverage: dict[float, float]
    largest_standardized_residual: float
    rmse_error: float
    mae_error: float
    nlpd_error: float

    def to_dict(self) -> dict[str, object]:
        """The scores as JSON values; the intervals become text such as ``"0.9"``."""
        return asdict(self) | {"coverage": {f"{level:g}": share for level, share in self.coverage.items()}}


@check_arguments
def score(
    mean: ArrayLike,
    std: ArrayLike,
    targets: ArrayLike,
    coverages: Sequence[float] = (0.5, 0.9, 0.95),
    *,
    mixture: StudentMixture | None = None,
    name: str = "this model",
) -> Scores:
    """Score predictions with these means and standard deviations: three tensors or arrays of shape ``(rows,)``.

    They are Gaussian unless a ``mixture`` is given; that of an automatic fit is in its predictions.

    Example:
        >>> found = score([0.0] * 4, [1.0] * 4, [-1.0, 1.0, -1.0, 1.0])
        >>> found.rmse, found.mae, found.r_squared, found.coverage[0.9]
        (1.0, 1.0, 0.0, 1.0)
        >>> round(found.nlpd, 4), round(found.crps, 4)
        (1.4189, 0.6024)
    """
    mean, std, targets = (_column(values) for values in (mean, std, targets))
    if not (mean.shape == std.shape == targets.shape and mean.ndim == 1 and len(mean)):
        raise DataError(
            "mean, std and targets must be one number per row each, but have shapes "
            f"{tuple(mean.shape)}, {tuple(std.shape)}, {tuple(targets.shape)}."
        )
    for what, values, good in (
        ("mean must be finite", mean, torch.isfinite(mean)),
        ("std must be positive and finite", std, (std > 0) & torch.isfinite(std)),
        ("targets must be finite", targets, torch.isfinite(targets)),
    ):
        if not bool(good.all()):
            row = int((~good).nonzero()[0])
            raise DataError(f"{what}, but row {row} is {float(values[row])}.")
    prediction = Prediction(mean, std.square(), torch.zeros_like(std), mixture=mixture)
    central = (2.0 * prediction.cumulative(targets) - 1.0).abs()  # the smallest central interval that holds the target
    return score_rows(
        name,
        mean.numpy(),
        std.numpy(),
        targets.numpy(),
        density=prediction.log_density(targets).numpy(),
        crps=prediction.crps(targets).numpy(),
        inside={level: (central <= level).numpy() for level in coverages},
    )


def score_rows(
    name: str,
    mean: Array,
    std: Array,
    targets: Array,
    *,
    density: Array,
    crps: Array,
    inside: Mapping[float, npt.NDArray[np.bool_]],
) -> Scores:
    """The scores of rows by their predictions, log densities, CRPS and, for each interval, which are inside."""
    sizes = np.abs(targets - mean)
    # By powers of two, which change no digit: squares of very large or small errors are no numbers.
    (few, power), (spread, spread_power) = _near_one(sizes), _near_one(targets)
    squares, variance = np.square(few), float(spread.var())
    root = math.sqrt(float(squares.mean()))
    ratio = math.ldexp(float(squares.mean()) / variance, 2 * (power - spread_power)) if variance > 0.0 else None
    standardized = np.divide(sizes, std, out=np.zeros_like(sizes), where=sizes > 0.0)
    return Scores(
        name=name,
        rmse=math.ldexp(root, power),
        mae=float(sizes.mean()),
        r_squared=None if ratio is None else 1.0 - ratio,
        nlpd=-float(density.mean()),
        crps=float(crps.mean()),
        coverage={level: float(each.mean()) for level, each in inside.items()},
        largest_standardized_residual=float(standardized.max()),
        rmse_error=math.ldexp(_standard_error(squares) / (2.0 * root), power) if root > 0.0 else 0.0,
        mae_error=math.ldexp(_standard_error(few), power),
        nlpd_error=_standard_error(density),
    )


def _column(values: ArrayLike) -> Tensor:
    # In one piece of memory: the order of a sum, and so its rounding, does not depend on where the values come from.
    try:
        return torch.as_tensor(values).detach().double().cpu().contiguous()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"mean, std and targets must be one number per row each: {error}") from None


def _near_one(values: Array) -> tuple[Array, int]:
    """Values divided by a power of two, so that the largest is near one, and its exponent."""
    power = int(np.frexp(np.abs(values).max())[1])
    return np.ldexp(values, -power), power


def _standard_error(values: Array) -> float:
    # A density of zero has no spread.
    return float(values.std()) / math.sqrt(len(values)) if np.isfinite(values).all() else math.inf
