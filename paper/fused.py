"""Whole steps of the paper's methods as compiled loops: the same results to rounding in a fraction of the time.

What :class:`finitegp.compiled.CompiledSteps` does for the library, with AdaDelta by the protocol and for the methods
that only the paper needs. Tests compare both step by step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from finitegp.algorithms import SCGD, Algorithm, PaperMinimax
from finitegp.algorithms.scgd import RecentBatches
from finitegp.compiled import CompiledSteps
from finitegp.compiled.optimizers import Rule
from finitegp.data import Rows
from finitegp.features import MLPFeatures

from .compiled_steps import minimax_step, scgd_window_step, svgp_step
from .protocol import EPSILON, LEAST_NOISE_VARIANCE, RHO, PaperAdadelta
from .svgp import SVGP


class RememberingSCGD(SCGD):
    """SCGD by the rows that its tracked matrix remembers, however many these are."""

    def _remembers_few_rows(self, features: Tensor, log_scale: Tensor | None) -> bool:
        return True


class PaperSteps(CompiledSteps):
    """The compiled steps of a cell that is run by the protocol."""

    #: :class:`RememberingSCGD` keeps rows until their part of the tracked matrix is this multiple of the identity:
    #: later than that they are beyond the rounding of the features.
    forgotten = 1e-6
    window: _Window | None = None

    @classmethod
    def problems(cls, algorithm: Algorithm, optimizer: torch.optim.Optimizer) -> Iterator[str]:
        """Also what the methods of the paper are not compiled for."""
        linear = isinstance(algorithm.model.feature_map, MLPFeatures)
        if isinstance(algorithm, SVGP | PaperMinimax) and not linear:
            yield "this method has Fourier features"
        if isinstance(algorithm, SVGP) and algorithm.prior.covariance is not None:
            yield "SVGP has another kernel than the linear one"
        if isinstance(algorithm, PaperMinimax) and algorithm.penalty_growth != 1.0:
            yield "the penalty grows"
        yield from super().problems(algorithm, optimizer)

    @classmethod
    def optimizer_problems(cls, optimizer: torch.optim.Optimizer) -> Iterator[str]:
        """The protocol has one optimizer."""
        if not isinstance(optimizer, PaperAdadelta):
            yield "the optimizer is not PaperAdadelta"

    def key(self, parameter: Tensor) -> Tensor:
        """The optimizer moves the noise variance itself."""
        assert isinstance(self.optimizer, PaperAdadelta)
        return self.optimizer.variance if parameter is self.optimizer.log_variance else parameter

    def rule(self) -> Rule:
        """AdaDelta on the total loss, and on the noise variance itself."""
        rate, factor = self.optimizer.param_groups[0]["lr"], float(self.algorithm.num_data)
        return Rule(False, rate, RHO, 0.0, EPSILON, 0.0, False, factor, LEAST_NOISE_VARIANCE)

    def bind(self) -> None:
        """Also the parameters of SVGP."""
        super().bind()
        if isinstance(self.algorithm, SVGP):
            strategy = self.algorithm.strategy
            distribution = strategy._variational_distribution
            inducing, mean = strategy.inducing_points, distribution.variational_mean
            self.others |= {"inducing": self.state(inducing), "mean": self.state(mean)}
            self.others["root"] = self.state(distribution.chol_variational_covar)

    def window_step(self, batches: Sequence[Rows]) -> float:
        """One step of SCGD; NaN where numbers are not finite any more, the only matrices that cannot be factorised."""
        algorithm, rows = self.algorithm, len(batches[0].inputs)
        assert isinstance(algorithm, SCGD)
        assert isinstance(algorithm.tracking_rate, float)
        assert algorithm.recent is not None
        assert self.spectrum is not None
        if self.window is None:
            self.window = _Window(algorithm.recent, rows)
        window, rate = self.window, algorithm.tracking_rate
        # The squared length of all rows is the kernel's magnitude.
        loudest = rate * algorithm.num_data / window.batch_size * math.exp(float(self.spectrum[2][0][0]))
        ratio = loudest / (self.forgotten * float(window.noise[0]))
        needed = max(math.ceil(math.log(max(ratio, 1.0)) / -math.log1p(-rate)), 2)
        if not needed <= window.places <= needed + 1:
            window.resize(needed)
        made, loss = scgd_window_step(
            *self.rows(batches[0]), self.layers, self.spectrum, self.others["weights"], self.noise, window.rows,
            window.weights, window.products, window.noise, window.free(rows), algorithm.num_data, rate, self.rule(),
        )  # fmt: skip
        return float(loss) if made else math.nan

    def paper_minimax_step(self, batches: Sequence[Rows]) -> float:
        """One step of the paper's Minimax with its two batches."""
        algorithm, others = self.algorithm, self.others
        assert isinstance(algorithm, PaperMinimax)
        loss, raised = minimax_step(
            *self.rows(batches[0]), batches[1].inputs.numpy(), self.layers, others["weights"], self.noise,
            others["gram_estimate"], others["dual_matrix"], algorithm.estimate_inverse.numpy(), algorithm.num_data,
            float(algorithm.penalty), float(algorithm.box or np.inf), self.rule(),
        )  # fmt: skip
        algorithm.projections += bool(raised)
        return float(loss)

    def svgp_step(self, batches: Sequence[Rows]) -> float | None:
        """One step of SVGP, unless the covariance of the inducing values needs more jitter."""
        from gpytorch.settings import min_variance

        algorithm, others = self.algorithm, self.others
        assert isinstance(algorithm, SVGP)
        made, loss = svgp_step(
            *self.rows(batches[0]), self.layers, others["inducing"], others["mean"], others["root"], self.noise,
            algorithm.strategy.jitter_val, float(min_variance.value(algorithm.model.dtype)), algorithm.num_data,
            self.rule(),
        )  # fmt: skip
        return float(loss) if made else None

    kinds: ClassVar[dict[type[Algorithm], Callable[[Any, Sequence[Rows]], float | None]]] = {
        **CompiledSteps.kinds,
        RememberingSCGD: window_step,
        PaperMinimax: paper_minimax_step,
        SVGP: svgp_step,
    }


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
