"""Small tables: Fourier features with a length scale per column, fitted full-batch; leave-one-out picks the kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..features import ConcatenatedFeatures, ConstantFeatures, FourierFeatures, LinearFeatures
from ..full_batch import fit_full_batch
from ..model import FeatureGP
from .settings import AutoSettings

Array = npt.NDArray[np.float64]


def fit_kernels(
    inputs: Array,
    targets: Array,
    settings: AutoSettings,
    *,
    seed: int,
    progress: Callable[[str], None] | None = None,
) -> tuple[FeatureGP, dict[str, float]]:
    """The kernel with the best leave-one-out density, and the negative log density per row of each kernel."""
    data = inputs, targets
    found: dict[str, float] = {}
    best: FeatureGP | None = None
    for kernel in settings.kernels:
        start = float(np.sqrt(inputs.shape[1]))  # distances of standardised rows grow like this
        fourier = FourierFeatures(
            inputs.shape[1],
            settings.fourier_features,
            kernel=kernel,
            length_scales=start,
            sampling="orthogonal",
            seed=seed,
        )
        feature_map = ConcatenatedFeatures(fourier, LinearFeatures(inputs.shape[1], magnitude=0.1), ConstantFeatures())
        model = FeatureGP(feature_map, noise_variance=0.1).double()
        fit_full_batch(model, data)
        left_out = model.condition(data).leave_one_out(data)
        found[kernel] = -float(left_out.log_density(left_out.mean.new_tensor(targets)).mean())
        if best is None or found[kernel] <= min(found.values()):
            best = model
        if progress is not None:
            progress(f"kernel {kernel}")
    assert best is not None
    return best, found
