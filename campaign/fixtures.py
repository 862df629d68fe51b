"""What the campaign works on: a small table, models of it in files, a checkpoint, a spool."""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from .outcomes import WrongError


@dataclass
class Fixtures:
    """Files in one directory.

    Attributes:
        folder: Where they are.
        table: Rows to fit, with the target ``y``.
        new: Rows to predict, with the target as well.
        model: Of the table, with its rows.
        sums: Of the table, without rows, so that statistics of sites can be made for it.
        statistics: Of the new rows.
        checkpoint: Of a training run, half way.
        spool: A directory.
        numbers: A model of the columns of numbers alone, which can be exported.
        scaled: Models of a positive target by the scale that it is modelled on.
        fit_checkpoint: Of a small automatic fit, with all of its stages.
    """

    folder: Path
    table: Path
    new: Path
    model: Path
    sums: Path
    statistics: Path
    checkpoint: Path
    spool: Path
    numbers: Path
    scaled: dict[str, Path]
    fit_checkpoint: Path


def write_table(path: Path, rows: int, seed: int, *, positive: bool = False) -> Path:
    """Two columns of numbers, one of text, and a target."""
    generator = np.random.default_rng(seed)
    first, second = generator.normal(size=(2, rows)).round(4)
    letters = generator.choice(["u", "v", "w"], rows)
    target = (np.sin(first) + 0.5 * second + (letters == "u") + 0.1 * generator.normal(size=rows)).round(4)
    target = np.exp(target) if positive else target
    lines = [f"{a},{b},{c},{y}" for a, b, c, y in zip(first, second, letters, target, strict=True)]
    path.write_text("\n".join(["a,b,c,y", *lines]) + "\n")
    return path


def make_fixtures(folder: Path) -> Fixtures:
    """Make all of them; takes a few seconds, because two models are fitted."""
    from finitegp import TableRegressor, resumable, spool

    torch.set_num_threads(1)
    table, new = write_table(folder / "table.csv", 60, 0), write_table(folder / "new.csv", 12, 1)
    fixtures = Fixtures(
        folder,
        table,
        new,
        *(folder / name for name in ("model.finitegp", "sums.finitegp", "new.statistics", "run.checkpoint", "spool")),
        folder / "numbers.finitegp",
        {scale: folder / f"{scale}.finitegp" for scale in ("log", "square root", "yeo-johnson")},
        folder / "fit.checkpoint",
    )
    options: dict[str, Any] = {"effort": "low", "target_scale": "identity", "random_state": 0}
    for path, more in (
        (fixtures.model, {}),
        (fixtures.sums, {"keep_rows": False}),
        (fixtures.numbers, {"drop": ["c"]}),
    ):
        TableRegressor(**options | more).fit(table, target="y").save(path)
    positive = write_table(folder / "positive.csv", 60, 0, positive=True)
    for scale, path in fixtures.scaled.items():
        TableRegressor(**options | {"target_scale": scale, "keep_rows": False}).fit(positive, target="y").save(path)
    with contextlib.suppress(KeyboardInterrupt), resumable(fixtures.fit_checkpoint):
        fit_few()
        raise KeyboardInterrupt
    TableRegressor.load(fixtures.sums).statistics(new).save(fixtures.statistics)
    train_some(fixtures.checkpoint, epochs=2)
    spool(training_rows(), fixtures.spool)
    return fixtures


def fit_some(checkpoint: Path | None = None) -> Any:
    """Kernels and a few networks fitted to a table, in a resumable block if there is a path; returns predictions."""
    from finitegp import resumable
    from finitegp.automatic import fit_auto

    inputs = np.random.default_rng(0).normal(size=(300, 2))
    settings = {"small_rows": 100, "most_rows_for_both": 400, "weight_decays": (0.1, 0.3), "learning_rows": 60}
    settings |= {"members": 3, "steps": 80, "max_steps": 80, "noise_steps": 40}
    with contextlib.nullcontext() if checkpoint is None else resumable(checkpoint):
        fit = fit_auto(inputs, np.sin(inputs[:, 0]) + 0.1 * inputs[:, 1], effort="low", settings=settings)
        return fit.predict(inputs[:20]).mean


def fit_few() -> Any:
    """Kernels fitted to a few rows, which takes a fraction of a second; returns predictions."""
    from finitegp.automatic import fit_auto

    inputs, targets = training_rows()
    return fit_auto(inputs, targets, effort="low").predict(inputs).mean


def training_rows() -> tuple[Any, Any]:
    """Rows of numbers for networks."""
    inputs = np.linspace(-1.0, 1.0, 40).reshape(20, 2)
    return inputs, np.sin(3.0 * inputs[:, 0])


def train_some(checkpoint: Path, epochs: int, resume: bool = False) -> torch.Tensor:
    """Train a small network, with checkpoints or from one; returns its weights."""
    from finitegp import Checkpoint, FeatureGP, Lagged, MLPFeatures, make_optimizer, train

    model = FeatureGP(MLPFeatures(2, hidden=(4,), seed=0), noise_variance=0.1)
    algorithm = Lagged(model, num_data=20)
    train(
        algorithm,
        make_optimizer(algorithm),
        training_rows(),
        epochs=epochs,
        batch_size=5,
        callbacks=[] if resume else [Checkpoint(checkpoint)],
        resume=checkpoint if resume else None,
    )
    return torch.cat([parameter.detach().double().reshape(-1) for parameter in model.parameters()])


def scratch() -> Path:
    """A directory of this process for files that are tried and thrown away."""
    folder = Path(tempfile.gettempdir()) / f"finitegp-campaign-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    return folder


def new_rows() -> Any:
    """A few rows that the models predict."""
    return pa.table({"a": [0.1, 0.2, -1.0], "b": [1.0, 2.0, 3.0], "c": ["u", "v", "w"], "y": [0.0, 1.0, 2.0]})


def check_finite(values: Any, what: str) -> Any:
    """The values, unless one of them is not finite."""
    if not np.isfinite(np.asarray(values, dtype=np.float64)).all():
        raise WrongError(f"{what} is not finite")
    return values
