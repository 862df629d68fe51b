"""A fitted model as formulas of numbers, or an error with the reason and the remedy."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

from ..component import Component
from ..data.scaling import Standardizer
from ..errors import DataError
from ..lite import LiteError, LiteModel, load
from ..lite.container import read_file
from ..lite.model import read_model
from ..model import FittedGP
from ..scaled import ScaledGP


class Saves(Protocol):
    """A fitted estimator: what writes a model file."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file."""


#: A fitted model, or its file.
Exportable: TypeAlias = LiteModel | FittedGP | ScaledGP | Saves | str | os.PathLike[str]


def described(model: Exportable) -> LiteModel:
    """The formulas of a model file, or of a fitted model."""
    try:
        if isinstance(model, LiteModel):
            return model
        if isinstance(model, str | os.PathLike):
            return load(model)
        if isinstance(model, FittedGP):
            model = _in_its_own_units(model)
        if not hasattr(model, "save") and not isinstance(model, ScaledGP):
            raise DataError(
                "model must be a model file, a fitted GPRegressor or TableRegressor, a ScaledGP or a FittedGP, but is "
                f"{model!r:.60}."
            )
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "model.finitegp"
            if hasattr(model, "save"):
                model.save(path)
            else:
                from ..persistence import save_fit

                save_fit(model, path)
            return read_model("it", *read_file(path))
    except LiteError as error:
        raise DataError(f"The model cannot be exported: {error}") from None


def _in_its_own_units(fitted: FittedGP) -> ScaledGP:
    columns, targets = getattr(fitted.model.feature_map, "input_dim", None), fitted.posterior.statistics.num_targets
    if columns is None or targets > 1:
        what = "a feature map without input_dim" if columns is None else f"{targets} targets"
        raise DataError(f"A FittedGP with {what} cannot be exported:", "fit a GPRegressor with this feature map.")
    inputs, target = (Standardizer(np.zeros(shape), np.ones(shape)) for shape in ((int(columns),), ()))
    return ScaledGP((Component(fitted),), inputs, target)


def check_columns(model: LiteModel, target: str, *, encodes: bool = False) -> list[str]:
    """The names of a model's inputs: numbers or, if the target ``encodes`` them, anything; others are refused."""
    for column in [] if model.encoder is None or encodes else model.encoder.used:
        what = {"category": "holds text", "date": "holds dates"}.get(column["type"])
        what = what or ("had gaps in the fit" if column["indicator"] else None)
        if what is not None:
            raise DataError(
                f"Column {column['name']!r} {what}, but {target} takes numbers only:",
                "fit without it (drop), or export an ONNX graph, or predict with finitegp-lite.",
            )
    return model.column_names or [f"column {number}" for number in range(model.fits[0].columns)]
