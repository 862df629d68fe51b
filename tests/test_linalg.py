import math

import pytest
import torch

from finitegp.errors import NumericalError
from finitegp.linalg import (
    cholesky,
    congruent,
    eigen_between,
    from_eigen,
    gram_float64,
    inverse_root,
    symmetric_eigen,
    update_gram,
)


def spectrum(generator, eigenvalues):
    values = torch.tensor(eigenvalues, dtype=torch.float64)
    basis, _ = torch.linalg.qr(torch.randn(len(values), len(values), generator=generator, dtype=torch.float64))
    matrix = basis @ torch.diag(values) @ basis.T
    return 0.5 * (matrix + matrix.T)


def test_no_jitter_where_none_is_needed(generator):
    matrix = spectrum(generator, [1e-6, 1.0, 3.0, 1e3])
    factor = cholesky(matrix)
    assert factor.jitter == 0.0
    torch.testing.assert_close(factor.lower @ factor.lower.T, matrix, rtol=1e-12, atol=1e-12)
    right = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(matrix @ factor.solve(right), right, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(factor.log_determinant(), torch.linalg.slogdet(matrix)[1])
    torch.testing.assert_close(factor.inverse() @ matrix, torch.eye(4).double(), rtol=1e-7, atol=1e-7)
    half = factor.half_solve(right)
    torch.testing.assert_close(half.T @ half, right.T @ factor.solve(right))
    torch.testing.assert_close(factor.transposed_half_solve(half), factor.solve(right))
    root = inverse_root(matrix, torch.float64)
    torch.testing.assert_close(root.T @ root, factor.inverse(), rtol=1e-7, atol=1e-7)
    narrow = inverse_root(matrix, torch.float32)
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow.double(), root, rtol=1e-3, atol=1e-3)


def test_jitter_is_small_and_reported(generator):
    matrix = spectrum(generator, [-1e-13, 1.0, 2.0, 5.0])
    factor = cholesky(matrix)
    assert 0.0 < factor.jitter <= 1e-11 * float(matrix.diagonal().mean())
    shifted = matrix + factor.jitter * torch.eye(4).double()
    torch.testing.assert_close(factor.lower @ factor.lower.T, shifted, rtol=1e-12, atol=1e-12)


def test_failure_names_condition_noise_and_jitter(generator):
    matrix = spectrum(generator, [-0.5, 1.0, 2.0])
    with pytest.raises(NumericalError, match=r"-0\.5 to 2.*condition number inf.*0\.01.*jitter tried: 0, 8\.33e-15"):
        cholesky(matrix, noise_variance=0.01)


def test_float32_has_its_own_jitter(generator):
    matrix = spectrum(generator, [-1e-7, 1.0, 2.0]).float()
    assert cholesky(matrix).jitter > 0.0
    with pytest.raises(NumericalError, match="not positive definite in float32"):
        cholesky(spectrum(generator, [-1e-3, 1.0, 2.0]).float())


def test_not_a_number_and_not_square():
    with pytest.raises(NumericalError, match="NaN or infinity"):
        cholesky(torch.full((2, 2), float("nan"), dtype=torch.float64))
    bad = torch.eye(2, dtype=torch.float64)
    bad[0, 1] = bad[1, 0] = float("inf")
    with pytest.raises(NumericalError, match="NaN or infinity"):
        cholesky(bad)
    with pytest.raises(NumericalError, match="NaN or infinity"):
        symmetric_eigen(bad)
    with pytest.raises(NumericalError, match="square"):
        cholesky(torch.ones(2, 3))


def test_gram_of_float32_is_summed_in_float64(generator):
    """A float32 product of these features would lose the small column entirely."""
    features = torch.randn(3000, 3, generator=generator) * torch.tensor([1e4, 1.0, 1e-4])
    exact = features.double().T @ features.double()
    torch.testing.assert_close(gram_float64(features), exact, rtol=1e-12, atol=0.0)
    assert float(((features.T @ features).double() / exact - 1).abs().max()) > 1e-8


def test_inverse_root_keeps_to_the_jitter_policy(generator):
    matrix = spectrum(generator, [-1e-13, 1.0, 2.0, 5.0])
    expected = torch.linalg.inv(cholesky(matrix).lower)
    torch.testing.assert_close(inverse_root(matrix, torch.float64), expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(NumericalError, match=r"noise variance 0\.5"):
        inverse_root(-matrix, torch.float32, noise_variance=0.5)
    for bad in (math.nan, math.inf):
        broken = matrix.clone()
        broken[2, 2] = bad
        with pytest.raises(NumericalError, match="NaN or infinity"):
            inverse_root(broken, torch.float32)


@pytest.mark.parametrize("rows", [5, 200])
@pytest.mark.parametrize("weighted", [False, True])
def test_update_gram(generator, rows, weighted):
    total = spectrum(generator, [1.0, 2.0, 3.0, 4.0])
    features = torch.randn(rows, 4, generator=generator)
    scale = torch.rand(rows, generator=generator, dtype=torch.float64) if weighted else None
    wide = features.double() if scale is None else features.double() * scale[:, None]
    expected = 0.25 * total + 3.0 * wide.T @ wide
    update_gram(total, features, keep=0.25, weight=3.0, row_scale=scale)
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=1e-12)


def test_from_eigen(generator):
    matrix = spectrum(generator, [1e-6, 1.0, 3.0, 1e3])
    values, vectors = symmetric_eigen(matrix)
    found = from_eigen(values, vectors)
    torch.testing.assert_close(found, matrix, rtol=1e-12, atol=1e-10)
    assert torch.equal(found, found.T)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("columns_first", [False, True])
def test_products_with_a_triangle_on_both_sides(generator, upper, transposed, columns_first):
    matrix, full = (torch.randn(7, 7, generator=generator, dtype=torch.float64) for _ in range(2))
    triangle = full.triu() if upper else full.tril()
    kept, stored = matrix.clone(), triangle.mT.contiguous().mT if columns_first else triangle
    found = congruent(matrix, stored, upper=upper, transposed=transposed)
    expected = triangle @ matrix @ triangle.mT if transposed else triangle.mT @ matrix @ triangle
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(matrix, kept)


def test_eigenvalues_in_an_interval_come_with_their_vectors(generator):
    matrix = torch.randn(30, 30, generator=generator, dtype=torch.float64)
    matrix = matrix + matrix.mT
    every = torch.linalg.eigvalsh(matrix)
    for least, most in ((-math.inf, 0.0), (4.0, math.inf), (-2.0, 3.0), (1e3, math.inf), (-math.inf, -1e3)):
        values, vectors = eigen_between(matrix, least, most)
        torch.testing.assert_close(values, every[(every > least) & (every <= most)], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(matrix @ vectors, vectors * values, rtol=1e-9, atol=1e-9)
    matrix[0, 0] = math.nan
    with pytest.raises(NumericalError, match="NaN"):
        eigen_between(matrix, 0.0, 1.0)
