"""Estimators in files: what ``GPRegressor.save`` and ``load`` do.

Functions take the estimator's class as an argument, which avoids a circular import.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..errors import ModelFileError
from ..scaled import ScaledGP
from .container import PARAMETERS, TRAINING_SUMMARY, check_kinds, plain_json, read_container, write_container
from .fits import decode_fits, encode_fits


class Regressor(Protocol):
    """The part of an estimator that files hold."""

    fits_: list[ScaledGP]
    n_features_in_: int
    feature_names_in_: npt.NDArray[np.object_]
    training_summary_: dict[str, Any]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name."""


RegressorT = TypeVar("RegressorT", bound=Regressor)
_MODULE = "module of one's own"


def save_regressor(regressor: Regressor, path: str | os.PathLike[str]) -> None:
    """Write a fitted :class:`~finitegp.GPRegressor` into one file; see :func:`.save_fit` for what is in it.

    A ``random_state`` that is a generator is saved as None, because it is code and state.
    """
    header, tensors = encode_regressor(regressor)
    write_container(path, {"kind": "regressor", **header}, tensors)


def load_regressor(
    kind: type[RegressorT], path: str | os.PathLike[str], *, feature_map: nn.Module | None = None
) -> RegressorT:
    """Read a regressor that :func:`save_regressor` wrote.

    Args:
        kind: The class of the estimator.
        path: The file.
        feature_map: Needed if the regressor had a module that is not of this library: a module made in the same way.
            If the regressor had one that files can hold, its trained copy becomes the parameter ``feature_map``.

    Raises:
        ModelFileError: If the file is damaged, truncated, of a newer version or something else altogether.
    """
    header, tensors = read_container(path)
    if header.get("kind") == "table":
        raise ModelFileError(
            f"{path} holds a regressor together with the encoding of a table: load it with "
            "finitegp.TableRegressor.load, whose attribute regressor_ it is."
        )
    if header.get("kind") != "regressor":
        raise ModelFileError(f"{path} holds a {str(header.get('kind'))[:60]!r}, not a regressor.")
    return decode_regressor(kind, path, header, tensors, feature_map=feature_map)


def encode_regressor(regressor: Regressor) -> tuple[dict[str, object], dict[str, Tensor]]:
    """Header entries and tensors of a regressor."""
    header, tensors = encode_fits(regressor.fits_)
    names = getattr(regressor, "feature_names_in_", None)
    # The records of the fits are with the fits.
    summary = {name: value for name, value in regressor.training_summary_.items() if name != "fits"}
    header["regressor"] = {
        "parameters": {name: plain_parameter(value) for name, value in regressor.get_params(deep=False).items()},
        "n_features_in": int(regressor.n_features_in_),
        "feature_names_in": None if names is None else [str(name) for name in names],
        "training_summary": plain_json(summary),
    }
    return header, tensors


def decode_regressor(
    kind: type[RegressorT],
    path: str | os.PathLike[str],
    header: dict[str, Any],
    tensors: dict[str, Tensor],
    *,
    feature_map: nn.Module | None = None,
) -> RegressorT:
    """The regressor of a file."""
    fits = decode_fits(path, header, tensors, feature_map=feature_map)
    stored: Any = header.get("regressor")
    try:
        parameters, columns, names, summary = (
            stored[name] for name in ("parameters", "n_features_in", "feature_names_in", "training_summary")
        )
        parameters = dict(check_kinds("parameters", parameters, PARAMETERS))
        if isinstance(parameters.get("feature_map"), Mapping):
            parameters["feature_map"] = feature_map or fits[0].fitted.model.feature_map
        regressor = kind(**parameters)
        if any(fit.inputs_scaler.num_columns != columns for fit in fits):
            raise ValueError(f"there are not {columns} columns")
        if names is not None:
            if not isinstance(names, list) or len(names) != columns or not all(isinstance(each, str) for each in names):
                raise ValueError("the names of the columns are not one text each")
            regressor.feature_names_in_ = np.array(names, dtype=object)
        summary = check_kinds("training summary", summary, TRAINING_SUMMARY)
        summary = {**dict.fromkeys(("rows", "rows_added", "rows_forgotten"), 0), **summary}
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{path} cannot be used: its description of the regressor makes no sense to this release "
            f"({type(error).__name__}: {error}). Use the release that wrote it."
        ) from None
    regressor.fits_ = fits
    regressor.n_features_in_ = int(columns)
    regressor.training_summary_ = {**summary, "fits": [fit.record for fit in fits]}
    return regressor


def plain_parameter(value: Any) -> Any:
    """A parameter as JSON holds it."""
    if isinstance(value, nn.Module):
        return {_MODULE: type(value).__name__}
    if isinstance(value, torch.device):
        return str(value)
    try:
        return plain_json(value)
    except TypeError:
        return None  # a generator of random numbers
