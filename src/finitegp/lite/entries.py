"""The entry of a fit in a file, of either version: its numbers, checked where library and lite read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .container import Header, Stored
from .program import Array, LiteError

# No fit has columns of larger, or of smaller, units.
_LARGEST_UNIT = 1e150
_MOST_COMPONENTS = 64
#: What a file has of the model of the spread besides limits, tail and GP.
SPREAD_NUMBERS = ("shift", "unit", "strength", "factor", "degrees_of_freedom", "share")


class Tail(NamedTuple):
    """Another kind of error, which a share of rows has.

    Attributes:
        share: Of rows.
        factor: On the scale.
        degrees_of_freedom: Infinite for the Gaussian.
        offset: Of the centre.
        main_factor: On the scale of all other errors.
        least_part: The smallest part of the squared scale that is noise, in rows that show skewed errors.
    """

    share: float
    factor: float
    degrees_of_freedom: float
    offset: float = 0.0
    main_factor: float = 1.0
    least_part: float = 0.0


class Shape(NamedTuple):
    """What a file has of a component besides its GP: weight in the mixture, and the distribution of its errors."""

    weight: float
    factor: float
    degrees_of_freedom: float
    scale_degrees: float
    tail: Tail | None


class Spread(NamedTuple):
    """What a file has of the model of the spread besides its GP."""

    shift: float
    unit: float
    strength: float
    factor: float
    degrees_of_freedom: float
    share: float
    limits: tuple[float, float]
    tail: Tail | None


def second_version(header: Header, arrays: Mapping[str, Stored]) -> tuple[Header, dict[str, Stored]]:
    """A fit as files of the second version have it.

    The first had one GP, with the shape of its errors and its conformal scores in the record.
    """
    if "components" in header:
        return header, dict(arrays)
    record = dict(header["record"])
    freedom, conformal = (record.pop(name, None) for name in ("degrees_of_freedom", "conformal"))
    own = ("feature_map", "noise", "noise_variance", "num_data", "chunk_size")
    component = {
        **{name: header[name] for name in own if name in header},
        "name": "features",
        "weight": 1.0,
        "factor": math.sqrt((freedom - 2.0) / freedom) if isinstance(freedom, int | float) and freedom > 2.0 else 1.0,
        "degrees_of_freedom": freedom,
        "scale_degrees": 0.0,
    }
    moved = ("model.", "statistics.", "probe.")
    arrays = {f"components.0.{name}" if name.startswith(moved) else name: each for name, each in arrays.items()}
    kept: Header = {name: header[name] for name in ("inputs_scaler", "target_scaler") if name in header}
    kept |= {} if conformal is None else {"conformal": conformal}
    rows: Header = {"keeps_rows": False, "counts_copies_once": False, "outliers": {}}
    return {"components": [component], "record": record, **rows, **kept}, arrays


def read_shapes(stored: object) -> tuple[Shape, ...]:
    """The shapes of all components, whose weights sum to one."""
    if not isinstance(stored, list) or not 1 <= len(stored) <= _MOST_COMPONENTS:
        raise LiteError("it holds no GPs, or too many")
    shapes = tuple(
        Shape(
            positive_number("weight", each["weight"]),
            positive_number("factor", each["factor"]),
            _freedom(each["degrees_of_freedom"]),
            0.0 if each["scale_degrees"] == 0 else positive_number("scale_degrees", each["scale_degrees"]),
            _tail(each.get("tail")),
        )
        for each in stored
    )
    total = sum(shape.weight for shape in shapes)
    if not math.isclose(total, 1.0, rel_tol=1e-6):
        raise LiteError(f"the weights of its GPs sum to {total}")
    return shapes


def read_spread(stored: Mapping[str, Any]) -> Spread:
    """The numbers of the model of the spread."""
    low, high = (float(value) for value in stored["limits"])
    shift, unit, strength, factor, freedom, share = (float(stored[name]) for name in SPREAD_NUMBERS)
    numbers = (low, high, shift, unit, strength, factor, freedom, share)
    good = low <= high and all(map(math.isfinite, numbers))
    if not (good and factor > 0.0 and freedom > 2.0 and 0.0 <= share <= 1.0):
        raise LiteError("its model of the spread has numbers that make no sense")
    return Spread(shift, unit, strength, factor, freedom, share, (low, high), _tail(stored.get("tail")))


def _tail(stored: object) -> Tail | None:
    if stored is None:
        return None
    if not isinstance(stored, list) or len(stored) not in (3, 6):
        raise LiteError("the tail of its errors is not three or six numbers")
    share, factor = (positive_number("tail", value) for value in stored[:2])
    if share >= 1.0:
        raise LiteError(f"the share of its other errors is {share}")
    offset, main_factor, least_part = stored[3:] or (0.0, 1.0, 0.0)
    if not (math.isfinite(float(offset)) and 0.0 <= float(least_part) <= 1.0):
        raise LiteError(f"the offset of its other errors is {offset}, and the part of noise {least_part}")
    main_factor = positive_number("tail", main_factor)
    return Tail(share, factor, _freedom(stored[2]), float(offset), main_factor, float(least_part))


def _freedom(value: object) -> float:
    """Degrees of freedom as a file has them, which has none for the Gaussian."""
    if value is None:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 2.0):
        raise LiteError(f"the shape of its error bars makes no sense: degrees of freedom are {str(value)[:60]!r}")
    return float(value)


def positive_number(name: str, value: object) -> float:
    """The value, if it is a positive, finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0.0):
        raise LiteError(f"its {name} is {str(value)[:60]!r} instead of a positive number")
    return float(value)


def check_scaler(role: str, arrays: Mapping[str, Array], ndim: int) -> None:
    """Refuse a scaler that is none; infinite scales are of input columns that do not vary."""
    logarithms = ("log_columns", "log_origin", "log_unit") if "log_unit" in arrays else ()
    for name in ("mean", "scale", *logarithms):
        values = arrays[name]
        if values.dtype != np.float64 or values.ndim != ndim or np.isnan(values).any():
            raise LiteError(f"its {role} has unusable values in {name!r}")
    mean, scale = arrays["mean"], arrays["scale"]
    if not np.all(scale > 0.0):
        raise LiteError(f"its {role} has a scale that is not positive")
    if mean.shape != scale.shape:
        raise LiteError(f"its {role} has parts of different lengths")
    usable = (np.abs(mean) <= _LARGEST_UNIT) & (scale >= 1.0 / _LARGEST_UNIT)
    if not np.all(usable & ((scale <= _LARGEST_UNIT) | (np.isinf(scale) & (ndim == 1)))):
        raise LiteError(f"its {role} has values whose squares are no numbers in floating point")
    if "limits" in arrays:
        limits = arrays["limits"]
        if (
            limits.dtype != np.float64
            or limits.shape != (2,)
            or not -_LARGEST_UNIT <= limits[0] < limits[1] <= _LARGEST_UNIT
        ):
            raise LiteError(f"its {role} has limits that make no sense")
    if not logarithms:
        return
    columns, origin, unit = (arrays[name] for name in logarithms)
    count = mean.size - unit.size
    possible = columns.shape == origin.shape == unit.shape and np.all(np.abs(origin) <= _LARGEST_UNIT)
    possible = possible and count > 0 and np.all((columns >= 0) & (columns < count) & (columns == np.floor(columns)))
    if not possible or not np.all((unit >= 1.0 / _LARGEST_UNIT) & (unit <= _LARGEST_UNIT)):
        raise LiteError(f"its {role} has a logarithmic scale that makes no sense")
