"""Feature maps that no longer change, on the CPU: the same float64 numbers as the modules give, in less time.

A module call costs more than the arithmetic of a few rows, and the numbers of many rows do not stay in a core's cache.
So a map is taken apart once, and rows pass through plain NumPy in pieces, columns first: a layer's output is the next
layer's input and the right side of a triangular solve as it lies in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from .features import (
    ComposedFeatures,
    ConcatenatedFeatures,
    ConstantFeatures,
    FourierFeatures,
    LinearFeatures,
    MLPFeatures,
    PeriodicEmbedding,
    SoftClip,
)
from .linalg import BlockedTriangle
from .noise import AddedTrees, ConstantNoise, InputNoise, MeanVariance, NoiseModel, SmoothFloor
from .posterior import WeightPosterior
from .predictive import Prediction
from .processes import one_thread
from .trees import BoostedTrees

Array = npt.NDArray[np.float64]
#: Columns first: ``(inputs, rows)`` to ``(outputs, rows)``. The argument is left as it is.
Step = Callable[[Array], Array]

#: Rows that pass at once: a layer of them stays in a core's cache.
PIECE_ROWS = 512


class UnknownModuleError(Exception):
    """A map holds a module that is not known here."""


def frozen_map(module: nn.Module) -> Step | None:
    """The map with its present values, or None if it holds modules other than those of the automatic fit.

    Example:
        >>> network = MLPFeatures(3, hidden=(5, 4), activation="mish").double()
        >>> rows = torch.randn(7, 3, dtype=torch.float64)
        >>> bool(np.allclose(frozen_map(network)(rows.T.numpy()).T, network(rows).detach()))
        True
        >>> frozen_map(nn.Bilinear(2, 2, 2)) is None
        True
    """
    floating = [tensor for tensor in (*module.parameters(), *module.buffers()) if tensor.is_floating_point()]
    if any(tensor.dtype != torch.float64 or tensor.device.type != "cpu" for tensor in floating):
        return None
    try:
        return _make(module)
    except UnknownModuleError:
        return None


def frozen_noise(noise: NoiseModel) -> Callable[[Array, Array], Array | None] | None:
    """:meth:`.NoiseModel.log_scale` with its present values, of inputs and features columns first; None as above."""
    if type(noise) is ConstantNoise:
        return lambda inputs, features: None
    if type(noise) is not InputNoise:
        return None
    made = frozen_map(noise.module)
    if made is None:
        return None
    step, reads_inputs, most, bounds = made, noise.reads == "inputs", noise.max_log_scale, noise.bounds

    def log_scale(inputs: Array, features: Array) -> Array:
        found: Array = most * np.tanh(step(inputs if reads_inputs else features)[0] / most)
        return found if bounds is None else np.clip(found, *bounds)

    return log_scale


def _make(module: nn.Module) -> Step:
    maker = _MAKERS.get(type(module))
    if maker is None:
        raise UnknownModuleError
    return maker(module)


def _chain(modules: Iterable[nn.Module]) -> Step:
    steps = [_make(each) for each in modules]

    def chained(x: Array) -> Array:
        for step in steps:
            x = step(x)
        return x

    return chained


def _side_by_side(module: ConcatenatedFeatures) -> Step:
    # Networks of one fit clip their inputs alike: once is enough.
    clips: list[SoftClip] = []
    parts: list[tuple[int | None, Step]] = []
    for each in module.maps:
        if isinstance(each, ComposedFeatures) and isinstance(each.first, SoftClip):
            first = each.first
            place = next((number for number, clip in enumerate(clips) if _equal(clip, first)), len(clips))
            clips += [first] if place == len(clips) else []
            parts.append((place, _make(each.second)))
        else:
            parts.append((None, _make(each)))
    clipping = [_clip(each) for each in clips]

    def side_by_side(x: Array) -> Array:
        clipped = [clip(x) for clip in clipping]
        return np.concatenate([step(x if place is None else clipped[place]) for place, step in parts])

    return side_by_side


def _equal(one: SoftClip, other: SoftClip) -> bool:
    return one.limit == other.limit and torch.equal(one.low, other.low) and torch.equal(one.high, other.high)


def _clip(module: SoftClip) -> Step:
    limit, low, high = module.limit, _numbers(module.low)[:, None], _numbers(module.high)[:, None]
    return lambda x: np.clip(compressed(x, limit), low, high)


def compressed(x: Array, limit: float = 4.0) -> Array:
    """What :class:`~finitegp.features.SoftClip` makes of values that it does not bound."""
    size = np.abs(x)
    if size.max(initial=0.0) <= limit:
        return x
    beyond = np.copysign(limit + np.log1p(np.maximum(size - limit, 0.0)), x)
    return np.where(size <= limit, x, beyond)


def _mean_variance(module: MeanVariance) -> Step:
    steps = [_make(each) for each in module.networks]
    shift = math.log(len(steps))
    return lambda x: np.logaddexp.reduce([step(x) for step in steps], axis=0) - shift


def _smooth_floor(module: SmoothFloor) -> Step:
    floor = module.floor
    return lambda x: floor + np.logaddexp(0.0, x - floor)


def _added_trees(module: AddedTrees) -> Step:
    step, trees = _make(module.module), BoostedTrees.of(module)
    return lambda x: step(x) + trees.predict(np.ascontiguousarray(x.T))


def _linear(module: nn.Linear) -> Step:
    weight = _numbers(module.weight)
    bias = None if module.bias is None else _numbers(module.bias)[:, None]

    def linear(x: Array) -> Array:
        found: Array = weight @ x
        if bias is not None:
            found += bias
        return found

    return linear


def mish(x: Array) -> Array:
    """See :func:`~finitegp.features.activations.mish_with_derivative`."""
    exponential = np.minimum(x, 20.0)
    np.exp(exponential, out=exponential)
    growth = exponential + 2.0
    growth *= exponential
    np.add(growth, 2.0, out=exponential)
    growth /= exponential
    growth *= x
    return growth


def _embedding(module: PeriodicEmbedding) -> Step:
    frequencies = _numbers(module.frequencies).transpose(0, 2, 1) * (2.0 * math.pi)  # (columns, cosines, 1)
    phases = _numbers(module.phases).transpose(0, 2, 1)
    weights = _numbers(module.weights).transpose(0, 2, 1).copy()
    offsets = _numbers(module.offsets).transpose(0, 2, 1)
    columns, width = module.input_dim, module.width

    def embed(x: Array) -> Array:
        angles = x[:, None, :] * frequencies
        angles += phases
        cosines = torch.from_numpy(angles).cos_().numpy()  # NumPy's own take five times as long
        found = np.empty((columns, width, x.shape[1]))
        found[:, 0] = x
        found[:, 1:] = np.matmul(weights, cosines)
        found[:, 1:] += offsets
        return found.reshape(columns * width, -1)

    return embed


def _fourier(module: FourierFeatures) -> Step:
    with torch.no_grad():
        frequencies = _numbers(module.frequencies / module.length_scales)
        amplitude = float(module._amplitudes())

    def waves(x: Array) -> Array:
        angles = torch.from_numpy(frequencies @ x)
        found = torch.empty(2 * len(angles), x.shape[1], dtype=torch.float64)
        torch.cos(angles, out=found[: len(angles)])
        torch.sin(angles, out=found[len(angles) :])
        return found.mul_(amplitude).numpy()

    return waves


def _line(module: LinearFeatures) -> Step:
    slopes = np.exp(0.5 * _numbers(module.log_magnitude)).reshape(-1, 1)
    if module.log_bias_magnitude is None:
        return lambda x: x * slopes
    constant = float(np.exp(0.5 * float(module.log_bias_magnitude.detach())))
    return lambda x: np.concatenate([x * slopes, np.full((1, x.shape[1]), constant)])


def _constant(module: ConstantFeatures) -> Step:
    constant = float(np.exp(0.5 * float(module.log_magnitude.detach())))
    return lambda x: np.full((1, x.shape[1]), constant)


#: By the very type: a subclass may do something else.
_MAKERS: dict[type[nn.Module], Callable[[Any], Step]] = {
    AddedTrees: _added_trees,
    ComposedFeatures: lambda module: _chain([module.first, module.second]),
    ConcatenatedFeatures: _side_by_side,
    ConstantFeatures: _constant,
    FourierFeatures: _fourier,
    LinearFeatures: _line,
    MLPFeatures: lambda module: _chain(module.layers),
    MeanVariance: _mean_variance,
    PeriodicEmbedding: _embedding,
    SmoothFloor: _smooth_floor,
    SoftClip: _clip,
    nn.Linear: _linear,
    nn.Mish: lambda _: mish,
    nn.ReLU: lambda _: lambda x: np.maximum(x, 0.0),
    nn.Sequential: _chain,
}


def _numbers(tensor: Tensor) -> Array:
    """A copy of its values."""
    found: Array = tensor.detach().numpy().copy()
    return found


class FrozenModel:
    """The features and log noise scales of a model that no longer changes.

    Args:
        features: From :func:`frozen_map`.
        log_scale: From :func:`frozen_noise`.
        output_scale: The factor on the kernel.
    """

    def __init__(self, features: Step, log_scale: Callable[[Array, Array], Array | None], output_scale: float) -> None:
        self.features, self._log_scale, self.root = features, log_scale, math.sqrt(output_scale)

    @classmethod
    def of(cls, feature_map: nn.Module, noise: NoiseModel, output_scale: float) -> FrozenModel | None:
        """Of a model's parts with their present values; None if they hold modules that are not known here."""
        with np.errstate(over="ignore"):  # in line searches: infinite features are refused where they are summed
            features, log_scale = frozen_map(feature_map), frozen_noise(noise)
        return None if features is None or log_scale is None else cls(features, log_scale, output_scale)

    def __call__(self, columns: Array) -> tuple[Array, Array | None]:
        """Features ``(d, rows)`` and log noise scales ``(rows,)`` or None, of inputs columns first."""
        features = self.features(columns)
        log_scale = self._log_scale(columns, features)
        features *= self.root
        return features, log_scale


