"""What torch, SciPy and Arrow load when they are first used: no part of any budget, and the same for every model."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch


def load_libraries(*, tables: bool = True, optimizers: bool = True) -> None:
    """Use once everything that training, exact passes, whole fits and prediction use, on a few rows.

    ``import torch`` maps a library of which only a part is in memory; the first factorisation and the first Parquet
    file load some 50 MB more each, and so does the first optimizer of torch, whatever the size of the model. A memory
    limit, or a measurement of what a model needs, should start from a process that has done this.

    Args:
        tables: Also read a small Parquet file and a small CSV file.
        optimizers: Also make steps with an optimizer of torch, the first of which loads torch's compiler. Fits without
            choices (``fit_source``, ``GPRegressor``, ``finitegp fit``) do not need it.
    """
    generator = torch.Generator().manual_seed(0)
    # More rows than fit the small-batch path of the Gram sums, so that BLAS is loaded, too.
    inputs, targets = torch.randn(300, 2, generator=generator), torch.randn(300, generator=generator)
    _fit(inputs, targets)
    if optimizers:
        _take_steps(inputs, targets)
    for dtype in (torch.float32, torch.float64):
        # BLAS keeps workspace for the largest products it has made.
        wide, square = torch.zeros(4096, 512, dtype=dtype), torch.zeros(512, 512, dtype=dtype)
        torch.addmm(square[0], wide, square)
        torch.mm(wide.mT, wide)
    if tables:
        _read_tables(inputs, targets)


def _fit(inputs: torch.Tensor, targets: torch.Tensor) -> None:
    from finitegp import fit_source

    few = {"steps": 10, "max_steps": 10, "noise_steps": 10}
    for settings in (few | {"small_rows": 1, "most_rows_for_both": 0}, few):  # networks, kernels
        fit_source((inputs, targets), effort="low", settings=settings).predict(inputs)


def _take_steps(inputs: torch.Tensor, targets: torch.Tensor) -> None:
    from finitegp.algorithms import SCGD, Lagged, Minimax
    from finitegp.algorithms.base import Algorithm
    from finitegp.features import MLPFeatures
    from finitegp.model import FeatureGP
    from finitegp.schedules import make_optimizer
    from finitegp.training import train

    data = inputs, targets
    for kind in (Lagged, SCGD, Minimax):
        model = FeatureGP(MLPFeatures(2, hidden=(8, 8), seed=0), noise_variance=1.0)
        algorithm: Algorithm = kind(model, num_data=300)
        train(algorithm, make_optimizer(algorithm), data, epochs=1, batch_size=100, initial_batches=1)
    model.nlml(data)


def _read_tables(inputs: torch.Tensor, targets: torch.Tensor) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import csv

    from finitegp.data import spool
    from finitegp.tables.encoder import TableEncoder
    from finitegp.tables.reader import TableReader
    from finitegp.tables.source import TableSource

    numbers = {"a": inputs[:, 0].numpy(), "b": inputs[:, 1].numpy(), "y": targets.numpy()}
    with tempfile.TemporaryDirectory(prefix="finitegp-") as directory:
        path = Path(directory) / "small.parquet"
        pq.write_table(pa.table(numbers), path)
        spool(TableSource(path, "y"), Path(directory) / "spool")
        path = Path(directory) / "small.csv"
        csv.write_csv(pa.table(numbers | {"c": ["red", "blue"] * (len(targets) // 2)}), path)
        # Blocks so small that reading ahead takes next to nothing.
        table = TableReader(path, block_size=1 << 12)
        spool(TableSource(table, "y", encoder=TableEncoder.fit(table, exclude="y")), Path(directory) / "coded")
