"""Networks trained side by side, each without one fold of the rows: features, and honest residuals for the noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ..devices import CPU, exact_device, in_float64
from ..errors import NumericalError
from ..features import ComposedFeatures, MLPFeatures, PeriodicEmbedding, SoftClip
from ..flat_adam import FlatAdamW
from ..likelihood import optimal_noise
from ..linalg import CholeskyFactor, cholesky
from ..posterior import WeightPosterior
from ..schedules import cosine_decay
from ..statistics import RunningSums
from .batched import BatchedNetworks
from .processes import in_parallel
from .settings import AutoSettings
from .table import Array, Index, Table

# Most members of one group, which share each product; and members that are trained with every weight decay.
LARGEST_GROUP, RACERS = 2, 2
# Beyond this number of rows, steps grow with the rows to this power.
_FEW_ROWS, _GROWTH = 2000, 0.4
# As in Lagged: batches between refreshes, batches that the statistics cover, and rows that the noise comes from.
BLOCK, _WINDOW, _RESIDUAL_ROWS = 5, 100, 2000
_SMALLEST_NOISE = 1e-8
# Rows are weighted by their noise variance to the power of minus this, within these limits.
_WEIGHT_POWER, _WEIGHT_LIMITS = 0.5, (0.05, 20.0)
# The variance of the logarithm of a squared standard normal, pi^2 / 2; and how often the noise of rows is solved again.
_LOG_VARIANCE, _BLOCKS_PER_SOLUTION = 4.93, 5
# The smallest squared residual relative to the noise, whose logarithm is taken.
_SMALLEST_SQUARE = 1e-4
# Shares of the mean diagonal that are added, one after the other, where a factor fails.
_RIDGES = (0.0, 1e-9, 1e-7, 1e-5)
_WARM_UP = 0.1
# A member whose error is this multiple of that of the others is trained again, at a third of the rate.
_ASTRAY = 2.5
_FARTHEST_PULL = 4.0
# The share of steps before rows are weighted by their noise: what is not learned yet is no noise.
_UNWEIGHTED = 0.2
# Cosines, and outputs, of the embedding of all columns together: many columns have to do with few each.
_COSINES, _EMBEDDED = 512, 64
# All folds together hold at least this many rows, if the table has them; larger tables leave out a tenth per member.
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
        device: Where they pass; the networks and their weights are on the CPU.
    """

    clip: SoftClip
    networks: list[ComposedFeatures]
    weights: Tensor
    folds: list[Index]
    out_of_fold: Array
    noise_variances: list[float]
    race: dict[str, Any]
    chunk_size: int = 4096
    device: torch.device = CPU

    @property
    def left_out(self) -> Index:
        """Numbers of the rows that one member was trained without, fold after fold."""
        return np.concatenate(self.folds)

    def predict(self, inputs: Array) -> Array:
        """``(members, rows)`` mean predictions, in float32."""
        return predict_members(self.networks, self.weights, self.clip, inputs, self.chunk_size, self.device)

    def feature_maps(self) -> list[nn.Module]:
        """One frozen map from standardised rows to features per member."""
        return [ComposedFeatures(self.clip, network).requires_grad_(False) for network in self.networks]


@torch.no_grad()
def predict_members(
    networks: Sequence[ComposedFeatures],
    weights: Tensor,
    clip: SoftClip,
    inputs: Array,
    chunk_size: int,
    device: torch.device,
) -> Array:
    """``(members, rows)`` mean predictions of networks with weights ``(members, features)``, in float32."""
    batched, count, weights = BatchedNetworks(networks, device=device), len(networks), weights.to(device)
    parts = [
        torch.bmm(batched.forward(clip(part.float()).to(device).expand(count, -1, -1)), weights[:, :, None])[:, :, 0]
        for part in torch.split(torch.from_numpy(inputs), chunk_size)
    ]
    return torch.cat(parts, dim=1).cpu().double().numpy()


