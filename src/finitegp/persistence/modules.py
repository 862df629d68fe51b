"""Modules as JSON: the classes that files may name, with the ``config()`` that makes them again.

A file never names a class by import path, and nothing outside this list is ever made from one. Modules are made on
torch's device "meta", where tensors have shapes and no memory, and are then given the tensors of the file, which must
have these shapes: a short file cannot ask for a large module. What is not in files, quadrature grids, has a limit.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

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
from ..lite.container import inside
from ..noise import AddedTrees, ConstantNoise, InputNoise, MeanVariance, SmoothFloor

_MAX_DEPTH = 50
# Numbers that the quadrature maps of one file may compute with in all: half a gigabyte, and as much again for cosines.
_MAX_GRID_NUMBERS = 1 << 26
_GRID = ("nodes_per_dimension", "input_dim", "frequency_cutoff")

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
