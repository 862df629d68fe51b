"""Common to feature maps ``(rows, input_dim) -> (rows, num_features)``: how wide any is, and how they combine.

For small batches most of the time of a backward pass is the overhead of autograd's engine. A feature map that knows its
own derivative may have an attribute ``has_pullback`` and a method ``forward_with_pullback``; training uses them where
nothing else needs a gradient through the features, and autograd otherwise.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from ..arguments import check_arguments
from ..errors import DataError

#: Takes the gradient in the features, adds to ``.grad`` of the parameters, and returns the gradient in the inputs if
#: the features were made with ``inputs_need_gradient``, else None.
Pullback = Callable[[Tensor], Tensor | None]


class PullbackMap(Protocol):
    """A feature map with an attribute ``has_pullback`` that is true."""

    def forward_with_pullback(self, inputs: Tensor, *, inputs_need_gradient: bool = False) -> tuple[Tensor, Pullback]:
        """Features without autograd, and their pullback."""


def accumulate(parameter: Tensor | None, gradient: Tensor) -> None:
    """Add to ``parameter.grad`` as autograd would."""
    if parameter is not None and parameter.requires_grad:
        gradient = gradient.reshape(parameter.shape)
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


def check_size(name: str, value: int) -> int:
    """``value`` as an int of at least one, or a ValueError that names the argument."""
    try:
        size = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        size = 0
    if size < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, but is {value!r}.")
    return size


def check_width(inputs: Tensor, input_dim: int) -> None:
    """Refuse inputs that are not ``(rows, input_dim)``."""
    if inputs.shape[1:] != (input_dim,):
        raise DataError(
            f"inputs must be (rows, {input_dim}), but have shape {tuple(inputs.shape)}: "
            f"give one column for each of the input_dim={input_dim} inputs of this feature map."
        )


def log_of_positive(name: str, value: float | Sequence[float] | Tensor) -> Tensor:
    """The logarithm of positive numbers in the default dtype, or a ValueError that names the argument."""
    try:
        # The logarithm is taken in float64, so that only the result is rounded.
        values = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must be a positive number (or numbers), but is {value!r}.") from error
    if not bool((torch.isfinite(values) & (values > 0)).all()):
        raise ValueError(f"{name} must be positive and finite, but is {value!r}.")
    return values.log().to(device=torch.get_default_device(), dtype=torch.get_default_dtype())


def log_of_number(name: str, value: float) -> Tensor:
    """``log_of_positive`` of a single number."""
    logarithm = log_of_positive(name, value)
    if logarithm.ndim > 0:
        raise ValueError(f"{name} must be one number, but is {value!r}.")
    return logarithm


def count_features(feature_map: nn.Module, input_dim: int | None = None) -> int:
    """The number of columns that ``feature_map`` makes of ``input_dim`` columns, by default those that it declares.

    A map that has an integer attribute ``num_features`` is taken at its word. Any other module is called once
    on two rows of zeros, in eval mode and without gradients. Afterwards its modes, its buffers (running
    statistics) and the random state are what they were before.

    Raises:
        ValueError: If ``input_dim`` is needed, or the call fails, or does not return a matrix with one row per input
            row.

    Example:
        >>> count_features(nn.Sequential(nn.Linear(3, 7), nn.BatchNorm1d(7), nn.Dropout(0.5)), input_dim=3)
        7
    """
    declared = _declared_size(feature_map, "num_features")
    columns = _declared_size(feature_map, "input_dim") if input_dim is None else check_size("input_dim", input_dim)
    if declared is not None:
        return check_size("feature_map.num_features", declared)
    _check_module("feature_map", feature_map)
    name = type(feature_map).__name__
    if columns is None:
        raise ValueError(f"input_dim is needed to find how many features {name} makes: give the number of columns.")
    floating = (t for t in chain(feature_map.parameters(), feature_map.buffers()) if t.is_floating_point())
    like = next(floating, torch.empty(0))
    inputs = torch.zeros(2, columns, dtype=like.dtype, device=like.device)
    try:
        with torch.no_grad(), _left_unchanged(feature_map, like.device):
            features = feature_map(inputs)
    except Exception as error:
        raise ValueError(
            f"feature_map ({name}) failed on inputs of shape (2, {columns}): {error}. "
            f"It must map (rows, {columns}) to (rows, num_features)."
        ) from error
    if not isinstance(features, Tensor):
        raise ValueError(
            f"feature_map ({name}) must return one tensor (rows, num_features), "
            f"but returned {type(features).__name__}: wrap it in a module that returns only the features."
        )
    if features.ndim != 2 or features.shape[0] != 2 or features.shape[1] == 0:
        raise ValueError(
            f"feature_map ({name}) must map (rows, {columns}) to (rows, num_features), "
            f"but mapped (2, {columns}) to {tuple(features.shape)}."
        )
    return features.shape[1]


@check_arguments
class ComposedFeatures(nn.Module):
    r"""One feature map after another: :math:`\phi(x) = \phi_2(\phi_1(x))`.

    The kernel is the second map's, on what the first one makes of the inputs: deep kernel learning.

    Args:
        first: Maps ``(rows, input_dim)`` to ``(rows, k)``; any module.
        second: Maps ``(rows, k)`` to ``(rows, num_features)``; any module.
        input_dim: Needed only if neither map declares how many features there will be.

    Example:
        A Gaussian kernel on the output of a network:

        >>> from finitegp.features import FourierFeatures, MLPFeatures
        >>> network = MLPFeatures(input_dim=4, seed=0)
        >>> feature_map = ComposedFeatures(network, FourierFeatures(128, num_features=1000, ard=False))
        >>> features = feature_map(torch.zeros(3, 4))
        >>> features.shape == (3, 1000) and feature_map.num_features == 1000 and feature_map.input_dim == 4
        True
    """

    input_dim: int | None
    num_features: int

    def __init__(self, first: nn.Module, second: nn.Module, *, input_dim: int | None = None) -> None:
        super().__init__()
        _check_module("first", first)
        _check_module("second", second)
        self.input_dim = _common_input_dim([first], input_dim)
        between = _output_size(first, self.input_dim)
        expected = _declared_size(second, "input_dim")
        if between is not None and expected is not None and between != expected:
            raise ValueError(
                f"first has {between} features, but second takes input_dim={expected}: make second with "
                f"input_dim={between}."
            )
        num_features = _output_size(second, between if between is not None else expected)
        if num_features is None:
            raise ValueError(
                "input_dim is None and neither map has num_features: give input_dim, the number of input columns."
            )
        self.num_features = num_features
        self.first = first
        self.second = second

    def config(self) -> dict[str, object]:
        """The arguments that make this map again, but for the maps in it."""
        return {"input_dim": self.input_dim}

    def forward(self, inputs: Tensor) -> Tensor:
        """Features ``(rows, num_features)`` of inputs ``(rows, input_dim)``."""
        features: Tensor = self.second(self.first(inputs))
        return features

    @property
    def has_pullback(self) -> bool:
        """Whether the backward passes of both maps are written out."""
        return all(getattr(part, "has_pullback", False) for part in (self.first, self.second))

    def forward_with_pullback(self, inputs: Tensor, *, inputs_need_gradient: bool = False) -> tuple[Tensor, Pullback]:
        """The same features without autograd, with the backward passes of both maps in turn."""
        first, second = cast("PullbackMap", self.first), cast("PullbackMap", self.second)
        between, first_pullback = first.forward_with_pullback(inputs, inputs_need_gradient=inputs_need_gradient)
        features, second_pullback = second.forward_with_pullback(between, inputs_need_gradient=True)

        def pullback(gradient: Tensor) -> Tensor | None:
            by_between = second_pullback(gradient)
            assert by_between is not None
            return first_pullback(by_between)

        return features, pullback


@runtime_checkable
class Combining(Protocol):
    """A feature map that multiplies its features with weights without making all of them."""

    def combine(self, inputs: Tensor, weights: Tensor) -> Tensor:
        """Features times weights ``(num_features, k)``."""


class ConcatenatedFeatures(nn.Module):
    r"""Feature maps side by side: :math:`\phi(x) = [\phi_1(x), \dots, \phi_m(x)]`, so the kernels add.

    Args:
        *maps: Each maps ``(rows, input_dim)`` to its own number of features; any modules.
        input_dim: Needed only if a map has no ``num_features`` and none has ``input_dim``.

    Example:
        A smooth function plus a linear trend plus an unknown mean:

        >>> from finitegp.features import ConstantFeatures, FourierFeatures, LinearFeatures
        >>> maps = FourierFeatures(2, num_features=50), LinearFeatures(2, bias=False), ConstantFeatures()
        >>> feature_map = ConcatenatedFeatures(*maps)
        >>> inputs = torch.tensor([[0.0, 1.0], [2.0, -1.0]])
        >>> kernel = feature_map(inputs) @ feature_map(inputs).T
        >>> bool(torch.allclose(kernel, sum(part(inputs) @ part(inputs).T for part in maps)))
        True
        >>> feature_map.num_features
        53
    """

    input_dim: int | None
    num_features: int

    def __init__(self, *maps: nn.Module, input_dim: int | None = None) -> None:
        super().__init__()
        if not maps:
            raise ValueError("maps must hold at least one feature map, but none was given.")
        for index, part in enumerate(maps):
            _check_module(f"maps[{index}]", part)
        self.input_dim = _common_input_dim(maps, input_dim)
        self.sizes: list[int] = []  # features of each map
        for index, part in enumerate(maps):
            size = _output_size(part, self.input_dim)
            if size is None:
                raise ValueError(
                    f"input_dim is None and maps[{index}] ({type(part).__name__}) has no num_features: "
                    "give input_dim, the number of input columns."
                )
            self.sizes.append(size)
        self.num_features = sum(self.sizes)
        self.maps = nn.ModuleList(maps)

    def config(self) -> dict[str, object]:
        """The arguments that make this map again, but for the maps in it."""
        return {"input_dim": self.input_dim}

    def forward(self, inputs: Tensor) -> Tensor:
        """Features ``(rows, num_features)`` of inputs ``(rows, input_dim)``."""
        return torch.cat([part(inputs) for part in self.maps], dim=1)

    def combine(self, inputs: Tensor, weights: Tensor) -> Tensor:
        """Features times weights ``(num_features, k)``; of maps that combine by themselves no features are made."""
        pairs = zip(self.maps, torch.split(weights, self.sizes), strict=True)
        parts = [
            part.combine(inputs, mine) if isinstance(part, Combining) else part(inputs) @ mine for part, mine in pairs
        ]
        return torch.stack(parts).sum(dim=0)


@contextmanager
def _left_unchanged(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Eval mode inside; modes, buffers and random state restored outside."""
    modes = [(part, part.training) for part in module.modules()]
    buffers = [
        (part, name, buffer, buffer.clone())
        for part in module.modules()
        for name, buffer in part.named_buffers(recurse=False)
        if not nn.parameter.is_lazy(buffer)  # has no values yet; the call gives it its shape
    ]
    module.eval()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        for part, training in modes:
            part.training = training
        for part, name, buffer, values in buffers:
            # A forward pass may write into a buffer or put another in its place: undo both.
            setattr(part, name, buffer.copy_(values))


def _check_module(name: str, value: object) -> None:
    if not isinstance(value, nn.Module):
        raise ValueError(f"{name} must be a torch.nn.Module, but is {value!r}: wrap a function in a module's forward.")


def _declared_size(module: object, name: str) -> int | None:
    size = getattr(module, name, None)
    return size if isinstance(size, int) and not isinstance(size, bool) else None


def _common_input_dim(maps: Sequence[nn.Module], input_dim: int | None) -> int | None:
    """The number of input columns on which all that know it agree, or None if none knows it."""
    known = {} if input_dim is None else {check_size("input_dim", input_dim): "the argument input_dim"}
    for part in maps:
        size = _declared_size(part, "input_dim")
        if size is not None:
            known.setdefault(size, type(part).__name__)
    if len(known) > 1:
        claims = ", ".join(f"{size} ({source})" for size, source in known.items())
        raise ValueError(f"input_dim must be the same for all that see the same inputs, but is {claims}.")
    return next(iter(known), None)


def _output_size(module: nn.Module, input_dim: int | None) -> int | None:
    """The number of features, or None if the module does not declare it and no input_dim allows to probe."""
    declared = _declared_size(module, "num_features")
    if declared is not None or input_dim is None:
        return declared
    return count_features(module, input_dim)
