"""How long a fit takes: a few of its steps are timed on this machine, and the rest is counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from ..devices import CPU
from ..kernel_gp import Array, KernelForm, KernelGP, KernelRows
from ..processes import one_thread
from ..schedules import FlatAdamW
from ..stages import open_stages
from .ensemble import RACERS, fold_size, make_network, split_members, trains_long
from .kernels import FORMS
from .lagged_training import BLOCK, BatchedNetworks, LaggedHeads, count_steps
from .noise_networks import BATCH_SIZE, make_noise_network
from .noise_trees import COUNTS
from .settings import ENOUGH_JUDGES, AutoSettings

# Threads wait for each other between small operations; processes hardly, but they have to start.
_THREADS_LOSE, _PROCESSES_LOSE, _START = 1.5, 1.1, 3.0
# Evaluations of the evidence for each kernel: searches from several starts on fewer rows, and the way to the optimum.
_EVALUATIONS, _REFIT_EVALUATIONS = 90, 15
# Cubes of the number of rows, in multiplications: of a posterior with its features and sums, made where kernels
# win, and of a kernel that is judged without refits.
_CUBES_PER_KERNEL, _CUBES_PER_JUDGEMENT = 3.5, 0.9
_KERNELS_WIN = 0.5
# Of boosted trees: for each, and for each value that it looks at.
_SECONDS_PER_TREE, _SECONDS_PER_BIN = 8e-4, 3e-9
# In the noise, to all rows and without each third.
_FITS_OF_NOISE_TREES = 3.0
# Priors that calibration looks at.
_PLACES = 25
_TIMED_STEPS = 6
# What a time budget makes smaller: the share of all steps, then networks and rows to learn from.
_SHARES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12)
_SAMPLES = (40_000, 20_000, 10_000, 5_000)


@dataclass(frozen=True)
class Work:
    """Everything that the time of a fit depends on.

    Attributes:
        rows: Of the table; different ones, where kernels are fitted.
        columns: Inputs.
        settings: Of the fit.
        threads: How many.
        may_fit_both: Whether both kernels and networks may be fitted, where settings allow it.
        may_use_all_cores: Whether networks may be trained by other processes, and parts run side by side.
        device: Where networks are trained.
    """

    rows: int
    columns: int
    settings: AutoSettings
    threads: int
    may_fit_both: bool = True
    may_use_all_cores: bool = False
    device: torch.device = CPU

    @property
    def kernels(self) -> bool:
        """Whether kernels are fitted."""
        both = self.may_fit_both and self.rows <= self.settings.most_rows_for_both
        return not self.networks or both

    @property
    def networks(self) -> bool:
        """Whether networks are trained."""
        return self.rows > self.settings.small_rows


@one_thread()
def expected_seconds(work: Work) -> float:
    """Seconds of the whole fit; timing a few steps takes a fraction of one."""
    speed = _multiplications_per_second()
    seconds = 0.8
    if work.kernels:
        seconds += _of_kernels(work, speed)
    if work.networks:
        seconds += _of_networks(work, speed)
    return seconds


def within_seconds(budget: float, work: Work) -> Work:
    """The work nearest to what is wanted that is expected to end in time; the fastest if none does.

    Steps become fewer first, then networks, then the rows that these learn from. Every row is still taken in by the
    exact pass.
    """
    candidates = [replace(work, settings=settings) for settings in _shorter(work.settings)]

    def choose(_: list[int]) -> Iterator[Array]:
        in_time = (number for number, each in enumerate(candidates) if expected_seconds(each) <= budget)
        yield np.array(float(next(in_time, len(candidates) - 1)))

    setting = {"budget": budget, "rows": work.rows, "device": str(work.device)}
    # What a machine can do in time differs from minute to minute: a fit that is resumed keeps to what was chosen.
    stages = open_stages("time budget", setting | work.settings.to_dict())
    (chosen,) = stages.arrays(["choice"], choose, [()])
    return candidates[min(max(int(chosen), 0), len(candidates) - 1)]


def _shorter(settings: AutoSettings) -> Iterator[AutoSettings]:
    def with_share(share: float, **changes: object) -> AutoSettings:
        fewer = {name: max(20, int(share * getattr(settings, name))) for name in ("steps", "max_steps", "noise_steps")}
        return settings.with_changes(fewer | {"learning_rows": max(100, int(share * settings.learning_rows))} | changes)

    for share in _SHARES:
        yield with_share(share)
    few = {"members": 2, "noise_networks": 2, "weight_decays": settings.weight_decays[:1], "most_rows_for_both": 0}
    for share in _SHARES[3:]:
        yield with_share(share, **few)
    for sample in _SAMPLES:
        if sample < settings.max_sample:
            yield with_share(_SHARES[-1], **few, max_sample=sample, fourier_features=64)


def _of_kernels(work: Work, speed: float) -> float:
    learning, forms = min(work.rows, work.settings.learning_rows), len(FORMS)
    one = _timed_evidence(learning, work.columns)
    parallel = min(work.threads, 2) ** 0.8  # two kernels are never equally long
    judged = work.rows - learning >= ENOUGH_JUDGES
    refits = 0.0 if judged else (10 if work.rows <= 150 else 5) * forms * _REFIT_EVALUATIONS * one
    posteriors = 0.6 * forms * (_KERNELS_WIN if work.networks else 1.0)
    cubes = (forms - 1) * (_CUBES_PER_JUDGEMENT if judged else 2.0) + posteriors * _CUBES_PER_KERNEL
    trees = 6 * _of_trees(work.settings.trees_beside_kernels, work.rows, work.columns)
    seconds: float = ((forms - 1) * _EVALUATIONS * one + refits + cubes * work.rows**3 / speed) / parallel
    return seconds + trees  # which one thread grows


def _of_trees(trees: int, rows: int, columns: int) -> float:
    return trees * (_SECONDS_PER_TREE + _SECONDS_PER_BIN * rows * columns)


def _of_networks(work: Work, speed: float) -> float:
    settings, threads = work.settings, min(work.threads, 2) if work.device.type == "cpu" else 1
    sample = min(work.rows, settings.max_sample)
    aside = settings.count_validation(sample)
    training = sample - aside
    steps = count_steps(int(training - fold_size(training, settings.members)), settings)
    long = trains_long(training, settings)
    processes = work.may_use_all_cores and threads > 1 and long
    lose = 1.0 if threads == 1 else _PROCESSES_LOSE if processes else _THREADS_LOSE
    timed = {size: _timed_step(work.columns, settings, size, work.device) for size in (1, 2)}
    racing = len(settings.weight_decays) > 1
    groups = [RACERS] * len(settings.weight_decays) if racing else []
    single = range(RACERS if racing else 0, settings.members)
    others = [len(part) for part in split_members(single, apart=long)]
    networks = sum(_in_rounds([timed[size] for size in part], threads) for part in (groups, others)) * steps * lose
    noise_step = _timed_noise_step(work.columns, work.device)
    noise = _in_rounds([noise_step] * settings.noise_networks, threads) * settings.noise_steps
    # At the processor's speed, also where a device does these parts.
    features = settings.members * settings.hidden[-1] + settings.count_fourier(work.columns) + work.columns + 1
    row = timed[1] / settings.batch_size * settings.members + 0.7 * features**2 / speed
    side_by_side = work.may_use_all_cores and threads > 1
    calibration = _PLACES * (0.7 * features**3 + aside * features**2) / speed / (1.6 if side_by_side else 1.0)
    # Beside networks, trees take what these leave: half of a core at best. On some tables larger ones, which take two
    # to three times as long, are tried after the small ones; then two halves of the rows are predicted by the other.
    trees = 3.0 * (0.0 if side_by_side and not processes else 0.5 if side_by_side else 1.0)
    calibration += trees * _of_trees(settings.trees, training, work.columns)
    if settings.trees and settings.input_noise:
        left_out = int(settings.members * fold_size(training, settings.members))
        calibration += _FITS_OF_NOISE_TREES * _of_trees(COUNTS[-1], left_out, work.columns) / threads
    start = _START if processes else 0.0
    return start + networks + 1.3 * lose * noise + work.rows * row / (threads / 1.2) + calibration + 1.0


def _in_rounds(jobs: list[float], threads: int) -> float:
    """Jobs in their order, one per thread at once."""
    return sum(max(jobs[first : first + threads]) for first in range(0, len(jobs), threads))


def _timed(step: Callable[[], object], count: int) -> float:
    """The median of some repetitions, after one that fills caches."""
    step()
    found = []
    for _ in range(count):
        started = time.perf_counter()
        step()
        found.append(time.perf_counter() - started)
    return float(np.median(found))


def _multiplications_per_second() -> float:
    matrix = np.random.default_rng(0).normal(size=(256, 256))
    return 256**3 / _timed(lambda: matrix @ matrix, 5)


def _timed_evidence(rows: int, columns: int) -> float:
    random = np.random.default_rng(0)
    data = KernelRows.of(random.normal(size=(rows, columns)), random.normal(size=rows))
    form = KernelForm("matern32", length_scale_per_column=True)
    gp = KernelGP(form, data)
    return _timed(lambda: gp.loss(form.start(columns)), 3)


def _timed_step(columns: int, settings: AutoSettings, members: int, device: torch.device) -> float:
    """One step of training, a share of the refresh of weights included."""
    networks = [make_network(columns, settings, seed=member) for member in range(members)]
    batched = BatchedNetworks(networks, device=device)
    heads = LaggedHeads(members, settings.hidden[-1], [10_000] * members, device)
    inputs = torch.randn(members, settings.batch_size, columns, device=device)
    targets = torch.randn(members, settings.batch_size, device=device)
    optimizer = FlatAdamW(batched.parameters, learning_rate=settings.learning_rate, weight_decay=0.1)

    def step() -> None:
        for _ in range(BLOCK):
            features = batched.forward(inputs)
            batched.backward(heads.gradient(features, targets, None))
            optimizer.step()
            heads.take_up(features, targets, None)
        heads.refresh()  # reads numbers, and so waits for the device

    return _timed(step, max(2, _TIMED_STEPS // 2)) / BLOCK


def _timed_noise_step(columns: int, device: torch.device) -> float:
    batched = BatchedNetworks([make_noise_network(columns, 0)], outputs=True, device=device)
    inputs = torch.randn(1, BATCH_SIZE, columns, device=device)

    def step() -> None:
        outputs = batched.forward(inputs)
        batched.backward(outputs)
        outputs.sum().item()  # waits for the device

    return _timed(step, _TIMED_STEPS)
