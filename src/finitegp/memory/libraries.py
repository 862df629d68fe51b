"""What torch, SciPy and Arrow load when they are first used: no part of any budget, and the same for every model."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch


def load_libraries(*, tables: bool = True) -> None:
    """Use once everything that training, exact passes and prediction use, on a few rows.

    ``import torch`` loads only a part of torch; the first optimizer, the first factorisation and the first Parquet
    file load some 100 MB more, whatever the size of the model. A memory limit, or a measurement of what a model needs,
    should start from a process that has done this.

    Args:
        tables: Also read a small Parquet file.
    """
    from ..algorithms import SCGD, Lagged, Minimax
    from ..algorithms.base import Algorithm
    from ..features import MLPFeatures
    from ..model import FeatureGP
    from ..schedules import make_optimizer
    from ..training import train

    generator = torch.Generator().manual_seed(0)
    # More rows than fit the small-batch path of the Gram sums, so that BLAS is loaded, too.
    inputs, targets = torch.randn(300, 2, generator=generator), torch.randn(300, generator=generator)
    data = inputs, targets
    for kind in (Lagged, SCGD, Minimax):
        model = FeatureGP(MLPFeatures(2, hidden=(8, 8), seed=0), noise_variance=1.0)
        algorithm: Algorithm = kind(model, num_data=300)
        train(algorithm, make_optimizer(algorithm), data, epochs=1, batch_size=100, initial_batches=1)
    model.nlml(data)
    model.condition(data).predict(inputs)
    for dtype in (torch.float32, torch.float64):
        # BLAS keeps workspace for the largest products it has made.
        wide, square = torch.zeros(4096, 512, dtype=dtype), torch.zeros(512, 512, dtype=dtype)
        torch.addmm(square[0], wide, square)
        torch.mm(wide.mT, wide)
    if tables:
        _read_a_table(inputs, targets)


def _read_a_table(inputs: torch.Tensor, targets: torch.Tensor) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ..data import spool
    from ..data.table_source import TableSource

    with tempfile.TemporaryDirectory(prefix="finitegp-") as directory:
        path = Path(directory) / "small.parquet"
        pq.write_table(pa.table({"a": inputs[:, 0].numpy(), "b": inputs[:, 1].numpy(), "y": targets.numpy()}), path)
        spool(TableSource(path, "y"), Path(directory) / "spool")
