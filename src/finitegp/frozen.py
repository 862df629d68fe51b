"""Feature maps that no longer change, on the CPU: the same float64 numbers as the modules give, in less time.

A module call costs more than the arithmetic of a few rows, and the numbers of many rows do not stay in a core's cache.
So a map is taken apart once, and rows pass through plain NumPy in pieces, columns first: a layer's output is the next
layer's input and the right side of a triangular solve as it lies in memory.

A map can be had in float32 too (:mod:`.single_precision` has what that is good for). Inputs stay float64 up to the
first layer that adds: thresholds of trees are compared with what they were chosen for.
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
from .noise import AddedTrees, ConstantNoise, InputNoise, MeanVariance, NoiseModel, SmoothFloor
from .posterior import WeightPosterior
from .predictive import Prediction
from .processes import one_thread
from .trees import BoostedTrees
from .triangles import BlockedTriangle, InverseTriangle

Array = npt.NDArray[np.floating]
#: In which numbers a map is computed.
Precision = type[np.float64] | type[np.float32]
#: Columns first: ``(inputs, rows)`` to ``(outputs, rows)``. The argument is left as it is.
Step = Callable[[Array], Array]

#: Rows that pass at once: a layer of them stays in a core's cache.
PIECE_ROWS = 512


class UnknownModuleError(Exception):
    """A map holds a module that is not known here."""


def frozen_map(module: nn.Module, precision: Precision = np.float64) -> Step | None:
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
        return _make(module, precision)
    except UnknownModuleError:
        return None


def frozen_noise(noise: NoiseModel, precision: Precision = np.float64) -> Callable[[Array, Array], Array | None] | None:
    """:meth:`.NoiseModel.log_scale` with its present values, of inputs and features columns first; None as above."""
    if type(noise) is ConstantNoise:
        return lambda inputs, features: None
    if type(noise) is not InputNoise:
        return None
    made = frozen_map(noise.module, precision)
    if made is None:
        return None
    step, reads_inputs, most, bounds = made, noise.reads == "inputs", noise.max_log_scale, noise.bounds

    def log_scale(inputs: Array, features: Array) -> Array:
        found: Array = most * np.tanh(step(inputs if reads_inputs else features)[0] / most)
        return found if bounds is None else np.clip(found, *bounds)

    return log_scale


def _make(module: nn.Module, precision: Precision) -> Step:
    maker = _MAKERS.get(type(module))
    if maker is None:
        raise UnknownModuleError
    return maker(module, precision)


def _chain(modules: Iterable[nn.Module], precision: Precision) -> Step:
    steps = [_make(each, precision) for each in modules]

    def chained(x: Array) -> Array:
        for step in steps:
            x = step(x)
        return x

    return chained


def _side_by_side(module: ConcatenatedFeatures, precision: Precision) -> Step:
    # Networks of one fit clip their inputs alike: once is enough.
    clips: list[SoftClip] = []
    parts: list[tuple[int | None, Step]] = []
    for each in module.maps:
        if isinstance(each, ComposedFeatures) and isinstance(each.first, SoftClip):
            first = each.first
            place = next((number for number, clip in enumerate(clips) if _equal(clip, first)), len(clips))
            clips += [first] if place == len(clips) else []
            parts.append((place, _make(each.second, precision)))
        else:
            parts.append((None, _make(each, precision)))
    clipping = [_clip(each, precision) for each in clips]

    def side_by_side(x: Array) -> Array:
        clipped = [clip(x) for clip in clipping]
        return np.concatenate([step(x if place is None else clipped[place]) for place, step in parts])

    return side_by_side


def _equal(one: SoftClip, other: SoftClip) -> bool:
    return one.limit == other.limit and torch.equal(one.low, other.low) and torch.equal(one.high, other.high)


def _clip(module: SoftClip, precision: Precision) -> Step:
    limit, low, high = module.limit, _numbers(module.low)[:, None], _numbers(module.high)[:, None]
    return lambda x: np.clip(compressed(x, limit), low, high)


def compressed(x: Array, limit: float = 4.0) -> Array:
    """What :class:`~finitegp.features.SoftClip` makes of values that it does not bound."""
    size = np.abs(x)
    if size.max(initial=0.0) <= limit:
        return x
    beyond = np.copysign(limit + np.log1p(np.maximum(size - limit, 0.0)), x)
    return np.where(size <= limit, x, beyond)


def _mean_variance(module: MeanVariance, precision: Precision) -> Step:
    steps = [_make(each, precision) for each in module.networks]
    shift = math.log(len(steps))
    return lambda x: np.logaddexp.reduce([step(x) for step in steps], axis=0) - shift


def _smooth_floor(module: SmoothFloor, precision: Precision) -> Step:
    floor = module.floor
    return lambda x: floor + np.logaddexp(0.0, x - floor)


def _added_trees(module: AddedTrees, precision: Precision) -> Step:
    step, trees = _make(module.module, precision), BoostedTrees.of(module)
    return lambda x: step(x) + trees.predict(np.ascontiguousarray(x.T))


def _linear(module: nn.Linear, precision: Precision) -> Step:
    weight = _numbers(module.weight, precision)
    bias = None if module.bias is None else _numbers(module.bias, precision)[:, None]

    def linear(x: Array) -> Array:
        found: Array = weight @ x.astype(precision, copy=False)
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


# Of float64 NumPy's own take five times as long as torch's, of float32 a third.


def _cosines(angles: Array, out: Array) -> Array:
    if angles.dtype == np.float32:
        return np.cos(angles, out=out)
    torch.cos(torch.from_numpy(angles), out=torch.from_numpy(out))
    return out


def _sines(angles: Array, out: Array) -> Array:
    if angles.dtype == np.float32:
        return np.sin(angles, out=out)
    torch.sin(torch.from_numpy(angles), out=torch.from_numpy(out))
    return out


def _embedding(module: PeriodicEmbedding, precision: Precision) -> Step:
    frequencies = (_numbers(module.frequencies) * (2.0 * math.pi)).transpose(0, 2, 1)  # (columns, cosines, 1)
    frequencies = frequencies.astype(precision)
    phases = _numbers(module.phases, precision).transpose(0, 2, 1)
    weights = _numbers(module.weights, precision).transpose(0, 2, 1).copy()
    offsets = _numbers(module.offsets, precision).transpose(0, 2, 1)
    columns, width = module.input_dim, module.width

    def embed(x: Array) -> Array:
        x = x.astype(precision, copy=False)
        angles = x[:, None, :] * frequencies
        angles += phases
        cosines = _cosines(angles, angles)
        found = np.empty((columns, width, x.shape[1]), precision)
        found[:, 0] = x
        found[:, 1:] = np.matmul(weights, cosines)
        found[:, 1:] += offsets
        return found.reshape(columns * width, -1)

    return embed


def _fourier(module: FourierFeatures, precision: Precision) -> Step:
    with torch.no_grad():
        frequencies = _numbers(module.frequencies / module.length_scales, precision)
        amplitude = float(module._amplitudes())

    def waves(x: Array) -> Array:
        angles = frequencies @ x.astype(precision, copy=False)
        found = np.empty((2 * len(angles), x.shape[1]), precision)
        _cosines(angles, found[: len(angles)])
        _sines(angles, found[len(angles) :])
        found *= amplitude
        return found

    return waves


def _line(module: LinearFeatures, precision: Precision) -> Step:
    slopes = np.exp(0.5 * _numbers(module.log_magnitude)).reshape(-1, 1)

    def line(x: Array) -> Array:
        found: Array = (x * slopes).astype(precision, copy=False)
        return found

    if module.log_bias_magnitude is None:
        return line
    constant = float(np.exp(0.5 * float(module.log_bias_magnitude.detach())))
    return lambda x: np.concatenate([line(x), np.full((1, x.shape[1]), constant, precision)])


def _constant(module: ConstantFeatures, precision: Precision) -> Step:
    constant = float(np.exp(0.5 * float(module.log_magnitude.detach())))
    return lambda x: np.full((1, x.shape[1]), constant, precision)


#: By the very type: a subclass may do something else.
_MAKERS: dict[type[nn.Module], Callable[[Any, Precision], Step]] = {
    AddedTrees: _added_trees,
    ComposedFeatures: lambda module, precision: _chain([module.first, module.second], precision),
    ConcatenatedFeatures: _side_by_side,
    ConstantFeatures: _constant,
    FourierFeatures: _fourier,
    LinearFeatures: _line,
    MLPFeatures: lambda module, precision: _chain(module.layers, precision),
    MeanVariance: _mean_variance,
    PeriodicEmbedding: _embedding,
    SmoothFloor: _smooth_floor,
    SoftClip: _clip,
    nn.Linear: _linear,
    nn.Mish: lambda _, __: mish,
    nn.ReLU: lambda _, __: lambda x: np.maximum(x, 0.0),
    nn.Sequential: _chain,
}


def _numbers(tensor: Tensor, precision: Precision = np.float64) -> Array:
    """A copy of its values."""
    found: Array = tensor.detach().numpy().astype(precision)
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
    def of(
        cls, feature_map: nn.Module, noise: NoiseModel, output_scale: float, precision: Precision = np.float64
    ) -> FrozenModel | None:
        """Of a model's parts with their present values; None if they hold modules that are not known here."""
        with np.errstate(over="ignore"):  # in line searches: infinite features are refused where they are summed
            features, log_scale = frozen_map(feature_map, precision), frozen_noise(noise, precision)
        return None if features is None or log_scale is None else cls(features, log_scale, output_scale)

    def with_noise_of(self, other: FrozenModel) -> FrozenModel:
        """These features with the noise of another form of the model."""
        return FrozenModel(self.features, other._log_scale, self.root**2)

    def __call__(self, columns: Array) -> tuple[Array, Array | None]:
        """Features ``(d, rows)`` and log noise scales ``(rows,)`` or None, of inputs columns first."""
        features, log_scale = self.unscaled(columns)
        features *= self.root
        return features, log_scale

    def unscaled(self, columns: Array) -> tuple[Array, Array | None]:
        """The same without the root of the output scale in the features."""
        features = self.features(columns)
        return features, self._log_scale(columns, features)


