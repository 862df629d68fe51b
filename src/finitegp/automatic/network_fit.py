"""Large tables: networks on folds, noise from rows they did not see, all features in one exact GP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..features import ConcatenatedFeatures, ConstantFeatures
from ..model import FeatureGP, FittedGP
from ..noise import ConstantNoise, NoiseModel
from .calibration import LeftOutResiduals, calibrate
from .members import Members, join_features, refine_members, train_members
from .processes import count_processes
from .residual_noise import ResidualNoise, fit_residual_noise, relative_variance
from .settings import AutoSettings
from .table import Table

# Starting a process takes seconds.
_FEWEST_ROWS_FOR_PROCESSES = 5000


class _Joined(NamedTuple):
    """All networks in one GP, with what was found on the way."""

    members: Members
    model: FeatureGP
    found: dict[str, Any]


def fit_networks(
    table: Table,
    settings: AutoSettings,
    record: dict[str, Any],
    *,
    seed: int,
    processes: int | None,
    progress: Callable[[str], None] | None,
) -> FittedGP:
    """The exact posterior of all rows on features of networks; what was chosen is entered in ``record``."""
    merged = table.without_copies()
    if merged is not None:
        record["copies"] = f"{len(table)} rows are repetitions of {len(merged)}, which were counted instead"
        table = merged
    order = np.random.default_rng(seed + 1).permutation(len(table))
    count = min(int(settings.validation_fraction * len(table)), settings.max_validation_rows)
    validation, training = table.take(order[:count]), table.take(order[count:])
    if processes is None:
        processes = 1 if len(table) < _FEWEST_ROWS_FOR_PROCESSES else count_processes(settings.members)
    members = train_members(training, validation, settings, seed=seed, processes=processes, progress=progress)
    record["race"] = members.race
    if settings.input_noise:
        noise = _find_noise(members, training, validation, settings, seed, processes, progress)
        joined = _with_input_noise(members, noise, training, validation, settings)
        if settings.refine_fraction > 0.0 and noise.depends_on_input:
            scales = relative_variance(noise.noise, training.inputs)
            refined = refine_members(
                members, training, scales, settings, seed=seed, processes=processes, progress=progress
            )
            noise = _find_noise(refined, training, validation, settings, seed, processes, progress)
            other = _with_input_noise(refined, noise, training, validation, settings)
            nlpd = [kind.found.get("calibration_nlpd", 0.0) for kind in (joined, other)]
            better = not settings.calibrate or nlpd[1] < nlpd[0]
            record["refinement"] = {"calibration_nlpd": nlpd, "kept": better}
            joined = other if better else joined
    else:
        joined = _with_constant_noise(members, training, validation, settings)
    record |= joined.found | {"history": joined.members.history}
    if len(joined.members.left_out):
        left_out = training.take(joined.members.left_out)
        record["out_of_fold_rmse"] = left_out.mean((joined.members.out_of_fold - left_out.targets) ** 2) ** 0.5
    return joined.model.condition(table.source())


def _find_noise(
    members: Members,
    training: Table,
    validation: Table,
    settings: AutoSettings,
    seed: int,
    processes: int,
    progress: Callable[[str], None] | None,
) -> ResidualNoise:
    left_out = training.take(members.left_out)
    found = fit_residual_noise(
        left_out.inputs,
        members.out_of_fold - left_out.targets,
        validation.inputs,
        members.predict(validation.inputs).mean(axis=0) - validation.targets,
        settings,
        seed=seed,
        processes=processes,
    )
    if progress is not None:
        progress("noise")
    return found


def _with_constant_noise(members: Members, training: Table, validation: Table, settings: AutoSettings) -> _Joined:
    model = _join(members, ConstantNoise(0.1))
    if settings.calibrate:
        return _Joined(members, model, calibrate(model, training, validation, heavy_tails=settings.heavy_tails))
    model.optimize_noise(training.source())
    return _Joined(members, model, {})


def _with_input_noise(
    members: Members, noise: ResidualNoise, training: Table, validation: Table, settings: AutoSettings
) -> _Joined:
    model = _join(members, noise.noise)
    words = {"noise_epochs": noise.epochs, "noise_floor": noise.floor}
    if not settings.calibrate:
        model.optimize_noise(training.source())
        return _Joined(members, model, words)
    left_out = training.take(members.left_out)
    evidence = LeftOutResiduals(
        squares=(members.out_of_fold - left_out.targets) ** 2,
        log_variance=noise.log_variance,
        held_out_squares=(members.predict(validation.inputs) - validation.targets) ** 2,
        held_out_log_variance=np.log(relative_variance(noise.noise, validation.inputs) * noise.noise.variance),
    )
    found = calibrate(model, training, validation, evidence, heavy_tails=settings.heavy_tails)
    return _Joined(members, model, words | found)


def join_models(models: Sequence[FeatureGP], noise: NoiseModel) -> FeatureGP:
    """One GP on the features of all networks and a constant."""
    return FeatureGP(ConcatenatedFeatures(*join_features(models), ConstantFeatures()), noise_model=noise)


def _join(members: Members, noise: NoiseModel) -> FeatureGP:
    return join_models([member.model for member in members.fitted], noise)
