"""Fits in files: exact GPs with the scaling around them, as JSON and tensors; no training rows, no code."""

from __future__ import annotations

import copy
import os
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from .. import __version__
from ..automatic import AutoFit
from ..data.scaling import Standardizer
from ..errors import DataError, ModelFileError
from ..model import FeatureGP, FittedGP
from ..noise import NoiseModel
from ..posterior import WeightPosterior
from .container import read_container, write_container
from .modules import build_module, check_grids, describe_module, load_tensors
from .plain_json import plain_json
from .row_sums import checked_tensor, decode_statistics, encode_statistics, positive_number

Header = dict[str, Any]
Tensors = dict[str, Tensor]
_PROBE_ROWS = 4
_MAX_CHUNK = 1 << 24
# Far above rounding on another processor, far below what a different module gives.
_PROBE_TOLERANCE = 1e-6


def save_fit(fit: AutoFit, path: str | os.PathLike[str]) -> None:
    """Write a fit into one file: features, noise, scaling, posterior and record, but no training rows.

    A feature map that is not one of this library's (or made of ``nn.Sequential``, ``nn.Linear`` and activations) is
    saved as its tensors and the name of its class.

    Example:
        >>> import tempfile
        >>> from finitegp.automatic import fit_auto
        >>> generator = np.random.default_rng(0)
        >>> inputs = generator.normal(size=(40, 2))
        >>> targets = inputs[:, 0] + 0.1 * generator.normal(size=40)
        >>> fit = fit_auto(inputs, targets, settings={"fourier_features": 16, "kernels": ["rbf"]})
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
) -> AutoFit:
    """Read a fit that :func:`save_fit` wrote; its predictions are the same to the last bit on the same machine.

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


