"""How noisy is a row? Learned from residuals of rows that were left out, where overfitting cannot hide it."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from ..features import PeriodicEmbedding
from ..noise import InputNoise
from ..schedules import cosine_decay
from .settings import AutoSettings
from .table import Array

# No row is said to be more than a thousand times less noisy than the average one: rows that happen to be hit exactly
# (repeated rows, few distinct targets) would otherwise promise a certainty that the next such row does not keep.
_SMALLEST_RELATIVE_VARIANCE = 1e-6


def fit_residual_noise(
    inputs: Array,
    residuals: Array,
    validation_inputs: Array,
    validation_residuals: Array,
    settings: AutoSettings,
    *,
    seed: int,
) -> tuple[InputNoise, int]:
    r"""A network for :math:`\log v(x)` that maximises the Gaussian density of left-out residuals.

    The loss of a row is :math:`\tfrac12[\log v(x) + r^2 / v(x)]`. The state with the lowest loss on the validation
    rows, up to a common factor, is kept.

    Returns:
        The noise model, and the epoch that was kept; 0 means that no epoch was better than constant noise.
    """
    squares = torch.from_numpy(residuals**2).float()
    mean_square = max(float(squares.mean()), 1e-12)
    squares = squares / mean_square
    validation_squares = torch.from_numpy(validation_residuals**2).float() / mean_square
    rows = torch.from_numpy(inputs).float()
    validation_rows = torch.from_numpy(validation_inputs).float()
    noise = InputNoise(
        _make_network(inputs.shape[1], settings.noise_hidden, seed), reads="inputs", variance=mean_square
    )
    generator = torch.Generator().manual_seed(seed)
    batch_size = min(2 * settings.batch_size, len(rows))
    total = settings.noise_epochs * -(-len(rows) // batch_size)
    factor = cosine_decay(total)
    rate = settings.noise_learning_rate
    parameters = list(noise.module.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=settings.noise_weight_decay, fused=True)
    best, best_epoch = _profile_loss(noise, validation_rows, validation_squares), 0
    best_state = copy.deepcopy(noise.module.state_dict())
    step = 0
    for epoch in range(1, settings.noise_epochs + 1):
        for batch in torch.split(torch.randperm(len(rows), generator=generator), batch_size):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor(step)
            optimizer.zero_grad()
            _loss(noise, rows[batch], squares[batch]).mean().backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            step += 1
        value = _profile_loss(noise, validation_rows, validation_squares)
        if value < best:
            best, best_epoch, best_state = value, epoch, copy.deepcopy(noise.module.state_dict())
    noise.module.load_state_dict(best_state)
    noise.module.requires_grad_(False)
    return noise, best_epoch


class SmoothFloor(nn.Module):
    r"""Keeps its input above ``floor``, smoothly: :math:`f + \log(1 + e^{x - f})`.

    Example:
        >>> SmoothFloor(-1.0)(torch.tensor([-50.0, 50.0])).tolist()
        [-1.0, 50.0]
    """

    def __init__(self, floor: float) -> None:
        super().__init__()
        self.floor = floor

    def forward(self, output: Tensor) -> Tensor:
        """The bounded values, in the shape of the input."""
        return self.floor + nn.functional.softplus(output - self.floor)


@torch.no_grad()
def relative_variance(noise: InputNoise, inputs: Array) -> Array:
    """``(rows,)`` noise variance of each row up to a common factor."""
    rows = torch.from_numpy(inputs).float()
    variance: Array = noise.log_scale(rows, rows).double().exp().numpy()
    return variance


def _make_network(input_dim: int, hidden: int, seed: int) -> nn.Module:
    embedding = PeriodicEmbedding(input_dim, seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        layers = [nn.Linear(embedding.num_features, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 1)]
    nn.init.zeros_(layers[-1].weight)  # starts as constant noise
    nn.init.zeros_(layers[-1].bias)
    floor = SmoothFloor(math.log(_SMALLEST_RELATIVE_VARIANCE))
    return nn.Sequential(embedding, layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2], floor)


def _loss(noise: InputNoise, rows: Tensor, squares: Tensor) -> Tensor:
    log_scale = noise.log_scale(rows, rows)
    return 0.5 * (log_scale + squares * torch.exp(-log_scale))


@torch.no_grad()
def _profile_loss(noise: InputNoise, rows: Tensor, squares: Tensor) -> float:
    """The mean loss at the best common factor, which is set in closed form later."""
    log_scale = noise.log_scale(rows, rows).double()
    factor = (squares.double() * torch.exp(-log_scale)).mean().clamp(min=1e-12)
    return float(0.5 * (log_scale.mean() + factor.log() + 1.0))
