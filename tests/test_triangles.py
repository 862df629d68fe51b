"""Quadratic forms by products: as good as a triangular solve, or within a stated bound in float32."""

import numpy as np
import pytest
import scipy.linalg

from finitegp.triangles import MULTIPLIED_ROWS, BlockedTriangle, InverseTriangle


@pytest.mark.parametrize("size", [1, 63, 64, 200])
def test_products_with_blocks_solve_a_triangle(size):
    random = np.random.default_rng(0)
    # Nearly singular: its condition number is 1e10, and that of the matrix is not a number in floating point.
    basis, _ = np.linalg.qr(random.normal(size=(size, size)))
    lower = np.linalg.cholesky((basis * np.logspace(0, -10, size) ** 0.5) @ basis.T + 1e-13 * np.eye(size))
    right_side = random.normal(size=(size, 5))
    expected = scipy.linalg.solve_triangular(lower, right_side, lower=True)
    found = BlockedTriangle(np.asfortranarray(lower)).solve(right_side.copy())
    # As good as a solve: both leave what rounding leaves.
    left = np.abs(lower @ found - right_side) / (np.abs(lower) @ np.abs(found))
    assert left.max() < 1e-13
    np.testing.assert_allclose(found, expected, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize("size", [1, MULTIPLIED_ROWS, 2 * MULTIPLIED_ROWS + 5])
@pytest.mark.parametrize("noise_variance", [1e-2, 1e-9])
def test_squared_norms_in_float32_are_within_their_bound(size, noise_variance):
    random = np.random.default_rng(0)
    # Features of rows that were seen: nearly everything cancels in what is not known of them.
    mixing = random.normal(size=(size, size)) * np.logspace(0, -4, size)
    features = mixing @ random.normal(size=(size, 1000))
    matrix = features @ features.T
    lower = np.linalg.cholesky(matrix + noise_variance * np.eye(size) * (1.0 + 1e-15 * matrix.max() / noise_variance))
    right_side = features[:, :300]
    expected = np.sqrt(noise_variance * np.square(scipy.linalg.solve_triangular(lower, right_side, lower=True)).sum(0))
    before = right_side.copy()
    found = np.sqrt(noise_variance * InverseTriangle(lower).squares(right_side))
    bound = 2.0**-24 * np.linalg.norm(right_side, axis=0) * (2.0 + np.sqrt(size / 3.0))
    assert (np.abs(found - expected) < bound).all()
    np.testing.assert_array_equal(right_side, before)
