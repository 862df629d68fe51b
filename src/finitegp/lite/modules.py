"""Feature maps and noise of a model file as formulas: what each module of the file's description computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from .container import inside
from .program import (
    Array,
    LiteError,
    Value,
    affine,
    apply,
    beside,
    boosted,
    check_trees,
    clipped,
    constant,
    evaluate,
    largest,
    least,
    less,
    smallest,
    solved,
    squared_distances,
    take,
    total,
)

Tensors = Mapping[str, Array]
#: What a file has of a module's constructor.
Arguments = Mapping[str, Any]
_JITTER = 1e-10
#: Relative to a kernel's variance, what counts as no loss: that at landmarks themselves by jitter and rounding.
SEEN = 1e-8
# Relative to the mean diagonal, in the order tried, as in the library.
_JITTERS = (0.0, 1e-14, 1e-12, 1e-10)
_MOST_GRID_NUMBERS = 1 << 26


class Description(TypedDict, total=False):
    """A module in a file: its class with arguments and the modules in it, or only its name."""

    type: str
    arguments: Arguments
    children: dict[str, Description]
    custom: str


#: Lower factors of covariances of landmarks that were computed already, by the identity of the landmarks' array.
Roots = dict[int, Array]


class Block(NamedTuple):
    """Features of one map: ``raw`` columns, which a kernel on landmarks multiplies by the inverse of ``root``.

    Attributes:
        raw: The columns.
        root: ``L`` with ``LL' = k(Z, Z)``; None where the columns are the features.
        variance: Of the kernel, of which what features lack is added to what is not known; zero where nothing is.
    """

    raw: Value
    root: Array | None = None
    variance: float = 0.0

    @property
    def features(self) -> Value:
        """The features."""
        return self.raw if self.root is None else solved(self.raw, self.root)


def feature_blocks(description: Description, tensors: Tensors, x: Value, roots: Roots, depth: int = 0) -> list[Block]:
    """The blocks of features side by side that a described module makes of ``x``."""
    if "custom" in description:
        raise LiteError(
            f"the feature map or noise is a module of one's own, {str(description['custom'])[:200]}, of which a file "
            "holds no code: make it of the library's feature maps, or of nn.Sequential, nn.Linear and activations; or "
            "predict with the library finitegp, and pass the module when loading"
        )
    kind, arguments = description["type"], dict(description["arguments"])
    children = list(description["children"].items())
    if depth > 50:
        raise LiteError("modules are nested too deeply")
    if kind == "ConcatenatedFeatures":
        parts = [
            feature_blocks(child, inside(tensors, f"maps.{name}."), x, roots, depth + 1) for name, child in children
        ]
        return [block for part in parts for block in part]
    if kind == "LandmarkFeatures":
        return [_landmarks(x, arguments["kernel"], tensors, roots)]
    if kind in ("ComposedFeatures", "Sequential"):
        value = x
        for name, child in children:
            value = features_of(child, inside(tensors, f"{name}."), value, roots, depth + 1)
        return [Block(value)]
    if kind == "MeanVariance":
        inner = [
            features_of(child, inside(tensors, f"networks.{name}."), x, roots, depth + 1) for name, child in children
        ]
        return [Block(_log_of_mean(inner))]
    if kind == "AddedTrees":
        ((name, child),) = children
        columns, thresholds, leaves = (tensors[each] for each in ("columns", "thresholds", "leaves"))
        check_trees(1.0, columns, thresholds, leaves, x.width)
        added_to = features_of(child, inside(tensors, f"{name}."), x, roots, depth + 1)
        return [Block(added_to + boosted(x, columns.astype(np.int64), thresholds, leaves))]
    if kind not in _MAPS:
        raise LiteError(f"a module of the type {str(kind)[:60]!r} is not known here: use the library finitegp")
    return [Block(_MAPS[kind](x, arguments, tensors))]


def features_of(description: Description, tensors: Tensors, x: Value, roots: Roots, depth: int = 0) -> Value:
    """All features that a described module makes of ``x``, or what any other module gives."""
    return beside([block.features for block in feature_blocks(description, tensors, x, roots, depth)])


def log_noise_scale(
    description: Description, tensors: Tensors, x: Value, features: Value, roots: Roots
) -> Value | None:
    """The logarithm of a row's noise scale, one column; None if it is one for all rows."""
    if description.get("type") == "ConstantNoise":
        return None
    if description.get("type") != "InputNoise":
        feature_blocks(description, tensors, x, roots)  # raises the error that names it
        raise LiteError(f"noise of the type {str(description.get('type'))[:60]!r} is not known here")
    arguments = description["arguments"]
    inputs = x if arguments["reads"] == "inputs" else features
    (name, child), *_ = description["children"].items()
    bound = float(arguments["max_log_scale"])
    found = features_of(child, inside(tensors, f"{name}."), inputs, roots)
    scale = bound * apply("tanh", found * (1.0 / bound))
    return clipped(scale, *map(float, arguments["bounds"])) if "bounds" in arguments else scale


