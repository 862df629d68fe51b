"""Small tables: Fourier features with a length scale per column, fitted full-batch; leave-one-out picks the kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import nn

from ..data import ArraySource
from ..features import ConcatenatedFeatures, ConstantFeatures, FourierFeatures, LinearFeatures
from ..full_batch import fit_full_batch
from ..model import FeatureGP
from ..noise import ConstantNoise, InputNoise, NoiseModel
from .settings import AutoSettings

_FEWEST_ROWS_FOR_INPUT_NOISE = 100
_MARGIN_FOR_INPUT_NOISE = 0.3  # nats per row


def fit_kernels(
    data: ArraySource,
    settings: AutoSettings,
    *,
    input_noise: bool | None = False,
    seed: int,
    progress: Callable[[str], None] | None = None,
) -> tuple[FeatureGP, dict[str, float]]:
    """The kernel with the best leave-one-out density, and the negative log density per row of each kernel.

    ``input_noise=None`` also tries noise that depends on the input with the best kernel. Leave-one-out flatters what
    has more parameters, so it must be better by a margin, and the smallest tables do not try.
    """
    found: dict[str, float] = {}
    models: dict[str, FeatureGP] = {}

    def fit(kernel: str, depends: bool, name: str) -> None:
        model = start_kernel(data.input_dim, kernel, settings, input_noise=depends, seed=seed)
        fit_full_batch(model, data, gradient_tolerance=1e-5)  # an NLML per row to six digits
        # One of a row's copies is left out at a time: the others stay.
        left_out = model.condition(data).leave_one_out(data)
        density = left_out.log_density(left_out.mean.new_tensor(data.targets)).numpy()
        found[name], models[name] = -float(np.average(density, weights=data.counts)), model
        if progress is not None:
            progress(f"kernel {name}")

    for kernel in settings.kernels:
        fit(kernel, bool(input_noise), kernel)
    best = min(found, key=found.__getitem__)
    rows = data.num_data if data.counts is None else float(np.sum(data.counts))
    if input_noise is None and rows >= _FEWEST_ROWS_FOR_INPUT_NOISE:
        name = f"{best}, input noise"
        fit(best, True, name)
        if found[name] < found[best] - _MARGIN_FOR_INPUT_NOISE:
            best = name
    return models[best], found


def start_kernel(
    input_dim: int, kernel: str, settings: AutoSettings, *, input_noise: bool = False, seed: int
) -> FeatureGP:
    """A kernel, a linear trend and an intercept in float64, as they are before any fitting."""
    noise: NoiseModel = ConstantNoise(0.1)
    if input_noise:
        linear = nn.Linear(input_dim, 1)
        nn.init.zeros_(linear.weight)  # starts as constant noise
        nn.init.zeros_(linear.bias)
        linear.bias.requires_grad_(False)  # the common factor is the noise variance
        noise = InputNoise(linear, reads="inputs", variance=0.1)
    feature_map = kernel_features(input_dim, kernel, settings.fourier_features, seed=seed)
    return FeatureGP(feature_map, noise_model=noise).double()


def kernel_features(input_dim: int, kernel: str, num_features: int, *, seed: int) -> nn.Module:
    """Fourier features of the kernel, a linear trend and an intercept, for standardised inputs and targets."""
    fourier = FourierFeatures(
        input_dim,
        num_features,
        kernel=kernel,
        length_scales=float(np.sqrt(input_dim)),  # distances of standardised rows grow like this
        sampling="orthogonal",
        seed=seed,
    )
    return ConcatenatedFeatures(fourier, LinearFeatures(input_dim, magnitude=0.1), ConstantFeatures())
