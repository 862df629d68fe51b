"""Whole steps of the paper's methods as compiled loops: the same results to rounding in a fraction of the time.

At batches of 32 rows most of a step's time is not arithmetic but the calls of some hundred small tensor operations.
For the one case that the long tables need (the paper's network with the linear kernel, or with Fourier features for
SCGD and BSGD; constant noise, AdaDelta by the protocol) each class here takes the step of its base class in one
function that Numba compiles. Parameters, tracked matrices and the optimizer's averages stay where they are, in torch's
tensors; whatever the compiled step cannot do (a matrix that cannot be factorised without jitter) is left to the base
class. Tests compare both step by step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from finitegp.algorithms import BSGD, SCGD, Algorithm, PaperMinimax
from finitegp.algorithms.scgd import RecentBatches
from finitegp.data import Rows
from finitegp.features import ComposedFeatures, FourierFeatures

from .compiled_steps import bsgd_step, minimax_step, scgd_step, scgd_window_step, svgp_step
from .protocol import PaperAdadelta
from .svgp import SVGP


def _state(optimizer: PaperAdadelta, parameter: torch.Tensor, *, of: torch.Tensor | None = None) -> tuple[Any, ...]:
    """A parameter and AdaDelta's two averages as arrays over torch's memory; ``of`` is the key of the averages."""
    key = parameter if of is None else of
    averages = optimizer.state[key]
    if not averages:
        averages["step"] = torch.tensor(0.0)
        averages["square_avg"] = torch.zeros_like(key)
        averages["acc_delta"] = torch.zeros_like(key)
    tensors = parameter.detach(), averages["square_avg"], averages["acc_delta"]
    flat = parameter.ndim < 2 or parameter.shape[1] == 1
    return tuple(tensor.view(-1).numpy() if flat else tensor.numpy() for tensor in tensors)


def _parts(feature_map: nn.Module) -> tuple[Any, FourierFeatures | None]:
    """The network, and the Fourier features of its outputs if there are any."""
    if isinstance(feature_map, ComposedFeatures):
        assert isinstance(feature_map.second, FourierFeatures)
        return feature_map.first, feature_map.second
    return feature_map, None


class _Fused:
    """Mixed into an algorithm: the arrays that its compiled step works on."""

    arrays: dict[str, Any] | None = None

    def prepare(self: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The arrays, made at the first step."""
        arrays: dict[str, Any] | None = self.arrays
        if arrays is None:
            assert isinstance(optimizer, PaperAdadelta)
            network, fourier = _parts(self.model.feature_map)
            linears = [layer for layer in network.layers if isinstance(layer, nn.Linear)]
            layers = tuple(_state(optimizer, p) for linear in linears for p in (linear.weight, linear.bias))
            noise = _state(optimizer, self.model.noise.log_variance, of=optimizer.variance)
            self.arrays = arrays = {"layers": layers, "noise": noise, "rate": optimizer.param_groups[0]["lr"]}
            arrays["spectrum"] = None
            if fourier is not None:
                learned = (_state(optimizer, p) for p in (fourier.log_length_scales, fourier.log_magnitude))
                arrays["spectrum"] = fourier.frequencies.numpy(), *learned
            for name in ("weights", "gram_estimate", "dual_matrix"):
                if hasattr(self, name):
                    arrays[name] = _state(optimizer, getattr(self, name))
        return arrays


class FusedSCGD(_Fused, SCGD):
    """SCGD whose step is compiled."""

    def step(self, batches: Sequence[Rows], optimizer: torch.optim.Optimizer) -> float:
        """One step; by the base class where the tracked matrix needs jitter."""
        assert self.recent is None
        assert isinstance(self.tracking_rate, float)
        arrays, batch = self.prepare(optimizer), batches[0]
        made, loss = scgd_step(
            batch.inputs.numpy(), batch.observed.view(-1).numpy(), arrays["layers"], arrays["spectrum"],
            arrays["weights"], arrays["noise"], self.tracked_gram.numpy(), self.num_data, self.tracking_rate,
            arrays["rate"],
        )  # fmt: skip
        return float(loss) if made else super().step(batches, optimizer)


class FusedFourierSCGD(_Fused, SCGD):
    """SCGD with Fourier features whose step is compiled, always by the rows that the tracked matrix remembers.

    Rows are kept until their part of the tracked matrix is :attr:`forgotten` of its multiple of the identity: later
    than that they are beyond the rounding of the features.
    """

    forgotten = 1e-6
    window: _Window | None = None

    @torch.no_grad()
    def initialize(self, batches: Sequence[Rows]) -> None:
        """Start from the mean of a few batches, by their rows."""
        self.recent = RecentBatches(self.num_features, self.model.noise_variance, self.model.device)
        self.window = None
        for batch in batches:
            weight = self.num_data / (len(batch.inputs) * len(batches))
            self.recent.take_up(self.model(batch.inputs)[0], weight)

    def step(self, batches: Sequence[Rows], optimizer: torch.optim.Optimizer) -> float:
        """One step; NaN where numbers are not finite any more, the only matrices that cannot be factorised."""
        assert isinstance(self.tracking_rate, float)
        assert self.recent is not None
        arrays, batch, rows = self.prepare(optimizer), batches[0], len(batches[0].inputs)
        if self.window is None:
            self.window = _Window(self.recent, rows)
        window = self.window
        # The squared length of all rows is the kernel's magnitude.
        loudest = self.tracking_rate * self.num_data / window.batch_size * math.exp(float(arrays["spectrum"][2][0][0]))
        ratio = loudest / (self.forgotten * float(window.noise[0]))
        needed = max(math.ceil(math.log(max(ratio, 1.0)) / -math.log1p(-self.tracking_rate)), 2)
        if not needed <= window.places <= needed + 1:
            window.resize(needed)
        made, loss = scgd_window_step(
            batch.inputs.numpy(), batch.observed.view(-1).numpy(), arrays["layers"], arrays["spectrum"],
            arrays["weights"], arrays["noise"], window.rows, window.weights, window.products, window.noise,
            window.free(rows), self.num_data, self.tracking_rate, arrays["rate"],
        )  # fmt: skip
        return float(loss) if made else math.nan


