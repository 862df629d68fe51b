"""Columns as targets: what converts to numbers, and what cannot be predicted."""

import decimal
import math

import numpy as np
import pyarrow as pa
import pytest

from finitegp import DataError
from finitegp.tables.targets import target_values


def test_targets_convert():
    for values in ([1, 2], [1.0, 2.0], ["1", "2.0"], [decimal.Decimal("1.0"), decimal.Decimal("2.0")]):
        found = target_values({"y": values}, "y")
        assert found.dtype == np.float64
        assert found.tolist() == [1.0, 2.0]
    assert target_values({"y": [True, False]}, "y").tolist() == [1.0, 0.0]
    assert target_values({"y": [3, 3]}, "y", allow_constant=True).tolist() == [3.0, 3.0]
    assert target_values([{"y": [3]}, {"y": [4]}], "y").tolist() == [3.0, 4.0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["1", "high"], "The target 'price' must be numbers, but row 101 holds 'high': correct the value, or choose"),
        (["1", "n/a"], "The target 'price' is missing in 1 of 2 rows, first in row 101: remove these rows"),
        ([None, 1.0, math.nan], "The target 'price' is missing in 2 of 3 rows, first in row 100"),
        ([1.0, math.inf], "The target 'price' is infinite in 1 of 2 rows, first in row 101"),
        ([7, 7], "The target 'price' is 7 in every row, so there is nothing to predict"),
        (pa.nulls(2), "is missing in 2 of 2 rows"),
        (pa.array([1, 2], pa.date32()), r"holds dates or times \(date32\[day\]\): turn it into a number first"),
        ([[1], [2]], "has the type list<item: int64>, but must be numbers"),
        (["n/a", "-"], "The target 'price' is missing in 2 of 2 rows"),
        ([], "The table has no rows, so there are no targets 'price'"),
    ],
)
def test_targets_that_cannot_be_predicted(values, message):
    with pytest.raises(DataError, match=message):
        target_values({"price": values}, "price", first_row=100)


def test_a_target_that_is_not_there():
    with pytest.raises(DataError, match=r"There is no column 'Prices' in the table; did you mean 'price'\?"):
        target_values({"price": [1, 2]}, "Prices")
