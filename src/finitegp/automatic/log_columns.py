"""Columns on a logarithmic scale: which have tails so heavy that one may fit better, and whether it does."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..data.scaling import Standardizer, log_scale, winsorized_standardizer
from ..kernel_gp import KernelGP, KernelRows
from ..processes import one_blas_thread
from .kernels import FORMS, LINEAR
from .table import Array

# A column is heavy-tailed if a value lies farther from the median than this, in deviations that a normal distribution
# with the same 5 % and 95 % quantiles would have; and one-sided if one of these is three times as far as the other.
_FAR, _ONE_SIDED, _QUANTILES = 4.5, 3.0, 3.29
# Rows that the evidence is computed of, steps of its search, and the nats that it must gain.
LOOKED_AT, _FEWEST, _STEPS, _GAIN = 300, 20, 40, 3.0
# With more columns than these all have one length scale.
_MOST_COLUMNS = 40
_FARTHEST_TARGET = 5.0


class LogColumns(NamedTuple):
    """Logarithmic scales of some columns.

    Attributes:
        origin: ``(columns,)`` where the scale of a column begins.
        unit: ``(columns,)`` up to which distance it is nearly linear; zero for columns as they are.
    """

    origin: Array
    unit: Array

    def change(self, inputs: Array) -> None:
        """Put the columns on their scale, in place."""
        for column in np.flatnonzero(self.unit > 0.0):
            inputs[:, column] = log_scale(inputs[:, column], self.origin[column], self.unit[column])

    def scaler(self, changed: Standardizer) -> Standardizer:
        """Of the columns as they were, given the standardiser of the changed ones."""
        return Standardizer(changed.mean, changed.scale, self.origin, self.unit)


def choose_log_columns(inputs: Array, targets: Array, *, seed: int = 0) -> LogColumns | None:
    """Logarithmic scales of all heavy-tailed columns, if these raise the evidence of a kernel GP or of a line.

    Sizes, amounts, populations and concentrations often act by their ratios. Evidences of the same targets can be
    compared whatever the inputs are; a few hundred rows tell.

    Args:
        inputs: ``(rows, columns)``.
        targets: ``(rows,)``.
        seed: Which rows are looked at, if there are many.

    Example:
        >>> random = np.random.default_rng(0)
        >>> sizes = np.exp(2.0 * random.normal(size=(200, 1)))
        >>> noise = 0.1 * random.normal(size=200)
        >>> choose_log_columns(sizes, np.log(sizes[:, 0]) + noise).unit > 0.0
        array([ True])
        >>> choose_log_columns(sizes, sizes[:, 0] + noise) is None
        True
    """
    some = np.random.default_rng(seed).permutation(len(targets))[:LOOKED_AT]
    found = _heavy_tailed(inputs)
    if found is None or len(some) < _FEWEST:
        return None
    changed = inputs[some].copy()
    found.change(changed)
    scaled = winsorized_standardizer(targets[:, None]).transform(targets[some, None])[:, 0]
    scaled = np.clip(scaled, -_FARTHEST_TARGET, _FARTHEST_TARGET)  # a wild target is no reason
    with one_blas_thread():
        losses = [_loss(each, scaled) for each in (inputs[some], changed)]
    return found if losses[1] < losses[0] - _GAIN else None


def _heavy_tailed(inputs: Array) -> LogColumns | None:
    origins, units = np.zeros((2, inputs.shape[1]))
    for number, column in enumerate(inputs.T):
        low, middle, high = np.quantile(column, [0.05, 0.5, 0.95])
        spread = (high - low) / _QUANTILES
        if not spread > 0.0 or np.abs(column - middle).max() <= _FAR * spread:
            continue
        below, above = middle - low, high - middle
        origin = middle
        if above > _ONE_SIDED * below:
            origin = column.min()
        elif below > _ONE_SIDED * above:
            origin = column.max()
        distances = np.abs(column - origin)
        origins[number], units[number] = origin, np.quantile(distances[distances > 0.0], 0.25)
    return LogColumns(origins, units) if units.any() else None


def _loss(inputs: Array, targets: Array) -> float:
    """The lowest negative log evidence, with priors, of a line and of a kernel."""
    scaled = Standardizer.fit(inputs).transform(inputs)
    rows = KernelRows.of(scaled[:, np.ptp(scaled, axis=0) > 0.0], targets)
    columns = rows.inputs.shape[1]
    names = (LINEAR, "matern32 per column" if columns <= _MOST_COLUMNS else "matern52")
    return min(KernelGP(FORMS[name], rows).fit(FORMS[name].start(columns), steps=_STEPS)[1] for name in names)
