"""``fit_auto``: from rows to calibrated predictions without a choice to make."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..conformal import ConformalScores
from ..data import ArraySource, ScaledSource, Scaling, Source, as_source
from ..data.scaling import Standardizer, winsorized_standardizer
from ..distributed import ALONE, Ranks
from ..errors import DataError
from ..scaled import ScaledGP, row_hashes, student_component
from .kernel_extrapolation import excess_of_kernels
from .large_table import fit_large_table
from .processes import count_processes
from .settings import EFFORTS, AutoSettings
from .small_table import fit_small_table
from .table import Array, Table, merge_equal_rows

_FEWEST_ROWS = 2
# Sorting so many rows takes no time.
_MOST_TO_MERGE = 10_000


def fit_auto(
    inputs: Any,
    targets: Any,
    *,
    counts: Any = None,
    **options: Any,
) -> ScaledGP:
    """Fit exact GPs whose features, noise and calibration are found from the training rows alone.

    Args:
        inputs: ``(rows, columns)`` numbers.
        targets: ``(rows,)`` numbers.
        counts: ``(rows,)`` positive: how many equal rows each row stands for; None means one. Exact on small tables.
            On large ones networks are trained with counts relative to their mean, and noise and posterior are exact.
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
    return fit_source(ArraySource(inputs, targets, counts=counts), **options)


def fit_source(
    data: Any,
    *,
    effort: str = "medium",
    noise: str = "auto",
    center: bool = True,
    settings: Mapping[str, Any] | None = None,
    may_be_copies: bool = True,
    keep_rows: bool = True,
    seed: int = 0,
    threads: int | None = None,
    progress: Callable[[str], None] | None = None,
    ranks: Ranks = ALONE,
) -> ScaledGP:
    """Fit the rows of any source, in memory or on disk.

    Small tables: a stack of exact kernel GPs, from a line to a length scale per column, calibrated by hyperparameters
    that were refitted in folds (:mod:`.small_table`). Large tables: networks learn features from a sample of the rows;
    one exact GP on all their features takes in every row in one pass; rows set aside choose how much each kind of
    feature may say and how wide error bars are (:mod:`.large_table`). Both add a variance where a row lies outside of
    what was seen (:mod:`finitegp.extrapolation`).

    Args:
        data: ``(inputs, targets)``, or any :class:`~finitegp.data.Source` with one target.
        effort: ``"low"``, ``"medium"`` or ``"high"``; see :data:`~finitegp.automatic.EFFORTS`.
        noise: ``"constant"``, ``"input"`` (depends on the row where left-out rows gain by it) or ``"auto"``, the same.
        center: Whether the prior mean is the mean target, or zero.
        settings: Changes to the settings of the effort, by name; see :class:`~finitegp.automatic.AutoSettings`.
        may_be_copies: Whether rows that occur or count several times may be copies, which say no more than one row.
            They are taken as copies where their targets agree far more often than by chance.
        keep_rows: Whether the fit of a small table may hold its rows, on which its kernels stand. If not, it is one
            kernel on means of at least three neighbouring rows each, with a spread of errors that is the same
            everywhere: no row can be read from it, and row sums of other tables can be merged into it. Fits of large
            tables hold no rows in any case.
        seed: Determines everything.
        threads: Networks or kernels fitted at once, which does not change the result; None means one per core.
        progress: Called with a word on each finished part.
        ranks: The processes that share the exact pass.
    """
    if effort not in EFFORTS:
        raise ValueError(f"effort must be one of {list(EFFORTS)}, but is {effort!r}.")
    if noise not in ("auto", "constant", "input"):
        raise ValueError(f"noise must be 'auto', 'constant' or 'input', but is {noise!r}.")
    changes = {} if noise == "auto" else {"input_noise": noise == "input"}
    chosen = EFFORTS[effort].with_changes(changes | dict(settings or {}))
    source = as_source(data)
    started = time.perf_counter()
    total = source.num_data if source.num_data is not None else source.measure().num_data
    if total < _FEWEST_ROWS:
        raise DataError(f"At least {_FEWEST_ROWS} rows are needed, but there are {total}.")
    sample = draw_sample(source, total, max(chosen.max_sample, chosen.small_rows, _MOST_TO_MERGE), seed=seed)
    if float(np.ptp(sample.targets)) == 0.0:
        raise DataError(f"All targets are {sample.targets[0]}: there is nothing to learn.")
    if total <= _MOST_TO_MERGE:
        sample = Table(*merge_equal_rows(sample.inputs, sample.targets, sample.counts))
    record: dict[str, Any] = {"effort": effort, "seed": seed, "rows": total, "settings": chosen.to_dict()}
    options: dict[str, Any] = {
        "seed": seed,
        "threads": count_processes(4) if threads is None else threads,
        "progress": progress,
    }
    if len(sample) <= chosen.small_rows:
        record |= {"path": "kernel", "why": f"at most {chosen.small_rows} different rows"}
        options |= {"may_be_copies": may_be_copies, "keep_rows": keep_rows}
        fit = _fit_small(sample, chosen, record, center=center, **options)
    else:
        record |= {"path": "networks", "why": f"more than {chosen.small_rows} different rows"}
        fit = _fit_large(sample, source, chosen, record, center=center, ranks=ranks, **options)
    return replace(fit, record=fit.record | {"seconds": time.perf_counter() - started})


