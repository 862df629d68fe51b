"""Predictions of many rows in float32, where these are next to those in float64.

Products of float32 take half of the time. What is rounded is features, noise and deviations of new rows alone: the
posterior and all sums of rows stay float64. What that changes is measured, once for each posterior, on made rows.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .frozen import FrozenGP, FrozenModel
from .posterior import WeightPosterior
from .predictive import Prediction
from .triangles import InverseTriangle

#: The most that means may change, in the smallest standard deviation that a row can have, and the most that standard
#: deviations may, relative to themselves.
TOLERANCE = 1e-3
# What is measured must be smaller by this factor, as rows to come are not the made ones: on six tables the most that
# 6,000 rows changed was 0.5 to 1.2 times what it is on the made ones.
_SAFETY = 4.0
# How many rows are made for each scale, the last of which is the largest input that passes in float32.
_MADE_ROWS, _SCALES = 64, (1.0, 4.0, 100.0)


class SinglePrecisionGP:
    """The predictions of a frozen GP, in float32 as far as that changes them by less than :data:`TOLERANCE`.

    Features, noise and deviations if all of them can be; only noise and deviations where the mean needs float64; else
    nothing. Rows with inputs beyond those that were tried pass in float64.

    Args:
        exact: In float64.
        rounded: Its model in float32.
        posterior: Its posterior.
        least_scale: No row has a smaller noise scale.
        columns: How many inputs there are.
    """

    def __init__(
        self, exact: FrozenGP, rounded: FrozenModel, posterior: WeightPosterior, least_scale: float, columns: int
    ) -> None:
        self._exact = exact
        triangle = InverseTriangle(posterior.factor.lower.numpy())
        forms = [FrozenGP(each, posterior, triangle) for each in (rounded, exact.model.with_noise_of(rounded))]
        rows, least = made_rows(columns), least_scale * posterior.noise_variance
        expected = exact.predict(rows)
        safe = (form for form in forms if change(form.predict(rows), expected, least) < TOLERANCE / _SAFETY)
        self._rounded = next(safe, exact)

    def mean(self, inputs: Tensor) -> Tensor:
        """See :meth:`.FrozenGP.mean`."""
        return self._for(inputs).mean(inputs)

    def predict(self, inputs: Tensor) -> Prediction:
        """See :meth:`.FrozenGP.predict`."""
        return self._for(inputs).predict(inputs)

    def _for(self, inputs: Tensor) -> FrozenGP:
        return self._rounded if float(inputs.abs().max()) <= _SCALES[-1] else self._exact


def made_rows(columns: int) -> Tensor:
    """Standardised rows, near and far, always the same ones."""
    random = np.random.default_rng(0)
    parts = [scale * random.normal(size=(_MADE_ROWS, columns)) for scale in _SCALES]
    return torch.from_numpy(np.clip(np.concatenate(parts), -_SCALES[-1], _SCALES[-1]))


def change(found: Prediction, expected: Prediction, least: float) -> float:
    """The most by which means and deviations differ, if these rows had the smallest noise variance, ``least``.

    Made rows are not like those of a table, where both the noise and what is not known may be far smaller.
    """
    means = (found.mean - expected.mean).abs().max() / np.sqrt(max(least, 1e-300))
    variances = [(found.epistemic_variance + least) / (expected.epistemic_variance + least)]
    variances.append(found.noise_variance / expected.noise_variance)
    return max(float(means), *(float((each.sqrt() - 1.0).abs().max()) for each in variances))
