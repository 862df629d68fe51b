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
from finitegp.errors import DataError

from .cells import Cell
from .outcome import Array, Outcome

#: The directory inside the directory of results.
PREDICTIONS = "predictions"

Column = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a method predicted for the test rows of its split, in their order and in the target's units; float32.

    Attributes:
        mean: Predictive mean ``(test rows,)``.
        std: Predictive standard deviation ``(test rows,)``, noise included.
        log_density: Log predictive density of the test targets ``(test rows,)``.
        degrees_of_freedom: Of Student's t around the mean; None for the Gaussian and for mixtures.
    """

    mean: Column
    std: Column
    log_density: Column
    degrees_of_freedom: float | None = None

    @classmethod
    def of(cls, outcome: Outcome, targets: Array) -> Predictions:
        """What is stored of an outcome, given the test targets."""
        density, degrees = outcome.log_density, None
        if density is None:
            degrees = outcome.error_shape.degrees_of_freedom
            errors = torch.from_numpy((targets - outcome.mean) / outcome.std)
            density = outcome.error_shape.log_density(errors).numpy() - np.log(outcome.std)
        return cls(outcome.mean.astype(np.float32), outcome.std.astype(np.float32), density.astype(np.float32), degrees)


class PairedDifference(NamedTuple):
    """A mean difference over test rows, and its standard error from the differences of single rows."""

    mean: float
    standard_error: float


def paired_nlpd(one: Cell, other: Cell, results: Path) -> PairedDifference | None:
    """How much higher the NLPD of one method is than that of another, on the test rows of the same split.

    None where the predictions of one of them were not stored.

    Raises:
        ValueError: If the cells are of different tables or splits.
    """
    if (one.dataset, one.split) != (other.dataset, other.split):
        raise ValueError(f"{one} and {other} have different test rows.")
    if not (_path(one, results).exists() and _path(other, results).exists()):
        return None
    densities = [load_predictions(cell, results).log_density.astype(np.float64) for cell in (other, one)]
    differences = densities[0] - densities[1]
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
    }
    if predictions.degrees_of_freedom is not None:
        arrays["degrees_of_freedom"] = np.float32(predictions.degrees_of_freedom)
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
        key, mean, std, density = str(arrays["cell"]), arrays["mean"], arrays["std"], arrays["log_density"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} is damaged ({error}): remove it and the line of its cell, and run that again."
        ) from error
    if key != cell.key:
        raise DataError(f"{path} holds the predictions of another cell, {key}.")
    if any(
        column.ndim != 1 or column.dtype != np.float32 or len(column) != len(mean) for column in (mean, std, density)
    ):
        raise DataError(f"{path} does not hold one float32 number per row: remove it and the line of its cell.")
    degrees = arrays.get("degrees_of_freedom")
    return Predictions(mean, std, density, None if degrees is None else float(degrees))


def _path(cell: Cell, results: Path) -> Path:
    return results / PREDICTIONS / f"{cell.digest}.npz"
