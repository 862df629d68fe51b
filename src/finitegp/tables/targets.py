"""The column that is to be predicted: its numbers, and ``TargetScale``, the scale on which they are modelled."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..data.naming import Locator, check_columns, locator_of, row_label, shortened
from ..errors import DataError
from ..lite.target_scale import SCALES, Scale
from .arrow_values import family, plain
from .columns import MisfitError, NumberColumn
from .rows import TableLike, record_batches
from .sketches import Gaps
from .text_values import (
    DECIMALS,
    DecimalEvidence,
    DistinctTexts,
    NumberReading,
    parse_numbers,
    read_numbers,
    strange_texts,
)

Array = npt.NDArray[np.float64]


def fit_target(
    arrays: Iterable[pa.Array],
    name: str,
    *,
    decimal: str | None = None,
    usual: Callable[[], str | None] | None = None,
    source: Locator | None = None,
    first_row: int = 0,
    weights: bool = False,
) -> NumberColumn:
    """How the numbers of a target are written; anything but numbers and words for a missing one is an error.

    ``usual`` is called where the decimal sign cannot be found, because 1,234 may be a thousand and more or little more
    than one: the sign of other columns, or None if that is not known either. ``source``, ``first_row`` and whether
    these are ``weights`` of rows instead are for error messages.

    Example:
        >>> import pyarrow as pa
        >>> column = fit_target([pa.array(["$1,200.50", "$900", "n/a"])], "price")
        >>> column.unit, column.read(pa.array(["$2,000"])).values.tolist()
        ('$', [2000.0])
    """
    evidence = DecimalEvidence(DECIMALS if decimal is None else (decimal,))
    readings = [*([NumberReading(None)] if decimal is None else []), *evidence.readings]
    strange: tuple[int, str] | None = None
    texts = 0
    for array in map(plain, arrays):
        found = family(array.type)
        if found in ("date", "time"):
            advice = "turn it into a number first, such as the days since a fixed date, in a column of its own."
            raise _unusable(name, f" holds dates or times ({array.type})", advice, weights)
        if found == "other":
            raise _unusable(name, f" has the type {array.type}, but must be numbers", "choose another target.", weights)
        if found == "text":
            chunk = DistinctTexts(array)
            texts += int(chunk.filled.sum())
            if decimal is None:
                readings[0].add(chunk, 0)
            evidence.add(chunk)
            strange = strange or _first_strange(array, first_row, decimal)
        elif found != "empty":
            break  # all chunks are of one type
        first_row += len(array)
    good = [reading for reading in readings if reading.holds and reading.words.unknown == 0]
    if strange is not None and not good:
        problem = f" must be numbers, but {row_label(strange[0], source)} holds {shortened(strange[1])}"
        raise _unusable(name, problem, "correct the value, or choose another target.", weights)
    if not good or not texts:
        return plain_target(name)  # with no number at all, only words for a missing one
    wanted = usual() if len(good) > 1 and usual is not None else None
    chosen = next((reading for reading in good if reading.decimal == wanted == ","), good[0])
    note = evidence.note(name) if evidence.is_open and wanted is None else ""
    return plain_target(name, decimal=chosen.decimal or "", unit=chosen.unit, note=note)


def plain_target(name: str | None, *, decimal: str = "", unit: str = "", note: str = "") -> NumberColumn:
    """A target of numbers, perhaps written in text with this decimal sign and unit, and what the user should know."""
    return NumberColumn(name or "y", "number", "number", False, note, 0.0, (), decimal=decimal, unit=unit)


def _first_strange(texts: pa.Array, first_row: int, decimal: str | None) -> tuple[int, str] | None:
    """The first text that is no number in any way of writing, or else none as programs write them, or with the sign."""
    values = parse_numbers(texts)
    rows = strange_texts(texts, np.isnan(values) & np.isnan(read_numbers(texts).values))
    rows = rows if len(rows) else strange_texts(texts, np.isnan(values))
    if decimal is not None and not len(rows):
        rows = strange_texts(texts, np.isnan(read_numbers(texts, decimal).values))
    return (first_row + int(rows[0]), texts[int(rows[0])].as_py()) if len(rows) else None


def read_target(
    column: NumberColumn,
    array: pa.Array,
    *,
    source: Locator | None = None,
    first_row: int = 0,
    weights: bool = False,
) -> Array:
    """The targets in an Arrow array, written as in the fit; NaN where missing. Infinite ones are an error."""
    try:
        cells = column.read(array)
    except MisfitError as misfit:
        place = "" if misfit.row is None else f", {row_label(first_row + misfit.row, source)}"
        advice = "correct it, or choose another target."
        raise _unusable(column.name, f"{place} {misfit}", advice, weights) from None
    values = np.asarray(cells.values, dtype=np.float64)
    if np.isinf(values).any():
        first = int(np.flatnonzero(np.isinf(values))[0])
        where = f"{int(np.isinf(values).sum())} of {len(values)} rows, first in {row_label(first_row + first, source)}"
        raise _unusable(column.name, f" is infinite in {where}", "correct or remove these rows.", weights)
    return values


def target_values(
    data: TableLike, name: str, *, first_row: int = 0, source: Locator | None = None, allow_constant: bool = False
) -> Array:
    """The targets of a chunk or a whole table as float64, ``(rows,)``; anything but finite numbers is an error.

    Args:
        data: A table or its chunks, as for `TableEncoder`.
        name: The name of the target column.
        first_row: Number of the first row, where ``data`` is one chunk of a larger table.
        source: What finds a row in its file, for error messages; by default ``data``, if it can.
        allow_constant: Do not check that the targets differ, because they need not within one chunk.

    Example:
        >>> target_values({"size": [1, 2], "price": ["3.5", "4"]}, "price").tolist()
        [3.5, 4.0]
    """
    source = locator_of(data) if source is None else source
    parts = []
    gaps = Gaps()
    row = first_row
    for batch in record_batches(data):
        check_columns([name], batch.schema.names)
        array = batch.column(name)
        column = fit_target([array], name, source=source, first_row=row)
        values = np.asarray(column.read(array).values, dtype=np.float64)
        gaps.add(np.isnan(values), np.isinf(values), row)
        parts.append(values)
        row += len(values)
    if row == first_row:
        raise DataError(f"The table has no rows, so there are no targets {name!r}.")
    for count, word, first in gaps.kinds():
        raise DataError(
            f"The target {name!r} is {word} in {count} of {row - first_row} rows, first in {row_label(first, source)}: "
            "remove these rows, because there is nothing to learn from them."
        )
    targets = np.concatenate(parts)
    if not allow_constant:
        check_varies(float(targets.min()), float(targets.max()), name)
    return targets


def check_varies(smallest: float, largest: float, name: str | None) -> None:
    """An error if all targets are equal."""
    if smallest == largest:
        raise DataError(
            f"The target {name or 'y'!r} is {smallest:.6g} in every row, so there is nothing to predict: choose "
            "another column."
        )


def _unusable(name: str, problem: str, advice: str, weights: bool) -> DataError:
    """The error for a column that cannot be the target, or the weights."""
    if weights:
        advice = "correct the column, or name another one as weight."
        return DataError(f"The weight {name!r}{problem}:", advice, code="weight_column")
    return DataError(f"The target {name!r}{problem}: {advice}")


class TargetScale(Scale):
    """A :class:`~finitegp.lite.target_scale.Scale` that is found from targets.

    Example:
        >>> scale = TargetScale.fitted("log", np.array([1.0, 10.0]))
        >>> scale.forward(np.array([1.0])).tolist(), scale.inverse(np.array([0.0])).tolist()
        ([0.0], [1.0])
    """

    @classmethod
    def fitted(cls, name: str, targets: Array) -> TargetScale:
        """The scale of this name, with numbers that suit some targets.

        Raises:
            DataError: If the targets cannot have this scale, such as the logarithm of zero.
        """
        scale = cls._fitted(name, targets)
        if name == "identity":
            return scale
        ends = np.array([targets.min(), targets.max()])
        # As much again on each side, of what they span on this scale and of what they span themselves: logarithms that
        # span six powers of ten would allow for six more.
        values = scale.forward(ends)
        low, high = scale.inverse(values + np.ptp(values) * np.array([-1.0, 1.0]))
        low, high = max(float(low), ends[0] - np.ptp(ends)), min(float(high), ends[1] + np.ptp(ends))
        return replace(scale, plausible=(float(low), float(high)))

    @classmethod
    def _fitted(cls, name: str, targets: Array) -> TargetScale:
        lowest = 0.0 if targets.min() >= 0.0 else -math.inf
        if name == "identity":
            return cls(lowest=lowest)
        if name == "log":
            if targets.min() <= 0.0:
                raise DataError(
                    f"The scale 'log' needs positive targets, but the smallest is {targets.min():.6g}:",
                    "choose another target_scale, or leave it 'auto'.",
                    code="target_scale",
                )
            return cls("log", lowest=0.0)
        if name == "square root":
            if targets.min() < 0.0:
                raise DataError(
                    f"The scale 'square root' needs targets that are not negative, but one is {targets.min():.6g}:",
                    "choose another target_scale, or leave it 'auto'.",
                    code="target_scale",
                )
            positive = targets[targets > 0.0]
            # As Anscombe has it for counts, and so that the density at zero is finite.
            return cls("square root", shift=0.375 * float(positive.min()) if len(positive) else 0.375, lowest=0.0)
        if name != "yeo-johnson":
            raise ValueError(f"target_scale must be 'auto' or one of {SCALES}, but is {name!r}.")
        from scipy import stats

        middle = float(np.median(targets))
        unit = float(np.subtract(*np.quantile(targets, [0.75, 0.25]))) or float(targets.std()) or 1.0
        power = float(np.clip(stats.yeojohnson_normmax((targets - middle) / unit), 0.0, 2.0))
        return cls("yeo-johnson", middle, unit, power, lowest)

    def to_dict(self) -> dict[str, object]:
        """The scale in types that JSON has."""
        lowest, *plausible = (None if math.isinf(end) else end for end in (self.lowest, *self.plausible))
        numbers = {"shift": self.shift, "unit": self.unit, "power": self.power}
        return {"name": self.name, **numbers, "lowest": lowest, "plausible": plausible}

    @classmethod
    def from_dict(cls, stored: object) -> TargetScale:
        """The scale that `to_dict` described; None is the target's own."""
        try:
            return super().from_dict(stored)
        except ValueError as error:
            raise DataError(f"{error}.") from None