def encode_fits(fits: Sequence[AutoFit]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header entries and tensors of several fits, and the versions of what made them."""
    headers: list[dict[str, Any]] = []
    tensors: dict[str, Tensor] = {}
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


def decode_fits(
    path: str | os.PathLike[str],
    header: dict[str, Any],
    tensors: dict[str, Tensor],
    *,
    feature_map: nn.Module | None = None,
    noise_model: NoiseModel | None = None,
) -> list[AutoFit]:
    """The fits of a file; what does not fit together is a ModelFileError."""
    stored = header.get("fits")
    if not isinstance(stored, list) or not stored or len(stored) > len(tensors):
        raise ModelFileError(f"{path} cannot be used: it holds no fit.")
    try:
        check_grids(stored)
        fits = []
        for number in range(len(stored)):
            prefix = f"fits.{number}."
            mine = {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            fits.append(_decode(stored[number], mine, feature_map, noise_model))
        return fits
    except ModelFileError as error:
        raise ModelFileError(f"{path} cannot be used: {error}.") from None
    except (DataError, KeyError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError) as error:
        what = f"its parts do not make a model ({type(error).__name__}: {error})"
        raise ModelFileError(f"{path} cannot be used: {what}.") from error


def encode_fit(fit: AutoFit, prefix: str = "") -> tuple[Header, Tensors]:
    """The header entries of a fit, and its tensors with ``prefix`` before their names."""
    model, posterior = fit.fitted.model, fit.fitted.posterior
    tensors: Tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= encode_statistics(posterior.statistics)
    header: Header = {
        "feature_map": _describe(model.feature_map),
        "noise": _describe(model.noise),
        "noise_variance": posterior.noise_variance,
        "num_data": posterior.statistics.num_data,
        "chunk_size": fit.fitted.chunk_size,
        "record": plain_json(fit.record),
    }
    for role, scaler in (("inputs_scaler", fit.inputs_scaler), ("target_scaler", fit.target_scaler)):
        if type(scaler) is not Standardizer:
            raise ModelFileError(f"A {type(scaler).__name__} cannot be saved: use Standardizer.")
        header[role] = {"type": "Standardizer"}
        for name in ("mean", "scale"):
            tensors[f"{role}.{name}"] = torch.tensor(np.asarray(getattr(scaler, name), np.float64))
    columns = len(tensors["inputs_scaler.scale"])
    probe = torch.sin(torch.arange(1.0, 1.0 + _PROBE_ROWS * columns, dtype=torch.float64)).reshape(-1, columns)
    outputs = _probe(model, probe)
    if outputs is not None:
        tensors |= {"probe.inputs": probe, "probe.features": outputs[0], "probe.log_noise_scale": outputs[1]}
    return header, {prefix + name: tensor for name, tensor in tensors.items()}


def _decode(header: Any, tensors: Tensors, feature_map: nn.Module | None, noise_model: NoiseModel | None) -> AutoFit:
    inputs_scaler = _decode_scaler(header["inputs_scaler"], tensors, "inputs_scaler", 1)
    target_scaler = _decode_scaler(header["target_scaler"], tensors, "target_scaler", 0)
    statistics = decode_statistics(header["num_data"], tensors)
    features = _restore("feature_map", header["feature_map"], feature_map, tensors)
    noise = _restore("noise_model", header["noise"], noise_model, tensors)
    if not isinstance(noise, NoiseModel):
        raise ModelFileError("its noise is not a noise model")
    model = FeatureGP(features, noise_model=noise).to(torch.float64)
    model.log_output_scale.data = checked_tensor(tensors, "model.log_output_scale", ())
    model.requires_grad_(False).eval()
    _check_probe(model, tensors, len(inputs_scaler.scale))
    posterior = WeightPosterior(statistics, positive_number("noise_variance", header["noise_variance"]))
    record = header["record"]
    if not isinstance(record, dict):
        raise ModelFileError("its record is not a table of names and values")
    chunk_size = header.get("chunk_size", 4096)  # files of older releases do not say
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or not 1 <= chunk_size <= _MAX_CHUNK:
        raise ModelFileError(f"its chunk_size is {str(chunk_size)[:60]!r} instead of a number of rows")
    return AutoFit(FittedGP(model, posterior, chunk_size=chunk_size), inputs_scaler, target_scaler, record)


def _describe(module: nn.Module) -> Header:
    """What makes the module again, or only its name if that is not ours to make."""
    description = describe_module(module)
    if description is not None:
        return description
    return {"custom": f"{type(module).__module__}.{type(module).__qualname__}"}


def _restore(argument: str, description: Any, given: nn.Module | None, tensors: Tensors) -> nn.Module:
    prefix = "model.feature_map." if argument == "feature_map" else "model.noise."
    if given is None:
        if "custom" in description:
            raise ModelFileError(
                f"its {argument} is a {str(description['custom'])[:200]}, of which a file holds only the tensors, "
                f"because code is never loaded. Make that module and pass it: load(..., {argument}=module)"
            )
        return build_module(description, tensors, prefix)
    if not isinstance(given, nn.Module):
        raise TypeError(f"{argument} must be a torch nn.Module, but is a {type(given).__name__}.")
    module = copy.deepcopy(given).to(device="cpu", dtype=torch.float64)
    try:
        load_tensors(module, tensors, prefix)
    except ModelFileError as error:
        raise ModelFileError(f"the {argument} passed in is not the one that was saved: {error}") from None
    return module


@torch.no_grad()
def _probe(model: FeatureGP, inputs: Tensor) -> tuple[Tensor, Tensor] | None:
    """Features and log noise scales of some rows, or None if the feature map does not take such rows."""
    try:
        features, log_scale = model(inputs)
    except Exception:  # a module of the user's may raise anything, for example on numbers that are no index
        return None
    return features.double(), features.new_zeros(len(features)) if log_scale is None else log_scale.double()


def _check_probe(model: FeatureGP, tensors: Tensors, columns: int) -> None:
    """Refuse a model that does not give the features it gave when it was saved: predictions would be wrong."""
    if "probe.inputs" not in tensors:
        return
    outputs = _probe(model, checked_tensor(tensors, "probe.inputs", (_PROBE_ROWS, columns)))
    stored = tensors["probe.features"], tensors["probe.log_noise_scale"]
    if outputs is not None and all(
        one.shape == other.shape and torch.allclose(one, other, rtol=_PROBE_TOLERANCE, atol=_PROBE_TOLERANCE)
        for one, other in zip(outputs, stored, strict=True)
    ):
        return
    raise ModelFileError(
        "its feature map or noise does not give the same features as when it was saved: a module that is passed in "
        "must be made exactly as then, and other modules need the release of finitegp that wrote the file"
    )


def _decode_scaler(description: Any, tensors: Tensors, role: str, ndim: int) -> Standardizer:
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
    return Standardizer(mean, scale)
