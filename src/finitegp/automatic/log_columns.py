"""Columns on a logarithmic scale: which have tails so heavy that one may fit better, and whether it does."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..data.scaling import Standardizer, log_scale, winsorized_standardizer
from ..kernel_gp import KernelGP, KernelRows
from ..processes import one_blas_thread
from .kernels import FORMS, LINEAR
from .table import Array

# A column is heavy-tailed if one value of two hundred lies farther from the median than this, in deviations that a
# normal distribution with the same 5 % and 95 % quantiles would have (of which 2.8 is exceeded by as many); and
# one-sided if one of these quantiles is three times as far as the other.
_FAR, _RARE, _ONE_SIDED, _QUANTILES = 3.0, 0.995, 3.0, 3.29
# Rows that the evidence is computed of, and steps of its search.
LOOKED_AT, _FEWEST, _STEPS = 300, 20, 40
#: The nats that it must gain for kernels, and for networks, which can bend a column themselves.
GAIN_OF_KERNELS, GAIN_OF_NETWORKS = 3.0, 30.0
# With more columns than these all have one length scale; more heavy-tailed ones are not tried one by one.
_MOST_COLUMNS, _MOST_ALONE = 40, 20
# Steps of the search where one column changes, and the nats that it must gain.
_FEW_STEPS, _GAIN_ALONE = 8, 0.5
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

    def changed(self, inputs: Array) -> Array:
        """A copy with the columns on their scale."""
        copy: Array = inputs.copy()
        self.change(copy)
        return copy

    def only(self, columns: list[int]) -> LogColumns:
        """Of these columns alone."""
        units = np.zeros_like(self.unit)
        units[columns] = self.unit[columns]
        return LogColumns(self.origin, units)

    def scaler(self, changed: Standardizer) -> Standardizer:
        """Of the columns as they were, given the standardiser of the changed ones."""
        return Standardizer(changed.mean, changed.scale, self.origin, self.unit)


def choose_log_columns(
    inputs: Array, targets: Array, *, gain: float = GAIN_OF_KERNELS, seed: int = 0
) -> LogColumns | None:
    """Logarithmic scales of heavy-tailed columns, if these raise the evidence of a kernel GP or of a line.

    Sizes, amounts, populations and concentrations often act by their ratios. Evidences of the same targets can be
    compared whatever the inputs are; a few hundred rows tell. Tried are all of the columns, and those that gain alone.

    Args:
        inputs: ``(rows, columns)``.
        targets: ``(rows,)``.
        gain: The nats that the evidence must gain.
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
    scaled = winsorized_standardizer(targets[:, None]).transform(targets[some, None])[:, 0]
    scaled = np.clip(scaled, -_FARTHEST_TARGET, _FARTHEST_TARGET)  # a wild target is no reason
    with one_blas_thread():
        plain = _Looked(inputs[some], scaled)
        tried = {_Looked(found.changed(inputs[some]), scaled).loss: found}
        heavy = np.flatnonzero(found.unit > 0.0).tolist()
        if 1 < len(heavy) <= _MOST_ALONE:
            alone = [_Looked(found.only([column]).changed(inputs[some]), scaled, plain) for column in heavy]
            gained = [column for column, each in zip(heavy, alone, strict=True) if each.loss < plain.loss - _GAIN_ALONE]
            if 0 < len(gained) < len(heavy):
                few = found.only(gained)
                tried[_Looked(few.changed(inputs[some]), scaled).loss] = few
    best = min(tried)
    return tried[best] if best < plain.loss - gain else None


def _heavy_tailed(inputs: Array) -> LogColumns | None:
    origins, units = np.zeros((2, inputs.shape[1]))
    for number, column in enumerate(inputs.T):
        low, middle, high = np.quantile(column, [0.05, 0.5, 0.95])
        spread = (high - low) / _QUANTILES
        if not spread > 0.0 or np.quantile(np.abs(column - middle), _RARE) <= _FAR * spread:
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


class _Looked:
    """A line and a kernel on a few rows, and the lowest negative log evidence of both, with priors.

    Given those of other columns, only the better one of them is looked for, from where it was.
    """

    def __init__(self, inputs: Array, targets: Array, other: _Looked | None = None) -> None:
        scaled = Standardizer.fit(inputs).transform(inputs)
        rows = KernelRows.of(scaled[:, np.ptp(scaled, axis=0) > 0.0], targets)
        columns = rows.inputs.shape[1]
        names = (LINEAR, "matern32 per column" if columns <= _MOST_COLUMNS else "matern52")
        if other is None:
            fits = {name: KernelGP(FORMS[name], rows).fit(FORMS[name].start(columns), steps=_STEPS) for name in names}
            self.name = min(fits, key=lambda name: fits[name][1])
            self.parameters, self.loss = fits[self.name]
        else:
            self.name = other.name
            gp = KernelGP(FORMS[self.name], rows)
            self.parameters, self.loss = gp.fit(other.parameters, steps=_FEW_STEPS)
