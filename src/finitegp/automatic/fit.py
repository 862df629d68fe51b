"""``fit_auto``: from rows to calibrated predictions without a choice to make."""

from __future__ import annotations

import math
import numbers
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from ..arguments import check_arguments
from ..data import ArraySource, Source, as_source
from ..data.scaling import check_magnitude
from ..data.sources import Data
from ..data.spool import spool_temporarily
from ..devices import as_device
from ..distributed import ALONE, Ranks
from ..errors import DataError
from ..formatting import parse_seconds
from ..memory import MemoryPlan, parse_bytes, return_freed_memory
from ..memory.plan import Described
from ..prediction_memory import PredictionSetting, plan_prediction
from ..processes import count_processes, one_thread
from ..scaled import ScaledGP
from ..stages import is_resumable
from .budget import BudgetedFit, count_columns
from .scaled_fit import JudgedFit, fit_networks, judge_kernels
from .seconds import Work, expected_seconds, within_seconds
from .settings import EFFORTS, AutoSettings
from .table import Table, draw_sample, merge_equal_rows

_FEWEST_ROWS = 2
# Up to this number of rows, sorting them takes no time.
_MOST_TO_MERGE = 10_000
# Rows of a table that may be small that are read at once.
_FEW_AT_ONCE = 1024


def fit_auto(
    inputs: ArrayLike,
    targets: ArrayLike,
    *,
    counts: ArrayLike | None = None,
    **options: Any,
) -> ScaledGP:
    """Fit exact GPs whose features, noise and calibration are found from the training rows alone.

    Args:
        inputs: ``(rows, columns)`` numbers.
        targets: ``(rows,)`` numbers.
        counts: ``(rows,)`` positive: how many equal rows each row stands for; None means one. Scalers and
            posteriors take them in full. Hyperparameters are learned with counts relative to their mean, those of
            kernels where equal targets are no chance: that a row agrees with itself is no evidence of little noise.
        options: Those of :func:`fit_source`.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> inputs = generator.normal(size=(60, 2))
        >>> targets = 100 + 10 * np.sin(inputs[:, 0]) + generator.normal(size=60)
        >>> fit = fit_auto(inputs, targets, effort="low")
        >>> prediction = fit.predict([[1.0, 0.0]])
        >>> fit.record["path"], abs(float(prediction.mean) - 108.4) < 3
        ('kernel', True)
    """
    # Counts that are given are meant as they are.
    options.setdefault("may_be_copies", counts is None)
    return fit_source(ArraySource(inputs, targets, counts=counts), **options)


