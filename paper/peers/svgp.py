"""``svgp-rbf`` and ``svgp-network``: stochastic variational Gaussian processes, through GPyTorch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from sklearn.cluster import MiniBatchKMeans
from torch import Tensor

from finitegp.data import Rows
from finitegp.features import MLPFeatures
from finitegp.model import FeatureGP

from ..outcome import Array, DatasetSplit, Outcome
from ..svgp import SVGP
from .contract import ScaledSplit, Stopwatch, merge_settings, require, seeded
from .steps import StepPlan, as_tensors, batches_per_epoch, count_steps, shuffled_batches

#: ``inducing_start`` is ``"kmeans"`` or ``"random"`` (a subset of the rows). The length scales start at
#: ``initial_length_scale``, or if it is None at the square root of the number of columns, about the distance of two
#: standardised rows. The learning rate is high for a kernel of many length scales, and decays: at a tenth of it the few
#: steps that the time limit allows leave both length scales and noise far from where they want to be.
RBF_DEFAULTS: dict[str, Any] = {
    "inducing_points": 512,
    "inducing_start": "kmeans",
    "initial_length_scale": None,
    "initial_noise_variance": 0.1,
    "learning_rate": 0.1,
    "batch_size": 256,
    "epochs": 30,
    "min_steps": 1000,
    "max_seconds": 240.0,
}

#: ``learning_rate`` is that of the network, ``other_learning_rate`` that of noise, kernel, inducing inputs and
#: variational distribution. 128 inducing points, because on features of a trained network more of them gain less than
#: the steps that they cost: with 256 only half of the epochs fit into the same time, and rows held out of training are
#: predicted worse.
NETWORK_DEFAULTS: dict[str, Any] = {
    "hidden": (128, 128),
    "inducing_points": 128,
    "initial_noise_variance": 0.1,
    "learning_rate": 1e-2,
    "other_learning_rate": 3e-2,
    "batch_size": 256,
    "epochs": 30,
    "min_steps": 1000,
    "max_seconds": 240.0,
}


def rbf(split: DatasetSplit, *, seed: int, settings: Mapping[str, Any]) -> Outcome:
    """GPyTorch's own SVGP: RBF kernel with a length scale per column, inducing points in input space."""
    used = merge_settings("svgp-rbf", RBF_DEFAULTS, settings)
    gpytorch = require("gpytorch", "svgp-rbf", extra="peers")
    scaled = ScaledSplit.of(split)
    stopwatch = Stopwatch()
    inputs, targets = as_tensors(scaled.inputs, scaled.targets)
    inducing = _choose_inducing_inputs(scaled.inputs, used["inducing_points"], used["inducing_start"], seed)
    columns = inputs.shape[1]

    base: Any = gpytorch.models.ApproximateGP

    class Model(base):  # type: ignore[misc]
        def __init__(self) -> None:
            distribution = gpytorch.variational.CholeskyVariationalDistribution(len(inducing))
            super().__init__(gpytorch.variational.VariationalStrategy(self, inducing, distribution))
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=columns))

        def forward(self, rows: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(rows), self.kernel(rows))

    with seeded(seed):  # GPyTorch starts the variational mean with a little noise, at the first call
        model, likelihood = Model(), gpytorch.likelihoods.GaussianLikelihood()
        model.kernel.outputscale = 1.0
        model.kernel.base_kernel.lengthscale = used["initial_length_scale"] or math.sqrt(columns)
        likelihood.noise = used["initial_noise_variance"]
        objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(inputs))
        optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=used["learning_rate"])
        plan = _plan(len(inputs), used, stopwatch)
        for index in shuffled_batches(len(inputs), used["batch_size"], seed):
            optimizer.param_groups[0]["lr"] = used["learning_rate"] * plan.factor
            optimizer.zero_grad()
            loss = -objective(model(inputs[index]), targets[index, 0])
            loss.backward()
            optimizer.step()
            plan.advance()
            if plan.finished:
                break
    elapsed = stopwatch.elapsed
    model.eval()
    likelihood.eval()
    mean, variance = [], []
    with torch.no_grad():
        for part in torch.split(torch.tensor(scaled.test_inputs, dtype=torch.float32), 1024):
            prediction = likelihood(model(part))
            mean.append(prediction.mean)
            variance.append(prediction.variance)
    return scaled.outcome(torch.cat(mean), torch.cat(variance).sqrt(), elapsed, _details(plan, used, len(inputs)))


def network(split: DatasetSplit, *, seed: int, settings: Mapping[str, Any]) -> Outcome:
    """Our own :class:`~finitegp.algorithms.SVGP` with an RBF kernel on the paper's network."""
    used = merge_settings("svgp-network", NETWORK_DEFAULTS, settings)
    require("gpytorch", "svgp-network", extra="peers")
    scaled = ScaledSplit.of(split)
    stopwatch = Stopwatch()
    inputs, targets = as_tensors(scaled.inputs, scaled.targets)
    rows = len(inputs)
    feature_map = MLPFeatures(inputs.shape[1], hidden=used["hidden"], seed=seed)
    model = FeatureGP(feature_map, noise_variance=used["initial_noise_variance"])
    chosen = SVGP.choose_inducing_inputs(inputs, min(used["inducing_points"], rows), seed=seed)
    algorithm = SVGP(model, rows, inducing_inputs=chosen, kernel="rbf")
    weights = list(feature_map.parameters())
    others = [value for value in algorithm.parameters() if not any(value is weight for weight in weights)]
    rates = used["learning_rate"], used["other_learning_rate"]
    optimizer = torch.optim.Adam([{"params": weights}, {"params": others}])
    batches = shuffled_batches(rows, used["batch_size"], seed)
    started = [next(batches) for _ in range(min(20, batches_per_epoch(rows, used["batch_size"])))]
    algorithm.initialize([Rows(inputs[index], targets[index]) for index in started])
    plan = _plan(rows, used, stopwatch)
    for index in batches:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * plan.factor
        algorithm.step([Rows(inputs[index], targets[index])], optimizer)
        plan.advance()
        if plan.finished:
            break
    elapsed = stopwatch.elapsed
    prediction = algorithm.predict(torch.from_numpy(scaled.test_inputs))
    return scaled.outcome(prediction.mean, prediction.std, elapsed, _details(plan, used, rows))


def _plan(rows: int, used: Mapping[str, Any], stopwatch: Stopwatch) -> StepPlan:
    steps = count_steps(rows, used["batch_size"], used["epochs"], used["min_steps"])
    return StepPlan(steps, used["max_seconds"], stopwatch)


def _details(plan: StepPlan, used: dict[str, Any], rows: int) -> dict[str, Any]:
    return {
        "settings": used,
        "steps": plan.step,
        "epochs": plan.step / batches_per_epoch(rows, used["batch_size"]),
        "shortened": plan.shortened,
    }


def _choose_inducing_inputs(inputs: Array, count: int, start: str, seed: int) -> Tensor:
    if start not in ("kmeans", "random"):
        raise ValueError(f"inducing_start must be 'kmeans' or 'random', but is {start!r}.")
    # Repeated rows have no more centres than there are different ones.
    distinct = np.unique(inputs, axis=0)
    count = min(count, len(distinct))
    if start == "random":
        return SVGP.choose_inducing_inputs(torch.tensor(distinct, dtype=torch.float32), count, seed=seed)
    clusters = MiniBatchKMeans(count, random_state=seed, n_init=1, batch_size=2048).fit(inputs)
    return torch.tensor(clusters.cluster_centers_, dtype=torch.float32)
