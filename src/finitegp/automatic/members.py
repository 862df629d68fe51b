"""Networks trained on folds: the features of the final model, and honest residuals for its noise."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import nn

from ..algorithms import Lagged
from ..data import ArraySource, Source
from ..features import ComposedFeatures, MLPFeatures, PeriodicEmbedding
from ..flat_adam import FlatAdamW
from ..model import FeatureGP, FittedGP
from ..run import TrainingRun
from ..schedules import cosine_decay
from ..training import train
from .processes import in_parallel
from .settings import AutoSettings
from .table import Array, Index, Table


@dataclass(frozen=True, eq=False)
class Members:
    """Trained networks and what they predict for rows that they have not seen.

    Attributes:
        fitted: One exact GP per network, conditioned on the rows that it was trained on.
        folds: Numbers of the rows that each network was trained without.
        out_of_fold: Each of these rows, fold after fold, as predicted by the network that was trained without it.
        race: What each candidate scored, and which one won.
        history: The measurements of each network's training by epoch.
    """

    fitted: list[FittedGP]
    folds: list[Index]
    out_of_fold: Array
    race: dict[str, Any]
    history: dict[str, list[dict[str, Any]]]

    @property
    def left_out(self) -> Index:
        """Numbers of the rows that one network was trained without, fold after fold."""
        return np.concatenate(self.folds)

    def predict(self, inputs: Array) -> Array:
        """``(networks, rows)`` mean predictions."""
        return np.stack([member.predict(inputs).mean.numpy() for member in self.fitted])


def train_members(
    training: Table,
    validation: Table,
    settings: AutoSettings,
    *,
    seed: int,
    processes: int = 1,
    progress: Callable[[str], None] | None = None,
) -> Members:
    """Train one network per fold on the rows outside of it; a single member has all rows and no fold.

    The first network is trained with every candidate; the one with the smallest error on the validation rows stays, and
    the other networks are trained like it. Networks do not know of each other: the result is the same whatever the
    number of processes.
    """
    folds = make_folds(len(training), settings, seed=seed)
    total = len(folds) + len(settings.weight_decays) - 1
    finished = 0

    def run(jobs: list[tuple[Any, ...]]) -> list[_Trained]:
        nonlocal finished
        results = []
        for result in in_parallel(_train_member, jobs, processes):
            results.append(result)
            finished += 1
            if progress is not None:
                progress(f"network {finished} of {total}")
        return results

    def job(number: int, weight_decay: float) -> tuple[Any, ...]:
        return training, folds[number], settings, weight_decay, seed * 1000 + number

    # Without a race nothing has to wait for its winner.
    others = range(1, len(folds)) if len(settings.weight_decays) == 1 else ()
    first_run = run(
        [job(0, weight_decay) for weight_decay in settings.weight_decays]
        + [job(number, settings.weight_decays[0]) for number in others]
    )
    candidates = first_run[: len(settings.weight_decays)]
    errors = [_root_mean_square_error(member.fitted, validation) for member in candidates]
    best = int(np.argmin(errors))
    winner = settings.weight_decays[best]
    rest = first_run[len(candidates) :] or run([job(number, winner) for number in range(1, len(folds))])
    members = [candidates[best], *rest]
    return Members(
        fitted=[member.fitted for member in members],
        folds=folds,
        out_of_fold=np.concatenate([member.out_of_fold for member in members]),
        race={"weight_decays": list(settings.weight_decays), "validation_rmse": errors, "weight_decay": winner},
        history={f"network {number + 1}": member.history for number, member in enumerate(members)},
    )


def refine_members(
    members: Members,
    training: Table,
    relative_variance: Array,
    settings: AutoSettings,
    *,
    seed: int,
    processes: int = 1,
    progress: Callable[[str], None] | None = None,
) -> Members:
    r"""Train the networks a little further with rows weighted by :math:`v(x)^{-p}`: quiet rows are fitted closely.

    With constant noise, networks spend their effort where residuals are large, which is where the noise is. Full
    weights, ``p = 1``, are those of the likelihood and give the best density, but rows with much noise then hardly
    count, and the squared error grows; a power between one half and one keeps most of both.

    Args:
        members: What :func:`train_members` returned.
        training: The same rows.
        relative_variance: ``(rows,)`` noise variance of each training row, up to a factor.
        settings: Power, learning rate and epochs.
        seed: Determines the order of batches.
        processes: Networks trained at once.
        progress: Called with a word on each finished network.
    """
    weights = (relative_variance / np.exp(np.mean(np.log(relative_variance)))) ** -settings.refine_power
    weights /= weights.mean()
    decay = members.race["weight_decay"]
    jobs = [
        (member, training, weights, fold, settings, decay, seed * 1000 + 500 + number)
        for number, (member, fold) in enumerate(zip(members.fitted, members.folds, strict=True))
    ]
    refined: list[_Trained] = []
    for result in in_parallel(_refine_member, jobs, processes):
        refined.append(result)
        if progress is not None:
            progress(f"network {len(refined)} of {len(jobs)} refined")
    return Members(
        fitted=[member.fitted for member in refined],
        folds=members.folds,
        out_of_fold=np.concatenate([member.out_of_fold for member in refined]),
        race=members.race,
        history={
            name: history + member.history
            for (name, history), member in zip(members.history.items(), refined, strict=True)
        },
    )


class _Trained(NamedTuple):
    fitted: FittedGP
    out_of_fold: Array
    history: list[dict[str, Any]]


def _train_member(training: Table, fold: Index, settings: AutoSettings, weight_decay: float, seed: int) -> _Trained:
    data = training.take(np.delete(np.arange(len(training)), fold)).source()
    model = FeatureGP(make_network(training.inputs.shape[1], settings, seed=seed), noise_variance=0.1)
    epochs = count_epochs(-(-len(data) // settings.batch_size), settings)
    run = train_network(
        model, data, settings, epochs=epochs, rate=settings.learning_rate, weight_decay=weight_decay, seed=seed
    )
    return _finish(model, data, training.inputs[fold], run)


def _refine_member(
    member: FittedGP,
    training: Table,
    weights: Array,
    fold: Index,
    settings: AutoSettings,
    weight_decay: float,
    seed: int,
) -> _Trained:
    kept = np.delete(np.arange(len(training)), fold)
    data = training.take(kept).source(weights[kept])
    feature_map = copy.deepcopy(member.model.feature_map).float().requires_grad_(True)
    model = FeatureGP(feature_map, noise_variance=member.model.noise_variance)
    epochs = math.ceil(settings.refine_fraction * count_epochs(-(-len(data) // settings.batch_size), settings))
    rate = settings.refine_rate * settings.learning_rate
    run = train_network(model, data, settings, epochs=epochs, rate=rate, weight_decay=weight_decay, seed=seed)
    return _finish(model, data, training.inputs[fold], run)


def _finish(model: FeatureGP, data: ArraySource, left_out: Array, run: TrainingRun) -> _Trained:
    # Lagged sets the noise from rows that its weights have not seen: an honest measure of progress.
    history = [{"epoch": row["epoch"], "noise_variance": row["noise_variance"]} for row in run.history]
    fitted = model.condition(data, optimize_noise=True)
    out_of_fold = fitted.predict(left_out).mean.numpy() if len(left_out) else np.zeros(0)
    return _Trained(fitted, out_of_fold, history)


def _root_mean_square_error(member: FittedGP, rows: Table) -> float:
    return math.sqrt(rows.mean((member.predict(rows.inputs).mean.numpy() - rows.targets) ** 2))


def make_folds(rows: int, settings: AutoSettings, *, seed: int) -> list[Index]:
    """Disjoint sets of row numbers, one per member, of the size that the settings ask for.

    Example:
        >>> [len(fold) for fold in make_folds(100_000, AutoSettings(), seed=0)]
        [10000, 10000, 10000, 10000, 10000]
        >>> [len(fold) for fold in make_folds(4000, AutoSettings(), seed=0)]
        [800, 800, 800, 800, 800]
    """
    count = settings.members
    if count == 1:
        return [np.zeros(0, dtype=np.int64)]
    size = min(max(settings.fold_fraction * rows, settings.min_fold_rows / count), rows / count)
    order = np.random.default_rng(seed).permutation(rows)
    return [order[int(number * size) : int((number + 1) * size)] for number in range(count)]


def make_network(input_dim: int, settings: AutoSettings, *, seed: int) -> nn.Module:
    """One network, with its embedding of the columns, as the settings ask for."""

    def make(width: int) -> MLPFeatures:
        return MLPFeatures(
            width, hidden=settings.hidden, activation=settings.activation, initialization="he", seed=seed
        )

    if not settings.embedding:
        return make(input_dim)
    embedding = PeriodicEmbedding(
        input_dim,
        settings.num_frequencies,
        settings.embedding_width,
        frequency_scale=settings.frequency_scale,
        seed=seed,
    )
    return ComposedFeatures(embedding, make(embedding.num_features))


def train_network(
    model: FeatureGP,
    data: Source,
    settings: AutoSettings,
    *,
    epochs: int,
    rate: float,
    weight_decay: float,
    seed: int,
    **arguments: Any,
) -> TrainingRun:
    """Lagged with constant noise: it steers the features by squared error, which keeps the error small.

    ``arguments`` are further ones of :func:`~finitegp.train`, which do not change what is trained.
    """
    rows = data.num_data
    assert rows is not None
    batch_size = min(settings.batch_size, rows)
    algorithm = Lagged(model, rows, block=settings.block, window=settings.window)
    (group,) = algorithm.parameter_groups()
    optimizer = FlatAdamW(group["params"], learning_rate=rate, weight_decay=weight_decay)
    run = train(
        algorithm,
        cast(torch.optim.Optimizer, optimizer),  # it has all that is used of one
        data,
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
        schedule=cosine_decay(epochs * -(-rows // batch_size)),
        restore_best=False,
        **arguments,
    )
    optimizer.release()
    return run


def count_epochs(steps_per_epoch: int, settings: AutoSettings) -> int:
    """Passes over the rows: as the settings ask, within their bounds on steps, at least one.

    Example:
        >>> [count_epochs(rows // 128, AutoSettings()) for rows in (2_000, 20_000, 40_000, 1_000_000)]
        [100, 26, 13, 1]
    """
    wanted = max(settings.epochs, min(-(-settings.min_steps // steps_per_epoch), settings.max_epochs))
    return max(1, min(wanted, settings.max_steps // steps_per_epoch))


def join_features(models: Sequence[FeatureGP]) -> list[nn.Module]:
    """The feature maps of all members, frozen."""
    maps = [model.feature_map for model in models]
    for feature_map in maps:
        feature_map.requires_grad_(False)
    return maps
