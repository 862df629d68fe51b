"""Columns on a logarithmic scale: which have tails so heavy that one may fit better, and whether it does."""

from __future__ import annotations

import numpy as np

from ..data.scaling import LogScales, Standardizer, winsorized_standardizer
from ..kernel_gp import KernelGP, KernelRows
from ..processes import one_thread
from .kernels import FORMS, LINEAR
from .table import Array

# A column is heavy-tailed if one value of two hundred lies farther from the median than this, in deviations that a
# normal distribution with the same 5 % and 95 % quantiles would have (of which 2.8 is exceeded by as many); and
# one-sided if one of these quantiles is three times as far as the other.
_FAR, _RARE, _ONE_SIDED, _QUANTILES = 3.0, 0.995, 3.0, 3.29
# Rows that the evidence is computed of, steps of its search, and the nats that it must gain.
_ROWS, _FEWEST, _STEPS, _GAIN = 300, 20, 40, 3.0
# With more columns than these all have one length scale; more heavy-tailed ones are not tried one by one.
_MOST_COLUMNS, _MOST_ALONE = 40, 20
# Steps of the search where one column is added, and the nats that it must gain.
_FEW_STEPS, _GAIN_ALONE = 8, 0.5
_FARTHEST_TARGET = 5.0


def choose_log_columns(inputs: Array, targets: Array, *, seed: int = 0) -> LogScales | None:
    """Logarithmic scales of heavy-tailed columns, if these raise the evidence of a kernel GP or of a line.

    Sizes, amounts, populations and concentrations often act by their ratios. Evidences of the same targets can be
    compared whatever the inputs are; a few hundred rows tell. Tried are all of the columns, and those that gain alone.
    They are added to the columns as they are, which a target that grows with them needs, above all beyond their range.

    Args:
        inputs: ``(rows, columns)``.
        targets: ``(rows,)``.
        seed: Which rows are looked at, if there are many.

    Example:
        >>> random = np.random.default_rng(0)
        >>> sizes = np.exp(2.0 * random.normal(size=(200, 1)))
        >>> noise = 0.1 * random.normal(size=200)
        >>> choose_log_columns(sizes, np.log(sizes[:, 0]) + noise).columns
        array([0])
        >>> choose_log_columns(sizes, sizes[:, 0] + noise) is None
        True
    """
    some = np.random.default_rng(seed).permutation(len(targets))[:_ROWS]
    found = _heavy_tailed(inputs) if len(some) >= _FEWEST else None
    if found is None:
        return None
    scaled = winsorized_standardizer(targets[:, None]).transform(targets[some, None])[:, 0]
    scaled = np.clip(scaled, -_FARTHEST_TARGET, _FARTHEST_TARGET)  # a wild target is no reason
    few = inputs[some]
    with one_thread():
        plain = _Looked(few, scaled)
        tried = {_Looked(found.added_to(few), scaled).loss: found}
        heavy = len(found.columns)
        if 1 < heavy <= _MOST_ALONE:
            alone = [_Looked(_only(found, [number]).added_to(few), scaled, plain) for number in range(heavy)]
            gained = [number for number, each in enumerate(alone) if each.loss < plain.loss - _GAIN_ALONE]
            if 0 < len(gained) < heavy:
                some_scales = _only(found, gained)
                tried[_Looked(some_scales.added_to(few), scaled).loss] = some_scales
    best = min(tried)
    return tried[best] if best < plain.loss - _GAIN else None


def _only(scales: LogScales, numbers: list[int]) -> LogScales:
    return LogScales(scales.columns[numbers], scales.origin[numbers], scales.unit[numbers])


def _heavy_tailed(inputs: Array) -> LogScales | None:
    found = []
    for number, column in enumerate(inputs.T):
        if bool(((column == column.min()) | (column == column.max())).all()):
            continue  # one of two values, of which any scale makes two
        low, middle, high = np.quantile(column, [0.05, 0.5, 0.95])
        spread = (high - low) / _QUANTILES
        if not spread > 0.0 or np.quantile(np.abs(column - middle), _RARE) <= _FAR * spread:
            continue
        below, above = middle - low, high - middle
        place = 1.0 if below > _ONE_SIDED * above else 0.0 if above > _ONE_SIDED * below else 0.5
        origin = _mean_of_three(column, place)
        distances = np.abs(column - origin)
        away = distances[distances > 0.0]
        if len(away) >= 3:  # fewer are a switch, not a size
            found.append((number, origin, _mean_of_three(away, 0.25)))
    if not found:
        return None
    columns, origins, units = zip(*found, strict=True)
    return LogScales(np.array(columns, dtype=np.int64), np.array(origins), np.array(units))


def _mean_of_three(values: Array, quantile: float) -> float:
    """About a quantile of at least three values: no row's value, because a model may be one that holds none."""
    place = min(max(round(quantile * (len(values) - 1)), 1), len(values) - 2)
    return float(np.partition(values, (place - 1, place, place + 1))[place - 1 : place + 2].mean())


class _Looked:
    """A line and a kernel on a few rows, and the lowest negative log evidence of both, with priors.

    Given those of fewer columns, only the better one of them is looked for, from where it was.
    """

    def __init__(self, inputs: Array, targets: Array, other: _Looked | None = None) -> None:
        scaled = Standardizer.fit(inputs).transform(inputs)
        rows = KernelRows.of(scaled[:, np.ptp(scaled, axis=0) > 0.0], targets)
        columns = rows.inputs.shape[1]
        names = (LINEAR, "matern32 per column" if inputs.shape[1] <= _MOST_COLUMNS else "matern52")
        if other is None:
            fits = {name: KernelGP(FORMS[name], rows).fit(FORMS[name].start(columns), steps=_STEPS) for name in names}
            self.name = min(fits, key=lambda name: fits[name][1])
            self.parameters, self.loss = fits[self.name]
            return
        self.name, start = other.name, other.parameters
        missing = len(FORMS[self.name].start(columns)) - len(start)
        start = np.append(start, np.full(missing, start[3:].mean() if missing else 0.0))
        self.parameters, self.loss = KernelGP(FORMS[self.name], rows).fit(start, steps=_FEW_STEPS)
