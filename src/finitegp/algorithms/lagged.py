"""``Lagged``: weights and inverse Gram matrix solved from statistics of earlier batches, refreshed now and then."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..arguments import check_arguments, check_at_least_one
from ..data.sources import Data, Rows, no_targets
from ..errors import DataError, NumericalError
from ..linalg import cholesky
from ..model import FeatureGP
from ..statistics import FeatureStatistics
from .base import Algorithm, BatchGradient, check_pending, check_tensors, noise_gradient, push_back, weight_gradient

# Rows whose residuals the noise comes from: their mean square is good to three per cent.
_RESIDUAL_ROWS = 2000


@check_arguments
class Lagged(Algorithm):
    r"""Stochastic gradients with :math:`w = \tilde F^{-1}\tilde c` and :math:`P = \tilde F^{-1}` from earlier batches.

    The statistics of past batches are tracked with exponential forgetting. Every ``block`` batches they are scaled to
    ``n`` rows, factorised once, and ``w`` and ``P`` stay fixed until the next refresh, so that a step costs little
    more than a step of the bare network.

    What it keeps of the theory: given the past, ``w`` and ``P`` are fixed, so the step is an unbiased stochastic
    gradient of :math:`g(\theta, w) + \langle P, F(\theta)\rangle`, exactly as in SCGD, and at exact ``w`` and ``P`` it
    is an unbiased gradient of the NLML. What it does not keep: SCGD's schedules and rates; the statistics come from
    slightly older parameters (their age is about ``window`` steps), and ``w`` is solved, not trained.

    Because a batch never enters the weights that it is judged with, its residuals are out-of-sample. That is also where
    the noise variance comes from: it is set in closed form from these residuals at each refresh, and to its exact
    optimum after the last step.

    Args:
        model: The model to train, in place.
        num_data: The number of rows ``n``.
        block: Batches between refreshes.
        window: How many batches the statistics cover, at least ``block``. Weights from ``m`` rows are noisy, which in
            the mean adds ``(n / m) P`` to the complexity term: short windows regularise, long ones are late.
        include_current: Take the current batch into the statistics *before* its gradient (a neighbour for comparison:
            it fits the training rows more closely and is no longer unbiased given the past).
        noise_update: ``"closed_form"`` or ``"gradient"``.
        weight_update: ``"solve"`` at each refresh; ``"train"`` with the optimizer, as SCGD does, from a solved start;
            or ``"both"``. Solved weights suit nearly noise-free targets; trained ones let features and weights trade
            scale without waiting for the window.
        input_dim: The number of input columns, if the feature map does not know it.
        num_targets: The number of target columns.
        minimum_noise_variance: The noise variance is kept at or above this.

    Example:
        >>> from finitegp.features import MLPFeatures
        >>> model = FeatureGP(MLPFeatures(2, hidden=(8,), seed=0), noise_variance=0.1)
        >>> algorithm = Lagged(model, num_data=100, block=2, window=10)
        >>> batch = Rows(torch.randn(10, 2), torch.randn(10, 1))
        >>> algorithm.initialize([batch])
        >>> optimizer = torch.optim.Adam(algorithm.parameter_groups(), lr=1e-3)
        >>> algorithm.step([batch], optimizer) > 0
        True
    """

    supports_ranks = True

    def __init__(
        self,
        model: FeatureGP,
        num_data: int,
        *,
        block: int = 20,
        window: float = 400.0,
        include_current: bool = False,
        noise_update: str = "closed_form",
        weight_update: str = "solve",
        input_dim: int | None = None,
        num_targets: int = 1,
        minimum_noise_variance: float = 1e-8,
    ) -> None:
        super().__init__(
            model,
            num_data,
            input_dim=input_dim,
            num_targets=num_targets,
            minimum_noise_variance=minimum_noise_variance,
        )
        check_at_least_one(block=block)
        if not window >= block:
            raise ValueError(f"window must be at least block ({block} batches), but is {window}.")
        if noise_update not in ("closed_form", "gradient"):
            raise ValueError(f"noise_update must be 'closed_form' or 'gradient', but is {noise_update!r}.")
        if weight_update not in ("solve", "train", "both"):
            raise ValueError(f"weight_update must be 'solve', 'train' or 'both', but is {weight_update!r}.")
        self.block = block
        self.window = window
        self.include_current = include_current
        self.has_mean_gradient = not include_current  # a batch that is in its own weights is not a mean over rows
        self.noise_update = noise_update
        self.weight_update = weight_update
        d, t, wide, narrow = self.num_features, num_targets, self._wide, self._narrow
        self.tracked_gram = nn.Buffer(torch.zeros(d, d, **wide))
        self.tracked_projection = nn.Buffer(torch.zeros(d, t, **wide))
        self.tracked_rows = nn.Buffer(torch.zeros((), **wide))
        self.tracked_residual_squares = nn.Buffer(torch.zeros((), **wide))
        self.tracked_residual_rows = nn.Buffer(torch.zeros((), **wide))
        self.weights = nn.Parameter(torch.zeros(d, t, **narrow), requires_grad=weight_update != "solve")
        self.inverse_gram = nn.Buffer(torch.eye(d, **narrow))
        self.inverse_trace = nn.Buffer(torch.zeros((), **wide))
        # Batches since the last refresh; kept whole, so that their sums are one large product.
        self._pending: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self._pending_residuals: list[Tensor] = []

    def parameter_groups(self) -> list[dict[str, Any]]:
        """All parameters but the noise variance where that is set in closed form."""
        noise = self.model.noise.log_variance
        fixed = noise if self.noise_update == "closed_form" else None
        return [{"params": [p for p in self.parameters() if p.requires_grad and p is not fixed]}]

    @torch.no_grad()
    def initialize(self, batches: Sequence[Rows]) -> None:
        """Solve the first weights from a few batches that no step has used."""
        if len(batches) == 0:
            raise DataError("batches must hold at least one batch.")
        for inputs, targets, weights, _ in batches:
            if targets is None:
                raise no_targets()
            features, log_scale = self.model(inputs, weights)
            self._pending.append((features, targets, log_scale))
        self._refresh(solve_weights=True)

    def gradient(self, batch: Rows) -> BatchGradient:
        """Gradients from one batch with the weights and inverse of the last refresh."""
        traced = self.model.trace(batch.inputs, batch.weights)
        if self.include_current:
            self._take_up(traced.features, batch.observed, traced.log_noise_scale)
        weights, whitened = self.weights.detach(), traced.features @ self.inverse_gram
        found, gradients = push_back(traced, batch, weights, whitened, self.model.noise.variance)
        if self.weight_update != "solve":
            self.weights.grad = weight_gradient(self, found.features, gradients, weights, found.noise_variance)
        if self.noise_update == "gradient":
            noise_gradient(self, found.loss, float(self.inverse_trace), found.noise_variance)
        return found

    def project(self) -> None:
        """Only needed where the noise takes gradient steps: the closed form keeps to the floor by itself."""
        if self.noise_update == "gradient":
            super().project()

    def track(self, batch: Rows, found: BatchGradient) -> None:
        """Keep the batch for the next refresh, and refresh when the block is full."""
        if self.noise_update == "closed_form" and self.model.noise.log_variance.requires_grad:
            self._pending_residuals.append(found.loss)
        if not self.include_current:
            # The gradient has refused rows without targets.
            self._take_up(found.features, cast("Tensor", batch.targets), found.log_noise_scale)

    def finish(self, data: Data) -> None:
        """Set the noise to its exact optimum: residuals of weights that lag behind the features are too large."""
        if self.noise_update == "closed_form" and self.model.noise.log_variance.requires_grad:
            found = self.model.optimize_noise(data).noise_variance
            self.model.noise.set_variance(max(found, math.exp(self.minimum_log_noise)))

    def pending_state(self) -> dict[str, Tensor]:
        """The batches since the last refresh, whole also where several ranks have parts of them."""
        state = {}
        if self._pending_residuals:
            state["residuals"] = torch.stack(self._pending_residuals)
        if self._pending:
            for index, name in enumerate(("features", "targets", "log_scales")):
                parts = [self.ranks.gather_rows(part[index]) for part in self._pending if part[index] is not None]  # type: ignore[arg-type]
                if parts:
                    state["sizes"] = torch.tensor([len(part) for part in parts])
                    state[name] = torch.cat(parts)
        return state

    def load_pending_state(self, state: dict[str, Tensor]) -> None:
        """Take back the batches since the last refresh, of which several ranks keep a part each."""
        device = self.model.device
        check_tensors(state)
        sizes = state["sizes"].tolist() if "sizes" in state else []
        rows, residuals = sum(sizes), state.get("residuals", torch.empty(0))
        shapes = {"sizes": (len(sizes),), "features": (rows, self.num_features), "targets": (rows, self.num_targets)}
        shapes |= {"log_scales": (rows,), "residuals": (len(residuals),)}
        types = {"sizes": torch.int64} | dict.fromkeys(("features", "targets"), self.weights.dtype)
        check_pending(state, shapes, types)
        pending: list[tuple[Tensor, Tensor, Tensor | None]] = []
        if sizes:
            features, targets = (torch.split(state[name].to(device), sizes) for name in ("features", "targets"))
            has_scales = "log_scales" in state
            scales = torch.split(state["log_scales"].to(device), sizes) if has_scales else [None] * len(sizes)
            for parts in zip(features, targets, scales, strict=True):
                own = self.ranks.share.cut(len(parts[0]))
                pending.append(tuple(None if part is None else part[own] for part in parts))  # type: ignore[arg-type]
        self._pending, self._pending_residuals = pending, list(residuals.to(device))

    def _take_up(self, features: Tensor, targets: Tensor, log_scale: Tensor | None) -> None:
        self._pending.append((features, targets, log_scale))
        if len(self._pending) >= self.block:
            self._refresh(solve_weights=self.weight_update != "train")

    @torch.no_grad()
    def _refresh(self, *, solve_weights: bool) -> None:
        features = torch.cat([part[0] for part in self._pending])
        targets = torch.cat([part[1] for part in self._pending])
        scales = [part[2] for part in self._pending]
        log_scale = None if scales[0] is None else torch.cat([s for s in scales if s is not None])
        # Checked when added up: all ranks find the same.
        found = FeatureStatistics.from_batch(features, targets, log_scale, check=False)
        if self.ranks.world_size > 1:
            found = self.ranks.add_statistics(found)
        if not found.is_finite():
            raise NumericalError(
                f"The features of the last {len(self._pending)} batches are not finite, or so large that their squares "
                "overflow."
            )
        forget = 1.0 - min(len(self._pending) / self.window, 1.0)
        noise_variance = self.model.noise.variance
        if self._pending_residuals:
            noise_variance = self._noise_from_residuals(found.num_data, forget)
            self.model.noise.set_variance(noise_variance)
        self.tracked_gram.mul_(forget).add_(found.gram)
        self.tracked_projection.mul_(forget).add_(found.projected_targets)
        self.tracked_rows.mul_(forget).add_(found.num_data)
        scale = self.num_data / float(self.tracked_rows)
        regularized_gram = self.tracked_gram * scale
        regularized_gram.diagonal().add_(noise_variance)
        factor = cholesky(regularized_gram, noise_variance=noise_variance)
        inverse = factor.inverse()
        if solve_weights:
            self.weights.copy_(factor.solve(self.tracked_projection * scale))
        self.inverse_gram.copy_(inverse)
        self.inverse_trace.copy_(inverse.trace())
        self._pending.clear()
        self._pending_residuals.clear()

    def _noise_from_residuals(self, rows: float, forget: float) -> float:
        r"""The noise variance from the squared residuals of the last rows, made with the weights before this refresh.

        Weights from ``m`` rows add :math:`d_e / m` to the expected square of the residual of another row, relative
        to the noise, and take :math:`d_e / n` off that of their own rows, of which there are :math:`m` in ``n``;
        :math:`d_e = d - s\,\mathrm{tr}P` is how many features the rows determine.
        """
        # Losses are in units of the noise variance that held since the last refresh.
        noise_variance = self.model.noise_variance
        squares = torch.stack(self._pending_residuals).double().mean() * noise_variance * rows
        # Residuals of older weights are too large: only as many as a few per cent of precision need.
        forget = min(forget, 1.0 - min(rows / _RESIDUAL_ROWS, 1.0))
        self.tracked_residual_squares.mul_(forget).add_(squares)
        self.tracked_residual_rows.mul_(forget).add_(rows)
        mean_square = float(self.tracked_residual_squares / self.tracked_residual_rows) / self.num_targets
        n, behind = self.num_data, max(float(self.tracked_rows), 1.0)
        own = 1.0 if self.include_current else min(behind / n, 1.0)
        determined = self.num_features - noise_variance * float(self.inverse_trace)
        expected = 1.0 + determined * ((1.0 - own) / behind - own / n)
        return max(mean_square / max(expected, 0.1), math.exp(self.minimum_log_noise))
