"""Training and test rows of a table, scaled in the ways that are tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd


def load(folder: Path, table: str, inputs: str, targets: str) -> dict[str, Any]:
    """Training and test rows of split 0, scaled on the training rows in float64."""
    frame = pd.read_parquet(folder / f"{table}.parquet")
    x = frame.filter(regex=r"^x\d+$").to_numpy(np.float64)
    y = frame["y"].to_numpy(np.float64)
    test = frame["test0"].to_numpy()
    train = x[~test]
    shift, scale = np.zeros(x.shape[1]), np.ones(x.shape[1])
    if inputs in ("standard", "white"):
        shift, scale = train.mean(0), train.std(0)
    elif inputs in ("unit", "symmetric"):
        low, high = train.min(0), train.max(0)
        shift, scale = (low, high - low) if inputs == "unit" else ((low + high) / 2, (high - low) / 2)
    if inputs == "clip":
        x = np.clip((x - train.mean(0)) / np.where(train.std(0) > 0, train.std(0), 1.0), -5, 5)
        shift, scale = x[~test].mean(0), x[~test].std(0)
    if inputs == "robust":
        low, shift, high = np.quantile(train, (0.25, 0.5, 0.75), axis=0)
        scale = high - low
    if inputs == "triple":
        shift, scale = train.mean(0), train.std(0) / 3
    x = (x - shift) / np.where(scale > 0, scale, 1.0)
    if inputs == "white":
        train = x[~test] - x[~test].mean(0)
        values, vectors = np.linalg.eigh(train.T @ train / len(train))
        x = (x - x[~test].mean(0)) @ (vectors / np.sqrt(np.maximum(values, 1e-10 * values[-1])))
    y_shift, y_scale = (y[~test].mean(), y[~test].std()) if targets == "standard" else (0.0, 1.0)
    return {
        "x": x[~test],
        "y": (y[~test] - y_shift) / y_scale,
        "x_test": x[test],
        "y_test": y[test],
        "y_shift": float(y_shift),
        "y_scale": float(y_scale),
    }
