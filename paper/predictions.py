"""Predictions of the test rows beside the results, and two methods compared row by row."""

from __future__ import annotations

import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from finitegp.atomic import complete_or_absent
from finitegp.error_shape import ErrorShape
from finitegp.errors import DataError

from .cells import Cell
from .outcome import Array, Outcome

#: The directory inside the directory of results.
PREDICTIONS = "predictions"
#: The scores that two methods are compared in, row by row.
PAIRED_METRICS = ("nlpd", "crps", "rmse")

Column = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a method predicted for the test rows of its split, in their order and in the target's units; float32.

    Attributes:
        mean: Predictive mean ``(test rows,)``.
        std: Predictive standard deviation ``(test rows,)``, noise included.
        log_density: Log predictive density of the test targets ``(test rows,)``.
        error: Test target less mean ``(test rows,)``.
        degrees_of_freedom: Of Student's t around the mean; None for the Gaussian and for mixtures.
        crps: Of the test targets ``(test rows,)`` where the prediction is a mixture; None where it follows.
    """

    mean: Column
    std: Column
    log_density: Column
    error: Column
    degrees_of_freedom: float | None = None
    crps: Column | None = None

    @classmethod
    def of(cls, outcome: Outcome, targets: Array) -> Predictions:
        """What is stored of an outcome, given the test targets."""
        density, degrees, error, crps = outcome.log_density, None, targets - outcome.mean, None
        if outcome.mixture is not None:
            density = outcome.mixture.log_density(targets)
            crps = outcome.mixture.crps(targets).astype(np.float32)
        elif density is None:
            degrees = outcome.error_shape.degrees_of_freedom
            standardized = torch.from_numpy(error / outcome.std)
            density = outcome.error_shape.log_density(standardized).numpy() - np.log(outcome.std)
        mean, std = outcome.mean.astype(np.float32), outcome.std.astype(np.float32)
        return cls(mean, std, density.astype(np.float32), error.astype(np.float32), degrees, crps)

    def contributions(self, metric: str) -> Array:
        """What each test row adds to a score, so that the mean is the score; the RMSE to first order in its square."""
        error, std = self.error.astype(np.float64), self.std.astype(np.float64)
        if metric == "nlpd":
            return -self.log_density.astype(np.float64)
        if metric == "crps" and self.crps is not None:
            return self.crps.astype(np.float64)
        if metric == "crps":
            crps: Array = std * ErrorShape(self.degrees_of_freedom).crps(torch.from_numpy(error / std)).numpy()
            return crps
        if metric == "rmse":
            rmse = max(math.sqrt(float(np.mean(error**2))), np.finfo(np.float64).tiny)
            halves: Array = 0.5 * (rmse + error**2 / rmse)
            return halves
        raise ValueError(f"metric must be one of {PAIRED_METRICS}, but is {metric!r}.")


class PairedDifference(NamedTuple):
    """A mean difference over test rows, and its standard error from the differences of single rows.

    The error is that of drawing test rows. That another fit, on other training rows or with another seed, would differ
    is not in it.
    """

    mean: float
    standard_error: float


def paired_difference(one: Cell, other: Cell, results: Path, metric: str = "nlpd") -> PairedDifference | None:
    """How much higher the NLPD, CRPS or RMSE of one method is than that of another, on the test rows of one split.

    None where the predictions of one of them were not stored.

    Raises:
        ValueError: If the cells are of different tables or splits.
    """
    if (one.dataset, one.split) != (other.dataset, other.split):
        raise ValueError(f"{one} and {other} have different test rows.")
    if not (_path(one, results).exists() and _path(other, results).exists()):
        return None
    differences = np.subtract(*(load_predictions(cell, results).contributions(metric) for cell in (one, other)))
    return PairedDifference(float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(len(differences)))


def save_predictions(cell: Cell, predictions: Predictions, results: Path) -> Path:
    """Write ``results/predictions/<digest>.npz``, whole or not at all; an older file of the same cell is replaced."""
    path = _path(cell, results)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The key is in the file, because the name of the file is only its digest.
    arrays: dict[str, Any] = {
        "cell": np.array(cell.key),
        "mean": predictions.mean,
        "std": predictions.std,
        "log_density": predictions.log_density,
        "error": predictions.error,
    }
    if predictions.degrees_of_freedom is not None:
        arrays["degrees_of_freedom"] = np.float32(predictions.degrees_of_freedom)
    if predictions.crps is not None:
        arrays["crps"] = predictions.crps
    with complete_or_absent(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
    return path


def load_predictions(cell: Cell, results: Path = Path("results")) -> Predictions:
    """The stored predictions of a cell.

    Raises:
        DataError: If there are none, or the file is damaged or belongs to another cell.
    """
    path = _path(cell, results)
    if not path.exists():
        raise DataError(
            f"There are no predictions of {cell} in {path.parent}: run the cell again with its line removed."
        )
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        key, columns = str(arrays["cell"]), {name: arrays[name] for name in ("mean", "std", "log_density", "error")}
        columns |= {name: arrays[name] for name in ("crps",) if name in arrays}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} is damaged ({error}): remove it and the line of its cell, and run that again."
        ) from error
    if key != cell.key:
        raise DataError(f"{path} holds the predictions of another cell, {key}.")
    rows = columns["mean"].shape
    if any(column.ndim != 1 or column.dtype != np.float32 or column.shape != rows for column in columns.values()):
        raise DataError(f"{path} does not hold one float32 number per row: remove it and the line of its cell.")
    degrees = arrays.get("degrees_of_freedom")
    return Predictions(**columns, degrees_of_freedom=None if degrees is None else float(degrees))


def _path(cell: Cell, results: Path) -> Path:
    return results / PREDICTIONS / f"{cell.digest}.npz"