def draw_sample(source: Source, total: int, most: int, *, seed: int) -> Table:
    """At most so many rows, each as likely as any other, in float64; all of them where there are no more."""
    wanted = np.arange(total)
    if total > most:
        wanted = np.sort(np.random.default_rng(seed).choice(total, most, replace=False))
    if source.can_take:
        parts = [source.take(wanted)]
    else:
        parts, first = [], 0
        for rows in source:
            inside = wanted[(wanted >= first) & (wanted < first + len(rows.inputs))] - first
            parts += [rows.take(torch.from_numpy(inside))] if len(inside) else []
            first += len(rows.inputs)
    inputs = np.concatenate([part.inputs.double().numpy() for part in parts])
    targets = np.concatenate([part.observed.numpy() for part in parts])
    if targets.shape[1] != 1:
        raise DataError(f"targets must be one column, but are {targets.shape[1]}: fit one model per column.")
    counted = [part.counts for part in parts if part.counts is not None]
    return Table(inputs, targets[:, 0], torch.cat(counted).numpy() if counted else None)


def _fit_small(
    table: Table,
    settings: AutoSettings,
    record: dict[str, Any],
    *,
    center: bool,
    may_be_copies: bool,
    keep_rows: bool,
    seed: int,
    threads: int,
    progress: Callable[[str], None] | None,
) -> ScaledGP:
    inputs_scaler = without_constant_columns(Standardizer.fit(table.inputs, table.counts), table.inputs)
    target_scaler = fit_target_scaler(table.targets, table.counts, center=center)
    scaled = inputs_scaler.transform(table.inputs)
    targets = target_scaler.transform(table.targets)
    found = fit_small_table(
        scaled,
        targets,
        table.counts,
        may_be_copies=may_be_copies,
        input_noise=settings.input_noise,
        keep_rows=keep_rows,
        learning_rows=settings.learning_rows,
        seed=seed,
        threads=threads,
        progress=progress,
    )
    record |= found.notes | {"kernels": {component.name: component.weight for component in found.components}}
    unit = found.target_unit * target_scaler.scale
    doubted = np.flatnonzero(found.rows.noise_scales > 1.0)
    hashes = row_hashes(table.inputs[doubted], table.targets[doubted])
    return ScaledGP(
        found.components,
        inputs_scaler,
        Standardizer(target_scaler.mean + found.target_shift * target_scaler.scale, unit),
        spread=found.spread,
        conformal=ConformalScores.of(found.normal_scores, "out-of-fold rows") if len(found.normal_scores) else None,
        excess=excess_of_kernels(found.components, scaled, found.rows, keep_rows=keep_rows, seed=seed),
        record=record,
        keeps_rows=found.spread is not None or any(each.landmark_weights is not None for each in found.components),
        counts_copies_once="copies" in found.notes,
        outliers=dict(zip(hashes, found.rows.noise_scales[doubted].tolist(), strict=True)),
    )


def _fit_large(
    sample: Table,
    source: Source,
    settings: AutoSettings,
    record: dict[str, Any],
    *,
    center: bool,
    seed: int,
    threads: int,
    progress: Callable[[str], None] | None,
    ranks: Ranks,
) -> ScaledGP:
    inputs_scaler = without_constant_columns(winsorized_standardizer(sample.inputs, sample.counts), sample.inputs)
    target_scaler = fit_target_scaler(sample.targets, sample.counts, center=center)
    scaled = Table(inputs_scaler.transform(sample.inputs), target_scaler.transform(sample.targets), sample.counts)
    everything = ScaledSource(source, Scaling(inputs_scaler, target_scaler))
    found = fit_large_table(scaled, everything, settings, seed=seed, threads=threads, progress=progress, ranks=ranks)
    return ScaledGP(
        (student_component(found.fitted, found.degrees_of_freedom),),
        inputs_scaler,
        target_scaler,
        excess=found.excess,
        conformal=ConformalScores.of(found.scores, "rows set aside", in_deviations=True),
        record=record | found.record,
    )


def fit_target_scaler(targets: Array, counts: Array | None = None, *, center: bool = True) -> Standardizer:
    """Standardises targets, or divides them by their root mean square for a prior mean of zero."""
    if center:
        return Standardizer.fit(targets, counts)
    scale = np.sqrt(np.average(np.square(targets), weights=counts))
    return Standardizer(mean=np.zeros(()), scale=np.where(scale > 0.0, scale, 1.0))


def without_constant_columns(scaler: Standardizer, inputs: Array) -> Standardizer:
    """The scaler with infinite scales for columns that do not vary: what new rows have there counts for nothing.

    Nobody can know what such a column does.
    """
    spread, size = np.ptp(inputs, axis=0), np.abs(inputs).max(axis=0)
    return Standardizer(scaler.mean, np.where(spread <= 1e-9 * size, np.inf, scaler.scale))
