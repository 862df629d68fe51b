"""Predictions of the test rows beside the results, so that methods can be compared row by row."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from finitegp.atomic import complete_or_absent
from finitegp.errors import DataError

from .cells import Cell
from .outcome import Outcome

#: The directory inside the directory of results.
PREDICTIONS = "predictions"

Column = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a method predicted for the test rows of its split, in their order and in the target's units; float32.

    Attributes:
        mean: Predictive mean ``(test rows,)``.
        std: Predictive standard deviation ``(test rows,)``, noise included.
        degrees_of_freedom: Of Student's t around them; None for the Gaussian, or where there is a ``log_density``.
        log_density: Log predictive density of the test targets where the prediction is of another kind (a mixture).
    """

    mean: Column
    std: Column
    degrees_of_freedom: float | None = None
    log_density: Column | None = None

    @classmethod
    def of(cls, outcome: Outcome) -> Predictions:
        """What is stored of an outcome."""
        density = outcome.log_density
        return cls(
            outcome.mean.astype(np.float32),
            outcome.std.astype(np.float32),
            None if density is not None else outcome.error_shape.degrees_of_freedom,
            None if density is None else density.astype(np.float32),
        )


def save_predictions(cell: Cell, predictions: Predictions, results: Path) -> Path:
    """Write ``results/predictions/<digest>.npz``, whole or not at all; an older file of the same cell is replaced."""
    path = _path(cell, results)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The key is in the file, because the name of the file is only its digest.
    arrays: dict[str, Any] = {"cell": np.array(cell.key), "mean": predictions.mean, "std": predictions.std}
    if predictions.degrees_of_freedom is not None:
        arrays["degrees_of_freedom"] = np.float32(predictions.degrees_of_freedom)
    if predictions.log_density is not None:
        arrays["log_density"] = predictions.log_density
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
        key, mean, std = str(arrays["cell"]), arrays["mean"], arrays["std"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} is damaged ({error}): remove it and the line of its cell, and run that again."
        ) from error
    if key != cell.key:
        raise DataError(f"{path} holds the predictions of another cell, {key}.")
    degrees, density = arrays.get("degrees_of_freedom"), arrays.get("log_density")
    columns = [mean, std, *([] if density is None else [density])]
    if any(column.ndim != 1 or column.dtype != np.float32 or len(column) != len(mean) for column in columns):
        raise DataError(f"{path} does not hold one float32 number per row: remove it and the line of its cell.")
    return Predictions(mean, std, None if degrees is None else float(degrees), density)


def _path(cell: Cell, results: Path) -> Path:
    return results / PREDICTIONS / f"{cell.digest}.npz"
