"""Fixtures shared by all tests, and the tolerances in one table."""

import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

# Relative tolerances by what is compared.
TOLERANCES = {"reference": 1e-9, "peer": 1e-6, "algebra": 1e-10}


@pytest.fixture(params=os.environ.get("FINITEGP_TEST_SEEDS", "0").split(","))
def seed(request):
    """The seed of a test; FINITEGP_TEST_SEEDS=0,1,2 runs every seeded test with each."""
    return int(request.param)


@pytest.fixture
def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def tolerances():
    return TOLERANCES


@pytest.fixture
def uci_dir():
    """The directory of the shared benchmark tables; tests that need it skip where it is absent."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data" / "uci"
    path = Path(os.environ.get("FINITEGP_UCI_DIR", default))
    if not (path / "bike.parquet").exists():
        pytest.skip(f"UCI tables not found in {path}; set FINITEGP_UCI_DIR to run this test")
    return path
