"""Where the tests of files write."""

import pytest


@pytest.fixture
def path(tmp_path):
    return tmp_path / "price.finitegp"
