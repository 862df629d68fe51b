"""Whole steps of the paper's methods as compiled loops: the same results to rounding in a fraction of the time.

At batches of 32 rows most of a step's time is not arithmetic but the calls of some hundred small tensor operations.
For the one case that the long tables need (linear kernel, the paper's network, constant noise, AdaDelta by the
protocol) each class here takes the step of its base class in one function that Numba compiles. Parameters, tracked
matrices and the optimizer's averages stay where they are, in torch's tensors; whatever the compiled step cannot do (a
matrix that cannot be factorised without jitter) is left to the base class. Tests
compare both step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from finitegp.algorithms import BSGD, SCGD, Algorithm, PaperMinimax
from finitegp.data import Rows

from .compiled_steps import bsgd_step, minimax_step, scgd_step, svgp_step
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


class _Fused:
    """Mixed into an algorithm: the arrays that its compiled step works on."""

    arrays: dict[str, Any] | None = None

    def prepare(self: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The arrays, made at the first step."""
        arrays: dict[str, Any] | None = self.arrays
        if arrays is None:
            assert isinstance(optimizer, PaperAdadelta)
            linears = [layer for layer in self.model.feature_map.layers if isinstance(layer, nn.Linear)]
            layers = tuple(_state(optimizer, p) for linear in linears for p in (linear.weight, linear.bias))
            noise = _state(optimizer, self.model.noise.log_variance, of=optimizer.variance)
            self.arrays = arrays = {"layers": layers, "noise": noise, "rate": optimizer.param_groups[0]["lr"]}
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
            batch.inputs.numpy(), batch.observed.view(-1).numpy(), arrays["layers"], arrays["weights"], arrays["noise"],
            self.tracked_gram.numpy(), self.num_data, self.tracking_rate, arrays["rate"],
        )  # fmt: skip
        return float(loss) if made else super().step(batches, optimizer)


class FusedBSGD(_Fused, BSGD):
    """BSGD whose step is compiled."""

    def step(self, batches: Sequence[Rows], optimizer: torch.optim.Optimizer) -> float:
        """One step; by the base class where the covariance of the batch needs jitter."""
        arrays, batch = self.prepare(optimizer), batches[0]
        made, loss = bsgd_step(
            batch.inputs.numpy(), batch.observed.view(-1).numpy(), arrays["layers"], arrays["noise"], self.num_data,
            arrays["rate"],
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


#: The compiled form of an algorithm.
FUSED: dict[type[Algorithm], type[Algorithm]] = {
    SCGD: FusedSCGD,
    BSGD: FusedBSGD,
    PaperMinimax: FusedPaperMinimax,
    SVGP: FusedSVGP,
}