class FrozenGP:
    """Predictions of a model that no longer changes, by a posterior that does not either.

    Args:
        model: The model.
        posterior: Over the weights of its features.
        triangle: The quadratic form of its factor; None makes it when deviations are first asked for.
    """

    def __init__(
        self, model: FrozenModel, posterior: WeightPosterior, triangle: BlockedTriangle | InverseTriangle | None = None
    ) -> None:
        self.model = model
        self._weights = model.root * posterior.weight_mean.numpy().T
        self._noise_variance = posterior.noise_variance
        self._factor = posterior.factor.lower.numpy()
        self._triangle = triangle

    def mean(self, inputs: Tensor) -> Tensor:
        """``(rows, targets)`` for inputs ``(rows, columns)``."""
        found = np.empty((len(self._weights), len(inputs)))
        for rows, columns in pieces(inputs):
            np.matmul(self._weights, self.model.features(columns), out=found[:, rows])
        return torch.from_numpy(found.T)

    def predict(self, inputs: Tensor) -> Prediction:
        """:meth:`.WeightPosterior.predict` of these inputs."""
        if self._triangle is None:
            self._triangle = BlockedTriangle(self._factor)
        mean = np.empty((len(self._weights), len(inputs)))
        epistemic, noise = np.empty(len(inputs)), np.full(len(inputs), self._noise_variance)
        for rows, columns in pieces(inputs):
            features, log_scale = self.model.unscaled(columns)
            if log_scale is not None:
                noise[rows] *= np.exp(log_scale, dtype=np.float64)
            np.matmul(self._weights, features, out=mean[:, rows])  # before it is rounded again, as in `mean`
            features *= self.model.root
            epistemic[rows] = self._triangle.squares(features)
        epistemic *= self._noise_variance
        return Prediction(
            mean=torch.from_numpy(mean[0] if len(mean) == 1 else mean.T),
            epistemic_variance=torch.from_numpy(epistemic),
            noise_variance=torch.from_numpy(noise),
        )


def pieces(inputs: Tensor) -> Iterator[tuple[slice, npt.NDArray[np.float64]]]:
    """Consecutive rows, with their columns first, in float64; what is done with them has one thread."""
    values = inputs.numpy()
    with one_thread():
        for start in range(0, len(values), PIECE_ROWS):
            rows = slice(start, start + PIECE_ROWS)
            yield rows, np.ascontiguousarray(values[rows].T, dtype=np.float64)
