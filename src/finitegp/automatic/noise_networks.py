"""How noisy is a row? Networks for the logarithm of the variance, from residuals of rows that were left out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..devices import CPU, in_float64
from ..features import ComposedFeatures, MLPFeatures, PeriodicEmbedding, SoftClip
from ..noise import InputNoise, MeanVariance, SmoothFloor
from ..processes import in_parallel
from ..schedules import FlatAdamW, cosine_decay
from ..stages import StoredTensors, open_stages
from .ensemble import clip_rows, relative_counts
from .lagged_training import BatchedNetworks, draw_batches
from .settings import AutoSettings
from .table import Array, Table

# Candidates for the smallest variance of a row relative to the mean square of all residuals.
_FLOORS: tuple[float, ...] = tuple(float(floor) for floor in np.logspace(-6, -1, 11))
# What a higher floor may cost in nats per row.
_PRICE_OF_SAFETY = 0.01
HIDDEN, FREQUENCIES = (64, 64), 8
BATCH_SIZE, _LEARNING_RATE, _WEIGHT_DECAY = 256, 3e-3, 0.05
# How often training looks at the rows that it was left out of, and at how many of them at most.
_LOOKS, LOOK_ROWS = 10, 4000


@dataclass(frozen=True, eq=False)
class ResidualNoise:
    """Noise that depends on the input, measured on rows that it was not trained on.

    Attributes:
        noise: The noise model, frozen; its variance is the mean square of the residuals.
        looks: Which tenth of its training each network kept; 0 means that none was better than constant noise.
        floor: The smallest relative variance.
        log_variance: ``(rows,)`` for each residual, the logarithm of its variance by the network that did not see it.
    """

    noise: InputNoise
    looks: list[int]
    floor: float
    log_variance: Array


def fit_noise_networks(
    rows: Table,
    residuals: Array,
    clip: SoftClip,
    settings: AutoSettings,
    *,
    seed: int,
    threads: int = 1,
    processes: bool = False,
    device: torch.device = CPU,
) -> ResidualNoise:
    r"""Networks for :math:`\log v(x)` that maximise the Gaussian density of left-out residuals.

    The loss of a row is :math:`\tfrac12[\log v(x) + r^2 / v(x)]`. Each network is trained without its fold of the
    residuals, which decides when to stop; the variance is the mean of theirs, so that one network that is too sure
    is outvoted. The folds also show which floor the variance needs: rows that seem to be hit exactly (repeated rows,
    few distinct targets) promise a certainty that the next such row may not keep. It is the largest floor that costs
    next to nothing in density. Outside of what was seen, the variance stays within its range on these rows.

    Args:
        rows: The rows, with their counts.
        residuals: ``(rows,)`` of models that had not seen them.
        clip: Bounds the inputs.
        settings: Networks and steps.
        seed: Determines everything.
        threads: Networks trained at once, which does not change the result.
        processes: Whether by processes, where there are some already.
        device: Where they are trained; the result is on the CPU.
    """
    count = settings.noise_networks
    folds = np.random.default_rng(seed).permutation(len(residuals)) % count
    mean_square = max(rows.mean(residuals**2), 1e-12)
    inputs = clip_rows(clip, rows.inputs).to(device)
    squares = torch.from_numpy(residuals**2 / mean_square).float().to(device)
    counts = relative_counts(rows, device)

    # Made here: the seeds of initial values are set in a generator that threads share.
    networks = [make_noise_network(inputs.shape[1], seed * 100 + number) for number in range(count)]

    def train(missing: list[int]) -> Iterator[_Trained]:
        jobs = [
            (networks[number], inputs, squares, counts, folds == number, settings, seed * 100 + number)
            for number in missing
        ]
        return in_parallel(_train, jobs, threads, processes=processes)

    def decode(number: int, stored: StoredTensors) -> _Trained:
        return _decode(networks[number], int((folds == number).sum()), stored)

    stages = open_stages(
        "noise",
        {"seed": seed, "device": str(device), **settings.to_dict()},
        rows.inputs,
        residuals,
        rows.counts,
    )
    names = [f"network {number}" for number in range(count)]
    found = list(stages.collect(names, train, _encode, decode))
    log_variance = np.empty(len(residuals))
    for number, each in enumerate(found):
        log_variance[folds == number] = each.log_variance
    relative = squares.cpu().double().numpy()
    floor = _choose_floor(rows, log_variance, relative)
    module = nn.Sequential(clip, MeanVariance(*(each.network for each in found)), SmoothFloor(math.log(floor)))
    noise = InputNoise(module.requires_grad_(False), reads="inputs", variance=mean_square)
    scales = log_noise_scale(noise, rows.inputs, settings.chunk_size)
    noise.bounds = float(scales.min()), float(scales.max())
    floored = np.logaddexp(log_variance, math.log(floor)) + math.log(mean_square)
    return ResidualNoise(noise, [each.look for each in found], floor, floored)


def make_noise_network(input_dim: int, seed: int) -> ComposedFeatures:
    """One network for the noise, without its last layer."""
    embedding = PeriodicEmbedding(input_dim, FREQUENCIES, seed=seed)
    return ComposedFeatures(embedding, MLPFeatures(embedding.num_features, hidden=HIDDEN, seed=seed))


@torch.no_grad()
def log_noise_scale(noise: InputNoise, inputs: Array, chunk_size: int = 4096) -> Array:
    """``(rows,)`` logarithm of the noise variance of each row up to a common factor, in float32."""
    parts = (part.float() for part in torch.split(torch.from_numpy(inputs), chunk_size))
    scales: Array = torch.cat([noise.log_scale(part, part) for part in parts]).double().numpy()
    return scales


@dataclass(frozen=True, eq=False)
class _Trained:
    network: nn.Module
    look: int
    log_variance: Array


@torch.no_grad()
def _train(
    network: ComposedFeatures,
    inputs: Tensor,
    squares: Tensor,
    counts: Tensor | None,
    left_out: npt.NDArray[np.bool_],
    settings: AutoSettings,
    seed: int,
) -> _Trained:
    seen = np.flatnonzero(~left_out)
    unseen = torch.from_numpy(np.flatnonzero(left_out)).to(inputs.device)
    looked_at = unseen[:LOOK_ROWS]
    floor = math.log(min(_FLOORS))
    batched = BatchedNetworks([network], outputs=True, device=inputs.device)
    optimizer = FlatAdamW(
        batched.parameters, learning_rate=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY, max_gradient_norm=1.0
    )
    steps = settings.noise_steps
    factor = cosine_decay(steps)
    batches = draw_batches([seen], min(BATCH_SIZE, len(seen)), [seed])

    def log_variance(rows: Tensor) -> Tensor:
        outputs = [batched.forward(inputs[part][None])[0, :, 0] for part in torch.split(rows, settings.chunk_size)]
        return floor + functional.softplus(in_float64(torch.cat(outputs)) - floor)

    def look() -> float:
        """The mean loss at the best common factor, which is set in closed form later."""
        found = log_variance(looked_at)
        weights = torch.ones_like(found) if counts is None else in_float64(counts[looked_at])
        scaled = in_float64(squares[looked_at]) * torch.exp(-found)
        mean = float((weights * scaled).sum() / weights.sum())
        return 0.5 * (float((weights * found).sum() / weights.sum()) + math.log(max(mean, 1e-12)))

    best, best_look, kept = look(), 0, [parameter.detach().clone() for parameter in batched.parameters]
    for step in range(steps):
        batch = next(batches).to(inputs.device)
        above = batched.forward(inputs[batch]) - floor
        slope = 1.0 - squares[batch][:, :, None] * torch.exp(-(floor + functional.softplus(above)))
        slope.mul_(0.5 / batch.shape[1]).mul_(torch.sigmoid(above))
        batched.backward(slope if counts is None else slope * counts[batch][:, :, None])
        optimizer.param_groups[0]["lr"] = _LEARNING_RATE * factor(step)
        optimizer.step()
        if (step + 1) % max(1, steps // _LOOKS) == 0:
            value = look()
            if value < best:
                best, best_look = value, (step + 1) // max(1, steps // _LOOKS)
                kept = [parameter.detach().clone() for parameter in batched.parameters]
    optimizer.release()
    for parameter, value_kept in zip(batched.parameters, kept, strict=True):
        parameter.copy_(value_kept)
    left_out_log_variance = log_variance(unseen).cpu().numpy()
    batched.write_back()
    return _Trained(_with_head(network, *batched.heads()[0]), best_look, left_out_log_variance)


def _with_head(network: ComposedFeatures, weight: Tensor, bias: Tensor) -> nn.Sequential:
    head = nn.Linear(HIDDEN[-1], 1, device="meta")  # made on "meta", nothing is drawn from the global generator
    head.weight, head.bias = nn.Parameter(weight), nn.Parameter(bias)
    return nn.Sequential(network, head, SmoothFloor(math.log(min(_FLOORS))))


def _encode(trained: _Trained) -> dict[str, Tensor]:
    tensors = {f"network.{name}": value for name, value in trained.network.state_dict().items()}
    return tensors | {"look": torch.tensor(trained.look), "log_variance": torch.from_numpy(trained.log_variance)}


def _decode(network: ComposedFeatures, left_out: int, stored: StoredTensors) -> _Trained:
    whole = _with_head(network, torch.empty(1, HIDDEN[-1]), torch.empty(1))
    state = {name: stored.take(f"network.{name}", like) for name, like in whole.state_dict().items()}
    whole.load_state_dict(state)
    log_variance = stored.take("log_variance", torch.empty(left_out, dtype=torch.float64))
    return _Trained(whole, int(stored.take("look", torch.tensor(0))), log_variance.numpy())


def _choose_floor(rows: Table, log_variance: Array, squares: Array) -> float:
    losses = {}
    for floor in _FLOORS:
        floored: Array = np.logaddexp(log_variance, math.log(floor))
        factor = max(rows.mean(squares * np.exp(-floored)), 1e-12)
        losses[floor] = 0.5 * (rows.mean(floored) + math.log(factor))
    lowest = min(losses.values())
    return max(floor for floor, loss in losses.items() if loss <= lowest + _PRICE_OF_SAFETY)
