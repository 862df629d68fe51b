"""A model and its sites, for the tests of sums and of their files."""

import pytest
from site_tables import make_model, make_sites


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def sites(model):
    return make_sites(model)
