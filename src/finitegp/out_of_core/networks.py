"""Networks trained one after the other on rows that stay on disk."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..automatic.members import count_epochs, make_network, train_network
from ..automatic.processes import with_one_thread
from ..automatic.settings import AutoSettings
from ..automatic.table import Table
from ..distributed import ALONE, Ranks
from ..memory import FitSetting, return_freed_memory
from ..model import FeatureGP
from ..noise import InputNoise
from ..run import TrainingRun
from .disk_rows import DiskRows, RandomRows

# Initial frequencies of the embedding that compete with those of the settings: rough functions need high ones.
_FREQUENCY_FACTORS = (1.0, 3.0, 10.0)
# The race of frequencies takes this fraction of the steps, and is judged by the posterior of at most this many rows.
_RACE_FRACTION = 0.25
_RACE_ROWS = 50_000
# In fewer passes over the rows than these no network overfits, and the weight decays need not race.
_PASSES_TO_OVERFIT = 10


@dataclass(frozen=True, eq=False)
class TrainedNetworks:
    """Trained networks.

    Attributes:
        models: One per network, in float32.
        settings: With which they were trained.
        weight_decay: Likewise.
        race: What each candidate scored, and which one won.
        history: The measurements of each network's training by epoch.
    """

    models: list[FeatureGP]
    settings: AutoSettings
    weight_decay: float
    race: dict[str, Any]
    history: dict[str, list[dict[str, Any]]]


def train_networks(
    rows: DiskRows,
    validation: Table,
    setting: FitSetting,
    settings: AutoSettings,
    *,
    first: int,
    seed: int,
    progress: Callable[[str], None] | None = None,
    ranks: Ranks = ALONE,
) -> TrainedNetworks:
    """Race frequencies over a part of the steps, then weight decays over all of them; train all networks like that.

    Args:
        rows: On disk.
        validation: Rows that no network is trained on: they judge the race.
        setting: The memory plan's.
        settings: Those of the fit, already adapted to what the plan allows.
        first: Rows at places of the random order before this one are not trained on.
        seed: Determines everything.
        progress: Called with a word on each finished network.
        ranks: The processes that train them together.
    """
    place: dict[str, Any] = {"rows": rows, "setting": setting, "first": first, "ranks": ranks}

    def tell(word: str) -> None:
        if progress is not None:
            progress(word)

    race: dict[str, Any] = {}
    decay = settings.weight_decays[0]
    if settings.embedding:
        scales = [factor * settings.frequency_scale for factor in _FREQUENCY_FACTORS]
        errors = []
        for scale in scales:
            tried = replace(settings, frequency_scale=scale)
            model, _ = _train(**place, settings=tried, weight_decay=decay, seed=seed * 1000, fraction=_RACE_FRACTION)
            errors.append(_error(model, rows, validation, setting, first, ranks))
            tell(f"frequencies {scale:g}")
        settings = replace(settings, frequency_scale=scales[errors.index(min(errors))])
        race["frequency_scale"] = settings.frequency_scale
        race["frequencies"] = {"frequency_scales": scales, "validation_rmse": errors}
    decays = settings.weight_decays
    if len(rows) * _PASSES_TO_OVERFIT > settings.max_steps * settings.batch_size:
        decays = decays[:1]
    trained, errors = [], []
    for decay in decays:
        trained.append(_train(**place, settings=settings, weight_decay=decay, seed=seed * 1000))
        if len(decays) > 1:
            errors.append(_error(trained[-1][0], rows, validation, setting, first, ranks))
            tell(f"weight decay {decay:g}")
    best = errors.index(min(errors)) if errors else 0
    decay, trained = decays[best], [trained[best]]
    race |= {"weight_decays": list(decays), "validation_rmse": errors, "weight_decay": decay}
    for number in range(1, setting.members):
        tell(f"network {number} of {setting.members}")
        trained.append(_train(**place, settings=settings, weight_decay=decay, seed=seed * 1000 + number, number=number))
    tell(f"network {setting.members} of {setting.members}")
    history = {f"network {number + 1}": measured for number, (_, measured) in enumerate(trained)}
    return TrainedNetworks([model for model, _ in trained], settings, decay, race, history)


def refine_networks(
    trained: TrainedNetworks,
    rows: DiskRows,
    noise: InputNoise,
    setting: FitSetting,
    *,
    first: int,
    seed: int,
    progress: Callable[[str], None] | None = None,
    ranks: Ranks = ALONE,
) -> TrainedNetworks:
    r"""Train copies a little further with rows weighted by :math:`v(x)^{-p}`, as the automatic fit does in memory."""
    models, history = [], {}
    for number, (before, (name, measured)) in enumerate(zip(trained.models, trained.history.items(), strict=True)):
        model, more = _train(
            rows,
            setting,
            first,
            settings=trained.settings,
            weight_decay=trained.weight_decay,
            seed=seed * 1000 + 500 + number,
            number=number,
            start=before,
            noise=noise,
            ranks=ranks,
        )
        models.append(model)
        history[name] = measured + more
        if progress is not None:
            progress(f"network {number + 1} of {setting.members} refined")
    return replace(trained, models=models, history=history)


def _train(
    rows: DiskRows,
    setting: FitSetting,
    first: int,
    *,
    settings: AutoSettings,
    weight_decay: float,
    seed: int,
    number: int = 0,
    fraction: float = 1.0,
    start: FeatureGP | None = None,
    noise: InputNoise | None = None,
    ranks: Ranks = ALONE,
) -> tuple[FeatureGP, list[dict[str, Any]]]:
    """One network; beyond the steps that the settings allow, on a random part of the rows, another for each network."""
    rate = settings.learning_rate
    if start is None:
        feature_map = make_network(rows.data.input_dim, settings, seed=seed)
        model = FeatureGP(feature_map, noise_variance=0.1)
    else:
        model = FeatureGP(make_network(rows.data.input_dim, settings, seed=seed), noise_variance=start.noise_variance)
        model.feature_map.load_state_dict(start.feature_map.state_dict())
        rate *= settings.refine_rate
        fraction *= settings.refine_fraction
    available = len(rows) - first
    batch = min(settings.batch_size, available)
    steps_per_epoch = -(-available // batch)
    steps = math.ceil(fraction * min(count_epochs(steps_per_epoch, settings) * steps_per_epoch, settings.max_steps))
    count = min(available, steps * batch)
    data = RandomRows(
        rows.data,
        rows.order,
        start=first,
        count=count,
        offset=number * count,
        noise=noise,
        power=settings.refine_power,
    )
    arguments = setting.training_arguments()
    del arguments["batch_size"]
    run: TrainingRun = with_one_thread(
        train_network,
        model,
        data,
        settings,
        epochs=max(1, round(steps / -(-count // batch))),
        rate=rate,
        weight_decay=weight_decay,
        seed=seed,
        ranks=ranks,
        **arguments,
    )
    model.requires_grad_(False)
    for parameter in model.parameters():
        parameter.grad = None
    return_freed_memory()  # holes that many small blocks have left
    # Lagged sets the noise from rows that its weights have not seen: an honest measure of progress.
    history = [{"epoch": row["epoch"], "noise_variance": row["noise_variance"]} for row in run.history]
    return model, history


def _error(model: FeatureGP, rows: DiskRows, validation: Table, setting: FitSetting, first: int, ranks: Ranks) -> float:
    """The root mean squared error on validation rows, with the posterior of some training rows."""
    count = min(_RACE_ROWS, len(rows) - first)
    some = RandomRows(rows.data, rows.order, start=first, count=count)
    fitted = model.condition(some, optimize_noise=True, ranks=ranks)
    mean = fitted.predict(validation.inputs, chunk_size=setting.chunk_size).mean
    return math.sqrt(validation.mean((mean - torch.from_numpy(validation.targets)).square().numpy()))
