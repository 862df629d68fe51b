"""Networks trained side by side, each without one fold of the rows: features, and honest residuals for the noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..devices import CPU, exact_device, in_float64
from ..features import ComposedFeatures, MLPFeatures, PeriodicEmbedding, SoftClip
from ..likelihood import optimal_noise
from ..posterior import WeightPosterior
from ..processes import in_parallel
from ..stages import StoredTensors, open_stages
from ..statistics import RunningSums
from .lagged_training import BatchedNetworks, count_steps, train_lagged
from .settings import AutoSettings
from .table import Array, Index, Table, with_score

# Most members of one group, which share each product; and members that are trained with every weight decay.
LARGEST_GROUP, RACERS = 2, 2
# Steps of all members together from which it is worth to start processes for them.
_MANY_STEPS = 6000
# A member whose error is this multiple of that of the others is trained again, at a third of the rate.
_ASTRAY = 2.5
# Cosines, and outputs, of the embedding of all columns together: many columns have to do with few each.
_COSINES, _EMBEDDED = 512, 64
# All folds together hold at least this many rows, if the table has them; larger tables leave out a tenth per member.
_FOLD_ROWS, _FOLD_FRACTION = 10_000, 0.1
# Inputs of networks end so far outside of those of the training rows, in standard deviations.
_MARGIN = 1.0
_PIECE = 1024


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
    race: dict[str, object]
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
        progress: Called with a word on each finished group, and how well it predicts its folds.
        device: Where they are trained. Initial values and batches are the same on all devices.
    """
    clip = fit_clip(training.inputs)
    inputs = clip_rows(clip, training.inputs).to(device)
    targets = torch.from_numpy(training.targets).float().to(device)
    counts = relative_counts(training, device)
    folds = make_folds(len(training), settings.members, seed=seed)
    total = settings.members + RACERS * (len(settings.weight_decays) - 1)
    finished = 0
    stages = open_stages(
        "networks",
        {"seed": seed, "device": str(device), **settings.to_dict()},
        *(part for rows in (training, validation) for part in (rows.inputs, rows.targets, rows.counts)),
    )

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
        names = [
            f"networks {part}, decay {decay}, rate {used.learning_rate}"
            for part, decay in zip(members, decays, strict=True)
        ]

        def compute(missing: list[int]) -> Iterator[list[_Member]]:
            tasks = [(jobs[number], *rows, used) for number in missing]
            return in_parallel(_train_group, tasks, threads, processes=processes)

        found = []
        for result in stages.collect(names, compute, _encode, lambda number, stored: _decode(jobs[number], stored)):
            found.append(result)
            finished += len(result)
            if progress is not None:
                left_out = np.concatenate(jobs[len(found) - 1].folds)
                predicted = np.concatenate([member.out_of_fold for member in result])
                weights = None if training.counts is None else training.counts[left_out]
                part = f"network {min(finished, total)} of {total}"
                progress(with_score(part, predicted, training.targets[left_out], weights))
        return found

    everyone, decays = list(range(settings.members)), settings.weight_decays
    raced: list[list[_Member]] = [[]]
    errors: list[float] = []
    if len(decays) > 1:
        raced = train([everyone[:RACERS]] * len(decays), decays)
        errors = [_ensemble_error(pair, clip, validation, settings, device) for pair in raced]
    best = int(np.argmin(errors)) if errors else 0
    others = split_members(everyone[len(raced[best]) :], apart=trains_long(len(training), settings))
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
    # The lower median: the mean of two errors is never so far below the larger one.
    usual = np.sort(found)[(len(found) - 1) // 2]
    return [int(number) for number in np.flatnonzero(found > _ASTRAY**2 * usual)]


def _ensemble_error(
    pair: Sequence[_Member], clip: SoftClip, rows: Table, settings: AutoSettings, device: torch.device
) -> float:
    """The root mean squared error of the mean of all members, from two of them."""
    networks, weights = [each.network for each in pair], torch.stack([each.weights for each in pair])
    one, other = predict_members(networks, weights, clip, rows.inputs, settings.chunk_size, device) - rows.targets
    shared, own = rows.mean(one * other), 0.5 * rows.mean(one**2 + other**2)
    return math.sqrt(max(shared + (own - shared) / settings.members, 0.0))


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


def trains_long(rows: int, settings: AutoSettings) -> bool:
    """Whether training on this many rows takes so long that it is worth to start processes."""
    return settings.members * count_steps(rows, settings) > _MANY_STEPS


def split_members(members: Sequence[int], *, apart: bool) -> list[list[int]]:
    """Groups of at most two, the same whatever the number of threads.

    Args:
        members: Numbers of members.
        apart: Whether there are at least two groups, for two processes. Two threads wait for each other: they take as
            long as one thread that trains two members as one, and leave it no core for anything else.

    Example:
        >>> split_members([2, 3], apart=True), split_members([2, 3], apart=False)
        ([[2], [3]], [[2, 3]])
    """
    size = min(LARGEST_GROUP, max(1, len(members) // 2)) if apart else LARGEST_GROUP
    return [list(members[first : first + size]) for first in range(0, len(members), size)]


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


def _encode(group: Sequence[_Member]) -> dict[str, Tensor]:
    """The trained parts of a group's members, as tensors."""
    tensors: dict[str, Tensor] = {}
    for number, member in enumerate(group):
        tensors |= {f"{number}.network.{name}": value for name, value in member.network.state_dict().items()}
        tensors |= {f"{number}.weights": member.weights, f"{number}.out_of_fold": torch.from_numpy(member.out_of_fold)}
        tensors[f"{number}.noise_variance"] = torch.tensor(member.noise_variance, dtype=torch.float64)
    return tensors


def _decode(group: _Group, stored: StoredTensors) -> list[_Member]:
    members = []
    for number, (network, fold) in enumerate(zip(group.networks, group.folds, strict=True)):
        state = {name: stored.take(f"{number}.network.{name}", like) for name, like in network.state_dict().items()}
        network.load_state_dict(state)
        weights = stored.take(f"{number}.weights", torch.empty(network.num_features))
        out_of_fold = stored.take(f"{number}.out_of_fold", torch.empty(len(fold), dtype=torch.float64))
        noise = stored.take(f"{number}.noise_variance", torch.empty((), dtype=torch.float64))
        members.append(_Member(network, weights, out_of_fold.numpy(), float(noise)))
    return members


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
