"""How noisy is a row? Learned from residuals of rows that were left out, where overfitting cannot hide it."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..features import ComposedFeatures, MLPFeatures, PeriodicEmbedding
from ..features.pullback import accumulate, forward_with_pullback
from ..flat_adam import FlatAdamW
from ..noise import InputNoise
from ..schedules import cosine_decay
from .processes import in_parallel
from .settings import AutoSettings
from .table import Array

# Candidates for the smallest variance of a row relative to the mean square of all residuals.
_FLOORS: tuple[float, ...] = tuple(float(floor) for floor in np.logspace(-6, -1, 11))
# What a higher floor may cost in nats per row.
_PRICE_OF_SAFETY = 0.01


@dataclass(frozen=True, eq=False)
class ResidualNoise:
    """Noise that depends on the input, with what rows say of it that it was not trained on.

    Attributes:
        noise: The noise model, frozen; its variance is the mean square of the residuals.
        epochs: The epoch that each network kept; 0 means that no epoch was better than constant noise.
        floor: The smallest relative variance.
        log_variance: ``(rows,)`` for each residual, the logarithm of its variance by the networks that did not see it.
    """

    noise: InputNoise
    epochs: list[int]
    floor: float
    log_variance: Array

    @property
    def depends_on_input(self) -> bool:
        """Whether any network found more than a constant."""
        return any(self.epochs)


def fit_residual_noise(
    inputs: Array,
    residuals: Array,
    validation_inputs: Array,
    validation_residuals: Array,
    settings: AutoSettings,
    *,
    seed: int,
    processes: int = 1,
    chunk_size: int | None = None,
) -> ResidualNoise:
    r"""Networks for :math:`\log v(x)` that maximise the Gaussian density of left-out residuals.

    The loss of a row is :math:`\tfrac12[\log v(x) + r^2 / v(x)]`. There are several networks, each trained without its
    fold of the residuals; the variance is the mean of theirs, so that one network that is sure of too much is
    outvoted. The folds show which floor the variance needs: rows that seem to be hit exactly (repeated rows, few
    distinct targets) promise a certainty that the next such row may not keep. It is the largest floor that costs next
    to nothing in density.

    ``chunk_size`` bounds the memory: at most this many rows are evaluated at once, and one fold is copied at a time.
    """
    count = settings.noise_networks
    folds = np.random.default_rng(seed).permutation(len(residuals)) % count if count > 1 else np.zeros(len(residuals))
    mean_square = max(float(np.mean(residuals**2)), 1e-12)
    squares = residuals**2 / mean_square
    validation_squares = validation_residuals**2 / mean_square

    def jobs() -> Iterator[tuple[Any, ...]]:
        for number in range(count):
            seen = folds != number if count > 1 else np.ones(len(residuals), dtype=bool)
            validation = validation_inputs, validation_squares
            yield inputs[seen], squares[seen], *validation, settings, seed * 100 + number, chunk_size

    found = list(in_parallel(_train_network, jobs(), processes))
    networks = [network for network, _ in found]
    log_variance = np.zeros(len(residuals))
    for number, network in enumerate(networks):
        unseen = folds == number
        log_variance[unseen] = _evaluate(network, inputs[unseen], chunk_size)
    floor = _choose_floor(log_variance, squares)
    module = nn.Sequential(MeanVariance(*networks), SmoothFloor(math.log(floor)))
    noise = InputNoise(module.requires_grad_(False), reads="inputs", variance=mean_square)
    floored = np.logaddexp(log_variance, math.log(floor)) + math.log(mean_square)
    return ResidualNoise(noise, [epoch for _, epoch in found], floor, floored)


def _choose_floor(log_variance: Array, squares: Array) -> float:
    losses = {}
    for floor in _FLOORS:
        floored: Array = np.logaddexp(log_variance, math.log(floor))
        factor = max(float(np.mean(squares * np.exp(-floored))), 1e-12)
        losses[floor] = 0.5 * (float(np.mean(floored)) + math.log(factor))
    lowest = min(losses.values())
    return max(floor for floor, loss in losses.items() if loss <= lowest + _PRICE_OF_SAFETY)


def _train_network(
    inputs: Array,
    squares: Array,
    validation_inputs: Array,
    validation_squares: Array,
    settings: AutoSettings,
    seed: int,
    chunk_size: int | None,
) -> tuple[nn.Module, int]:
    # Copies: arrays that come from another process may be read-only.
    rows, targets = torch.tensor(inputs, dtype=torch.float32), torch.tensor(squares, dtype=torch.float32)
    validation_rows = torch.tensor(validation_inputs, dtype=torch.float32)
    validation_targets = torch.tensor(validation_squares)
    network = _make_network(inputs.shape[1], settings.noise_hidden, seed)
    generator = torch.Generator().manual_seed(seed)
    batch_size = min(2 * settings.batch_size, len(rows))
    steps_per_epoch = -(-len(rows) // batch_size)
    epochs = max(settings.noise_epochs, -(-settings.noise_min_steps // steps_per_epoch))
    factor = cosine_decay(epochs * steps_per_epoch)
    rate = settings.noise_learning_rate
    optimizer = FlatAdamW(
        network.parameters(),
        learning_rate=rate,
        weight_decay=settings.noise_weight_decay,
        max_gradient_norm=1.0,
    )
    best, best_epoch = _profile_loss(network, validation_rows, validation_targets, chunk_size), 0
    best_state = copy.deepcopy(network.state_dict())
    step = 0
    for epoch in range(1, epochs + 1):
        for batch in torch.split(torch.randperm(len(rows), generator=generator), batch_size):
            optimizer.param_groups[0]["lr"] = rate * factor(step)
            optimizer.zero_grad()
            _set_gradients(network, rows[batch], targets[batch])
            optimizer.step()
            step += 1
        value = _profile_loss(network, validation_rows, validation_targets, chunk_size)
        if value < best:
            best, best_epoch, best_state = value, epoch, copy.deepcopy(network.state_dict())
    optimizer.release()
    network.load_state_dict(best_state)
    return network, best_epoch


@torch.no_grad()
def _set_gradients(network: nn.Sequential, inputs: Tensor, squares: Tensor) -> None:
    r"""Gradients of the mean loss, :math:`\tfrac12[\log v + r^2 / v]`, with the backward pass written out."""
    features_of, head, floor = network
    assert isinstance(head, nn.Linear)
    assert isinstance(floor, SmoothFloor)
    features, pullback = forward_with_pullback(features_of, inputs)
    above = head(features) - floor.floor
    log_variance = floor.floor + nn.functional.softplus(above)
    slope = (1.0 - squares[:, None] * torch.exp(-log_variance)).mul_(0.5 / len(inputs)).mul_(torch.sigmoid(above))
    accumulate(head.weight, slope.mT @ features)
    accumulate(head.bias, slope.sum(dim=0))
    pullback(slope @ head.weight)


class MeanVariance(nn.Module):
    """The logarithm of the mean of several variances, given by networks for their logarithms.

    Example:
        >>> mean = MeanVariance(nn.Identity(), nn.Identity())
        >>> mean(torch.tensor([[0.5], [-3.0]])).tolist()
        [[0.5], [-3.0]]
    """

    def __init__(self, *networks: nn.Module) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def config(self) -> dict[str, Any]:
        """The arguments that make this module again, but for the networks in it: none."""
        return {}

    def forward(self, inputs: Tensor) -> Tensor:
        """``(rows, 1)``."""
        outputs = torch.stack([network(inputs) for network in self.networks])
        return torch.logsumexp(outputs, dim=0) - math.log(len(self.networks))


class SmoothFloor(nn.Module):
    r"""Keeps its input above ``floor``, smoothly: :math:`f + \log(1 + e^{x - f})`.

    Example:
        >>> SmoothFloor(-1.0)(torch.tensor([-50.0, 50.0])).tolist()
        [-1.0, 50.0]
    """

    def __init__(self, floor: float) -> None:
        super().__init__()
        self.floor = floor

    def config(self) -> dict[str, Any]:
        """The argument that makes this module again."""
        return {"floor": self.floor}

    def forward(self, output: Tensor) -> Tensor:
        """The bounded values, in the shape of the input."""
        return self.floor + nn.functional.softplus(output - self.floor)


@torch.no_grad()
def relative_variance(noise: InputNoise, inputs: Array, chunk_size: int | None = None) -> Array:
    """``(rows,)`` noise variance of each row up to a common factor."""
    rows = torch.from_numpy(inputs).float()
    parts = [rows] if chunk_size is None else torch.split(rows, chunk_size)
    variance: Array = torch.cat([noise.log_scale(part, part).double().exp() for part in parts]).numpy()
    return variance


def _make_network(input_dim: int, hidden: int, seed: int) -> nn.Sequential:
    embedding = PeriodicEmbedding(input_dim, num_frequencies=8, seed=seed)
    network = MLPFeatures(embedding.num_features, hidden=(hidden, hidden), seed=seed)
    # Made on "meta" nothing is drawn from the global generator; nn.utils.skip_init loads 50 MB of torch's compiler.
    head = nn.Linear(hidden, 1, device="meta")
    head.weight = nn.Parameter(torch.zeros(1, hidden))  # starts as constant noise
    head.bias = nn.Parameter(torch.zeros(1))
    return nn.Sequential(ComposedFeatures(embedding, network), head, SmoothFloor(math.log(min(_FLOORS))))


@torch.no_grad()
def _outputs(network: nn.Module, rows: Tensor, chunk_size: int | None) -> Tensor:
    if chunk_size is None or len(rows) <= chunk_size:
        return network(rows)[:, 0].double()  # type: ignore[no-any-return]
    return torch.cat([network(part)[:, 0].double() for part in torch.split(rows, chunk_size)])


def _evaluate(network: nn.Module, inputs: Array, chunk_size: int | None) -> Array:
    output: Array = _outputs(network, torch.from_numpy(inputs).float(), chunk_size).numpy()
    return output


def _profile_loss(network: nn.Module, rows: Tensor, squares: Tensor, chunk_size: int | None) -> float:
    """The mean loss at the best common factor, which is set in closed form later."""
    log_variance = _outputs(network, rows, chunk_size)
    factor = (squares * torch.exp(-log_variance)).mean().clamp(min=1e-12)
    return float(0.5 * (log_variance.mean() + factor.log() + 1.0))
