"""Means and variances added up from chunks, and the sources that are scaled by them."""

import numpy as np
import pytest
from source_rows import ROWS, assert_rows, joined, write_table

from finitegp import DataError
from finitegp.data import ScaledSource, Scaling
from finitegp.data.scaling import Moments, Standardizer
from finitegp.tables.source import TableSource


class TestMoments:
    def test_chunks_in_any_order_equal_the_whole(self, arrays, seed):
        values = 1e6 + arrays[0]  # the sum of squares would lose six digits here
        whole = Standardizer.fit(values)
        cuts = np.sort(np.random.default_rng(seed).choice(np.arange(1, ROWS), 20, replace=False))
        parts = [Moments.of(part) for part in np.split(values, cuts)]
        for order in (parts, parts[::-1], parts[10:] + parts[:10]):
            found = sum(order).standardizer()
            np.testing.assert_allclose(found.mean, whole.mean, rtol=1e-14)
            np.testing.assert_allclose(found.scale, whole.scale, rtol=1e-9)
        left, right = sum(parts[:5]), sum(parts[5:])
        np.testing.assert_allclose((left + right).variance, np.var(values, axis=0), rtol=1e-9)
        assert (left + right).count == ROWS
        np.testing.assert_allclose(sum(parts).mean_square, np.square(values).mean(axis=0), rtol=1e-14)

    def test_a_constant_column_is_only_centred(self):
        values = np.full((1000, 1), 0.1)
        found = sum(Moments.of(part) for part in np.split(values, 7 * np.arange(1, 100))).standardizer()
        assert found.scale.tolist() == [1.0]

    def test_scaled_source_equals_the_scaler(self, tmp_path, arrays):
        table = TableSource(write_table(tmp_path, arrays), ["s", "t"], weights="w", counts="n", chunk_size=70)
        scaling = Scaling.measure(table)
        scaled = joined(ScaledSource(table, scaling))
        repeats = arrays[3].astype(int)
        for found, values in zip(scaled, arrays[:2], strict=False):
            expected = Standardizer.fit(np.repeat(values, repeats, axis=0)).transform(values)
            np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-13)
        assert_rows(scaled[2:], arrays[2:])

    def test_bad_shapes(self):
        with pytest.raises(DataError, match="3 columns cannot be added to moments of 2"):
            Moments.of(np.zeros((3, 3))) + Moments.of(np.zeros((3, 2)))
        with pytest.raises(DataError, match="at least one row"):
            Moments.of(np.zeros((0, 2)))
        with pytest.raises(DataError, match=r"one number per row \(3,\)"):
            Moments.of(np.zeros((3, 2)), np.ones((3, 1)))
