"""Networks trained on folds: the features of the final model, and honest residuals for its noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ..algorithms import Lagged
from ..features import ComposedFeatures, MLPFeatures, PeriodicEmbedding
from ..model import FeatureGP, FittedGP
from ..schedules import cosine_decay, make_optimizer
from ..training import train
from .settings import AutoSettings

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Members:
    """Trained networks and what they predict for the rows that they have not seen.

    Attributes:
        fitted: One exact GP per network, conditioned on the rows that it was trained on.
        out_of_fold: ``(rows,)`` each row predicted by the network that was trained without it.
    """

    fitted: list[FittedGP]
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
    seed: int,
    progress: Callable[[str], None] | None = None,
) -> Members:
    """Train one network per fold on the rows outside of it; a single member has all rows and no fold."""
    count, rows = settings.members, len(inputs)
    fold = np.random.default_rng(seed).permutation(rows) % count
    fitted: list[FittedGP] = []
    out_of_fold = np.zeros(rows)
    for number in range(count):
        left_out = fold == number if count > 1 else np.zeros(rows, dtype=bool)
        data = inputs[~left_out], targets[~left_out]
        model = FeatureGP(_make_network(inputs.shape[1], settings, seed=seed * 1000 + number), noise_variance=0.1)
        _train(model, data, settings, seed=seed * 1000 + number)
        member = model.condition(data)
        if left_out.any():
            out_of_fold[left_out] = member.predict(inputs[left_out]).mean.numpy()
        fitted.append(member)
        if progress is not None:
            progress(f"network {number + 1} of {count}")
    return Members(fitted, out_of_fold)


def _make_network(input_dim: int, settings: AutoSettings, *, seed: int) -> nn.Module:
    if not settings.embedding:
        return MLPFeatures(input_dim, hidden=settings.hidden, initialization="he", seed=seed)
    embedding = PeriodicEmbedding(input_dim, seed=seed)
    network = MLPFeatures(embedding.num_features, hidden=settings.hidden, initialization="he", seed=seed)
    return ComposedFeatures(embedding, network)


def _train(model: FeatureGP, data: tuple[Array, Array], settings: AutoSettings, *, seed: int) -> None:
    """Lagged with constant noise: it steers the features by squared error, which keeps the error small."""
    rows = len(data[0])
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


def residual_variance(members: Members, targets: Array) -> float:
    """The mean square of the out-of-fold residuals."""
    return float(torch.from_numpy(members.out_of_fold - targets).square().mean())