@check_arguments
def fit_source(
    data: Data,
    *,
    effort: str = "medium",
    noise: str = "auto",
    center: bool = True,
    settings: Mapping[str, object] | None = None,
    may_be_copies: bool = True,
    keep_rows: bool = True,
    seed: int = 0,
    threads: int | None = None,
    memory_budget: str | int | None = None,
    kept_bytes: int = 0,
    time_budget: str | float | None = None,
    on_expected: Callable[[float], object] | None = None,
    progress: Callable[[str], None] | None = None,
    on_plan: Callable[[MemoryPlan[Described]], object] | None = None,
    ranks: Ranks = ALONE,
    device: str | torch.device = "cpu",
) -> ScaledGP:
    """Fit the rows of any source, in memory or on disk.

    Small tables: a stack of exact kernel GPs, from a line to a length scale per column, calibrated by hyperparameters
    that were refitted in folds (:mod:`.small_table`). Large tables: networks learn features from a sample of the rows;
    one exact GP on all their features takes in every row in one pass; rows set aside choose the weight of each kind
    of feature and how wide error bars are (:mod:`.large_table`). Both add a variance where a row lies outside of
    what was seen (:mod:`finitegp.extrapolation`).

    Args:
        data: ``(inputs, targets)``, or any :class:`~finitegp.data.Source` with one target.
        effort: ``"low"``, ``"medium"`` or ``"high"``; see :data:`~finitegp.automatic.EFFORTS`.
        noise: ``"constant"``, ``"input"`` (depends on the row where left-out rows gain by it) or ``"auto"``, the same.
        center: Whether the prior mean is the mean target, or zero.
        settings: Changes to the settings of the effort, by name; see :class:`~finitegp.automatic.AutoSettings`.
        may_be_copies: Whether rows that occur or count several times may be copies, which count as one row.
            They are taken as copies where their targets agree far more often than by chance.
        keep_rows: Whether the fit of a small table may hold its rows, on which its kernels stand. If not, it is one
            kernel on means of at least three neighbouring rows each, with a spread of errors that is the same
            everywhere: no row can be read from it, and row sums of other tables can be merged into it. Fits of large
            tables hold no rows in any case, but where rows repeat by themselves, targets of up to 100,000 rows by a
            hash of their inputs (:class:`~finitegp.lite.hashing.RepeatedRows`); without ``keep_rows`` not even these.
        seed: Determines everything.
        threads: Networks or kernels fitted at once, which does not change the result; None means one per core.
        memory_budget: Such as ``"64MB"``, above the interpreter with its libraries: fewer rows pass at once, features
            are learned from a smaller sample, and only where that is not enough, there are fewer features. A budget
            with room for everything changes nothing. Arrays that are given and rows on disk are not counted. Freed
            memory is given back to the system from then on (:func:`~finitegp.memory.return_freed_memory`).
        kept_bytes: With a memory budget, what the caller keeps in memory meanwhile at its expense.
        time_budget: Such as ``"60s"`` or ``"5min"``: steps, networks and the rows that these learn from become fewer
            until the fit is expected to end in time. Reading the rows is not counted.
        on_expected: Called with the seconds that the fit is expected to take, before it begins.
        progress: Called with a word on each finished part.
        on_plan: With a memory budget, called with the plan before anything is fitted; ``str(plan)`` is the bill.
        ranks: The processes that share the exact pass; each of them has the budget.
        device: Such as ``"cuda"`` or ``"mps"``: where networks are trained and, if it has float64, which MPS has not,
            where rows are summed exactly and priors are searched. Kernels of small tables are fitted on the CPU, where
            so few rows are fast, and every fit ends there. For one process without a memory budget.

    Raises:
        MemoryBudgetError: If nothing fits the budget; it has the smallest plan that would.
    """
    if effort not in EFFORTS:
        raise ValueError(f"effort must be one of {list(EFFORTS)}, but is {effort!r}.")
    if noise not in ("auto", "constant", "input"):
        raise ValueError(f"noise must be 'auto', 'constant' or 'input', but is {noise!r}.")
    changes = {} if noise == "auto" else {"input_noise": noise == "input"}
    chosen = EFFORTS[effort].with_changes(changes | dict(settings or {}))
    started = time.perf_counter()
    for name, number, least in (("threads", threads, 1), ("seed", seed, 0)):
        if number is not None and not (isinstance(number, numbers.Integral) and number >= least):
            raise ValueError(f"{name} must be a whole number of at least {least}, but is {number!r}.")
    if time_budget is not None:
        parse_seconds(time_budget)  # a mistake is found before anything is read
    place = check_device(device, memory_budget, ranks)
    budget = None if memory_budget is None else parse_bytes(memory_budget)
    if budget is not None:
        return_freed_memory()
        progress = _trimming(progress)
    if ranks.world_size > 1 and is_resumable():
        raise DataError("A fit of several processes cannot be resumed: fit in one process.")
    source = as_source(data)
    if not source.can_reread:  # in float64: the rows are not scaled yet
        source = spool_temporarily(source, input_dtype="float64", chunk_size=chosen.chunk_size)
    # Where rows are taken by number, this is what checks all of them before anything is trained.
    total = source.measure().num_data if source.can_take or source.num_data is None else source.num_data
    if total < _FEWEST_ROWS:
        raise DataError(f"At least {_FEWEST_ROWS} rows are needed, but there are {total}.")
    record: dict[str, Any] = {"effort": effort, "seed": seed, "rows": total}
    threads = count_processes(4) if threads is None else threads
    sample: Table | None = None
    kernels: JudgedFit | None = None
    if total <= max(_MOST_TO_MERGE, chosen.small_rows):
        sample = draw_sample(_in_chunks(source, _FEW_AT_ONCE), total, total, seed=seed)
        _check_targets(sample)
        if total <= _MOST_TO_MERGE:
            sample = Table(*merge_equal_rows(sample.inputs, sample.targets, sample.counts))
    rows = total if sample is None else len(sample)
    alone = ranks.world_size == 1
    if time_budget is not None or on_expected is not None:
        columns = count_columns(source)
        may: dict[str, bool] = {"may_fit_both": keep_rows and alone, "may_use_all_cores": alone}
        work = Work(rows, columns, chosen, threads, **may, device=place)
        if time_budget is not None:
            work = within_seconds(parse_seconds(time_budget), work)
            chosen = work.settings
        record["expected_seconds"] = expected_seconds(work)
        if on_expected is not None:
            on_expected(record["expected_seconds"])
    budgeted = BudgetedFit(source, total, chosen, threads, budget, kept_bytes, on_plan)
    if sample is not None:
        # What kernels and networks are worth differs by table where both can be had: left-out rows decide, before the
        # posteriors of kernels are made.
        both = keep_rows and chosen.small_rows < len(sample) <= chosen.most_rows_for_both and alone
        if len(sample) <= chosen.small_rows or (both and budgeted.has_room_for_both(len(sample))):
            small = budgeted.plan_small(len(sample), settle=not both)
            if small is not None:
                options: dict[str, Any] = {"seed": seed, "threads": small.threads, "progress": progress}
                options |= {"may_be_copies": may_be_copies, "keep_rows": keep_rows, "trees": small.trees}
                why = {"path": "kernel", "why": f"at most {chosen.small_rows} different rows"}
                # Threads of BLAS wait by spinning: beside another program a fit took three times as long.
                with one_thread():
                    kernels = judge_kernels(sample, chosen, record | why, center=center, **options)
                if not both:
                    return _closed(kernels.fit(), budgeted.plan, chosen, started, budget)
            else:
                record["why"] = "the memory budget has no room for kernels"
    with ranks.working():  # what is wrong on all ranks is reported by one
        large = budgeted.plan_large()
        source = _in_chunks(source, large.settings.chunk_size)
        if sample is not None:
            # Networks set the first rows aside: they have to be in random order.
            sample = sample.expanded(_MOST_TO_MERGE)
            sample = sample.take(np.random.default_rng(seed).permutation(len(sample))[: large.settings.max_sample])
        else:
            sample = draw_sample(source, total, large.settings.max_sample, seed=seed)
            _check_targets(sample)
    record = {"path": "networks", "why": f"more than {chosen.small_rows} different rows"} | record
    options = {"seed": seed, "threads": large.threads, "progress": progress, "ranks": ranks, "device": place}
    # Memory of other processes is not within the budget, and ranks have the other cores.
    options["may_use_all_cores"] = budget is None and alone
    options["repeats"] = may_be_copies and keep_rows and large.settings.repeated_rows
    fit = fit_networks(sample, source, large.settings, record, center=center, **options)
    if kernels is not None and kernels.left_out_nlpd is not None:  # which so many rows always have
        # Both in the units of the networks, whose wild targets count less.
        units = math.log(kernels.target_scale / float(fit.target_scaler.scale))
        found = {"kernel": kernels.left_out_nlpd + units, "networks": fit.record["validation_nlpd"]}
        fit = kernels.fit() if found["kernel"] < found["networks"] else fit
        fit = replace(fit, record=fit.record | {"why": "left-out rows have the larger density", "nlpd_of": found})
    return _closed(fit, budgeted.plan, large.settings, started, budget)