def _activation(name: str, x: Value) -> Value:
    if name == "relu":
        return largest(x, 0.0)
    if name == "tanh":
        return apply("tanh", x)
    if name == "silu":
        return x / (1.0 + apply("exp", 0.0 - x))
    if name == "gelu":
        return 0.5 * x * (1.0 + apply("erf", x * math.sqrt(0.5)))
    if name == "gelu tanh":
        return 0.5 * x * (1.0 + apply("tanh", math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))
    if name != "mish":
        raise LiteError(f"the activation {name[:60]!r} is not known here")
    growth = apply("exp", smallest(x, 20.0))  # beyond, the tangent is one, and squares overflow
    growth = growth * (growth + 2.0)
    return x * growth / (growth + 2.0)


def _linear(x: Value, arguments: Arguments, tensors: Tensors) -> Value:
    return affine(x, tensors["weight"].T, tensors.get("bias"))


def _network(x: Value, arguments: Arguments, tensors: Tensors) -> Value:
    layers = len(arguments["hidden"])
    for layer in range(layers):
        x = _linear(x, {}, inside(tensors, f"layers.{2 * layer}."))
        if layer < layers - 1 or arguments["final_activation"]:
            x = _activation(arguments["activation"], x)
    return x


def _line(x: Value, arguments: Arguments, tensors: Tensors) -> Value:
    features = x * np.exp(0.5 * tensors["log_magnitude"])
    if "log_bias_magnitude" not in tensors:
        return features
    return beside([features, constant(np.exp(0.5 * tensors["log_bias_magnitude"]))])


def _waves(x: Value, frequencies: Array, tensors: Tensors, amplitudes: float | Array) -> Value:
    scaled = frequencies / np.exp(tensors["log_length_scales"])
    angles = affine(x, scaled.T)
    sizes: Array = np.exp(0.5 * tensors["log_magnitude"]) * amplitudes
    return beside([apply("cos", angles), apply("sin", angles)]) * sizes


def _fourier(x: Value, arguments: Arguments, tensors: Tensors) -> Value:
    frequencies = tensors["frequencies"]
    return _waves(x, frequencies, tensors, 1.0 / math.sqrt(len(frequencies)))


def _quadrature(x: Value, arguments: Arguments, tensors: Tensors) -> Value:
    count, columns = int(arguments["nodes_per_dimension"]), int(arguments["input_dim"])
    cutoff = float(arguments["frequency_cutoff"])
    if not (0 < columns <= 3 and count > 0 and 2.0 * columns * float(count) ** columns <= _MOST_GRID_NUMBERS):
        raise LiteError("its quadrature makes no sense")
    nodes, weights = normal_quadrature(count, cutoff)
    grid, grid_weights = half_of_tensor_grid(nodes, weights, columns)
    kept, _ = keep_heavy(grid_weights, float(arguments["tolerance"]) / 4)
    return _waves(x, grid[kept], tensors, np.tile(np.sqrt(grid_weights[kept]), 2))