class _Window:
    """The rows that a tracked matrix remembers, in as many places as batches; the oldest is taken by the next one.

    Args:
        recent: What the matrix starts from.
        batch_size: The most rows of a batch.
    """

    def __init__(self, recent: RecentBatches, batch_size: int) -> None:
        self.batch_size = batch_size
        self.places = -(-len(recent.features) // batch_size)
        self.oldest = 0
        size = self.places * batch_size
        self.rows, self.weights = np.zeros((size, recent.features.shape[1])), np.zeros(size)
        self.rows[: len(recent.features)] = recent.features.numpy()
        self.weights[: len(recent.weights)] = recent.weights.numpy()
        self.products = self.rows @ self.rows.T
        self.noise = np.array([recent.noise])

    def resize(self, places: int) -> None:
        """Have this many places; with fewer the oldest batches are dropped."""
        newest = [(self.oldest - 1 - age) % self.places for age in range(min(places, self.places))]
        starts = np.array(newest[::-1]) * self.batch_size
        kept = (starts[:, None] + np.arange(self.batch_size)).ravel()
        size = places * self.batch_size
        rows, weights, products = np.zeros((size, self.rows.shape[1])), np.zeros(size), np.zeros((size, size))
        rows[: len(kept)], weights[: len(kept)] = self.rows[kept], self.weights[kept]
        products[: len(kept), : len(kept)] = self.products[np.ix_(kept, kept)]
        self.rows, self.weights, self.products = rows, weights, products
        self.oldest, self.places = len(newest) % places, places

    def free(self, rows: int) -> int:
        """The first of the places that the next batch takes; what it leaves of them is empty."""
        first = self.oldest * self.batch_size
        rest = slice(first + rows, first + self.batch_size)
        self.rows[rest], self.weights[rest] = 0.0, 0.0
        self.products[rest], self.products[:, rest] = 0.0, 0.0
        self.oldest = (self.oldest + 1) % self.places
        return first


class FusedBSGD(_Fused, BSGD):
    """BSGD whose step is compiled."""

    def step(self, batches: Sequence[Rows], optimizer: torch.optim.Optimizer) -> float:
        """One step; by the base class where the covariance of the batch needs jitter."""
        arrays, batch = self.prepare(optimizer), batches[0]
        made, loss = bsgd_step(
            batch.inputs.numpy(), batch.observed.view(-1).numpy(), arrays["layers"], arrays["spectrum"],
            arrays["noise"], self.num_data, arrays["rate"],
        )  # fmt: skip
        return float(loss) if made else super().step(batches, optimizer)


class FusedPaperMinimax(_Fused, PaperMinimax):
    """The paper's Minimax whose step is compiled, without a growing penalty."""

    def step(self, batches: Sequence[Rows], optimizer: torch.optim.Optimizer) -> float:
        """One step with its two batches."""
        arrays, (batch, other) = self.prepare(optimizer), batches
        loss, raised = minimax_step(
            batch.inputs.numpy(), batch.observed.view(-1).numpy(), other.inputs.numpy(), arrays["layers"],
            arrays["weights"], arrays["noise"], arrays["gram_estimate"], arrays["dual_matrix"],
            self.estimate_inverse.numpy(), self.num_data, float(self.penalty), float(self.box or np.inf),
            arrays["rate"],
        )  # fmt: skip
        self.projections += raised
        return float(loss)


class FusedSVGP(_Fused, SVGP):
    """SVGP with the linear kernel whose step is compiled."""

    def step(self, batches: Sequence[Rows], optimizer: torch.optim.Optimizer) -> float:
        """One step; by the base class where the covariance of the inducing values needs more jitter."""
        arrays, batch = self.prepare(optimizer), batches[0]
        if "root" not in arrays:
            assert isinstance(optimizer, PaperAdadelta)
            from gpytorch.settings import min_variance

            distribution = self.strategy._variational_distribution
            arrays["inducing"] = _state(optimizer, self.strategy.inducing_points)
            arrays["mean"] = _state(optimizer, distribution.variational_mean)
            arrays["root"] = _state(optimizer, distribution.chol_variational_covar)
            arrays["least"] = float(min_variance.value(self.model.dtype))
        made, loss = svgp_step(
            batch.inputs.numpy(), batch.observed.view(-1).numpy(), arrays["layers"], arrays["inducing"], arrays["mean"],
            arrays["root"], arrays["noise"], self.strategy.jitter_val, arrays["least"], self.num_data, arrays["rate"],
        )  # fmt: skip
        return float(loss) if made else super().step(batches, optimizer)


#: The compiled form of an algorithm, by kernel.
FUSED: dict[str, dict[type[Algorithm], type[Algorithm]]] = {
    "linear": {SCGD: FusedSCGD, BSGD: FusedBSGD, PaperMinimax: FusedPaperMinimax, SVGP: FusedSVGP},
    "gaussian": {SCGD: FusedFourierSCGD, BSGD: FusedBSGD},
}
