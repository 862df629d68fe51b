"""A regressor that several tests of the estimator read, and its rows."""

import pytest
from conftest import few_trees
from estimator_rows import make_rows, quick


@pytest.fixture(scope="session")
def rows():
    return make_rows(120)


@pytest.fixture(scope="session")
def fitted(rows):
    """A fitted regressor; whoever changes it takes a copy."""
    with few_trees():
        return quick().fit(*rows)
