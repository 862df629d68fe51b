"""Routines without Python's lock against NumPy, and SciPy's wrappers in their place."""

import threading

import numpy as np
import pytest

from finitegp import lapack


@pytest.fixture(params=["addresses", "wrappers"])
def routines(request, monkeypatch):
    if request.param == "wrappers":
        monkeypatch.setattr(lapack, "routine_of", lambda *arguments: None)
    else:
        assert lapack.routine_of("blas", "dsyrk", 10) is not None
    return lapack


def _definite(size):
    root = np.random.default_rng(size).standard_normal((size, size + 3))
    return np.asfortranarray(root @ root.T)


@pytest.mark.parametrize("size", [1, 7, 130])
def test_a_factor_and_an_inverse_are_those_of_numpy(routines, size):
    matrix = _definite(size)
    factor = matrix.copy("F")
    assert routines.factorise_in_place(factor) == 0
    np.testing.assert_allclose(factor, np.linalg.cholesky(matrix), rtol=1e-10, atol=1e-12)
    routines.invert_in_place(factor)
    np.testing.assert_allclose(factor, np.tril(np.linalg.inv(matrix)), rtol=1e-6, atol=1e-9)


def test_a_matrix_that_is_not_definite_has_the_order_of_its_minor(routines):
    matrix = _definite(5)
    matrix[3, 3] = -1.0
    assert routines.factorise_in_place(matrix) == 4


@pytest.mark.parametrize(("size", "rows"), [(1, 1), (6, 20), (40, 3)])
def test_products_are_added_to_the_upper_triangle(routines, size, rows):
    columns = np.asfortranarray(np.random.default_rng(0).standard_normal((size, rows)))
    total = np.asfortranarray(np.full((size, size), 7.0))
    routines.add_products(total, columns)
    upper = np.triu_indices(size)
    np.testing.assert_allclose(total[upper], (columns @ columns.T + 7.0)[upper], rtol=1e-12)
    assert np.all(total[np.tril_indices(size, -1)] == 7.0)


@pytest.mark.parametrize("wrong", [np.zeros((3, 2)), np.zeros((2, 2), np.float32), np.zeros((2, 4))[:, ::2]])
def test_memory_of_another_form_is_refused(routines, wrong):
    with pytest.raises(ValueError, match="Fortran"):
        routines.factorise_in_place(wrong)


def test_threads_do_not_disturb_each_other():
    matrices = [_definite(60 + number) for number in range(4)]
    found = [matrix.copy("F") for matrix in matrices]
    threads = [threading.Thread(target=lapack.factorise_in_place, args=(matrix,)) for matrix in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for matrix, factor in zip(matrices, found, strict=True):
        np.testing.assert_allclose(factor, np.linalg.cholesky(matrix), rtol=1e-10, atol=1e-11)


def test_sizes_in_other_integers_are_left_to_the_wrappers():
    assert lapack.routine_address.__wrapped__("lapack", "dpotrf", 6) is None
    assert lapack.routine_address.__wrapped__("lapack", "no such routine", 5) is None
