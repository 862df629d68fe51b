"""``fit_large_table``: networks on a sample of the rows, and one exact GP on their features that takes in every row."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from ..data import ArraySource, Source
from ..devices import CPU, exact_device
from ..distributed import ALONE, Ranks
from ..error_shape import Shape
from ..extrapolation import ExcessVariance, left_out_factors, total_effects
from ..model import FeatureGP, FittedGP
from ..noise import ConstantNoise, NoiseModel
from ..processes import beside, count_processes, in_parallel, in_turn, one_thread
from ..statistics import FeatureStatistics, RunningSums, Share, sum_statistics
from ..trees import BoostedTrees
from .boosting import fit_trees, predict_other_half
from .calibration import HeldOut, LeftOut, calibrate
from .ensemble import Ensemble, train_ensemble, trains_long
from .joined import make_joined_model, with_prior
from .noise_networks import fit_noise_networks, log_noise_scale
from .noise_trees import add_noise_trees, blended_errors
from .settings import EXACT_PASS_SHARES, AutoSettings
from .table import Array, Table


@dataclass(frozen=True, eq=False)
class LargeTableFit:
    """The result of :func:`fit_large_table`, in standardised units.

    Attributes:
        fitted: The exact posterior given every row.
        excess: Variance outside of what was seen, to be added to the epistemic variance.
        error_shape: Of predictive distributions.
        trees: Boosted trees that have a part in the mean, or None.
        scores: ``(rows,)`` absolute normal scores of rows that no model saw.
        record: What was chosen, and why, as JSON.
    """

    fitted: FittedGP
    excess: ExcessVariance
    error_shape: Shape
    trees: BoostedTrees | None
    scores: Array
    record: dict[str, object]


@one_thread()
def fit_large_table(
    sample: Table,
    everything: Source,
    settings: AutoSettings,
    *,
    seed: int = 0,
    threads: int | None = None,
    may_use_all_cores: bool = False,
    progress: Callable[[str], None] | None = None,
    ranks: Ranks = ALONE,
    device: torch.device = CPU,
) -> LargeTableFit:
    """Learn features from a sample of the rows, and condition an exact GP on every row.

    A tenth of the sample is set aside. Networks are trained on the rest, each without a fold of it; residuals of the
    folds show how noisy which rows are. All features together, with a Fourier kernel and a line beside them, are those
    of one exact GP, whose row sums are taken in one pass over everything. The rows set aside, whose sums are subtracted
    again, choose how far each kind of feature is shrunk, how large the noise is and which shape errors have.

    Args:
        sample: Standardised rows, drawn at random from everything (or all of it), in a random order: the first of them
            are set aside.
        everything: The source of all rows, standardised in the same way, the sample's among them.
        settings: See :class:`~finitegp.automatic.settings.AutoSettings`.
        seed: Determines everything.
        threads: How many, which does not change the result; None means one per core, two at most.
        may_use_all_cores: Whether networks whose training takes long may be trained by other processes, and parts
            that do not need each other run side by side: more memory, the same result.
        progress: Called with a word on each finished part.
        ranks: Processes that share the pass over everything; each of them trains the same networks.
        device: Where networks are trained, rows are summed and priors are searched, by one thread unless it is the
            CPU. What is found is on the CPU.
    """
    threads = min(2, count_processes(2)) if threads is None else threads
    threads = threads if device.type == "cpu" else 1
    stages = _Stages(progress)
    record: dict[str, object] = {"settings": settings.to_dict(), "rows": everything.num_data, "device": str(device)}
    whole = everything.num_data == len(sample)
    merged = sample.without_copies()
    if merged is not None:
        record["copies"] = f"{len(sample)} rows are repetitions of {len(merged)}, which were counted instead"
        sample = merged
        everything = merged.source() if whole else everything
    rng = np.random.default_rng(seed + 1)
    used = min(len(sample), settings.max_sample)
    count = settings.count_validation(used)
    validation, training = sample.between(0, count), sample.between(count, used)
    side_by_side = may_use_all_cores and threads > 1
    processes = side_by_side and trains_long(len(training), settings)

    def grow() -> tuple[BoostedTrees | None, Array | None]:
        if not settings.trees:
            return None, None
        trees = fit_trees(training, validation, settings.trees, seed=seed, one_thread=side_by_side)
        if trees is None or not settings.input_noise:
            return trees, None
        return trees, predict_other_half(training, trees, seed=seed, one_thread=side_by_side)

    def extrapolate() -> tuple[Array, Array, ExcessVariance]:
        effects = total_effects(lambda rows: ensemble.predict(rows).mean(axis=0), training.inputs, rng)
        factors = left_out_factors(training.inputs, training.targets, effects, seed=seed)
        excess = ExcessVariance.fit(training.inputs, effects, validation.inputs, factors=factors, seed=seed)
        return effects, factors, excess

    with beside(grow, allowed=side_by_side and settings.trees > 0) as grown:
        ensemble = train_ensemble(
            training,
            validation,
            settings,
            seed=seed,
            threads=threads,
            processes=processes,
            progress=progress,
            device=device,
        )
    for network in ensemble.networks:
        ranks.copy_from_first(network.state_dict().values())
    stages.finish("networks", tell=False)
    trees, unseen = grown()
    stages.finish("trees")
    with beside(extrapolate, allowed=side_by_side) as extrapolated:
        noise, evidence = _find_noise(
            ensemble, training, validation, unseen, settings, seed, threads, processes, ranks, record
        )
    stages.finish("noise")
    effects, factors, excess = extrapolated()
    stages.finish("effects")
    num_fourier = settings.count_fourier(training.inputs.shape[1])
    model, blocks = make_joined_model(ensemble.feature_maps(), effects, num_fourier, noise, seed=seed)
    model.to(exact_device(device))
    held_out, held_out_sums = _look_at(model, validation, excess, trees, settings.chunk_size)
    sums = _sum_rows(model, everything, threads, ranks)
    stages.finish("exact pass")
    others = sums - held_out_sums
    del held_out_sums
    calibration = calibrate(
        others,
        blocks,
        held_out,
        evidence,
        noise_variance=noise.variance,
        heavy_tails=settings.heavy_tails,
        skewed_errors=settings.skewed_errors,
        threads=threads if side_by_side else 1,
    )
    del others, held_out
    fitted = with_prior(model.cpu(), sums.to(CPU), blocks, calibration.prior, chunk_size=settings.chunk_size)
    stages.finish("calibration")
    left_out = training.take(ensemble.left_out)
    record |= calibration.record
    record["out_of_fold_rmse"] = left_out.mean((ensemble.out_of_fold - left_out.targets) ** 2) ** 0.5
    record["race"] = ensemble.race
    record["effects"] = effects.tolist()
    record["extrapolation_factors"] = factors.tolist()
    record["stages"] = stages.seconds
    excess = replace(excess, nearness=calibration.nearness)
    trees = replace(trees, weight=calibration.tree_weight) if trees is not None and calibration.tree_weight else None
    return LargeTableFit(fitted, excess, calibration.error_shape, trees, calibration.scores, record)


class _Stages:
    """Seconds of each stage."""

    def __init__(self, progress: Callable[[str], None] | None) -> None:
        self.seconds: dict[str, float] = {}
        self._progress = progress
        self._started = time.perf_counter()

    def finish(self, name: str, *, tell: bool = True) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self._started
        self._started = now
        if tell and self._progress is not None:
            self._progress(name)


def _find_noise(
    ensemble: Ensemble,
    training: Table,
    validation: Table,
    by_trees: Array | None,
    settings: AutoSettings,
    seed: int,
    threads: int,
    processes: bool,
    ranks: Ranks,
    record: dict[str, object],
) -> tuple[NoiseModel, LeftOut | None]:
    ranks.copy_from_first([torch.from_numpy(ensemble.out_of_fold)])
    left_out = training.take(ensemble.left_out)
    residuals = left_out.targets - ensemble.out_of_fold
    mean_square = max(left_out.mean(residuals**2), 1e-12)
    others = validation.targets - ensemble.predict(validation.inputs)
    if not settings.input_noise:
        log_variance = np.full(len(residuals), np.log(mean_square))
        held_out = np.full(len(validation), np.log(mean_square))
        return ConstantNoise(mean_square), LeftOut(residuals, log_variance, others, held_out, left_out)
    found = fit_noise_networks(
        left_out,
        residuals,
        ensemble.clip,
        settings,
        seed=seed,
        threads=threads,
        processes=processes,
        device=ensemble.device,
    )
    ranks.copy_from_first([*found.noise.state_dict().values(), torch.from_numpy(found.log_variance)])
    record |= {"noise_looks": found.looks, "noise_floor": found.floor}
    if by_trees is not None:
        towards = by_trees[ensemble.left_out] - ensemble.out_of_fold
        errors, part = blended_errors(residuals, towards, found.log_variance)
        found, chosen = add_noise_trees(
            found, left_out, errors, ensemble.clip, settings.chunk_size, seed=seed, one_thread=threads == 1
        )
        record["noise_trees"] = chosen | {"part": part}
    held_out = log_noise_scale(found.noise, validation.inputs, settings.chunk_size) + np.log(found.noise.variance)
    return found.noise, LeftOut(residuals, found.log_variance, others, held_out, left_out)


@torch.no_grad()
def _look_at(
    model: FeatureGP, rows: Table, excess: ExcessVariance, trees: BoostedTrees | None, chunk_size: int
) -> tuple[HeldOut, FeatureStatistics]:
    """Rows set aside as the model sees them, and their sums."""
    width = model.count_features(rows.inputs.shape[1])
    features = torch.empty(len(rows), width, dtype=torch.float64, device=model.device)
    scales = []
    for number, part in enumerate(ArraySource(rows.inputs, chunk_size=chunk_size)):
        place = slice(number * chunk_size, number * chunk_size + len(part.inputs))
        features[place], scale = model.checked_forward(part)
        scales += [] if scale is None else [scale]
    log_scale = torch.cat(scales) if scales else None
    counts = None if rows.counts is None else torch.from_numpy(rows.counts)
    sums = FeatureStatistics.from_batch(features, torch.from_numpy(rows.targets), log_scale, counts=counts)
    columns = excess.by_column(rows.inputs).sum(dim=1).numpy()
    beyond = excess.beyond_centres(rows.inputs).numpy()
    predicted = None if trees is None else trees.predict(rows.inputs)
    return HeldOut(rows, features, log_scale, columns, beyond, predicted, chunk_size), sums


@torch.no_grad()
def _sum_rows(model: FeatureGP, everything: Source, threads: int, ranks: Ranks) -> FeatureStatistics:
    """One pass over everything by several threads: rows in memory in shares, what is read in order chunk by chunk."""
    if ranks.world_size > 1:  # one thread reports progress to the ranks
        return model.statistics(ranks.shard(everything))
    exact = model.exact_copy()
    if everything.can_take:
        jobs = [(everything, Share(number, EXACT_PASS_SHARES)) for number in range(EXACT_PASS_SHARES)]
        shares = list(in_parallel(lambda source, share: exact.sum_rows(source, share=share), jobs, threads))
    else:
        shares = [RunningSums() for _ in range(EXACT_PASS_SHARES)]
        frozen = [exact.freeze() for _ in range(EXACT_PASS_SHARES)]
        in_turn(
            lambda rows, number: exact.add_rows(shares[number], rows, frozen[number]),
            everything,
            EXACT_PASS_SHARES,
            threads=threads > 1,
        )
    found = [sums for sums in shares if not sums.is_empty]
    shares.clear()
    return sum_statistics(found.pop(0).total() for _ in range(len(found)))
