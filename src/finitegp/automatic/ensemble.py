"""Networks trained side by side, each without one fold of the rows: features, and honest residuals for the noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import NumericalError
from ..features import ComposedFeatures, MLPFeatures, PeriodicEmbedding, SoftClip
from ..flat_adam import FlatAdamW
from ..likelihood import optimal_noise
from ..linalg import CholeskyFactor, cholesky
from ..posterior import WeightPosterior
from ..schedules import cosine_decay
from ..statistics import RunningSums
from .batched import BatchedNetworks
from .settings import AutoSettings
from .table import Array, Index, Table

# Most members of one group, which share each product.
_LARGEST_GROUP = 2
# Steps grow with the rows beyond so many, to this power.
_FEW_ROWS, _GROWTH = 2000, 0.4
# As in Lagged: batches between refreshes, batches that the statistics cover, and rows that the noise comes from.
BLOCK, _WINDOW, _RESIDUAL_ROWS = 5, 100, 2000
_SMALLEST_NOISE = 1e-8
# Shares of the mean diagonal that are added, one after the other, where a factor fails.
_RIDGES = (0.0, 1e-9, 1e-7, 1e-5)
_WARM_UP = 0.1
# Cosines, and outputs, of the embedding of all columns together: many columns have to do with few each.
_COSINES, _EMBEDDED = 512, 64
# All folds together hold at least so many rows, if there are as many; larger tables leave out a tenth per member.
_FOLD_ROWS, _FOLD_FRACTION = 10_000, 0.1
# Inputs of networks end so far outside of those of the training rows, in standard deviations.
_MARGIN = 1.0
_PIECE = 1024

_Result = TypeVar("_Result")


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Trained networks and what they predict for rows that they have not seen.

    Attributes:
        clip: What bounds the inputs of all networks.
        networks: One feature map per member, behind the clip.
        weights: ``(members, features)`` the posterior mean of each member's weights, given its own rows.
        folds: Numbers of the rows that each member was trained without.
        out_of_fold: Each of these rows, fold after fold, as predicted by the member that was trained without it.
        noise_variances: The noise variance of each member.
        race: What each weight decay scored, and which one won, as JSON.
        chunk_size: Rows that pass through all networks at once.
    """

    clip: SoftClip
    networks: list[ComposedFeatures]
    weights: Tensor
    folds: list[Index]
    out_of_fold: Array
    noise_variances: list[float]
    race: dict[str, Any]
    chunk_size: int = 4096

    @property
    def left_out(self) -> Index:
        """Numbers of the rows that one member was trained without, fold after fold."""
        return np.concatenate(self.folds)

    @torch.no_grad()
    def predict(self, inputs: Array) -> Array:
        """``(members, rows)`` mean predictions, in float32."""
        batched = BatchedNetworks(self.networks)
        parts = [
            torch.bmm(
                batched.forward(self.clip(part.float()).expand(len(self.networks), -1, -1)), self.weights[:, :, None]
            )[:, :, 0]
            for part in torch.split(torch.from_numpy(inputs), self.chunk_size)
        ]
        return torch.cat(parts, dim=1).double().numpy()

    def feature_maps(self) -> list[nn.Module]:
        """One frozen map from standardised rows to features per member."""
        return [ComposedFeatures(self.clip, network).requires_grad_(False) for network in self.networks]


