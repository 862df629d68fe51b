"""``Standardizer`` and ``Moments``: standardisation of columns in float64, from all rows at once or chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from ..errors import DataError

_Array = npt.NDArray[np.float64]
# Values beyond this quantile, at either end, are moved to it before a column is measured.
_WINSORIZED = 0.005
# Wild values are those that make a deviation larger by this factor; among fewer rows none are told from the others.
_WILD, _FEWEST_TO_WINSORIZE = 10.0, 20
# A column with a smaller range, relative to its magnitude, differs from a constant by rounding.
_ROUNDING_RANGE = 1e-9
# Squares of larger values, and of smaller differences, are no numbers in floating point.
_LARGEST = 1e150
# From the origin of a logarithmic scale, in units.
_FARTHEST = 1e15


def check_magnitude(smallest: ArrayLike, largest: ArrayLike, label: str) -> None:
    """Refuse columns with these extremes whose variance would be no number; ``{}`` in the label is the column's number.

    Example:
        >>> check_magnitude([0.0, -1e200], [1.0, 1e200], "Column {}")
        Traceback (most recent call last):
        ...
        finitegp.errors.DataError: Column 1 has values of the size 1e+200, whose squares are no numbers in floating
        point: divide them by a power of ten first.
    """
    low, high = (np.atleast_1d(np.asarray(values, dtype=np.float64)) for values in (smallest, largest))
    size = np.maximum(np.abs(low), np.abs(high))
    with np.errstate(over="ignore"):
        spread = high - low
    # Rounding moves a constant column of any size by a little.
    varies = spread > np.finfo(np.float64).eps * size
    wrong = np.flatnonzero((size > _LARGEST) | (varies & (spread < 1.0 / _LARGEST)))
    if len(wrong):
        first = int(wrong[0])
        large = size[first] > _LARGEST
        what = f"values of the size {size[first]:.0e}" if large else f"differences of the size {spread[first]:.0e}"
        raise DataError(
            f"{label.replace('{}', str(first))} has {what}, whose squares are no numbers in floating point: "
            "divide them by a power of ten first."
        )


class LogScales(NamedTuple):
    r"""Columns on a logarithmic scale, :math:`\operatorname{asinh}((x - origin)/unit)`.

    Attributes:
        columns: ``(k,)`` which ones.
        origin: ``(k,)`` where the scale of each begins.
        unit: ``(k,)`` up to which distance from there it is nearly linear.
    """

    columns: npt.NDArray[np.int64]
    origin: _Array
    unit: _Array

    def added_to(self, inputs: _Array) -> _Array:
        """The columns as they are, followed by those on their scale."""
        away = (inputs[..., self.columns] - self.origin) / self.unit
        return np.concatenate([inputs, np.arcsinh(np.clip(away, -_FARTHEST, _FARTHEST))], axis=-1)


@dataclass(frozen=True, eq=False)
class Standardizer:
    r"""Subtracts each column's mean and divides by its standard deviation.

    Columns that do not vary are only centred. Nothing is added to the scale: columns of scale 1e-6 come out at
    scale one like all others. Some columns may come out a second time at the end, on a logarithmic scale.

    Attributes:
        mean: ``(columns,)``, and those on a logarithmic scale.
        scale: Of the same columns, one for constant columns.
        logarithms: Those scales, or None.
        limits: Of targets, the smallest and the largest, or None: what is farther out is moved there.

    Example:
        >>> scaler = Standardizer.fit(np.array([[1.0, 5.0], [3.0, 5.0]]))
        >>> scaler.transform([[1.0, 5.0], [3.0, 6.0]]).tolist()
        [[-1.0, 0.0], [1.0, 1.0]]
    """

    mean: _Array
    scale: _Array
    logarithms: LogScales | None = None
    limits: tuple[float, float] | None = None

    @property
    def num_columns(self) -> int:
        """How many columns there are before the scaling."""
        return len(self.mean) - (0 if self.logarithms is None else len(self.logarithms.unit))

    @classmethod
    def fit(cls, values: ArrayLike, counts: ArrayLike | None = None, *, label: str = "Column {}") -> Standardizer:
        """The mean and standard deviation of each column of ``(rows, columns)`` or ``(rows,)`` values.

        Each row stands for ``counts`` ``(rows,)`` equal rows; None means one. Errors name the column by ``label``.
        """
        array = np.asarray(values, dtype=np.float64)
        if array.size == 0:
            raise DataError("There are no rows to standardise.")
        check_magnitude(array.min(axis=0), array.max(axis=0), label)
        weights = None if counts is None else np.asarray(counts, dtype=np.float64)
        mean = np.average(array, axis=0, weights=weights)
        scale = np.sqrt(np.average(np.square(array - mean), axis=0, weights=weights))
        # A constant column has a standard deviation of rounding errors, not always of exactly zero.
        constant = array.max(axis=0) == array.min(axis=0)
        return cls(mean=mean, scale=np.where(constant | (scale == 0.0), 1.0, scale))

    def transform(self, values: ArrayLike) -> _Array:
        """Standardised values, float64, row by row in memory: products of columns round otherwise."""
        try:
            array = np.asarray(values, dtype=np.float64, order="C")
        except (TypeError, ValueError):
            raise DataError("inputs and targets must be numbers, but hold something else.") from None
        if np.ndim(self.mean) == 1 and array.shape[-1:] != (self.num_columns,):
            raise DataError(f"inputs must be (rows, {self.num_columns}), but have shape {array.shape}.")
        wide = array if self.logarithms is None else self.logarithms.added_to(array)
        wide = wide if self.limits is None else np.clip(wide, *self.limits)
        result: _Array = (wide - self.mean) / self.scale
        return result

    def inverse(self, values: ArrayLike) -> _Array:
        """The values in their original units."""
        result: _Array = np.asarray(values, dtype=np.float64) * self.scale + self.mean
        return result


def winsorized_standardizer(inputs: ArrayLike, counts: ArrayLike | None = None) -> Standardizer:
    """Standardises columns by mean and standard deviation that a few wild values cannot move.

    Both are those of the column with its values beyond the 0.5 % and 99.5 % quantiles moved to these. A column whose
    range is less than 1e-9 of its magnitude varies by rounding only: it is constant.

    Args:
        inputs: ``(rows, columns)``.
        counts: ``(rows,)`` how many equal rows each row stands for; None means one.

    Example:
        >>> column = np.append(np.linspace(-1.0, 1.0, 999), 1e9)[:, None]
        >>> scaler = winsorized_standardizer(column)
        >>> bool(abs(scaler.scale - 0.578) < 0.005)
        True
    """
    array = np.asarray(inputs, dtype=np.float64)
    if array.ndim != 2 or len(array) == 0:
        raise DataError(f"inputs must be (rows, columns) with at least one row, but have shape {array.shape}.")
    # One by one: quantiles and squares take several copies of what they are taken of.
    weights = None if counts is None else np.asarray(counts, dtype=np.float64)
    columns = [_winsorized_column(column, weights) for column in array.T]
    mean, scale = np.array(columns).T
    return Standardizer(mean=mean, scale=scale)


def without_wild_values(scaler: Standardizer, inputs: ArrayLike, counts: ArrayLike | None = None) -> Standardizer:
    """The scaler of these rows, where a few wild values would set the unit of a column by that of the others.

    A mistyped value a thousand times too large leaves no room for the other rows. Where the deviation is more than
    tenfold that without the outermost half per cent of values on each side (at least one), that is taken instead.

    Example:
        >>> column = np.append(np.linspace(-1.0, 1.0, 99), 1e6)[:, None]
        >>> scaler = without_wild_values(Standardizer.fit(column), column)
        >>> bool(abs(scaler.scale - 0.578) < 0.02), bool(abs(scaler.mean) < 0.02)
        (True, True)
    """
    array = np.asarray(inputs, dtype=np.float64)
    few = max(1, int(_WINSORIZED * len(array)))
    if len(array) < _FEWEST_TO_WINSORIZE:
        return scaler
    mean, scale = np.array(scaler.mean), np.array(scaler.scale)
    ends = np.partition(array, (few, len(array) - 1 - few), axis=0)[[few, len(array) - 1 - few]]
    moved = Standardizer.fit(np.clip(array, *ends), counts)
    wild = (ends[0] < ends[1]) & (scale > _WILD * moved.scale)
    mean[wild], scale[wild] = moved.mean[wild], moved.scale[wild]
    return replace(scaler, mean=mean, scale=scale)


def _winsorized_column(column: _Array, counts: _Array | None) -> tuple[float, float]:
    smallest, largest = float(column.min()), float(column.max())
    if largest - smallest <= _ROUNDING_RANGE * max(abs(smallest), abs(largest)):
        return float(np.average(column, weights=counts)), 1.0
    low, high = _quantiles(column, counts)
    # A column that is nearly always the same value keeps what little it has.
    found = Standardizer.fit(column if low == high else np.clip(column, low, high), counts)
    return float(found.mean), float(found.scale)


def _quantiles(column: _Array, counts: ArrayLike | None) -> tuple[float, float]:
    levels = _WINSORIZED, 1.0 - _WINSORIZED
    if counts is None:
        low, high = np.quantile(column, levels)
        return low, high
    order = np.argsort(column)
    share = np.cumsum(np.asarray(counts, dtype=np.float64)[order])
    low, high = (column[order[min(int((share < level * share[-1]).sum()), len(column) - 1)]] for level in levels)
    return low, high


def without_constant_columns(scaler: Standardizer, inputs: _Array) -> Standardizer:
    """The scaler with infinite scales for columns that do not vary: what new rows have there counts for nothing.

    Nobody can know what such a column does.
    """
    low, high = inputs.min(axis=0), inputs.max(axis=0)
    spread, size = high - low, np.maximum(np.abs(low), np.abs(high))
    return Standardizer(scaler.mean, np.where(spread <= _ROUNDING_RANGE * size, np.inf, scaler.scale))


@dataclass(frozen=True, eq=False)
class Moments:
    r"""Row count, mean, sum of squared deviations, smallest and largest value of each column, in float64: they add.

    The sum of two is the moments of both sets of rows (Chan, Golub and LeVeque, 1979):

    .. math:: m = m_1 + \delta\,\tfrac{n_2}{n}, \qquad S = S_1 + S_2 + \delta^2\,\tfrac{n_1 n_2}{n}, \qquad
        \delta = m_2 - m_1,

    which does not cancel where the mean is large against the spread, as the difference of :math:`\sum x^2` and
    :math:`n m^2` does.

    Attributes:
        count: Rows; or the sum of their counts, where rows stand for several equal rows.
        mean: ``(columns,)``.
        squared_deviations: ``(columns,)``.
        smallest: ``(columns,)``.
        largest: ``(columns,)``.

    Example:
        >>> parts = [np.array([[1.0], [2.0]]), np.array([[6.0]])]
        >>> total = sum(Moments.of(part) for part in parts)
        >>> total.count, total.mean.tolist(), total.variance.round(6).tolist()
        (3, [3.0], [4.666667])
    """

    count: float
    mean: _Array
    squared_deviations: _Array
    smallest: _Array
    largest: _Array

    @classmethod
    def of(cls, values: ArrayLike, counts: ArrayLike | None = None) -> Moments:
        """The moments of the columns of one chunk, ``(rows, columns)`` with at least one row.

        Each row stands for ``counts`` ``(rows,)`` equal rows; None means one.
        """
        array = np.asarray(values, dtype=np.float64)
        if array.ndim != 2 or len(array) == 0:
            raise DataError(f"values must be (rows, columns) with at least one row, but have shape {array.shape}.")
        smallest, largest = array.min(axis=0), array.max(axis=0)
        if counts is None:
            mean = array.mean(axis=0)
            deviations = array - mean
            return cls(len(array), mean, np.einsum("rc,rc->c", deviations, deviations), smallest, largest)
        times = np.asarray(counts, dtype=np.float64)
        if times.shape != (len(array),):
            raise DataError(f"counts must be one number per row ({len(array)},), but have shape {times.shape}.")
        total = float(times.sum())
        mean = times @ array / total
        deviations = array - mean
        return cls(total, mean, np.einsum("r,rc,rc->c", times, deviations, deviations), smallest, largest)

    def __add__(self, other: Moments) -> Moments:
        if not isinstance(other, Moments):
            return NotImplemented
        if self.mean.shape != other.mean.shape:
            raise DataError(
                f"Moments of {len(self.mean)} columns cannot be added to moments of {len(other.mean)} columns."
            )
        count = self.count + other.count
        difference = other.mean - self.mean
        return Moments(
            count,
            self.mean + difference * (other.count / count),
            self.squared_deviations
            + other.squared_deviations
            + np.square(difference) * (self.count * (other.count / count)),
            np.minimum(self.smallest, other.smallest),
            np.maximum(self.largest, other.largest),
        )

    def __radd__(self, other: object) -> Moments:
        # `sum` starts from the integer 0.
        return self if isinstance(other, int) and other == 0 else NotImplemented

    @property
    def variance(self) -> _Array:
        """The mean squared deviation of each column."""
        return self.squared_deviations / self.count

    @property
    def mean_square(self) -> _Array:
        """The mean of the squares of each column."""
        with np.errstate(over="ignore"):  # who needs it checks the magnitude
            result: _Array = self.variance + np.square(self.mean)
        return result

    def standardizer(self) -> Standardizer:
        """The result of :meth:`Standardizer.fit` on all rows at once, to rounding."""
        check_magnitude(self.smallest, self.largest, "Column {}")
        scale = np.sqrt(self.variance)
        constant = (self.smallest == self.largest) | (scale == 0.0)
        return Standardizer(mean=self.mean.copy(), scale=np.where(constant, 1.0, scale))


def fit_target_scaler(
    targets: _Array,
    counts: _Array | None = None,
    *,
    center: bool = True,
    limits: tuple[float, float] | None = None,
) -> Standardizer:
    """Standardises targets, moved within limits, or divides them by their root mean square for a prior mean of zero."""
    inside = targets if limits is None else np.clip(targets, *limits)
    standardizer = Standardizer.fit(inside, counts, label="The target")
    if center:
        return replace(standardizer, limits=limits)
    scale = np.sqrt(np.average(np.square(inside), weights=counts))
    return Standardizer(mean=np.zeros(()), scale=np.where(scale > 0.0, scale, 1.0), limits=limits)
