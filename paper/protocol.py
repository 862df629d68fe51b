"""The paper's protocol: what it states, and the choices that it leaves open, the same for all methods and tables.

The open ones were searched on batch 128 and split 0 of four tables for SCGD and BSGD, by distance to the published
cells (``paper/choices``, ``results/choices.md``); every other cell is then a prediction.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn

from finitegp.algorithms import Algorithm
from finitegp.callbacks import ExactNLML, is_time
from finitegp.data.scaling import Standardizer
from finitegp.likelihood import negative_log_marginal_likelihood
from finitegp.run import TrainingRun
from finitegp.statistics import sum_statistics

#: The setting of a cell that is run by the protocol.
PAPER = {"protocol": "paper"}
#: Stated: 100 epochs, five splits, AdaDelta, the learning rate by grid search on the NLML, the best iterate.
EPOCHS, SPLITS = 100, range(5)
#: Searched: rates outside were never the best at batch 128.
LEARNING_RATES = (0.1, 0.3, 1.0)
#: Searched: AdaDelta's constants, the initial noise variance in the target's own units, and its least value.
RHO, EPSILON = 0.95, 1e-6
INITIAL_NOISE_VARIANCE, LEAST_NOISE_VARIANCE = 0.1, 1e-8
#: The published cells that were searched on.
SEARCHED_TABLES, SEARCHED_METHODS, SEARCHED_BATCH = ("bike", "elevators", "pol", "kin40k"), ("scgd", "bsgd"), 128


def as_they_are(targets: Any) -> Standardizer:
    """The scaler that changes nothing: the targets stay in their own units."""
    return Standardizer(np.zeros(np.shape(targets)[1:]), np.ones(np.shape(targets)[1:]))


class PaperAdadelta(torch.optim.Adadelta):
    """AdaDelta on the total loss, with the noise variance itself as the parameter.

    AdaDelta's ``eps`` is not free of scale: gradients of the total NLML are those per row, which the algorithms set,
    times the number of rows. The library's parameter is the logarithm of the noise variance; steps in the variance
    are other steps.

    Args:
        algorithm: What is trained.
        learning_rate: The factor on AdaDelta's steps.
    """

    def __init__(self, algorithm: Algorithm, learning_rate: float) -> None:
        self.log_variance = algorithm.model.noise.log_variance
        self.num_data = algorithm.num_data
        self.variance = nn.Parameter(self.log_variance.detach().exp())
        groups = [
            {"params": [self.variance if p is self.log_variance else p for p in group["params"]]}
            for group in algorithm.parameter_groups()
        ]
        super().__init__(groups, lr=learning_rate, rho=RHO, eps=EPSILON)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Also of the library's parameter, which is in no group."""
        super().zero_grad(set_to_none)
        self.log_variance.grad = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step; the noise variance is moved and then handed back as its logarithm."""
        moved = [p for group in self.param_groups for p in group["params"]]
        noise_gradient = self.log_variance.grad if any(p is self.variance for p in moved) else None
        if noise_gradient is not None:
            self.variance.copy_(self.log_variance.exp())
            self.variance.grad = noise_gradient / self.variance
        torch._foreach_mul_([p.grad for p in moved if p.grad is not None], float(self.num_data))
        super().step(closure)
        if noise_gradient is not None:
            self.log_variance.copy_(self.variance.clamp_(min=LEAST_NOISE_VARIANCE).log())


class Looks(ExactNLML):
    """The NLML every few epochs, with features in the network's own float type and sums in float64.

    It takes half the time of float64 throughout and only chooses the iterate: what a cell reports is measured again.
    """

    def on_epoch(self, run: TrainingRun) -> None:
        """Measure, and keep the best state."""
        if not is_time(run, self.every, "nlml"):
            return
        model = run.algorithm.model
        statistics = sum_statistics(model.partial_statistics(run.sampler.data))
        found = negative_log_marginal_likelihood(statistics, model.noise_variance, tolerance=math.inf)
        run.metrics["nlml"] = found.nlml
        run.record_best("nlml", found.nlml)