def train_ensemble(
    training: Table,
    settings: AutoSettings,
    *,
    seed: int,
    threads: int = 1,
    progress: Callable[[str], None] | None = None,
) -> Ensemble:
    """Train all members, each on the rows outside of its fold; groups of members run side by side in threads.

    The first member is trained with every weight decay; the one with the smallest error on its fold is that of all
    others: between tables, the best decay differs tenfold. The result depends on the seed alone, not on the number of
    threads.
    """
    clip = fit_clip(training.inputs)
    inputs = clip_rows(clip, training.inputs)
    targets = torch.from_numpy(training.targets).float()
    counts = None if training.counts is None else torch.from_numpy(training.counts / training.counts.mean()).float()
    folds = make_folds(len(training), settings.members, seed=seed)
    total = settings.members + len(settings.weight_decays) - 1
    finished = 0

    def make(member: int) -> ComposedFeatures:
        return make_network(inputs.shape[1], settings, seed=seed * 1000 + member)

    def train(group: _Group) -> list[_Member]:
        nonlocal finished
        batched = BatchedNetworks(group.networks)
        own_folds = [folds[member] for member in group.members]
        rows = [np.delete(np.arange(len(inputs)), fold) for fold in own_folds]
        seeds = [seed * 1000 + member for member in group.members]
        train_lagged(batched, inputs, targets, counts, rows, settings, weight_decay=group.weight_decay, seeds=seeds)
        found = _finish(batched, inputs, training, own_folds, settings.chunk_size)
        finished += len(found)
        if progress is not None:
            progress(f"network {finished} of {total}")
        return found

    # Networks are made here: the seeds of initial values are set in a generator that threads share.
    race = [_Group([0], [make(0)], weight_decay) for weight_decay in settings.weight_decays]
    raced = [found for (found,) in in_threads(train, race, threads)]
    rows = training.take(folds[0])
    errors = [rows.mean((each.out_of_fold - rows.targets) ** 2) ** 0.5 for each in raced]
    best = int(np.argmin(errors))
    winner = settings.weight_decays[best]
    others = range(1, settings.members)
    size = group_size(settings)
    parts = [list(others)[first : first + size] for first in range(0, len(others), size)]
    groups = [_Group(part, [make(member) for member in part], winner) for part in parts]
    members = [raced[best], *(member for group in in_threads(train, groups, threads) for member in group)]
    return Ensemble(
        clip=clip,
        networks=[member.network for member in members],
        weights=torch.stack([member.weights for member in members]),
        folds=folds,
        out_of_fold=np.concatenate([member.out_of_fold for member in members]),
        noise_variances=[member.noise_variance for member in members],
        race={"weight_decays": list(settings.weight_decays), "fold_rmse": errors, "weight_decay": winner},
        chunk_size=settings.chunk_size,
    )


def in_threads(function: Callable[[Any], _Result], jobs: Sequence[Any], threads: int) -> list[_Result]:
    """The results in the order of the jobs. Torch's operations let other threads run, so no process has to start."""
    if threads == 1 or len(jobs) == 1:
        return [function(job) for job in jobs]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, jobs))


def fit_clip(inputs: Array) -> SoftClip:
    """Bounds inputs a little outside of the given rows."""
    # What it does is monotone: the bounds of what comes out are those of what goes in.
    ends = np.stack([inputs.min(axis=0), inputs.max(axis=0)])
    low, high = SoftClip(inputs.shape[1])(torch.from_numpy(ends).float())
    return SoftClip(inputs.shape[1], low=low - _MARGIN, high=high + _MARGIN)


def clip_rows(clip: SoftClip, inputs: Array) -> Tensor:
    """``(rows, columns)`` bounded, in float32; a piece at a time, as there may be no room for a second table."""
    clipped = torch.empty(inputs.shape, dtype=torch.float32)
    for start in range(0, len(inputs), _PIECE):
        clipped[start : start + _PIECE] = clip(torch.from_numpy(inputs[start : start + _PIECE]).float())
    return clipped


def make_folds(rows: int, members: int, *, seed: int) -> list[Index]:
    """Disjoint sets of row numbers, one per member.

    Example:
        >>> [len(fold) for fold in make_folds(100_000, 4, seed=0)], [len(fold) for fold in make_folds(400, 4, seed=0)]
        ([10000, 10000, 10000, 10000], [100, 100, 100, 100])
    """
    size = fold_size(rows, members)
    order = np.random.default_rng(seed).permutation(rows)
    return [order[int(number * size) : int((number + 1) * size)] for number in range(members)]


