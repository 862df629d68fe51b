"""Modules as JSON: the classes that files may name, with the arguments that make them again.

A file never names a class by import path, and nothing outside this list is ever made from one. Each kind of module says
which tensors it must come with, and these are compared with the file before anything is made: a short file cannot ask
for a large module.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..automatic.residual_noise import MeanVariance, SmoothFloor
from ..errors import DataError, ModelFileError
from ..features import (
    ComposedFeatures,
    ConcatenatedFeatures,
    ConstantFeatures,
    FourierFeatures,
    GaussLegendreFeatures,
    LinearFeatures,
    MLPFeatures,
    PeriodicEmbedding,
)
from ..features.activations import ACTIVATIONS
from ..noise import ConstantNoise, InputNoise

Arguments = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]
_MAX_DEPTH = 50
_MAX_GRID = 1 << 21
_MAX_NODES = 1024


@dataclass(frozen=True)
class _Kind:
    """One class that files may name.

    Attributes:
        module: The class.
        arguments: From an instance, what makes it again; None if nothing that JSON has would.
        shapes: From the arguments, the tensors that it has besides those of its children.
        make: From arguments and children, a new instance.
    """

    module: type[nn.Module]
    arguments: Callable[[Any], Arguments | None]
    shapes: Callable[[Arguments], Shapes]
    make: Callable[[Arguments, dict[str, nn.Module]], nn.Module]


def describe_module(module: nn.Module) -> dict[str, Any] | None:
    """What makes the module again, apart from its tensors, in types that JSON has; None if the class is not known.

    Example:
        >>> describe_module(nn.Sequential(nn.Linear(2, 3), nn.Tanh()))["children"]["1"]
        {'type': 'Tanh', 'arguments': {}, 'children': {}}
        >>> describe_module(nn.Conv1d(1, 1, 1)) is None
        True
    """
    name = _NAMES.get(type(module))
    # What was hung onto an instance would be lost.
    if name is None or module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        return None
    arguments = _KINDS[name].arguments(module)
    children: dict[str, Any] = {}
    for child_name, child in _children(module).items():
        children[child_name] = describe_module(child)
    if arguments is None or None in children.values():
        return None
    return {"type": name, "arguments": arguments, "children": children}


def build_module(description: Any, tensors: Mapping[str, Tensor], prefix: str) -> nn.Module:
    """The module of a description with the tensors whose names begin with ``prefix``, in float64, frozen."""
    limit = sum(tensor.numel() for tensor in tensors.values())
    # Initial values are drawn and then overwritten; torch's random state stays as it was.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), np.errstate(all="ignore"):
        try:
            module = _build(description, tensors, prefix, limit, 0)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
            if isinstance(error, DataError):
                raise
            raise ModelFileError(f"the description of a module makes no sense: {error}") from None
    module = module.to(torch.float64)
    load_tensors(module, tensors, prefix)
    for name, tensor in module.state_dict().items():
        if not bool(torch.isfinite(tensor).all()):
            raise ModelFileError(f"tensor {prefix + name!r} has values that are not finite")
    return module.requires_grad_(False).eval()


def load_tensors(module: nn.Module, tensors: Mapping[str, Tensor], prefix: str) -> None:
    """Put the tensors whose names begin with ``prefix`` into a module that must have exactly these."""
    mine = {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    expected = module.state_dict()
    absent, extra = sorted(set(expected) - set(mine)), sorted(set(mine) - set(expected))
    if absent or extra:
        found = f"the file has no tensor {absent[0]!r}" if absent else f"the file has a tensor {extra[0]!r} too many"
        raise ModelFileError(f"{type(module).__name__} does not fit: {found}")
    for name, tensor in mine.items():
        if tensor.shape != expected[name].shape:
            raise ModelFileError(
                f"{type(module).__name__} does not fit: its tensor {name!r} has shape {tuple(expected[name].shape)}, "
                f"but {tuple(tensor.shape)} in the file"
            )
    module.load_state_dict(mine)


def _build(description: Any, tensors: Mapping[str, Tensor], prefix: str, limit: int, depth: int) -> nn.Module:
    kind = _KINDS.get(description["type"])
    if kind is None or depth > _MAX_DEPTH:
        raise ModelFileError(
            f"the file holds a module of a type {str(description['type'])[:60]!r} that this release does not know: use "
            "the release that wrote it"
        )
    arguments = dict(description["arguments"])
    _check_numbers(arguments, limit)
    for name, shape in kind.shapes(arguments).items():
        tensor = tensors.get(prefix + name)
        if tensor is None or tuple(tensor.shape) != shape:
            found = "is not there" if tensor is None else f"has shape {tuple(tensor.shape)}"
            raise ModelFileError(f"tensor {prefix + name!r} should have shape {shape}, but {found}")
    child_prefix = _CHILD_PREFIX.get(description["type"], "")
    children = {
        name: _build(child, tensors, f"{prefix}{child_prefix}{name}.", limit, depth + 1)
        for name, child in description["children"].items()
    }
    return kind.make(arguments, children)


def _check_numbers(arguments: Arguments, limit: int) -> None:
    """Every whole number is a size of something that tensors in the file have too."""
    for name, value in arguments.items():
        for each in value if isinstance(value, list) else [value]:
            if type(each) is int and not 0 <= each <= max(limit, _MAX_NODES):
                raise ModelFileError(f"{name} is {each}, which is more than the file has numbers")
            if isinstance(each, float) and not math.isfinite(each):
                raise ModelFileError(f"{name} is {each}")


def _children(module: nn.Module) -> dict[str, nn.Module]:
    if isinstance(module, ConcatenatedFeatures):
        return {name: child for name, child in module.maps.named_children()}
    if isinstance(module, MeanVariance):
        return dict(module.networks.named_children())
    if isinstance(module, nn.Sequential | ComposedFeatures | InputNoise):
        # Not named_children, which would tell a module that occurs twice only once.
        return {name: child for name, child in module._modules.items() if child is not None}
    return {}


def _no_arguments(module: nn.Module) -> Arguments:
    return {}


def _no_shapes(arguments: Arguments) -> Shapes:
    return {}


def _plain(module: type[nn.Module]) -> _Kind:
    """A module without arguments or tensors."""
    return _Kind(module, _no_arguments, _no_shapes, lambda arguments, children: module(**arguments))


def _describe_mlp(module: MLPFeatures) -> Arguments | None:
    layers = list(module.layers)
    activations = {_activation_name(layer) for layer in layers[1::2]}
    if len(activations) > 1 or None in activations:
        return None
    return {
        "input_dim": module.input_dim,
        "hidden": [layer.out_features for layer in layers if isinstance(layer, nn.Linear)],
        "activation": activations.pop() if activations else "relu",
        "final_activation": len(layers) % 2 == 0,
    }


def _activation_name(layer: nn.Module) -> str | None:
    if isinstance(layer, nn.GELU) and layer.approximate != "none":
        return None
    return next((name for name, made in ACTIVATIONS.items() if type(layer) is made), None)


def _mlp_shapes(arguments: Arguments) -> Shapes:
    widths = [arguments["input_dim"], *arguments["hidden"]]
    shapes: Shapes = {}
    for number, (width_in, width_out) in enumerate(pairwise(widths)):
        shapes[f"layers.{2 * number}.weight"] = (width_out, width_in)
        shapes[f"layers.{2 * number}.bias"] = (width_out,)
    return shapes


def _learned(module: nn.Module, *names: str) -> Arguments:
    return {f"learn_{name.removeprefix('log_')}": isinstance(getattr(module, name), nn.Parameter) for name in names}


def _describe_fourier(module: FourierFeatures) -> Arguments:
    return {
        "input_dim": module.input_dim,
        "num_features": module.num_features,
        "kernel": module.kernel,
        "ard": module.log_length_scales.numel() == module.input_dim,
        "sampling": module.sampling,
        **_learned(module, "log_length_scales", "log_magnitude", "frequencies"),
    }


def _fourier_shapes(arguments: Arguments) -> Shapes:
    return {
        "log_length_scales": (arguments["input_dim"] if arguments["ard"] else 1,),
        "log_magnitude": (),
        "frequencies": (arguments["num_features"] // 2, arguments["input_dim"]),
    }


def _make_fourier(arguments: Arguments, children: dict[str, nn.Module]) -> nn.Module:
    # The frequencies come from the file; drawing independent ones takes least.
    module = FourierFeatures(**(arguments | {"sampling": "iid"}))
    module.sampling = str(arguments["sampling"])
    return module


def _describe_quadrature(module: GaussLegendreFeatures) -> Arguments:
    return {
        "input_dim": module.input_dim,
        "nodes_per_dimension": module.nodes_per_dimension,
        "frequency_cutoff": module.frequency_cutoff,
        "tolerance": module.tolerance,
        **_learned(module, "log_length_scales", "log_magnitude"),
    }


def _quadrature_shapes(arguments: Arguments) -> Shapes:
    # The nodes are not in the file, so the file does not bound them.
    nodes, input_dim = arguments["nodes_per_dimension"], arguments["input_dim"]
    if not (1 <= input_dim <= 3 and nodes <= _MAX_NODES and nodes**input_dim <= _MAX_GRID):
        raise ModelFileError(f"{nodes} nodes in each of {input_dim} dimensions are too many")
    return {"log_length_scales": (input_dim,), "log_magnitude": ()}


def _linear_shapes(arguments: Arguments) -> Shapes:
    shapes: Shapes = {"weight": (arguments["out_features"], arguments["in_features"])}
    return shapes | ({"bias": (arguments["out_features"],)} if arguments["bias"] else {})


def _embedding_shapes(arguments: Arguments) -> Shapes:
    columns, count, width = (arguments[name] for name in ("input_dim", "num_frequencies", "width"))
    return {
        "frequencies": (columns, 1, count),
        "phases": (columns, 1, count),
        "weights": (columns, count, width - 1),
        "offsets": (columns, 1, width - 1),
    }


def _describe_input_noise(module: InputNoise) -> Arguments:
    return {"reads": module.reads, "max_log_scale": module.max_log_scale}


def _make_input_noise(arguments: Arguments, children: dict[str, nn.Module]) -> nn.Module:
    return InputNoise(children["module"], **arguments)


# Where the children of a module are among its tensors, if not directly.
_CHILD_PREFIX = {"ConcatenatedFeatures": "maps.", "MeanVariance": "networks."}
_KINDS: dict[str, _Kind] = {
    "MLPFeatures": _Kind(MLPFeatures, _describe_mlp, _mlp_shapes, lambda a, c: MLPFeatures(**a)),
    "LinearFeatures": _Kind(
        LinearFeatures,
        lambda m: {"input_dim": m.input_dim, "bias": m.log_bias_magnitude is not None},
        lambda a: dict.fromkeys(("log_magnitude", *(("log_bias_magnitude",) if a["bias"] else ())), ()),
        lambda a, c: LinearFeatures(**a),
    ),
    "ConstantFeatures": _Kind(
        ConstantFeatures, _no_arguments, lambda a: {"log_magnitude": ()}, lambda a, c: ConstantFeatures(**a)
    ),
    "PeriodicEmbedding": _Kind(
        PeriodicEmbedding,
        lambda m: {"input_dim": m.input_dim, "num_frequencies": m.frequencies.shape[2], "width": m.width},
        _embedding_shapes,
        lambda a, c: PeriodicEmbedding(**a),
    ),
    "FourierFeatures": _Kind(FourierFeatures, _describe_fourier, _fourier_shapes, _make_fourier),
    "GaussLegendreFeatures": _Kind(
        GaussLegendreFeatures, _describe_quadrature, _quadrature_shapes, lambda a, c: GaussLegendreFeatures(**a)
    ),
    "ComposedFeatures": _Kind(
        ComposedFeatures,
        lambda m: {"input_dim": m.input_dim},
        _no_shapes,
        lambda a, c: ComposedFeatures(c["first"], c["second"], **a),
    ),
    "ConcatenatedFeatures": _Kind(
        ConcatenatedFeatures,
        lambda m: {"input_dim": m.input_dim},
        _no_shapes,
        lambda a, c: ConcatenatedFeatures(*c.values(), **a),
    ),
    "ConstantNoise": _Kind(
        ConstantNoise, _no_arguments, lambda a: {"log_variance": ()}, lambda a, c: ConstantNoise(**a)
    ),
    "InputNoise": _Kind(InputNoise, _describe_input_noise, lambda a: {"log_variance": ()}, _make_input_noise),
    "SmoothFloor": _Kind(SmoothFloor, lambda m: {"floor": m.floor}, _no_shapes, lambda a, c: SmoothFloor(**a)),
    "MeanVariance": _Kind(MeanVariance, _no_arguments, _no_shapes, lambda a, c: MeanVariance(*c.values())),
    "Sequential": _Kind(nn.Sequential, _no_arguments, _no_shapes, lambda a, c: nn.Sequential(OrderedDict(c))),
    "Linear": _Kind(
        nn.Linear,
        lambda m: {"in_features": m.in_features, "out_features": m.out_features, "bias": m.bias is not None},
        _linear_shapes,
        lambda a, c: nn.Linear(**a),
    ),
    "GELU": _Kind(nn.GELU, lambda m: {"approximate": m.approximate}, _no_shapes, lambda a, c: nn.GELU(**a)),
    "Identity": _plain(nn.Identity),
    "Mish": _plain(nn.Mish),
    "ReLU": _plain(nn.ReLU),
    "SiLU": _plain(nn.SiLU),
    "Tanh": _plain(nn.Tanh),
}
_NAMES = {kind.module: name for name, kind in _KINDS.items()}