def train_ensemble(
    training: Table,
    validation: Table,
    settings: AutoSettings,
    *,
    seed: int,
    threads: int = 1,
    processes: bool = False,
    progress: Callable[[str], None] | None = None,
    device: torch.device = CPU,
) -> Ensemble:
    """Train all members, each on the rows outside of its fold, in groups side by side.

    The first two members are trained with every weight decay; the one with the smallest error is that of all others:
    between tables, the best decay differs tenfold. What counts is the error of all members together: with residuals
    r and q of two members at rows that neither has seen, :math:`E[rq]` is the part of the squared error that members
    share, and of the rest only one over their number stays in their mean. A single member would be judged by an error
    that the others mend. A member that went astray is trained again more slowly.

    Args:
        training: The rows, of which each member leaves out a fold.
        validation: Rows that no member sees, which decide between weight decays.
        settings: Networks, steps and rates.
        seed: Determines everything; the number of threads does not matter.
        threads: How many groups at once.
        processes: Whether each of them has a process of its own. Threads wait for each other between operations, and
            two are together 1.3 times as fast as one (processes: 1.8 times); but a process takes seconds to start, and
            memory of its own.
        progress: Called with a word on each finished group.
        device: Where they are trained. Initial values and batches are the same on all devices.
    """
    clip = fit_clip(training.inputs)
    inputs = clip_rows(clip, training.inputs).to(device)
    targets = torch.from_numpy(training.targets).float().to(device)
    counts = relative_counts(training, device)
    folds = make_folds(len(training), settings.members, seed=seed)
    total = settings.members + RACERS * (len(settings.weight_decays) - 1)
    finished = 0

    def train(
        members: Sequence[Sequence[int]], decays: Sequence[float], used: AutoSettings = settings
    ) -> list[list[_Member]]:
        """One group after another in each thread or process."""
        nonlocal finished
        # Networks are made here: the seeds of initial values are set in a generator that threads share.
        jobs = [
            _Group(
                networks=[make_network(inputs.shape[1], settings, seed=seed * 1000 + member) for member in part],
                folds=[folds[member] for member in part],
                seeds=[seed * 1000 + member for member in part],
                weight_decay=decay,
            )
            for part, decay in zip(members, decays, strict=True)
        ]
        rows = inputs, targets, counts, training
        found = []
        results = (
            in_parallel(_train_group, [(job, *rows, used) for job in jobs], threads)
            if processes
            else in_threads(lambda job: _train_group(job, *rows, used), jobs, threads)
        )
        for result in results:
            found.append(result)
            finished += len(result)
            if progress is not None:
                progress(f"network {min(finished, total)} of {total}")
        return found

    everyone, decays = list(range(settings.members)), settings.weight_decays
    raced: list[list[_Member]] = [[]]
    errors: list[float] = []
    if len(decays) > 1:
        raced = train([everyone[:RACERS]] * len(decays), decays)
        errors = [_ensemble_error(pair, clip, validation, settings, device) for pair in raced]
    best = int(np.argmin(errors)) if errors else 0
    others = split_evenly(everyone[len(raced[best]) :])
    members = [*raced[best], *(member for group in train(others, [decays[best]] * len(others)) for member in group)]
    failed = _failed(members, clip, validation, settings, device)
    if failed:
        slower = settings.with_changes({"learning_rate": settings.learning_rate / 3.0})
        for number, (again,) in zip(
            failed, train([[n] for n in failed], [decays[best]] * len(failed), slower), strict=True
        ):
            members[number] = again
    return Ensemble(
        clip=clip,
        networks=[member.network for member in members],
        weights=torch.stack([member.weights for member in members]),
        folds=folds,
        out_of_fold=np.concatenate([member.out_of_fold for member in members]),
        noise_variances=[member.noise_variance for member in members],
        race={"weight_decays": list(decays), "rmse": errors, "weight_decay": decays[best], "trained_again": failed},
        chunk_size=settings.chunk_size,
        device=device,
    )


def _failed(
    members: Sequence[_Member], clip: SoftClip, rows: Table, settings: AutoSettings, device: torch.device
) -> list[int]:
    """Members whose error on rows that none has seen is far beyond that of the others: training went astray."""
    networks, weights = [each.network for each in members], torch.stack([each.weights for each in members])
    errors = predict_members(networks, weights, clip, rows.inputs, settings.chunk_size, device) - rows.targets
    found = np.array([rows.mean(error**2) for error in errors])
    return [int(number) for number in np.flatnonzero(found > _ASTRAY**2 * np.median(found))]


