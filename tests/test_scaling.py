"""Scaling of columns."""

from __future__ import annotations

import numpy as np
import pytest

from finitegp.data.scaling import RobustScaler
from finitegp.errors import DataError


def test_robust_scaler_against_the_definition():
    values = np.random.default_rng(0).standard_cauchy((500, 3)) * [1.0, 1e-6, 1e6] + [0.0, 5.0, -7.0]
    scaler = RobustScaler.fit(values)
    lower, middle, upper = np.percentile(values, [25, 50, 75], axis=0)
    plain = (values - middle) / (upper - lower)
    np.testing.assert_allclose(scaler.transform(values), plain / np.sqrt(1 + plain**2 / 9), rtol=1e-12)
    assert np.abs(scaler.transform(values)).max() < 3.0
    # The order of the values survives, outliers included.
    for column in range(3):
        assert (np.argsort(values[:, column]) == np.argsort(scaler.transform(values)[:, column])).all()


def test_columns_without_spread():
    values = np.column_stack([np.full(100, 4.0), np.r_[np.zeros(97), 1.0, 2.0, 6.0]])
    scaled = RobustScaler.fit(values).transform(values)
    assert (scaled[:, 0] == 0.0).all()  # constant
    np.testing.assert_allclose(scaled[-1, 1], 2.0 / np.sqrt(1 + 4 / 9))  # equal quartiles: half of the range
    assert np.isfinite(RobustScaler.fit(values).transform([[1e300, -1e300]])).all()


def test_robust_scaler_refuses_what_it_cannot_use():
    with pytest.raises(DataError, match=r"shape \(0, 2\)"):
        RobustScaler.fit(np.zeros((0, 2)))
    with pytest.raises(ValueError, match="limit must be positive"):
        RobustScaler.fit(np.zeros((3, 2)), limit=0.0)
