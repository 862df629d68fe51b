"""Fits in files: exact GPs with the scaling around them, as JSON and tensors; no code.

Training rows are in a file only as landmarks of features (small tables), and then the row sums follow from them.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from .. import __version__
from ..component import Component, SpreadModel
from ..conformal import ConformalScores
from ..data.scaling import LogScales, Standardizer
from ..error_shape import ErrorTail
from ..errors import DataError, ModelFileError
from ..extrapolation import ExcessVariance
from ..lite.container import Header, inside
from ..lite.fits import second_version
from ..lite.hashing import REPEATED_ARRAYS, RepeatedRows, read_repeated
from ..lite.program import LiteError
from ..noise import NoiseModel
from ..processes import one_thread
from ..scaled import ScaledGP
from ..trees import BoostedTrees
from .container import RECORD, check_kinds, plain_json, read_container, write_container
from .gps import Tensors, check_grids, checked_tensor, decode_gp, encode_gp, positive_number

# No fit has columns of larger, or of smaller, units.
_LARGEST_UNIT = 1e150
_MOST_COMPONENTS = 64
_SPREAD_NUMBERS = ("shift", "unit", "strength", "factor", "degrees_of_freedom", "share")


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
    except ModelFileError as error:
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
    numbers = {name: getattr(spread, name) for name in _SPREAD_NUMBERS}
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
    stored = header["components"]
    if not isinstance(stored, list) or not 1 <= len(stored) <= _MOST_COMPONENTS:
        raise ModelFileError("it holds no GPs, or too many")
    components = []
    for number, described in enumerate(stored):
        mine = inside(tensors, f"components.{number}.")
        fitted, weights = decode_gp(described, mine, columns, feature_map, noise_model)
        freedom = _freedom(described["degrees_of_freedom"])
        components.append(
            Component(
                fitted,
                str(described["name"])[:200],
                positive_number("weight", described["weight"]),
                positive_number("factor", described["factor"]),
                math.inf if freedom is None else freedom,
                0.0
                if described["scale_degrees"] == 0
                else positive_number("scale_degrees", described["scale_degrees"]),
                weights,
                None if weights is None else mine.get("landmark_targets"),
                _decode_tail(described.get("tail")),
            )
        )
    total = sum(component.weight for component in components)
    if not math.isclose(total, 1.0, rel_tol=1e-6):
        raise ModelFileError(f"the weights of its GPs sum to {total}")
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
        repeated=_decode_repeated(header["repeated"], inside(tensors, "repeated.")) if "repeated" in header else None,
    )


def _decode_repeated(header: Header, tensors: Tensors) -> RepeatedRows:
    try:
        return read_repeated(header, {name: tensors[name].numpy() for name in REPEATED_ARRAYS})
    except LiteError as error:
        raise ModelFileError(str(error)) from None


def _decode_spread(header: Header, tensors: Tensors, columns: int) -> SpreadModel:
    fitted, weights = decode_gp(header["gp"], tensors, columns + 2, None, None)
    low, high = (float(value) for value in header["limits"])
    numbers = {name: float(header[name]) for name in _SPREAD_NUMBERS}
    if not (low <= high and all(math.isfinite(value) for value in (low, high, *numbers.values()))):
        raise ModelFileError("its model of the spread has numbers that make no sense")
    if not (numbers["factor"] > 0.0 and numbers["degrees_of_freedom"] > 2.0 and 0.0 <= numbers["share"] <= 1.0):
        raise ModelFileError("its model of the spread has numbers that make no sense")
    centres, units = (checked_tensor(tensors, name, (2,)).numpy() for name in ("centres", "units"))
    if not np.all(units > 0.0):
        raise ModelFileError("its model of the spread has units that are not positive")
    targets = None if weights is None else tensors.get("landmark_targets")
    return SpreadModel(
        fitted,
        centres=centres,
        units=units,
        limits=(low, high),
        landmark_weights=weights,
        landmark_targets=targets,
        tail=_decode_tail(header.get("tail")),
        **numbers,
    )


def _decode_tail(stored: object) -> ErrorTail | None:
    if stored is None:
        return None
    if not isinstance(stored, list) or len(stored) not in (3, 6):
        raise ModelFileError("the tail of its errors is not three or six numbers")
    share, factor = (positive_number("tail", value) for value in stored[:2])
    if share >= 1.0:
        raise ModelFileError(f"the share of its other errors is {share}")
    offset, main_factor, least_part = stored[3:] or (0.0, 1.0, 0.0)
    if not (math.isfinite(float(offset)) and 0.0 <= float(least_part) <= 1.0):
        raise ModelFileError(f"the offset of its other errors is {offset}, and the part of noise {least_part}")
    main_factor = positive_number("tail", main_factor)
    return ErrorTail(share, factor, _freedom(stored[2]) or math.inf, float(offset), main_factor, float(least_part))


def _freedom(value: object) -> float | None:
    """Degrees of freedom as a file has them; None for the Gaussian."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 2.0):
        raise ModelFileError(f"the shape of its error bars makes no sense: degrees of freedom are {str(value)[:60]!r}")
    return float(value)


def _decode_scaler(description: Header, tensors: Tensors, role: str, ndim: int) -> Standardizer:
    def array(name: str) -> npt.NDArray[np.float64]:
        values = tensors[f"{role}.{name}"]
        if values.dtype != torch.float64 or values.ndim != ndim or bool(values.isnan().any()):
            raise ModelFileError(f"its {role} has unusable values in {name!r}")
        result: npt.NDArray[np.float64] = values.numpy()[()]  # a number, not an array, where there are no dimensions
        return result

    kind = description["type"]
    if kind != "Standardizer":
        raise ModelFileError(f"its {role} is a {str(kind)[:60]!r} that this release does not know")
    mean, scale = array("mean"), array("scale")
    if not np.all(scale > 0.0):
        raise ModelFileError(f"its {role} has a scale that is not positive")
    if np.shape(mean) != np.shape(scale):
        raise ModelFileError(f"its {role} has parts of different lengths")
    # Infinite scales are of input columns that do not vary.
    usable = (np.abs(mean) <= _LARGEST_UNIT) & (scale >= 1.0 / _LARGEST_UNIT)
    if not np.all(usable & ((scale <= _LARGEST_UNIT) | (np.isinf(scale) & (ndim == 1)))):
        raise ModelFileError(f"its {role} has values whose squares are no numbers in floating point")
    if f"{role}.log_unit" not in tensors:
        return Standardizer(mean, scale)
    columns, origin, unit = (array(f"log_{name}") for name in LogScales._fields)
    count = len(mean) - len(unit)
    possible = np.shape(columns) == np.shape(origin) == np.shape(unit) and np.all(np.abs(origin) <= _LARGEST_UNIT)
    possible = possible and count > 0 and np.all((columns >= 0) & (columns < count) & (columns == np.floor(columns)))
    if not possible or not np.all((unit >= 1.0 / _LARGEST_UNIT) & (unit <= _LARGEST_UNIT)):
        raise ModelFileError(f"its {role} has a logarithmic scale that makes no sense")
    return Standardizer(mean, scale, LogScales(columns.astype(np.int64), origin, unit))
