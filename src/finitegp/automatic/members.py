"""Networks trained on folds: the features of the final model, and honest residuals for its noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import nn

from ..algorithms import Lagged
from ..data import ArraySource
from ..features import ComposedFeatures, MLPFeatures, PeriodicEmbedding
from ..model import FeatureGP, FittedGP
from ..schedules import cosine_decay, make_optimizer
from ..training import train
from .settings import AutoSettings

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Members:
    """Trained networks and what they predict for rows that they have not seen.

    Attributes:
        fitted: One exact GP per network, conditioned on the rows that it was trained on.
        left_out: Numbers of the rows that one network was trained without, fold after fold.
        out_of_fold: Each of these rows as predicted by the network that was trained without it.
    """

    fitted: list[FittedGP]
    left_out: Index
    out_of_fold: Array

    def mean(self, inputs: Array) -> Array:
        """The mean prediction of all members."""
        predictions = [member.predict(inputs).mean.numpy() for member in self.fitted]
        mean: Array = np.mean(predictions, axis=0)
        return mean


def train_members(
    inputs: Array,
    targets: Array,
    settings: AutoSettings,
    *,
    counts: Array | None = None,
    seed: int,
    progress: Callable[[str], None] | None = None,
) -> Members:
    """Train one network per fold on the rows outside of it; a single member has all rows and no fold."""
    folds = make_folds(len(inputs), settings, seed=seed)
    fitted: list[FittedGP] = []
    predictions: list[Array] = []
    for number, fold in enumerate(folds):
        kept = np.delete(np.arange(len(inputs)), fold)
        data = ArraySource(inputs[kept], targets[kept], counts=None if counts is None else counts[kept])
        model = FeatureGP(_make_network(inputs.shape[1], settings, seed=seed * 1000 + number), noise_variance=0.1)
        _train(model, data, settings, seed=seed * 1000 + number)
        member = model.condition(data)
        fitted.append(member)
        if len(fold):
            predictions.append(member.predict(inputs[fold]).mean.numpy())
        if progress is not None:
            progress(f"network {number + 1} of {len(folds)}")
    return Members(fitted, np.concatenate(folds), np.concatenate([np.zeros(0), *predictions]))


def make_folds(rows: int, settings: AutoSettings, *, seed: int) -> list[Index]:
    """Disjoint sets of row numbers, one per member, of the size that the settings ask for.

    Example:
        >>> [len(fold) for fold in make_folds(100_000, AutoSettings(), seed=0)]
        [10000, 10000, 10000, 10000]
        >>> [len(fold) for fold in make_folds(2000, AutoSettings(), seed=0)]
        [500, 500, 500, 500]
    """
    count = settings.members
    if count == 1:
        return [np.zeros(0, dtype=np.int64)]
    size = min(max(settings.fold_fraction * rows, settings.min_fold_rows / count), rows / count)
    order = np.random.default_rng(seed).permutation(rows)
    return [order[int(number * size) : int((number + 1) * size)] for number in range(count)]


def _make_network(input_dim: int, settings: AutoSettings, *, seed: int) -> nn.Module:
    def make(width: int) -> MLPFeatures:
        return MLPFeatures(
            width, hidden=settings.hidden, activation=settings.activation, initialization="he", seed=seed
        )

    if not settings.embedding:
        return make(input_dim)
    embedding = PeriodicEmbedding(input_dim, frequency_scale=settings.frequency_scale, seed=seed)
    return ComposedFeatures(embedding, make(embedding.num_features))


def _train(model: FeatureGP, data: ArraySource, settings: AutoSettings, *, seed: int) -> None:
    """Lagged with constant noise: it steers the features by squared error, which keeps the error small."""
    rows = len(data)
    batch_size = min(settings.batch_size, rows)
    steps_per_epoch = -(-rows // batch_size)
    epochs = max(settings.epochs, -(-settings.min_steps // steps_per_epoch))
    algorithm = Lagged(model, rows, block=settings.block, window=settings.window)
    optimizer = make_optimizer(algorithm, learning_rate=settings.learning_rate, weight_decay=settings.weight_decay)
    train(
        algorithm,
        optimizer,
        data,
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
        schedule=cosine_decay(epochs * steps_per_epoch),
        restore_best=False,
    )
    model.optimize_noise(data)


def join_features(members: Members) -> list[nn.Module]:
    """The feature maps of all members, frozen."""
    maps = [member.model.feature_map for member in members.fitted]
    for feature_map in maps:
        feature_map.requires_grad_(False)
    return maps
