"""One GP in a file: its modules, noise and row sums, and features of some rows that it must give again.

Modules are JSON: the class, of those that files may name, with the ``config()`` that makes it again. A file never names
a class by import path, and nothing outside this list is ever made from one. Modules are made on torch's device "meta",
where tensors have shapes and no memory, and are then given the tensors of the file, which must have these shapes: a
short file cannot ask for a large module. What is not in files, quadrature grids, has a limit.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data.sources import Rows
from ..errors import DataError, ModelFileError
from ..features import (
    ComposedFeatures,
    ConcatenatedFeatures,
    ConstantFeatures,
    FourierFeatures,
    GaussLegendreFeatures,
    LandmarkFeatures,
    LinearFeatures,
    MLPFeatures,
    PeriodicEmbedding,
    SoftClip,
)
from ..features.landmarks import landmarks_of
from ..lite.container import Header, inside
from ..lite.entries import positive_number
from ..lite.gp import PROBE_TOLERANCE, SUMS
from ..model import FeatureGP, FittedGP
from ..noise import AddedTrees, ConstantNoise, InputNoise, MeanVariance, NoiseModel, SmoothFloor
from ..posterior import WeightPosterior
from ..statistics import FeatureStatistics
from ..trees import check_added_trees

Tensors = dict[str, Tensor]
_MAX_DEPTH = 50
# Numbers that the quadrature maps of one file may compute with in all: half a gigabyte, and as much again for cosines.
_MAX_GRID_NUMBERS = 1 << 26
_GRID = ("nodes_per_dimension", "input_dim", "frequency_cutoff")
_PROBE_ROWS = 4
_MAX_CHUNK = 1 << 24
# Products of features with the target that differ by less are the same but for rounding.
_SAME_FEATURES = 1e-12

_OWN = (
    *(ComposedFeatures, ConcatenatedFeatures, ConstantFeatures, FourierFeatures, GaussLegendreFeatures, LinearFeatures),
    *(LandmarkFeatures, MLPFeatures, PeriodicEmbedding, SoftClip, ConstantNoise, InputNoise, MeanVariance, SmoothFloor),
    AddedTrees,
)
# The arguments of torch's modules, which have no config(). Not the device: nothing is made outside of "meta".
_TORCH: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features", "bias"),
    nn.GELU: ("approximate",),
    **dict.fromkeys((nn.Sequential, nn.Identity, nn.Mish, nn.ReLU, nn.SiLU, nn.Tanh), ()),
}
_CLASSES: dict[str, type[nn.Module]] = {kind.__name__: kind for kind in (*_OWN, *_TORCH)}


def describe_module(module: nn.Module) -> dict[str, object] | None:
    """What makes the module again, apart from its tensors, in types that JSON has; None if the class is not known.

    Example:
        >>> describe_module(nn.Sequential(nn.Linear(2, 3), nn.Tanh()))["children"]["1"]
        {'type': 'Tanh', 'arguments': {}, 'children': {}}
        >>> describe_module(nn.Conv1d(1, 1, 1)) is None
        True
    """
    kind = type(module)
    # What was hung onto an instance would be lost.
    if kind not in _CLASSES.values() or module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        return None
    arguments: dict[str, Any] | None
    if kind in _TORCH:
        arguments = {name: getattr(module, name) for name in _TORCH[kind]}
        if "bias" in arguments:
            arguments["bias"] = arguments["bias"] is not None
    else:
        arguments = module.config()  # type: ignore[operator]
    children = {name: describe_module(child) for name, child in _children(module).items()}
    if arguments is None or None in children.values():
        return None
    return {"type": kind.__name__, "arguments": arguments, "children": children}


def build_module(description: object, tensors: Mapping[str, Tensor], prefix: str) -> nn.Module:
    """The module of a description with the tensors whose names begin with ``prefix``, in float64, frozen."""
    limit = sum(tensor.numel() for tensor in tensors.values())
    with torch.device("meta"), np.errstate(all="ignore"):
        try:
            module = _build(description, limit, 0)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
            if isinstance(error, DataError):
                raise
            raise ModelFileError(f"the description of a module makes no sense: {error}") from None
    load_tensors(module, tensors, prefix, assign=True)
    module = module.to(torch.float64)  # makes tensors that the arguments determine, and that are not in files
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        if tensor.is_meta or not bool(torch.isfinite(tensor).all()):
            raise ModelFileError(f"tensor {prefix + name!r} is not there or has values that are not finite")
    return module.requires_grad_(False).eval()


def load_tensors(module: nn.Module, tensors: Mapping[str, Tensor], prefix: str, *, assign: bool = False) -> None:
    """Put the tensors whose names begin with ``prefix`` into a module that must have exactly these.

    With ``assign``, copies of them take the place of the module's own.
    """
    mine = inside(tensors, prefix)
    expected = module.state_dict()
    absent, extra = sorted(set(expected) - set(mine)), sorted(set(mine) - set(expected))
    if absent or extra:
        found = f"the file has no tensor {absent[0]!r}" if absent else f"the file has a tensor {extra[0]!r} too many"
        raise ModelFileError(f"{type(module).__name__} does not fit: {found}")
    for name, tensor in mine.items():
        if tensor.shape != expected[name].shape:
            raise ModelFileError(
                f"{type(module).__name__} does not fit: its tensor {name!r} should have shape "
                f"{tuple(expected[name].shape)}, but has {tuple(tensor.shape)} in the file"
            )
    module.load_state_dict({name: tensor.clone() for name, tensor in mine.items()} if assign else mine, assign=assign)


def _build(description: object, limit: int, depth: int) -> nn.Module:
    if not isinstance(description, dict):
        raise ModelFileError("the description of a module is no object of JSON")
    kind = _CLASSES.get(description["type"])
    if kind is None or depth > _MAX_DEPTH:
        raise ModelFileError(
            f"the file holds a module of a type {str(description['type'])[:60]!r} that this release does not know: use "
            "the release that wrote it"
        )
    arguments = dict(description["arguments"])
    for name, value in arguments.items():
        for each in value if isinstance(value, list) else [value]:
            # Every whole number is a size of something that tensors in the file have too, or of a checked grid.
            if type(each) is int and not 0 <= each <= max(limit, 1 << 10):
                raise ModelFileError(f"{name} is {each}, which is more than the file has numbers")
            if isinstance(each, float) and not math.isfinite(each):
                raise ModelFileError(f"{name} is {each}")
    if kind in _TORCH and not set(arguments) <= set(_TORCH[kind]):
        raise ModelFileError(f"a {kind.__name__} has no arguments {sorted(arguments)}")
    children = {name: _build(child, limit, depth + 1) for name, child in description["children"].items()}
    if kind is nn.Sequential:
        return nn.Sequential(OrderedDict(children), **arguments)
    return kind(*children.values(), **arguments)


def check_grids(description: object) -> None:
    """Refuse quadrature grids, anywhere in JSON, that are too large together: the file does not bound them."""
    total, left = 0.0, [description]
    while left:
        found = left.pop()
        if isinstance(found, list):
            left += found
        elif isinstance(found, dict):
            left += found.values()
            if found.get("type") == GaussLegendreFeatures.__name__:
                total += _grid_numbers(found.get("arguments"))
    if not total <= _MAX_GRID_NUMBERS:
        raise ModelFileError(f"its quadrature grids need {total:.3g} numbers of at most {_MAX_GRID_NUMBERS}")


def _grid_numbers(arguments: Any) -> float:
    """The grid with its weights, and cosines of the nodes at distances in steps of 0.01."""
    try:
        nodes, input_dim, cutoff = (float(arguments[name]) for name in _GRID)
        if min(nodes, input_dim, cutoff) <= 0.0:
            raise ValueError("sizes are positive")
        return float(2.0 * input_dim * nodes**input_dim + 100.0 * math.pi * nodes**2 / cutoff)
    except (KeyError, TypeError, ValueError, ArithmeticError):
        raise ModelFileError("its quadrature makes no sense") from None


def _children(module: nn.Module) -> dict[str, nn.Module]:
    """The modules that are the first arguments of this one."""
    if isinstance(module, ConcatenatedFeatures | MeanVariance):
        module = module.maps if isinstance(module, ConcatenatedFeatures) else module.networks
    elif not isinstance(module, nn.Sequential | ComposedFeatures | InputNoise | AddedTrees):
        return {}
    # Not named_children, which would name a module that occurs twice only once.
    return {name: child for name, child in module._modules.items() if child is not None}


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
