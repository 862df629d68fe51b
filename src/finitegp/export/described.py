"""A fitted model as formulas of numbers, or an error with the reason and the remedy."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ..errors import DataError
from ..lite import LiteError, LiteModel, load
from ..scaled import ScaledGP

if TYPE_CHECKING:
    from ..scaled import ScaledGP


class Saves(Protocol):
    """A fitted estimator: what writes a model file."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file."""


#: A fitted model, or its file.
Exportable: TypeAlias = "LiteModel | ScaledGP | Saves | str | os.PathLike[str]"


def described(model: Exportable) -> LiteModel:
    """The formulas of a model file, a fitted estimator or a ``ScaledGP``."""
    try:
        if isinstance(model, LiteModel):
            return model
        if isinstance(model, str | os.PathLike):
            return load(model)
        if not hasattr(model, "save") and not isinstance(model, ScaledGP):
            raise DataError(
                "model must be a model file, a fitted GPRegressor or TableRegressor, or a ScaledGP, but is "
                f"{model!r:.60}."
            )
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "model.finitegp"
            if hasattr(model, "save"):
                model.save(path)
            else:
                from ..persistence import save_fit

                save_fit(model, path)
            return load(path)
    except LiteError as error:
        raise DataError(f"The model cannot be exported: {error}") from None


def check_columns(model: LiteModel, target: str, *, encodes: bool = False) -> list[str]:
    """The names of a model's inputs: numbers or, if the target ``encodes`` them, anything; others are refused."""
    for column in [] if model.encoder is None or encodes else model.encoder.used:
        what = {"category": "text", "date": "dates"}.get(column["type"])
        what = what or ("gaps, which count as information" if column["indicator"] else None)
        if what is not None:
            raise DataError(
                f"Column {column['name']!r} holds {what}, which {target} cannot be given:",
                "fit without it (drop), or export an ONNX graph, or predict with finitegp-lite.",
            )
    return model.column_names or [f"column {number}" for number in range(model.fits[0].columns)]
