"""``fit_within_memory``: from rows on disk to calibrated predictions, within a memory budget, without a choice."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..automatic import EFFORTS, AutoFit, AutoSettings, fit_auto
from ..automatic.calibration import LeftOutResiduals, calibrate_posterior
from ..automatic.network_fit import join_models
from ..automatic.residual_noise import ResidualNoise, fit_residual_noise, relative_variance
from ..automatic.table import Table
from ..data import Source, as_source
from ..distributed import ALONE, Ranks
from ..errors import DataError
from ..likelihood import optimal_noise
from ..memory import (
    FitSetting,
    KernelSetting,
    MemoryBudgetError,
    format_budget,
    format_bytes,
    parse_bytes,
    plan_fit,
    plan_kernel_fit,
    return_freed_memory,
)
from ..memory.fit_bill import NOISE_SHARE
from ..memory.fit_plan import FitPlan
from ..memory.kernel_plan import KernelPlan
from ..model import FeatureGP, FittedGP
from ..noise import ConstantNoise
from ..posterior import WeightPosterior
from ..statistics import FeatureStatistics, sum_statistics
from .disk_rows import NO_WEIGHTS, DiskRows
from .networks import TrainedNetworks, refine_networks, train_networks
from .settings import settings_for

#: How the record of a fit names this way to fit, whose rows are rounded to float32.
ON_DISK = "networks on disk"
_FEWEST_ROWS = 100


def fit_within_memory(
    data: Any,
    budget: str | int,
    *,
    effort: str = "medium",
    noise: str = "auto",
    center: bool = True,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    directory: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
    on_plan: Callable[[FitPlan | KernelPlan], object] | None = None,
    ranks: Ranks = ALONE,
) -> AutoFit:
    """Fit an exact GP to rows of any source, in memory that is planned beforehand and does not grow with the rows.

    The rows are standardised in one pass and written to disk in a second. At most 20,000 of them, picked at random, are
    held out. Networks are trained one after the other by uniform batches from disk; all their features together are
    those of one exact GP, whose row sums are taken in one pass over all rows; residuals of held-out rows say how noisy
    which rows are; a second pass takes the sums with that noise; held-out rows calibrate; the posterior is that of all
    rows, the held-out ones too. A network is trained for as many steps as the effort allows, however many rows there
    are; the passes read all of them. Tables of up to 1500 rows are fitted as :func:`~finitegp.automatic.fit_auto` does,
    where the budget has room for that.

    Freed memory is given back to the system from the first call on (:func:`~finitegp.memory.return_freed_memory`).

    Args:
        data: A source (:class:`~finitegp.tables.source.TableSource`, :class:`~finitegp.data.NpySource`, …), or
            ``(inputs, targets)`` arrays, whose own memory is not counted. Counts of rows are respected.
        budget: Such as ``"64MB"``, above the interpreter with its libraries.
        effort: ``"low"``, ``"medium"`` or ``"high"``; see :data:`~finitegp.automatic.EFFORTS`.
        noise: ``"constant"``, ``"input"``, or ``"auto"``, which here is ``"input"``.
        center: Whether the prior mean is the mean target, or zero.
        settings: Changes to the settings of the effort, by name; see :class:`~finitegp.automatic.AutoSettings`.
        seed: Determines everything.
        directory: Where the rows are kept on disk; by default in a temporary directory, until the fit is done.
        progress: Called with a word on each finished part.
        on_plan: Called with the plan before any row is read; ``str(plan)`` is the bill.
        ranks: The processes that fit together (:func:`~finitegp.distributed.join_ranks`): the first one writes the rows
            to disk, all of them train and share the passes, and all of them return the same. The budget is that of
            each process. A small table is fitted by each of them alone.

    Raises:
        MemoryBudgetError: If nothing fits; it has the smallest plan that would.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> inputs = generator.normal(size=(2000, 2))
        >>> targets = 100 + 10 * np.sin(inputs[:, 0]) + generator.normal(size=2000)
        >>> quick = {"epochs": 2, "min_steps": 50, "noise_epochs": 1, "noise_min_steps": 10}
        >>> fit = fit_within_memory((inputs, targets), "16MB", effort="low", settings=quick)
        >>> prediction = fit.predict([[1.0, 0.0]])
        >>> fit.record["path"], abs(float(prediction.mean) - 108.4) < 3
        ('networks on disk', True)
    """
    source = as_source(data)
    columns = source.input_dim
    if columns is None:
        columns = next(iter(source)).inputs.shape[1]
    rows_known = source.num_data
    chosen = chosen_settings(effort, noise, settings, num_columns=columns, num_data=rows_known)
    small = plan_small(budget, chosen, num_columns=columns, num_data=rows_known)
    if small is not None:
        if on_plan is not None:
            on_plan(small)
        return_freed_memory()
        return _fit_small(source, effort=effort, noise=noise, center=center, settings=settings, seed=seed, budget=small)
    plan = plan_for(budget, chosen, num_columns=columns, num_data=rows_known, source=source)
    if on_plan is not None:
        on_plan(plan)
    started = time.perf_counter()
    return_freed_memory()
    rows = DiskRows.prepare(
        source,
        ranks=ranks,
        chunk_size=plan.setting.chunk_size,
        seed=seed,
        center=center,
        directory=directory,
        progress=progress,
    )
    fit = fit_disk_rows(rows, plan, chosen, seed=seed, progress=progress, ranks=ranks)
    return_freed_memory()  # holes that networks and rows have left
    record = {"effort": effort, "seed": seed} | fit.record | {"seconds": time.perf_counter() - started}
    return replace(fit, record=record)


def chosen_settings(
    effort: str, noise: str, given: Mapping[str, Any] | None, *, num_columns: int, num_data: int | None
) -> AutoSettings:
    """The settings of an effort, adapted to the table, with what was given."""
    if effort not in EFFORTS:
        raise ValueError(f"effort must be one of {list(EFFORTS)}, but is {effort!r}.")
    if noise not in ("auto", "constant", "input"):
        raise ValueError(f"noise must be 'auto', 'constant' or 'input', but is {noise!r}.")
    changes = ({} if noise == "auto" else {"input_noise": noise == "input"}) | dict(given or {})
    return settings_for(EFFORTS[effort], num_columns=num_columns, num_data=num_data, given=changes)


def plan_for(
    budget: str | int,
    settings: AutoSettings,
    *,
    num_columns: int,
    num_data: int | None,
    source: Source | None = None,
    test_fraction: float = 0.0,
    columns_bytes: int = 0,
) -> FitPlan:
    """The memory plan of a fit with these settings."""
    return plan_fit(
        budget,
        num_columns,
        num_data=num_data,
        members=settings.members,
        hidden=settings.hidden,
        batch_size=settings.batch_size,
        block=settings.block,
        num_frequencies=settings.num_frequencies if settings.embedding else 0,
        embedding_width=settings.embedding_width,
        noise_networks=settings.noise_networks if settings.input_noise else 0,
        noise_hidden=settings.noise_hidden,
        refined=settings.refine_fraction > 0.0,
        test_fraction=test_fraction,
        reading_bytes=0 if source is None else source.reading_bytes,
        columns_bytes=columns_bytes,
    )


def plan_small(
    budget: str | int, settings: AutoSettings, *, num_columns: int, num_data: int | None
) -> KernelPlan | None:
    """The plan of a kernel for a small table, if it is one and the budget has room; otherwise None.

    Raises:
        MemoryBudgetError: If there is no room, and there are too few rows for networks.
    """
    if num_data is None or num_data > settings.small_rows:
        return None
    # The kernel, a linear trend with its constant, and an intercept.
    kernel = KernelSetting(num_data, num_columns, settings.fourier_features + num_columns + 2)
    plan = plan_kernel_fit(parse_bytes(budget), kernel)
    if not plan.fits and num_data < _FEWEST_ROWS:
        raise MemoryBudgetError(
            f"A budget of {format_budget(plan.budget)} is too small: so few rows are fitted by a kernel, which needs "
            f"{format_bytes(plan.limit)}.",
            "The nearest plan:",
            plan,
        )
    return plan if plan.fits else None


def _fit_small(source: Source, *, budget: KernelPlan, **options: Any) -> AutoFit:
    """A few rows, which are as well in memory."""
    parts = list(source)
    inputs = np.concatenate([part.inputs.numpy() for part in parts])
    targets = np.concatenate([part.observed.numpy() for part in parts])
    if any(part.weights is not None for part in parts):
        raise DataError(NO_WEIGHTS)
    counts = [part.counts.numpy() for part in parts if part.counts is not None]
    counted = np.concatenate(counts) if counts else None
    fit = fit_auto(inputs, targets, counts=counted, processes=1, **options)
    memory = {"budget": budget.budget, "planned": budget.total, "setting": budget.setting.describe()}
    return replace(fit, record=fit.record | {"memory": memory})


def fit_disk_rows(
    rows: DiskRows,
    plan: FitPlan,
    settings: AutoSettings,
    *,
    seed: int,
    progress: Callable[[str], None] | None = None,
    ranks: Ranks = ALONE,
) -> AutoFit:
    """The stages of :func:`fit_within_memory` after the rows are on disk.

    The rows at the first ``plan.setting.test_rows`` places of the random order are not used at all: ``rows.table(0,
    plan.setting.test_rows)`` are for scores.
    """
    return_freed_memory()  # what reading a table has left
    count = len(rows)
    if count < _FEWEST_ROWS:
        raise DataError(f"A fit within a memory budget needs at least {_FEWEST_ROWS} rows, but there are {count}.")
    setting = plan.setting
    tests = setting.test_rows
    held_out = min(setting.held_out_rows, (count - tests) // 10)
    middle = tests + max(1, int(NOISE_SHARE * held_out)) if settings.input_noise else tests
    for_noise, validation = rows.table(tests, middle), rows.table(middle, tests + held_out)
    settings = _as_planned(settings, setting)
    record: dict[str, Any] = {
        "path": ON_DISK,
        "why": f"a memory budget of {plan.budget} bytes",
        "rows": count - tests,
        "memory": {"budget": plan.budget, "planned": plan.total, "setting": setting.describe()},
        "settings": settings.to_dict(),
    }
    how: dict[str, Any] = {"first": tests + held_out, "seed": seed, "progress": progress, "ranks": ranks}
    networks = train_networks(rows, validation, setting, settings, **how)
    record["race"] = networks.race
    stages = _Stages(rows, setting, networks.settings, for_noise, validation, tests, seed, progress, ranks)
    best = stages.finish(networks)
    if networks.settings.refine_fraction > 0.0 and best.noise is not None and best.noise.depends_on_input:
        refined = refine_networks(networks, rows, best.noise.noise, setting, **how)
        other = stages.finish(refined)
        nlpd = [each.found.get("calibration_nlpd", 0.0) for each in (best, other)]
        record["refinement"] = {"calibration_nlpd": nlpd, "kept": nlpd[1] < nlpd[0]}
        best = other if nlpd[1] < nlpd[0] else best
        del other
    record |= best.found | {"history": best.networks.history}
    return AutoFit(best.close(setting.chunk_size), rows.inputs_scaler, rows.target_scaler, record)


class _Finished(NamedTuple):
    """All networks in one calibrated GP, with the sums of all rows but the test rows."""

    networks: TrainedNetworks
    model: FeatureGP
    statistics: FeatureStatistics
    noise: ResidualNoise | None
    found: dict[str, Any]

    def close(self, chunk_size: int) -> FittedGP:
        """The exact posterior."""
        exact = self.model.exact_copy().requires_grad_(False)
        # Calibration scaled the features by a common factor after their sums had been taken.
        factor = self.model.output_scale
        statistics = replace(
            self.statistics,
            gram=self.statistics.gram * factor,
            projected_targets=self.statistics.projected_targets * factor**0.5,
        )
        return FittedGP(exact, WeightPosterior(statistics, exact.noise_variance), chunk_size=chunk_size)


class _Stages(NamedTuple):
    """What follows the training of networks: sums, noise, sums with that noise, calibration."""

    rows: DiskRows
    setting: FitSetting
    settings: AutoSettings
    for_noise: Table
    validation: Table
    tests: int
    seed: int
    progress: Callable[[str], None] | None
    ranks: Ranks

    def finish(self, networks: TrainedNetworks) -> _Finished:
        """One pass for constant noise; another one if the noise depends on the input."""
        chunk = self.setting.chunk_size
        model = join_models(networks.models, ConstantNoise(0.1))
        everything, seen = self._sums(model)
        model.noise.set_variance(optimal_noise(seen).noise_variance)
        if not self.settings.input_noise:
            found = self._calibrate(model, seen, None)
            return _Finished(networks, model, everything, None, found)
        fitted = FittedGP(model.exact_copy(), WeightPosterior(seen, model.noise_variance), chunk_size=chunk)
        residuals = [fitted.predict(part.inputs).mean.numpy() - part.targets for part in self._held_out()]
        del fitted, everything, seen
        noise = fit_residual_noise(
            self.for_noise.inputs,
            residuals[0],
            self.validation.inputs,
            residuals[1],
            self.settings,
            seed=self.seed,
            chunk_size=chunk,
        )
        # Each rank has found the same; to the bit, so that all go on alike.
        self.ranks.copy_from_first(noise.noise.state_dict().values())
        return_freed_memory()  # holes that many small blocks have left
        self._tell("noise")
        model = join_models(networks.models, noise.noise)
        everything, seen = self._sums(model)
        model.noise.set_variance(optimal_noise(seen).noise_variance)
        scales = relative_variance(noise.noise, self.validation.inputs, chunk)
        evidence = LeftOutResiduals(
            squares=residuals[0] ** 2,
            log_variance=noise.log_variance,
            held_out_squares=residuals[1][None] ** 2,
            held_out_log_variance=np.log(scales * noise.noise.variance),
        )
        found = {"noise_epochs": noise.epochs, "noise_floor": noise.floor}
        found |= self._calibrate(model, seen, evidence)
        return _Finished(networks, model, everything, noise, found)

    def _held_out(self) -> Sequence[Table]:
        return [self.for_noise, self.validation] if len(self.for_noise) else [self.validation]

    def _sums(self, model: FeatureGP) -> tuple[FeatureStatistics, FeatureStatistics]:
        """Of all rows but the test rows, and without the held-out ones, too: sums subtract."""
        ranks = self.ranks
        held_out = sum_statistics(model.statistics(self.rows.source(part), ranks=ranks) for part in self._held_out())
        tests = None
        if self.tests:
            tests = model.statistics(self.rows.source(self.rows.table(0, self.tests)), ranks=ranks)
        everything = model.statistics(self.rows.data, ranks=ranks)
        if tests is not None:
            everything = everything.accumulate(tests * -1.0)
            del tests
        seen = everything - held_out
        return_freed_memory()  # holes that the networks in float64 have left
        self._tell("exact pass")
        return everything, seen

    def _calibrate(
        self, model: FeatureGP, seen: FeatureStatistics, evidence: LeftOutResiduals | None
    ) -> dict[str, Any]:
        if not self.settings.calibrate:
            return {}
        exact = model.exact_copy()
        inputs, chunk = self.validation.inputs, self.setting.chunk_size
        return calibrate_posterior(
            model,
            seen,
            self.validation,
            lambda posterior: FittedGP(exact, posterior, chunk_size=chunk).predict(inputs),
            evidence,
            heavy_tails=self.settings.heavy_tails,
        )

    def _tell(self, word: str) -> None:
        if self.progress is not None:
            self.progress(word)


def _as_planned(settings: AutoSettings, setting: FitSetting) -> AutoSettings:
    """What the plan has room for."""
    network = setting.network
    return replace(
        settings,
        hidden=network.hidden,
        batch_size=network.batch_size,
        embedding=network.num_frequencies > 0,
    )
