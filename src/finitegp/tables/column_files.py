"""Columns from JSON, every entry checked."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import Any

from ..data.naming import shortened
from ..errors import DataError
from ..lite.tables import MEAN, MEAN_AND_PLACE, NOT_A_MOMENT
from .categories import CategoryColumn
from .columns import DateColumn, FittedColumn, LeftOutColumn, NumberColumn
from .dates import PARTS, STYLES
from .sketches import MAX_CATEGORIES, MAX_CATEGORY_BYTES
from .text_values import DECIMALS, MAX_UNIT

_MAX_NAME = 1_000_000
# Whole numbers in JSON may be larger than any float; NaN is not below it either.
_LARGEST = sys.float_info.max

_TYPES: dict[str, type[FittedColumn]] = {
    each.type_name: each for each in (LeftOutColumn, NumberColumn, DateColumn, CategoryColumn)
}


def column_from_dict(stored: object) -> FittedColumn:
    """A column from what ``to_dict`` gave, every entry checked."""
    if not isinstance(stored, dict) or stored.get("type") not in list(_TYPES):
        raise DataError("an entry of the stored encoder is not a column of a known type")
    made = _TYPES[stored["type"]]
    stored_fields = [each for each in fields(made) if each.compare]
    expected = {each.name for each in stored_fields} | {"type"}
    # Entries with a default are newer than the first version of the format.
    required = {each.name for each in stored_fields if not each.kw_only} | {"type"}
    if not required <= set(stored) <= expected:
        raise DataError(f"a stored column has the entries {sorted(map(str, stored))} instead of {sorted(expected)}")
    entries = {key: _checked(key, value, made) for key, value in stored.items() if key != "type"}
    if made is CategoryColumn:
        categories, counts = entries["categories"], entries["counts"]
        if len(categories) != len(counts) or not categories or len(set(categories)) != len(categories):
            raise DataError("the categories of a stored column are empty, repeated, or do not match their counts")
        if sum(len(category) for category in categories) > MAX_CATEGORY_BYTES:
            raise DataError("the categories of a stored column are too long")
        if list(counts) != sorted(counts, reverse=True):
            raise DataError("the categories of a stored column are not in the order of their counts")
        if len(entries.get("means", ())) != (len(categories) if entries["encoding"] in (MEAN, MEAN_AND_PLACE) else 0):
            raise DataError("the mean targets of a stored column do not match its categories")
    return made(**entries)


def _checked(key: str, value: Any, made: type[FittedColumn]) -> Any:
    good = False
    if key in ("name", "note"):
        good = isinstance(value, str) and len(value) <= _MAX_NAME
    elif key == "kind":
        good = isinstance(value, str) and value in made.kinds
    elif key == "encoding":
        good = isinstance(value, str) and value in made.encodings
    elif key == "indicator":
        good = isinstance(value, bool)
    elif key in ("gaps", "distinct"):
        good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
    elif key == "decimal":
        good = value in ("", *DECIMALS)
    elif key == "unit":
        good = isinstance(value, str) and len(value) <= 2 * MAX_UNIT
    elif key == "style":
        good = isinstance(value, str) and value in STYLES
    elif key == "usual" and made is NumberColumn:
        good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST
        value = float(value) if good else value
    elif key == "usual":
        good = isinstance(value, int) and not isinstance(value, bool) and NOT_A_MOMENT < value < 2**63
    elif isinstance(value, list) and len(value) <= MAX_CATEGORIES:
        if key == "counts":
            good = all(isinstance(each, int) and not isinstance(each, bool) and 0 < each < 2**63 for each in value)
        elif key == "parts":
            good = value == [part for part in PARTS if part in value]
        elif key in ("means", "quantiles", "span"):
            whole = made is DateColumn
            good = all(isinstance(each, int if whole else int | float) and not isinstance(each, bool) for each in value)
            good = good and all(-(2**63) < each < 2**63 if whole else abs(each) <= _LARGEST for each in value)
            value = [int(each) if whole else float(each) for each in value] if good else value
        else:
            good = all(isinstance(each, str) for each in value)
        value = tuple(value)
    if not good:
        raise DataError(f"the entry {key!r} of a stored column cannot be used: {shortened(repr(value), 60)}")
    return value