class FrozenGP:
    """Predictions of a model that no longer changes, by a posterior that does not either.

    Args:
        model: The model.
        posterior: Over the weights of its features.
    """

    def __init__(self, model: FrozenModel, posterior: WeightPosterior) -> None:
        self._model = model
        self._weights = posterior.weight_mean.numpy().T.copy()
        self._noise_variance = posterior.noise_variance
        self._factor = posterior.factor.lower.numpy()
        self._triangle: BlockedTriangle | None = None

    def mean(self, inputs: Tensor) -> Tensor:
        """``(rows, targets)`` for inputs ``(rows, columns)``."""
        found, weights = np.empty((len(self._weights), len(inputs))), self._model.root * self._weights
        for rows, columns in pieces(inputs):
            np.matmul(weights, self._model.features(columns), out=found[:, rows])
        return torch.from_numpy(found.T)

    def predict(self, inputs: Tensor) -> Prediction:
        """:meth:`.WeightPosterior.predict` of these inputs."""
        if self._triangle is None:
            self._triangle = BlockedTriangle(self._factor)
        mean = np.empty((len(self._weights), len(inputs)))
        epistemic, noise = np.empty(len(inputs)), np.full(len(inputs), self._noise_variance)
        for rows, columns in pieces(inputs):
            features, log_scale = self._model(columns)
            if log_scale is not None:
                noise[rows] *= np.exp(log_scale)
            np.matmul(self._weights, features, out=mean[:, rows])
            half = self._triangle.solve(features)
            np.einsum("ij,ij->j", half, half, out=epistemic[rows])
        epistemic *= self._noise_variance
        return Prediction(
            mean=torch.from_numpy(mean[0] if len(mean) == 1 else mean.T),
            epistemic_variance=torch.from_numpy(epistemic),
            noise_variance=torch.from_numpy(noise),
        )


def pieces(inputs: Tensor) -> Iterator[tuple[slice, Array]]:
    """Consecutive rows, with their columns first, in float64; what is done with them has one thread."""
    values = inputs.numpy()
    with one_thread():
        for start in range(0, len(values), PIECE_ROWS):
            rows = slice(start, start + PIECE_ROWS)
            yield rows, np.ascontiguousarray(values[rows].T, dtype=np.float64)