def normal_quadrature(count: int, cutoff: float) -> tuple[Array, Array]:
    """Gauss-Legendre nodes between minus and plus a cutoff, and weights with the density of the standard normal."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    nodes = nodes * cutoff
    return nodes, weights * cutoff * np.exp(-0.5 * nodes**2) / math.sqrt(2.0 * math.pi)


def half_of_tensor_grid(nodes: Array, weights: Array, input_dim: int) -> tuple[Array, Array]:
    """The grid points with positive first coordinate, ``(points, input_dim)``, and twice their weights."""
    half = len(nodes) // 2
    axes = [nodes[half:], *[nodes] * (input_dim - 1)]
    axis_weights = [2 * weights[half:], *[weights] * (input_dim - 1)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, input_dim)
    grid_weights = np.stack(np.meshgrid(*axis_weights, indexing="ij"), axis=-1).reshape(-1, input_dim)
    return grid, grid_weights.prod(axis=1)


def keep_heavy(weights: Array, budget: float) -> tuple[npt.NDArray[np.intp], float]:
    """The indices of all but the lightest weights, whose sum, also returned, is at most ``budget``."""
    lightest_first = np.argsort(weights, kind="stable")
    running_sum = np.cumsum(weights[lightest_first])
    num_dropped = int(np.searchsorted(running_sum, budget, side="right"))
    dropped_weight = float(running_sum[num_dropped - 1]) if num_dropped else 0.0
    return np.sort(lightest_first[num_dropped:]), dropped_weight


def soft_clipped(x: Value, limit: float) -> Value:
    """The value up to a limit, logarithmic beyond."""
    beyond = apply("log1p", largest(apply("abs", x) - limit, 0.0))
    return clipped(x, -limit, limit) + apply("sign", x) * beyond


def _soft_clip(x: Value, arguments: Arguments, tensors: Tensors) -> Value:
    return clipped(soft_clipped(x, float(arguments["limit"])), tensors["low"], tensors["high"])


def _embedding(x: Value, arguments: Arguments, tensors: Tensors) -> Value:
    frequencies, weights = tensors["frequencies"], tensors["weights"]
    columns, _, count = frequencies.shape
    outputs = weights.shape[2]
    repeated = take(x, np.repeat(np.arange(columns), count))
    cosines = apply("cos", repeated * (2.0 * math.pi * frequencies.reshape(-1)) + tensors["phases"].reshape(-1))
    together = beside([x, affine(cosines, weights, tensors["offsets"])])
    # Each column before what its own cosines give.
    order = [[column, *(columns + column * outputs + np.arange(outputs))] for column in range(columns)]
    return take(together, np.array(order))


def _floor(x: Value, arguments: Arguments, tensors: Tensors) -> Value:
    floor = float(arguments["floor"])
    above = x - floor
    soft = apply("log1p", apply("exp", smallest(above, 20.0)))
    return floor + soft + less(20.0, above) * (above - soft)  # as torch has it: linear beyond twenty


def _log_of_mean(values: list[Value]) -> Value:
    together = beside(values)
    if together.width != len(values):
        raise LiteError("a mean of variances takes one column of each network")
    highest = 0.0 - least(0.0 - together)
    return highest + apply("log", total(apply("exp", together - highest))) - math.log(len(values))


def _landmarks(x: Value, kind: str, tensors: Tensors, roots: Roots) -> Block:
    scales = np.exp(-tensors["log_length_scales"])
    variance = float(np.exp(tensors["log_variance"]))
    places = tensors["landmarks"] * scales

    def covariance(value: Value) -> Value:
        return variance * _correlation(squared_distances(value * scales, places), kind)

    key = id(tensors["landmarks"])
    if key not in roots:
        own = {"covariance": covariance(Value("input", x.width))}
        among = evaluate(own, tensors["landmarks"])["covariance"].copy()
        np.fill_diagonal(among, variance * (1.0 + _JITTER))
        roots[key] = cholesky(among)
    return Block(covariance(x), roots[key], variance)


def _correlation(squares: Value, kind: str) -> Value:
    if kind == "rbf":
        return apply("exp", -0.5 * squares)
    if kind not in ("matern32", "matern52"):
        raise LiteError(f"the kernel {str(kind)[:60]!r} is not known here")
    distances = math.sqrt(3.0 if kind == "matern32" else 5.0) * apply("sqrt", squares)
    more = 1.0 + distances if kind == "matern32" else 1.0 + distances + distances * distances * (1.0 / 3.0)
    return more * apply("exp", 0.0 - distances)


_MAPS: dict[str, Callable[[Value, Any, Tensors], Value]] = {
    "ConstantFeatures": lambda x, _, tensors: constant(np.exp(0.5 * tensors["log_magnitude"])),
    "FourierFeatures": _fourier,
    "GELU": lambda x, arguments, _: _activation("gelu tanh" if arguments["approximate"] == "tanh" else "gelu", x),
    "GaussLegendreFeatures": _quadrature,
    "Identity": lambda x, arguments, _: x,
    "Linear": _linear,
    "LinearFeatures": _line,
    "MLPFeatures": _network,
    "Mish": lambda x, arguments, _: _activation("mish", x),
    "PeriodicEmbedding": _embedding,
    "ReLU": lambda x, arguments, _: _activation("relu", x),
    "SiLU": lambda x, arguments, _: _activation("silu", x),
    "SmoothFloor": _floor,
    "SoftClip": _soft_clip,
    "Tanh": lambda x, arguments, _: _activation("tanh", x),
}


def cholesky(matrix: Array) -> Array:
    """The lower factor of a positive definite matrix, with as little added to its diagonal as possible."""
    size = abs(float(np.mean(np.diagonal(matrix))))
    for jitter in _JITTERS:
        try:
            shifted = matrix + jitter * size * np.eye(len(matrix)) if jitter else matrix
            found: Array = np.asarray(np.linalg.cholesky(shifted), np.float64)
        except np.linalg.LinAlgError:
            continue
        if np.isfinite(found).all():
            return found
    raise LiteError("the sums of its rows are not positive definite in floating point: more noise is needed")
