"""Files of models that take tables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from ..errors import DataError, ModelFileError
from ..estimator.regressor import GPRegressor
from ..persistence.container import read_container, write_container
from ..persistence.records import TABLE_SUMMARY, check_kinds
from ..persistence.regressors import decode_regressor, encode_regressor, plain_parameter
from .columns import NumberColumn
from .encoder import TableEncoder
from .targets import TargetScale
from .text_values import DECIMALS, MAX_UNIT


class StoredModel(NamedTuple):
    """The parts of a model in a file."""

    regressor: GPRegressor
    encoder: TableEncoder
    target: str | None
    summary: dict[str, Any]
    scale: TargetScale
    decimal: str
    unit: str
    parameters: dict[str, object]


def save_table_model(
    path: str | os.PathLike[str],
    regressor: GPRegressor,
    encoder: TableEncoder,
    description: Mapping[str, object],
    parameters: Mapping[str, object],
    *,
    overwrite: bool = True,
) -> None:
    """Write a regressor, the encoding of its table and a description in JSON into one file."""
    header, tensors = encode_regressor(regressor)
    plain = {name: plain_parameter(value) for name, value in description.items()}
    plain["parameters"] = {name: plain_parameter(value) for name, value in parameters.items()}
    header["table"] = {"encoder": encoder.to_dict(), **plain}
    write_container(path, {"kind": "table", **header}, tensors, overwrite=overwrite)


def load_table_model(path: Path, *, feature_map: nn.Module | None = None) -> StoredModel:
    """Read a file that :func:`save_table_model` or :meth:`GPRegressor.save` wrote, of this or an earlier version.

    Raises:
        ModelFileError: If the file is damaged, truncated, of a newer version or something else altogether.
    """
    header, tensors = read_container(path)
    kind = header.get("kind")
    if kind == "statistics":
        raise ModelFileError(
            f"{path} holds the statistics of a site, not a model: finitegp merge (TableRegressor.merge) makes a model "
            "of them and the model that they were made for."
        )
    if kind not in ("table", "regressor"):
        raise ModelFileError(f"{path} holds a {str(kind)[:60]!r}, not a model that takes tables.")
    regressor = decode_regressor(GPRegressor, path, header, tensors, feature_map=feature_map)
    if len(regressor.fits_) > 1:
        raise ModelFileError(f"{path} holds a model of {len(regressor.fits_)} targets: use GPRegressor.load in Python.")
    if kind == "regressor":
        return StoredModel(regressor, _encoder_of_names(regressor, path), None, {}, TargetScale(), "", "", {})
    stored = header.get("table")
    if not isinstance(stored, Mapping) or not isinstance(stored.get("summary"), dict):
        raise ModelFileError(f"{path} cannot be used: its description of the table makes no sense.")
    target, parameters = stored.get("target"), stored.get("parameters", {})
    try:
        check_kinds("summary", stored["summary"], TABLE_SUMMARY)
        if target is not None and not isinstance(target, str):
            raise DataError("the name of its target is not text")
        encoder = TableEncoder.from_dict(stored.get("encoder"))
        scale = TargetScale.from_dict(stored.get("target_scale"))
        style = _style(stored.get("target_style"))
        if len(encoder.feature_names_out) != regressor.n_features_in_:
            raise DataError(
                f"its table gives {len(encoder.feature_names_out)} columns of numbers, but its regressor takes "
                f"{regressor.n_features_in_}"
            )
        if not isinstance(parameters, dict):
            raise DataError("its parameters make no sense")
    except DataError as error:
        raise ModelFileError(f"{path} cannot be used: {str(error).removesuffix('.')}.") from None
    return StoredModel(regressor, encoder, target, stored["summary"], scale, *style, parameters)


def _style(stored: object) -> tuple[str, str]:
    """How targets are written; in older files, which do not hold it, as programs write them."""
    if stored is None:
        return "", ""
    if (
        not isinstance(stored, Mapping)
        or set(stored) != {"decimal", "unit"}
        or stored["decimal"] not in ("", *DECIMALS)
        or not isinstance(stored["unit"], str)
        or len(stored["unit"]) > 2 * MAX_UNIT
    ):
        raise DataError("how its target is written makes no sense.")
    return stored["decimal"], stored["unit"]


def _encoder_of_names(regressor: GPRegressor, path: Path) -> TableEncoder:
    names = getattr(regressor, "feature_names_in_", None)
    if names is None:
        raise ModelFileError(
            f"{path} holds a regressor that was fitted to arrays without column names, so it cannot find its columns "
            "in a table: load it with GPRegressor.load in Python, or fit it to a data frame."
        )
    # From here on the encoder finds the columns, and the regressor gets arrays without names.
    del regressor.feature_names_in_
    return TableEncoder([NumberColumn(str(name), "number", "number", False, "as in Python", 0.0, ()) for name in names])