def fold_size(rows: int, members: int) -> float:
    """Rows of one fold, of which whole ones are taken."""
    return min(max(_FOLD_FRACTION * rows, _FOLD_ROWS / members), rows / members)


def make_network(input_dim: int, settings: AutoSettings, *, seed: int) -> ComposedFeatures:
    """One network with its embedding of the columns, in float32."""
    width, frequencies = embedding_shape(input_dim, settings)
    embedding = PeriodicEmbedding(input_dim, frequencies, width, frequency_scale=1.0, seed=seed)
    network = MLPFeatures(
        embedding.num_features, hidden=settings.hidden, activation="mish", initialization="he", seed=seed
    )
    return ComposedFeatures(embedding, network)


def embedding_shape(input_dim: int, settings: AutoSettings) -> tuple[int, int]:
    """Outputs and cosines per column."""
    width = max(settings.embedding_width, min(_EMBEDDED // input_dim, 16))
    return width, max(4, min(max(settings.num_frequencies, 2 * width), _COSINES // input_dim))


def group_size(settings: AutoSettings) -> int:
    """Members that are trained as one: the same whatever the number of threads, so that the result is the same."""
    return min(_LARGEST_GROUP, max(1, settings.members // 2))  # at least two groups, for two cores


def count_steps(rows: int, settings: AutoSettings) -> int:
    """Steps of a member that is trained on so many rows: more rows are worth more steps, but ever fewer more.

    Example:
        >>> [count_steps(rows, AutoSettings()) for rows in (1_500, 10_000, 40_000, 1_000_000)]
        [1800, 3427, 5966, 6000]
    """
    wanted: float = settings.steps * max(rows / _FEW_ROWS, 1.0) ** _GROWTH
    return min(round(wanted), settings.max_steps)


def draw_batches(rows: Sequence[Index], batch_size: int, seeds: Sequence[int]) -> Iterator[Tensor]:
    """Row numbers ``(members, batch_size)``, for ever: each member passes over its own rows in an order of its own."""
    streams = [_shuffled(numbers, batch_size, seed) for numbers, seed in zip(rows, seeds, strict=True)]
    while True:
        yield torch.stack([next(stream) for stream in streams])


def _shuffled(rows: Index, batch_size: int, seed: int) -> Iterator[Tensor]:
    numbers, generator = torch.from_numpy(rows), torch.Generator().manual_seed(seed)
    while True:
        order = numbers[torch.randperm(len(numbers), generator=generator)]
        # The rest, less than a batch, stays out of this pass; another rest stays out of the next.
        yield from torch.split(order[: len(order) - len(order) % batch_size], batch_size)


@torch.no_grad()
def train_lagged(
    batched: BatchedNetworks,
    inputs: Tensor,
    targets: Tensor,
    counts: Tensor | None,
    rows: Sequence[Index],
    settings: AutoSettings,
    *,
    weight_decay: float,
    seeds: Sequence[int],
) -> None:
    """Train each member by the objective of :class:`~finitegp.algorithms.Lagged` with constant noise.

    Args:
        batched: The members; their parameters are changed.
        inputs: ``(all rows, columns)``, float32.
        targets: ``(all rows,)``, float32.
        counts: ``(all rows,)`` weights of the rows with a mean of about one, or None.
        rows: The numbers of each member's rows.
        settings: Batch size, steps and rates.
        weight_decay: Decoupled, of all parameters.
        seeds: Of each member's batches.
    """
    fewest = min(len(numbers) for numbers in rows)
    batch_size = min(settings.batch_size, fewest)
    steps = count_steps(fewest, settings)
    factor = cosine_decay(steps, warmup_steps=max(1, int(_WARM_UP * steps)))
    optimizer = FlatAdamW(batched.parameters, learning_rate=settings.learning_rate, weight_decay=weight_decay)
    heads = LaggedHeads(batched.members, batched.num_features, [len(numbers) for numbers in rows])
    batches = draw_batches(rows, batch_size, seeds)

    def read() -> tuple[Tensor, Tensor, Tensor | None]:
        batch = next(batches)
        return inputs[batch], targets[batch], None if counts is None else counts[batch]

    for _ in range(max(2, 10 * batched.num_features // batch_size)):
        seen, observed, weight = read()
        heads.take_up(batched.forward(seen), observed, weight)
    heads.refresh()
    for step in range(steps):
        seen, observed, weight = read()
        features = batched.forward(seen)
        batched.backward(heads.gradient(features, observed, weight))
        optimizer.param_groups[0]["lr"] = settings.learning_rate * factor(step)
        optimizer.step()
        heads.take_up(features, observed, weight)
        if (step + 1) % BLOCK == 0:
            heads.refresh()
    optimizer.release()


class LaggedHeads:
    """The weights, inverse Gram matrices and noise of several members, solved from their earlier batches.

    What :class:`~finitegp.algorithms.Lagged` tracks, for several networks of one shape at once.

    Args:
        members: How many.
        width: Features of each.
        num_data: Rows of each.

    Attributes:
        weights: ``(members, width, 1)``.
        inverse: ``(members, width, width)``.
        noise_variance: ``(members,)``.
    """

    def __init__(self, members: int, width: int, num_data: Sequence[int]) -> None:
        self.weights = torch.zeros(members, width, 1)
        self.inverse = torch.zeros(members, width, width)
        self.noise_variance = torch.full((members,), 0.1, dtype=torch.float64)
        self._rows = torch.tensor(num_data, dtype=torch.float64)
        self._gram = torch.zeros(members, width, width, dtype=torch.float64)
        self._projection = torch.zeros(members, width, 1, dtype=torch.float64)
        self._tracked_rows = 0.0
        self._traces = torch.zeros(members, dtype=torch.float64)
        self._residual_squares = torch.zeros(members, dtype=torch.float64)
        self._residual_rows = 0.0
        self._pending: list[tuple[Tensor, Tensor]] = []
        self._pending_squares: list[Tensor] = []

    def gradient(self, features: Tensor, targets: Tensor, counts: Tensor | None) -> Tensor:
        """Of the mean over the batch of the NLML per row, in the features ``(members, rows, width)``."""
        residuals = torch.bmm(features, self.weights).sub_(targets[:, :, None])
        scale = 1.0 / features.shape[1] if counts is None else counts[:, :, None] / features.shape[1]
        squares = residuals.square() if counts is None else residuals.square() * counts[:, :, None]
        self._pending_squares.append(squares.mean(dim=(1, 2)))
        slopes = residuals.div_(self.noise_variance.float()[:, None, None])
        return torch.baddbmm(torch.bmm(features, self.inverse), slopes, self.weights.mT).mul_(scale)

    def take_up(self, features: Tensor, targets: Tensor, counts: Tensor | None) -> None:
        """Keep a batch for the next refresh."""
        targets = targets[:, :, None]
        if counts is not None:
            root = counts.sqrt()[:, :, None]
            features, targets = features * root, targets * root
        self._pending.append((features, targets))

    def refresh(self) -> None:
        """Solve weights and inverses again, with the batches since the last time."""
        features = torch.cat([part[0] for part in self._pending], dim=1)
        targets = torch.cat([part[1] for part in self._pending], dim=1)
        forget, rows = 1.0 - min(len(self._pending) / _WINDOW, 1.0), float(features.shape[1])
        if self._pending_squares:
            self._set_noise(rows, forget)
        self._gram.mul_(forget).add_(torch.bmm(features.mT, features))
        self._projection.mul_(forget).add_(torch.bmm(features.mT, targets))
        self._tracked_rows = self._tracked_rows * forget + rows
        for member, noise in enumerate(self.noise_variance.tolist()):
            scale = float(self._rows[member]) / self._tracked_rows
            regularized = self._gram[member] * scale
            regularized.diagonal().add_(noise)
            factor = _factor(regularized, noise)
            inverse = factor.inverse()
            self.weights[member] = factor.solve(self._projection[member] * scale)
            self.inverse[member] = inverse
            self._traces[member] = inverse.trace()
        self._pending.clear()
        self._pending_squares.clear()

    def _set_noise(self, rows: float, forget: float) -> None:
        """From residuals that the weights had not seen, as in Lagged."""
        forget = min(forget, 1.0 - min(rows / _RESIDUAL_ROWS, 1.0))
        squares = torch.stack(self._pending_squares).double().mean(dim=0) * rows
        self._residual_squares = self._residual_squares * forget + squares
        self._residual_rows = self._residual_rows * forget + rows
        behind = max(self._tracked_rows, 1.0)
        own = (behind / self._rows).clamp(max=1.0)
        determined = self.weights.shape[1] - self.noise_variance * self._traces
        expected = 1.0 + determined * ((1.0 - own) / behind - own / self._rows)
        found = self._residual_squares / self._residual_rows / expected.clamp(min=0.1)
        self.noise_variance = found.clamp(min=_SMALLEST_NOISE)


def _factor(regularized: Tensor, noise: float) -> CholeskyFactor:
    """A factor for one more step of training: sums of float32 products may lie below zero by more than the noise."""
    size, identity = float(regularized.diagonal().mean()), torch.eye(len(regularized)).to(regularized)
    for ridge in _RIDGES:
        try:
            return cholesky(regularized + ridge * size * identity, noise_variance=noise)
        except NumericalError:
            continue
    return cholesky(regularized + size * identity, noise_variance=noise)


@dataclass(frozen=True, eq=False)
class _Group:
    """Members that are trained together."""

    members: list[int]
    networks: list[ComposedFeatures]
    weight_decay: float


@dataclass(frozen=True, eq=False)
class _Member:
    network: ComposedFeatures
    weights: Tensor
    out_of_fold: Array
    noise_variance: float


@torch.no_grad()
def _finish(
    batched: BatchedNetworks, inputs: Tensor, training: Table, folds: Sequence[Index], chunk_size: int
) -> list[_Member]:
    """The exact posterior mean of each member's weights, and its predictions for its fold."""
    targets = torch.from_numpy(training.targets)
    counts = None if training.counts is None else torch.from_numpy(training.counts)
    left_out = torch.zeros(len(folds), len(inputs), dtype=torch.bool)
    for member, fold in enumerate(folds):
        left_out[member, torch.from_numpy(fold)] = True
    sums = [RunningSums() for _ in folds]
    for start in range(0, len(inputs), chunk_size):
        part = slice(start, start + chunk_size)
        features = batched.forward(inputs[part].expand(len(folds), -1, -1))
        for member in range(len(folds)):
            out = left_out[member, part]
            times = None if counts is None else counts[part][~out]
            sums[member].add(features[member, ~out], targets[part][~out], counts=times)
    networks = batched.write_back()
    members = []
    for member, fold in enumerate(folds):
        total = sums[member].total()
        noise_variance = optimal_noise(total).noise_variance
        weights = WeightPosterior(total, noise_variance).weight_mean
        # Computed again: features of all rows of the folds take more memory than the rows.
        out_of_fold = np.empty(len(fold))
        for start in range(0, len(fold), chunk_size):
            rows = inputs[torch.from_numpy(fold[start : start + chunk_size])]
            features = batched.forward(rows.expand(len(folds), -1, -1))[member]
            out_of_fold[start : start + chunk_size] = (features.double() @ weights)[:, 0].numpy()
        members.append(_Member(networks[member], weights[:, 0].float(), out_of_fold, noise_variance))
    return members
