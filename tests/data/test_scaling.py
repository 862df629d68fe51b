"""Standardisation that a few wild values cannot move."""

import numpy as np

from finitegp.data.scaling import Standardizer, winsorized_standardizer


def test_agrees_with_winsorizing_by_hand():
    rng = np.random.default_rng(0)
    values = rng.standard_t(2.0, size=(2000, 3))
    low, high = np.quantile(values, [0.005, 0.995], axis=0)
    clipped = np.clip(values, low, high)
    found = winsorized_standardizer(values)
    np.testing.assert_allclose(found.mean, clipped.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.scale, clipped.std(axis=0), rtol=1e-12)


def test_counts_are_repeated_rows():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(500, 2))
    counts = rng.integers(1, 5, size=500)
    counted, repeated = (
        winsorized_standardizer(values, counts),
        winsorized_standardizer(np.repeat(values, counts, axis=0)),
    )
    # Quantiles of repeated rows are interpolated between neighbours, those of counted rows are values.
    np.testing.assert_allclose(counted.mean, repeated.mean, atol=2e-3)
    np.testing.assert_allclose(counted.scale, repeated.scale, rtol=2e-3)


def test_a_column_with_few_other_values_keeps_them():
    values = np.zeros((1000, 1))
    values[:3] = 1.0
    np.testing.assert_allclose(winsorized_standardizer(values).scale, Standardizer.fit(values).scale)


def test_rounding_is_no_variation():
    values = 1e6 + np.array([[0.0], [1e-4], [-1e-4]])
    scaler = winsorized_standardizer(values)
    assert scaler.scale.tolist() == [1.0]
    assert np.abs(scaler.transform(values)).max() < 1e-3
