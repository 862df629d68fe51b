"""Do a few errors stand out? Rows that nothing was trained on choose the shape of the predictive distribution."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..error_shape import GAUSSIAN, ErrorShape
from ..errors import ModelFileError
from .table import Array

# Fewer would leave hardly anything of the variance to the rows in the middle.
_FEWEST_DEGREES = 2.05
_MOST_DEGREES = 200.0


def choose_error_shape(samples: Sequence[tuple[Array, Callable[[Array], float]]], rows: float) -> ErrorShape:
    """The degrees of freedom with the best density of standardised errors, or the Gaussian if hardly worse.

    The standard deviations stay what they are; so do means, and scores that only know these. What changes is how much
    of the variance is said to come from rare large errors.

    Args:
        samples: Standardised errors, with how a sample's values are averaged; each sample counts the same.
        rows: How many rows speak. One more parameter has to gain more than half their logarithm, in nats in all.

    Example:
        >>> errors = np.random.default_rng(0).standard_t(3.0, size=2000) / np.sqrt(3.0)
        >>> shape = choose_error_shape([(errors, lambda values: float(values.mean()))], 2000)
        >>> 2.5 < shape.degrees_of_freedom < 4.0
        True
    """
    from scipy.optimize import minimize_scalar

    errors = [(torch.from_numpy(np.asarray(values, dtype=np.float64)), mean) for values, mean in samples]

    def loss(shape: ErrorShape) -> float:
        return sum(-mean(shape.log_density(values).numpy()) for values, mean in errors) / len(errors)

    def shape(log_excess: float) -> ErrorShape:
        return ErrorShape(2.0 + math.exp(log_excess))

    bounds = math.log(_FEWEST_DEGREES - 2.0), math.log(_MOST_DEGREES - 2.0)
    found = minimize_scalar(lambda value: loss(shape(float(value))), bounds=bounds, method="bounded")
    best = shape(float(found.x))
    return best if loss(best) < loss(GAUSSIAN) - 0.5 * math.log(max(rows, 2.0)) / rows else GAUSSIAN


def error_shape_of(record: Mapping[str, Any]) -> ErrorShape:
    """The shape that a record of a fit holds; the Gaussian if it holds none."""
    try:
        return ErrorShape(record.get("degrees_of_freedom"))
    except (TypeError, ValueError) as error:
        raise ModelFileError(f"The shape of the error bars makes no sense: {error}") from None
