"""The network in one flat vector, its features and their backward pass, and the noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from .settings import WIDTH


class Parameters:
    """Views into one flat vector: the network, then the weights (SCGD only), the noise and the output scale."""

    def __init__(self, columns: int, with_weights: bool, dtype: Any) -> None:
        shapes = {"w1": (columns, WIDTH), "b1": (WIDTH,), "w2": (WIDTH, WIDTH), "b2": (WIDTH,)}
        shapes |= {"w": (WIDTH if with_weights else 0,), "noise": (1,), "scale": (1,)}
        self.flat = np.zeros(sum(math.prod(shape) for shape in shapes.values()), dtype)
        start = 0
        for name, shape in shapes.items():
            stop = start + math.prod(shape)
            setattr(self, name, self.flat[start:stop].reshape(shape))
            start = stop


def initialise(p: Parameters, kind: str, seed: int) -> None:
    """Fill the network's parameters."""
    torch.manual_seed(seed)
    for weight, bias in ((p.w1, p.b1), (p.w2, p.b2)):
        layer = torch.nn.Linear(*weight.shape)
        if kind != "torch":
            torch.nn.init.zeros_(layer.bias)
            if kind == "he":
                torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            else:
                torch.nn.init.xavier_uniform_(layer.weight)
        weight[...] = layer.weight.detach().numpy().T
        bias[...] = layer.bias.detach().numpy()


def features(p: Parameters, x: np.ndarray, last_relu: bool, output_scale: bool) -> tuple[np.ndarray, np.ndarray]:
    """The first layer's output and the features."""
    h = x @ p.w1
    h += p.b1
    np.maximum(h, 0, out=h)
    z = h @ p.w2
    z += p.b2
    if last_relu:
        np.maximum(z, 0, out=z)
    if output_scale:
        z *= np.exp(0.5 * p.scale[0])
    return h, z


def backward(
    p: Parameters, g: Parameters, x: np.ndarray, h: np.ndarray, z: np.ndarray, dz: np.ndarray, o: dict[str, Any]
) -> None:
    """Network gradients from the gradient in the features; overwrites ``dz``."""
    if o["output_scale"]:
        g.scale[0] = 0.5 * np.vdot(dz, z)
        dz *= np.exp(0.5 * p.scale[0])
    if o["last_relu"]:
        dz *= z > 0
    np.matmul(h.T, dz, out=g.w2)
    dz.sum(0, out=g.b2)
    dh = dz @ p.w2.T
    dh *= h > 0
    np.matmul(x.T, dh, out=g.w1)
    dh.sum(0, out=g.b1)


def noise_value(raw: float, kind: str, least: float) -> tuple[float, float]:
    """The noise variance ``s`` and ``ds / d raw``."""
    if kind == "log":
        return math.exp(raw), math.exp(raw)
    if kind == "variance":
        return raw, 1.0
    if kind == "sigma":
        return raw * raw, 2.0 * raw
    return least + (math.log1p(math.exp(-abs(raw))) + max(raw, 0.0)), 1.0 / (1.0 + math.exp(-raw))


def noise_raw(value: float, kind: str, least: float) -> float:
    """The parameter at which the noise variance is ``value``; also the bound, for ``value = least``."""
    if kind == "log":
        return math.log(value)
    if kind == "variance":
        return value
    if kind == "sigma":
        return math.sqrt(value)
    return -1e9 if value <= least else math.log(math.expm1(value - least))
