"""Fits and estimators in files: exact GPs with the scaling around them, as JSON and tensors; no code.

Training rows are in a file only as landmarks of features (small tables), and then the row sums follow from them.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from .. import __version__
from ..component import Component, SpreadModel
from ..conformal import ConformalScores
from ..data.scaling import LogScales, Standardizer
from ..error_shape import ErrorTail
from ..errors import DataError, ModelFileError
from ..extrapolation import ExcessVariance
from ..lite.container import Header, inside
from ..lite.entries import SPREAD_NUMBERS, Tail, check_scaler, positive_number, read_shapes, read_spread, second_version
from ..lite.hashing import read_repeated
from ..lite.program import LiteError
from ..noise import NoiseModel
from ..processes import one_thread
from ..scaled import ScaledGP
from ..trees import BoostedTrees
from .container import (
    PARAMETERS,
    RECORD,
    TRAINING_SUMMARY,
    check_kinds,
    plain_json,
    read_container,
    write_container,
)
from .gps import Tensors, check_grids, checked_tensor, decode_gp, encode_gp


def save_fit(fit: ScaledGP, path: str | os.PathLike[str]) -> None:
    """Write a fit into one file: features, noise, scaling, posterior and record.

    Training inputs are in it only where they are landmarks of the features, as on small tables.

    A feature map that is not one of this library's (or made of ``nn.Sequential``, ``nn.Linear`` and activations) is
    saved as its tensors and the name of its class.

    Example:
        >>> import tempfile
        >>> from finitegp.automatic import fit_auto
        >>> generator = np.random.default_rng(0)
        >>> inputs = generator.normal(size=(40, 2))
        >>> targets = inputs[:, 0] + 0.1 * generator.normal(size=40)
        >>> fit = fit_auto(inputs, targets, effort="low")
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     save_fit(fit, f"{directory}/small.finitegp")
        ...     again = load_fit(f"{directory}/small.finitegp")
        >>> bool((again.predict(inputs).mean == fit.predict(inputs).mean).all())
        True
    """
    header, tensors = encode_fits([fit])
    write_container(path, {"kind": "fit", **header}, tensors)


def load_fit(
    path: str | os.PathLike[str], *, feature_map: nn.Module | None = None, noise_model: NoiseModel | None = None
) -> ScaledGP:
    """Read a fit that :func:`save_fit` wrote; its predictions are the same, on small tables to rounding.

    Of a small table with counts or outliers they are the same to rounding: row sums are taken anew from the landmarks.

    Args:
        path: The file.
        feature_map: Needed if the saved one was a module of your own: a module made in the same way, whose tensors are
            then those of the file. It is copied, not changed.
        noise_model: The same for a noise model.

    Raises:
        ModelFileError: If the file is damaged, truncated, of a newer version or something else altogether, or if the
            modules passed in are not those that were saved.
    """
    header, tensors = read_container(path)
    if header.get("kind") != "fit":
        raise ModelFileError(f"{path} holds a {str(header.get('kind'))[:60]!r}, not a single fit.")
    return decode_fits(path, header, tensors, feature_map=feature_map, noise_model=noise_model)[0]


@one_thread()  # what is computed is small: threads would wait for each other longer than they work
def encode_fits(fits: Sequence[ScaledGP]) -> tuple[Header, Tensors]:
    """Header entries and tensors of several fits, and the versions of what made them."""
    headers: list[Header] = []
    tensors: Tensors = {}
    for number, fit in enumerate(fits):
        header, mine = encode_fit(fit, f"fits.{number}.")
        headers.append(header)
        tensors |= mine
    versions = {
        "finitegp": __version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    return {"versions": versions, "fits": headers}, tensors


@one_thread()
def decode_fits(
    path: str | os.PathLike[str],
    header: Header,
    tensors: Tensors,
    *,
    feature_map: nn.Module | None = None,
    noise_model: NoiseModel | None = None,
) -> list[ScaledGP]:
    """The fits of a file; what does not fit together is a ModelFileError."""
    stored = header.get("fits")
    if not isinstance(stored, list) or not stored or len(stored) > len(tensors):
        raise ModelFileError(f"{path} cannot be used: it holds no fit.")
    try:
        check_grids(stored)
        fits = []
        for number in range(len(stored)):
            mine = inside(tensors, f"fits.{number}.")
            fits.append(_decode(stored[number], mine, feature_map, noise_model))
        return fits
    except (ModelFileError, LiteError) as error:
        raise ModelFileError(f"{path} cannot be used: {error}.") from None
    except (DataError, KeyError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError) as error:
        what = f"its parts do not make a model ({type(error).__name__}: {error})"
        raise ModelFileError(f"{path} cannot be used: {what}.") from error


def encode_fit(fit: ScaledGP, prefix: str = "") -> tuple[Header, Tensors]:
    """The header entries of a fit, and its tensors with ``prefix`` before their names."""
    columns = len(fit.inputs_scaler.scale)
    header: Header = {
        "components": [],
        "record": plain_json(fit.record),
        "keeps_rows": fit.keeps_rows,
        "counts_copies_once": fit.counts_copies_once,
        "outliers": dict(fit.outliers),
    }
    tensors: Tensors = {}
    for number, component in enumerate(fit.components):
        described, mine = encode_gp(component.fitted, columns, component.landmark_weights, component.landmark_targets)
        freedom = component.degrees_of_freedom
        described |= {
            "name": component.name,
            "weight": component.weight,
            "factor": component.factor,
            "degrees_of_freedom": None if math.isinf(freedom) else freedom,
            "scale_degrees": component.scale_degrees,
        }
        if component.tail is not None:
            described["tail"] = _encode_tail(component.tail)
        header["components"].append(described)
        tensors |= {f"components.{number}.{name}": tensor for name, tensor in mine.items()}
    for role, scaler in (("inputs_scaler", fit.inputs_scaler), ("target_scaler", fit.target_scaler)):
        if type(scaler) is not Standardizer:
            raise ModelFileError(f"A {type(scaler).__name__} cannot be saved: use Standardizer.")
        header[role] = {"type": "Standardizer"}
        for name in ("mean", "scale"):
            tensors[f"{role}.{name}"] = torch.tensor(np.asarray(getattr(scaler, name), np.float64))
        if scaler.logarithms is not None:
            logs = scaler.logarithms._asdict()
            tensors |= {f"{role}.log_{name}": torch.tensor(np.asarray(each, np.float64)) for name, each in logs.items()}
        if scaler.limits is not None:
            tensors[f"{role}.limits"] = torch.tensor(scaler.limits, dtype=torch.float64)
    if fit.conformal is not None:
        header["conformal"] = fit.conformal.to_json()
    if fit.repeated is not None and len(fit.repeated.codes):
        header["repeated"], seen = fit.repeated.stored()
        tensors |= {f"repeated.{name}": torch.from_numpy(each) for name, each in seen.items()}
    if fit.trees is not None:
        header["trees"] = {"weight": fit.trees.weight}
        tensors |= {f"trees.{name}": tensor for name, tensor in fit.trees.tensors().items()}
    if fit.spread is not None:
        header["spread"], mine = _encode_spread(fit.spread, columns)
        tensors |= {f"spread.{name}": tensor for name, tensor in mine.items()}
    if fit.excess is not None:
        header["excess"] = fit.excess.config()
        tensors |= {f"excess.{name}": tensor for name, tensor in fit.excess.tensors().items()}
    return header, {prefix + name: tensor for name, tensor in tensors.items()}


def _encode_spread(spread: SpreadModel, columns: int) -> tuple[Header, Tensors]:
    numbers = {name: getattr(spread, name) for name in SPREAD_NUMBERS}
    gp, tensors = encode_gp(spread.fitted, columns + 2, spread.landmark_weights, spread.landmark_targets)
    tensors |= {"centres": torch.from_numpy(spread.centres), "units": torch.from_numpy(spread.units)}
    tail = {} if spread.tail is None else {"tail": _encode_tail(spread.tail)}
    return {**numbers, "limits": list(spread.limits), "gp": gp, **tail}, tensors


def _encode_tail(tail: ErrorTail) -> list[float | None]:
    share, factor, freedom, *skew = tail
    return [share, factor, None if math.isinf(freedom) else freedom, *(skew if skew != [0.0, 1.0, 0.0] else [])]


def _decode(
    header: Header, tensors: Tensors, feature_map: nn.Module | None, noise_model: NoiseModel | None
) -> ScaledGP:
    inputs_scaler = _decode_scaler(header["inputs_scaler"], tensors, "inputs_scaler", 1)
    target_scaler = _decode_scaler(header["target_scaler"], tensors, "target_scaler", 0)
    columns = len(inputs_scaler.scale)
    check_kinds("record", header["record"], RECORD)
    header, tensors = second_version(header, tensors)
    shapes = read_shapes(header["components"])
    components = []
    for number, (described, shape) in enumerate(zip(header["components"], shapes, strict=True)):
        mine = inside(tensors, f"components.{number}.")
        fitted, weights = decode_gp(described, mine, columns, feature_map, noise_model)
        targets = None if weights is None else mine.get("landmark_targets")
        name, tail = str(described["name"])[:200], _decode_tail(shape.tail)
        components.append(Component(fitted, name, *shape[:4], weights, targets, tail))
    scores = header.get("conformal")
    spread = header.get("spread")
    excess = None
    if "excess" in header:
        excess = ExcessVariance.from_tensors(header["excess"], inside(tensors, "excess."))
        if len(excess.effects) != columns:
            raise ModelFileError(f"its variance outside of the training rows is not for {columns} columns")
    trees = None
    if "trees" in header:
        trees = BoostedTrees.from_tensors(header["trees"]["weight"], inside(tensors, "trees."), columns)
    keeps_rows, copies, outliers = (header[name] for name in ("keeps_rows", "counts_copies_once", "outliers"))
    if not (isinstance(keeps_rows, bool) and isinstance(copies, bool) and isinstance(outliers, dict)):
        raise ModelFileError("what it holds of its training rows makes no sense")
    repeated = {name: each.numpy() for name, each in inside(tensors, "repeated.").items()}
    return ScaledGP(
        tuple(components),
        inputs_scaler,
        target_scaler,
        trees=trees,
        spread=None if spread is None else _decode_spread(spread, inside(tensors, "spread."), columns),
        excess=excess,
        conformal=None if scores is None else ConformalScores.from_json(scores),
        record=header["record"],
        keeps_rows=keeps_rows,
        counts_copies_once=copies,
        outliers={key: positive_number("outliers", value) for key, value in outliers.items()},
        repeated=read_repeated(header["repeated"], repeated) if "repeated" in header else None,
    )


def _decode_spread(header: Header, tensors: Tensors, columns: int) -> SpreadModel:
    fitted, weights = decode_gp(header["gp"], tensors, columns + 2, None, None)
    shape = read_spread(header)
    centres, units = (checked_tensor(tensors, name, (2,)).numpy() for name in ("centres", "units"))
    if not np.all(units > 0.0):
        raise ModelFileError("its model of the spread has units that are not positive")
    return SpreadModel(
        fitted,
        centres=centres,
        units=units,
        landmark_weights=weights,
        landmark_targets=None if weights is None else tensors.get("landmark_targets"),
        **{**shape._asdict(), "tail": _decode_tail(shape.tail)},
    )


def _decode_tail(tail: Tail | None) -> ErrorTail | None:
    return None if tail is None else ErrorTail(*tail)


def _decode_scaler(description: Header, tensors: Tensors, role: str, ndim: int) -> Standardizer:
    if description["type"] != "Standardizer":
        raise ModelFileError(f"its {role} is a {str(description['type'])[:60]!r} that this release does not know")
    arrays = {name: values.numpy() for name, values in inside(tensors, f"{role}.").items()}
    check_scaler(role, arrays, ndim)
    mean, scale = (arrays[name][()] for name in ("mean", "scale"))  # numbers, not arrays, without dimensions
    limits = (float(arrays["limits"][0]), float(arrays["limits"][1])) if "limits" in arrays else None
    if "log_unit" not in arrays:
        return Standardizer(mean, scale, limits=limits)
    columns, origin, unit = (arrays[f"log_{name}"] for name in LogScales._fields)
    return Standardizer(mean, scale, LogScales(columns.astype(np.int64), origin, unit), limits)


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