def _ensemble_error(
    pair: Sequence[_Member], clip: SoftClip, rows: Table, settings: AutoSettings, device: torch.device
) -> float:
    """The root mean squared error of the mean of all members, from two of them."""
    networks, weights = [each.network for each in pair], torch.stack([each.weights for each in pair])
    one, other = predict_members(networks, weights, clip, rows.inputs, settings.chunk_size, device) - rows.targets
    shared, own = rows.mean(one * other), 0.5 * rows.mean(one**2 + other**2)
    return math.sqrt(max(shared + (own - shared) / settings.members, 0.0))


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


def relative_counts(rows: Table, device: torch.device) -> Tensor | None:
    """``(rows,)`` counts relative to their mean, in float32, or None."""
    return None if rows.counts is None else torch.from_numpy(rows.counts / rows.counts.mean()).float().to(device)


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


def split_evenly(members: Sequence[int]) -> list[list[int]]:
    """Groups of at most two, and at least two groups for two cores: the same whatever the number of threads.

    Example:
        >>> split_evenly([2, 3]), split_evenly([0, 1, 2, 3, 4])
        ([[2], [3]], [[0, 1], [2, 3], [4]])
    """
    size = min(LARGEST_GROUP, max(1, len(members) // 2))
    return [list(members[first : first + size]) for first in range(0, len(members), size)]


def count_steps(rows: int, settings: AutoSettings) -> int:
    """Steps of a member that is trained on this many rows: more rows are worth more steps, but ever fewer more.

    Example:
        >>> [count_steps(rows, AutoSettings()) for rows in (1_500, 10_000, 40_000, 1_000_000)]
        [1700, 3236, 5635, 6000]
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
    """Train each member by the objective of :class:`~finitegp.algorithms.Lagged`, rows weighted by their noise.

    Args:
        batched: The members; their parameters are changed.
        inputs: ``(all rows, columns)``, float32, on the device of the members.
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
    heads = LaggedHeads(batched.members, batched.num_features, [len(numbers) for numbers in rows], inputs.device)
    batches = draw_batches(rows, batch_size, seeds)

    def read() -> tuple[Tensor, Tensor, Tensor | None]:
        batch = next(batches).to(inputs.device)
        return inputs[batch], targets[batch], None if counts is None else counts[batch]

    for _ in range(max(2, 10 * batched.num_features // batch_size)):
        seen, observed, weight = read()
        heads.take_up(batched.forward(seen), observed, weight)
    heads.refresh()
    for step in range(steps):
        seen, observed, weight = read()
        features = batched.forward(seen)
        if settings.input_noise and step >= _UNWEIGHTED * steps:
            weight = heads.row_weights(features, weight)
        batched.backward(heads.gradient(features, observed, weight))
        optimizer.param_groups[0]["lr"] = settings.learning_rate * factor(step)
        optimizer.step()
        heads.take_up(features, observed, weight)
        if (step + 1) % BLOCK == 0:
            heads.refresh()
    optimizer.release()


class LaggedHeads:
    """The weights, inverse Gram matrices and noise of several members, solved from their earlier batches.

    What :class:`~finitegp.algorithms.Lagged` tracks, for several networks of one shape at once. How noisy a row is, is
    tracked beside: the logarithm of its variance is linear in its features, by ridge regression of the logarithms of
    squared residuals on the same row sums. With constant noise, networks spend their effort where residuals are large,
    which is where the noise is; with the full weights of the likelihood, rows with much noise hardly count, and the
    squared error grows.

    Args:
        members: How many.
        width: Features of each.
        num_data: Rows of each.
        device: Of the features; sums, factors and noise are float64, on :func:`~finitegp.devices.exact_device`.

    Attributes:
        weights: ``(members, width, 1)``.
        inverse: ``(members, width, width)``.
        noise_variance: ``(members,)``, of a row of weight one.
        log_slopes: ``(members, width, 1)``, of the logarithm of the noise variance in the features; None at first.
    """

    def __init__(self, members: int, width: int, num_data: Sequence[int], device: torch.device = CPU) -> None:
        self._exact = exact_device(device)
        exact: dict[str, Any] = {"dtype": torch.float64, "device": self._exact}
        self.weights = torch.zeros(members, width, 1, device=device)
        self.inverse = torch.zeros(members, width, width, device=device)
        self.noise_variance = torch.full((members,), 0.1, **exact)
        self._rows = torch.tensor(num_data, **exact)
        self._gram = torch.zeros(members, width, width, **exact)
        self._projection = torch.zeros(members, width, 1, **exact)
        self._tracked_rows = 0.0
        self._traces = torch.zeros(members, **exact)
        self._residual_squares = torch.zeros(members, **exact)
        self._residual_rows = 0.0
        self._pending: list[tuple[Tensor, Tensor]] = []
        self._pending_squares: list[Tensor] = []
        self.log_slopes: Tensor | None = None
        self._logs: Tensor | None = None
        self._mean_log = torch.zeros(members, 1, device=device)
        self._log_projection = torch.zeros(members, width, 1, **exact)
        self._pending_logs: list[Tensor] = []
        self._refreshes = 0

    def row_weights(self, features: Tensor, counts: Tensor | None) -> Tensor | None:
        """``(members, rows)`` counts times weights by noise, which have a mean of one."""
        if self.log_slopes is None:
            return counts
        logs = torch.bmm(features, self.log_slopes)[:, :, 0]
        weights = logs.mul_(-_WEIGHT_POWER).exp_().clamp_(*_WEIGHT_LIMITS)
        weights = weights.div_(weights.mean(dim=1, keepdim=True))
        return weights if counts is None else weights * counts

    def gradient(self, features: Tensor, targets: Tensor, counts: Tensor | None) -> Tensor:
        """Of the mean over the batch of the NLML per row, in the features ``(members, rows, width)``."""
        residuals = torch.bmm(features, self.weights).sub_(targets[:, :, None])
        scale = 1.0 / features.shape[1] if counts is None else counts[:, :, None] / features.shape[1]
        squares = residuals.square() if counts is None else residuals.square() * counts[:, :, None]
        self._pending_squares.append(squares.mean(dim=(1, 2)))
        noise = self.noise_variance.to(features)[:, None, None]
        relative = residuals.square().div_(noise)
        self._logs = relative.clamp_(min=_SMALLEST_SQUARE).log_()[:, :, 0]
        # Errors far beyond the noise pull no harder: one of them would undo what many steps have learned.
        deviations = noise.sqrt()
        slopes = residuals.div_(deviations).clamp_(-_FARTHEST_PULL, _FARTHEST_PULL).div_(deviations)
        return torch.baddbmm(torch.bmm(features, self.inverse), slopes, self.weights.mT).mul_(scale)

    def take_up(self, features: Tensor, targets: Tensor, counts: Tensor | None) -> None:
        """Keep a batch for the next refresh."""
        targets = targets[:, :, None]
        if counts is not None:
            root = counts.sqrt()[:, :, None]
            features, targets = features * root, targets * root
        self._pending.append((features, targets))
        if self._logs is None:
            return
        mean = self._logs.mean(dim=1, keepdim=True)
        self._mean_log.lerp_(mean, 1.0 / min(max(self._refreshes, 1) * BLOCK, _WINDOW))
        logs = (self._logs - self._mean_log)[:, :, None]
        logs = logs if counts is None else logs * root
        self._pending_logs.append(torch.bmm(features.mT, logs))
        self._logs = None

    def refresh(self) -> None:
        """Solve weights and inverses again, with the batches since the last time."""
        features = torch.cat([part[0] for part in self._pending], dim=1)
        targets = torch.cat([part[1] for part in self._pending], dim=1)
        forget, rows = 1.0 - min(len(self._pending) / _WINDOW, 1.0), float(features.shape[1])
        if self._pending_squares:
            self._set_noise(rows, forget)
        self._gram.mul_(forget).add_(torch.bmm(features.mT, features).to(self._exact))
        self._projection.mul_(forget).add_(torch.bmm(features.mT, targets).to(self._exact))
        for product in self._pending_logs:
            self._log_projection.mul_(1.0 - 1.0 / _WINDOW).add_(product.to(self._exact))
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
        self._refreshes += 1
        if self._refreshes % _BLOCKS_PER_SOLUTION == 0:
            self._solve_logs()
        self._pending.clear()
        self._pending_squares.clear()
        self._pending_logs.clear()

    def _solve_logs(self) -> None:
        scale = (self._rows / self._tracked_rows)[:, None, None]
        regularized = self._gram * scale
        regularized.diagonal(dim1=1, dim2=2).add_(_LOG_VARIANCE)
        factor, info = torch.linalg.cholesky_ex(regularized)
        if not bool(info.any()):
            self.log_slopes = torch.cholesky_solve(self._log_projection * scale, factor).to(self.weights)

    def _set_noise(self, rows: float, forget: float) -> None:
        """From residuals that the weights had not seen, as in Lagged."""
        forget = min(forget, 1.0 - min(rows / _RESIDUAL_ROWS, 1.0))
        squares = in_float64(torch.stack(self._pending_squares)).mean(dim=0) * rows
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

    networks: list[ComposedFeatures]
    folds: list[Index]
    seeds: list[int]
    weight_decay: float


@dataclass(frozen=True, eq=False)
class _Member:
    network: ComposedFeatures
    weights: Tensor
    out_of_fold: Array
    noise_variance: float


def _train_group(
    group: _Group, inputs: Tensor, targets: Tensor, counts: Tensor | None, training: Table, settings: AutoSettings
) -> list[_Member]:
    batched = BatchedNetworks(group.networks, device=inputs.device)
    rows = [np.delete(np.arange(len(inputs)), fold) for fold in group.folds]
    options: dict[str, Any] = {"weight_decay": group.weight_decay, "seeds": group.seeds}
    train_lagged(batched, inputs, targets, counts, rows, settings, **options)
    return _finish(batched, inputs, training, group.folds, settings.chunk_size)


@torch.no_grad()
def _finish(
    batched: BatchedNetworks, inputs: Tensor, training: Table, folds: Sequence[Index], chunk_size: int
) -> list[_Member]:
    """The exact posterior mean of each member's weights, and its predictions for its fold."""
    exact = exact_device(inputs.device)
    targets = torch.from_numpy(training.targets).to(exact)
    counts = None if training.counts is None else torch.from_numpy(training.counts).to(exact)
    kept = np.ones((len(folds), len(inputs)), dtype=np.bool_)
    for member, fold in enumerate(folds):
        kept[member, fold] = False
    sums = [RunningSums() for _ in folds]
    for start in range(0, len(inputs), chunk_size):
        part = slice(start, start + chunk_size)
        features = batched.forward(inputs[part].expand(len(folds), -1, -1)).to(exact)
        for member in range(len(folds)):
            seen = torch.from_numpy(kept[member, part]).to(exact)
            times = None if counts is None else counts[part][seen]
            sums[member].add(features[member, seen], targets[part][seen], counts=times)
    networks = batched.write_back()
    members = []
    for member, fold in enumerate(folds):
        total = sums[member].total()
        noise_variance = optimal_noise(total).noise_variance
        weights = WeightPosterior(total, noise_variance).weight_mean
        # Computed again: features of all rows of the folds take more memory than the rows.
        out_of_fold = np.empty(len(fold))
        for start in range(0, len(fold), chunk_size):
            rows = inputs[torch.from_numpy(fold[start : start + chunk_size]).to(inputs.device)]
            features = batched.forward(rows.expand(len(folds), -1, -1))[member]
            out_of_fold[start : start + chunk_size] = (in_float64(features) @ weights)[:, 0].cpu().numpy()
        members.append(_Member(networks[member], weights[:, 0].float().cpu(), out_of_fold, noise_variance))
    return members