def check_device(device: str | torch.device, memory_budget: str | int | None, ranks: Ranks = ALONE) -> torch.device:
    """The device, if this machine has it and the automatic fit can use it with the rest."""
    found = as_device(device)
    if found.type != "cpu" and memory_budget is not None:
        raise ValueError(
            f"A memory budget is for fits on the CPU, but device is {str(found)!r}, whose memory it does not count: "
            "leave one of them out."
        )
    if found.type != "cpu" and ranks.world_size > 1:
        raise ValueError(f"Several ranks fit on the CPU, but device is {str(found)!r}: leave it at 'cpu'.")
    return found


@check_arguments
def fit_within_memory(data: Data, budget: str | int, **options: Any) -> ScaledGP:
    """:func:`fit_source` with a memory budget.

    Args:
        data: ``(inputs, targets)`` arrays, or any source: :class:`~finitegp.NpySource`, :class:`~finitegp.TableSource`.
        budget: Such as ``"64MB"``, above the interpreter with its libraries.
        options: Those of :func:`fit_source`.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> inputs = generator.normal(size=(3000, 2))
        >>> targets = 100 + 10 * np.sin(inputs[:, 0]) + generator.normal(size=3000)
        >>> quick = {"steps": 100, "max_steps": 100, "noise_steps": 20}
        >>> fit = fit_within_memory((inputs, targets), "16MB", effort="low", settings=quick)
        >>> fit.record["memory"]["planned"] < 16_000_000
        True
    """
    return fit_source(data, memory_budget=budget, **options)


def _closed(
    fit: ScaledGP, plan: MemoryPlan[Described] | None, settings: AutoSettings, started: float, budget: int | None
) -> ScaledGP:
    if budget is not None and fit.record["path"] == "kernel":
        fit = fit.with_chunks(plan_prediction(budget, PredictionSetting.of(fit)).setting.chunk_size)
    record = fit.record | {"settings": settings.to_dict()}
    if plan is not None:
        record["memory"] = plan.to_dict()
        return_freed_memory()  # holes that networks and rows have left
    return replace(fit, record=record | {"seconds": time.perf_counter() - started})


def _trimming(progress: Callable[[str], None] | None) -> Callable[[str], None]:
    """Reports each finished part, after the memory that it freed was given back."""

    def tell(part: str) -> None:
        return_freed_memory()
        if progress is not None:
            progress(part)

    return tell


def _in_chunks(source: Source, most: int) -> Source:
    size = source.chunk_size
    return source if size is not None and size <= most else source.with_chunks(most)


def _check_targets(sample: Table) -> None:
    check_magnitude(sample.targets.min(), sample.targets.max(), "The target")
    if float(np.ptp(sample.targets)) == 0.0:
        raise DataError(f"All targets are {sample.targets[0]}: there is nothing to learn.")
