"""One GP in a file: its modules, noise and row sums, and features of some rows that it must give again."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..data.sources import Rows
from ..errors import ModelFileError
from ..features.landmarks import landmarks_of
from ..lite.container import Header
from ..lite.gp import PROBE_TOLERANCE, SUMS
from ..model import FeatureGP, FittedGP
from ..noise import NoiseModel
from ..posterior import WeightPosterior
from ..statistics import FeatureStatistics
from ..trees import check_added_trees
from .modules import build_module, describe_module, load_tensors

Tensors = dict[str, Tensor]
_PROBE_ROWS = 4
_MAX_CHUNK = 1 << 24
# Products of features with the target that differ by less are the same but for rounding.
_SAME_FEATURES = 1e-12


def encode_gp(
    fitted: FittedGP,
    columns: int,
    landmark_weights: Tensor | None = None,
    landmark_targets: Tensor | None = None,
) -> tuple[Header, Tensors]:
    """One GP: modules, noise and row sums, of which landmarks and their weights save the largest.

    Features of a kernel whose covariance is all but singular are known to seven digits only, and come out otherwise on
    another processor. With the targets of the landmarks, the products are made of the features as they come out there.
    """
    model, posterior = fitted.model, fitted.posterior
    tensors: Tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= encode_statistics(posterior.statistics)
    if landmark_weights is not None:
        del tensors["statistics.gram"]
        tensors["landmark_weights"] = landmark_weights
        tensors |= {} if landmark_targets is None else {"landmark_targets": landmark_targets}
    header: Header = {
        "feature_map": _describe(model.feature_map),
        "noise": _describe(model.noise),
        "noise_variance": posterior.noise_variance,
        "num_data": posterior.statistics.num_data,
        "chunk_size": fitted.chunk_size,
    }
    if model.unseen_scale:
        header["unseen_scale"] = model.unseen_scale
    probe = torch.sin(torch.arange(1.0, 1.0 + _PROBE_ROWS * columns, dtype=torch.float64)).reshape(-1, columns)
    outputs = _probe(model, probe)
    if outputs is not None:
        tensors |= {"probe.inputs": probe, "probe.features": outputs[0], "probe.log_noise_scale": outputs[1]}
    return header, tensors


def decode_gp(
    header: Header, tensors: Tensors, columns: int, feature_map: nn.Module | None, noise_model: NoiseModel | None
) -> tuple[FittedGP, Tensor | None]:
    """Read one GP, and the weights of its landmarks where it has them, from header and tensors of a file."""
    features = _restore("feature_map", header["feature_map"], feature_map, tensors)
    noise = _restore("noise_model", header["noise"], noise_model, tensors)
    if not isinstance(noise, NoiseModel):
        raise ModelFileError("its noise is not a noise model")
    check_added_trees(noise, columns)
    model = FeatureGP(features, noise_model=noise).to(torch.float64)
    model.log_output_scale.data = checked_tensor(tensors, "model.log_output_scale", ())
    model.requires_grad_(False).eval()
    # Not in files of older releases, whose posteriors have rows without it: these stay as they are.
    if "unseen_scale" in header:
        model.unseen_scale = positive_number("unseen_scale", header["unseen_scale"])
    _check_probe(model, tensors, columns)
    weights = tensors.get("landmark_weights")
    if weights is not None:
        tensors = tensors | _sums_of_landmarks(model, tensors)
    statistics = decode_statistics(header["num_data"], tensors)
    posterior = WeightPosterior(statistics, positive_number("noise_variance", header["noise_variance"]))
    chunk_size = header.get("chunk_size", 4096)  # not in files of older releases
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or not 1 <= chunk_size <= _MAX_CHUNK:
        raise ModelFileError(f"its chunk_size is {str(chunk_size)[:60]!r} instead of a number of rows")
    return FittedGP(model, posterior, chunk_size=chunk_size), weights


@torch.no_grad()
def _sums_of_landmarks(model: FeatureGP, tensors: Tensors) -> Tensors:
    """The row sums of landmarks with their weights."""
    landmarks = landmarks_of(model.feature_map)
    if landmarks is None:
        raise ModelFileError("it has weights of landmarks, but no landmarks")
    weights = checked_tensor(tensors, "landmark_weights", (len(landmarks),))
    if not bool((weights > 0.0).all()):
        raise ModelFileError("the weights of its landmarks are not positive")
    features, log_scale = model.summed_forward(Rows(landmarks))
    scales = torch.ones_like(weights) if log_scale is None else torch.exp(-log_scale)
    weights = weights * scales
    sums = FeatureStatistics.from_batch(features, features.new_zeros(len(features)), -weights.log())
    found = {"statistics.gram": sums.gram}
    if "landmark_targets" in tensors:  # older files hold the products alone
        stored = tensors["statistics.projected_targets"]
        weighted = checked_tensor(tensors, "landmark_targets", (len(landmarks), stored.shape[-1]))
        anew = features.mT @ (weighted * scales[:, None])
        # Where features come out as they did, the products stay what they were to the bit.
        if float((anew - stored).abs().max()) > _SAME_FEATURES * float(stored.abs().max()):
            found["statistics.projected_targets"] = anew
    return found


def _describe(module: nn.Module) -> Header:
    """The class of a module with its arguments, or only its name if it is not of this library."""
    description = describe_module(module)
    if description is not None:
        return description
    return {"custom": f"{type(module).__module__}.{type(module).__qualname__}"}


def _restore(argument: str, description: Header, given: nn.Module | None, tensors: Tensors) -> nn.Module:
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
    if outputs is not None and landmarks_of(model.feature_map) is not None:
        # Where a covariance of landmarks is all but singular, its factor and so the features depend on who factorises.
        outputs, stored = ((features @ features.mT, scales) for features, scales in (outputs, stored))
    if outputs is not None and all(
        one.shape == other.shape and torch.allclose(one, other, rtol=PROBE_TOLERANCE, atol=PROBE_TOLERANCE)
        for one, other in zip(outputs, stored, strict=True)
    ):
        return
    raise ModelFileError(
        "its feature map or noise does not give the same features as when it was saved: a module that is passed in "
        "must be made exactly as then, and other modules need the release of finitegp that wrote the file"
    )


def encode_statistics(statistics: FeatureStatistics) -> dict[str, Tensor]:
    """The sums by name; the number of rows goes into the header."""
    return {f"statistics.{name}": getattr(statistics, name) for name in SUMS}


def decode_statistics(num_data: object, tensors: Mapping[str, Tensor]) -> FeatureStatistics:
    """Read row sums; what cannot be sums over rows is a ModelFileError.

    Example:
        >>> sums = FeatureStatistics.from_batch(torch.ones(4, 2), torch.ones(4))
        >>> float(decode_statistics(4, encode_statistics(sums)).gram[0, 1])
        4.0
    """
    gram, projected = tensors.get("statistics.gram"), tensors.get("statistics.projected_targets")
    if gram is None or projected is None or gram.ndim != 2 or projected.ndim != 2:
        raise ModelFileError("its sums are not matrices")
    features, targets = projected.shape
    return FeatureStatistics(
        gram=checked_tensor(tensors, "statistics.gram", (features, features)),
        projected_targets=checked_tensor(tensors, "statistics.projected_targets", (features, targets)),
        target_sum_of_squares=checked_tensor(tensors, "statistics.target_sum_of_squares", (targets,)),
        log_scale_sum=checked_tensor(tensors, "statistics.log_scale_sum", ()),
        num_data=positive_number("num_data", num_data),
    )


def checked_tensor(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    """The tensor of this name, if it is float64 of this shape with finite values."""
    tensor = tensors.get(name)
    if tensor is None or tuple(tensor.shape) != shape or tensor.dtype != torch.float64:
        found = "is not there" if tensor is None else f"is {tensor.dtype} of shape {tuple(tensor.shape)}"
        raise ModelFileError(f"its tensor {name!r} should be float64 of shape {shape}, but {found}")
    if not bool(torch.isfinite(tensor).all()):
        raise ModelFileError(f"its tensor {name!r} has values that are not finite")
    return tensor


def positive_number(name: str, value: object) -> float:
    """The value, if it is a positive, finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0.0):
        raise ModelFileError(f"its {name} is {str(value)[:60]!r} instead of a positive number")
    return float(value)
