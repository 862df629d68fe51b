"""``fit_auto``: from arrays to calibrated predictions without a choice to make."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ..conformal import ConformalScores
from ..data import ArraySource
from ..data.scaling import Standardizer
from ..errors import DataError
from ..scaled import ScaledGP, student_component
from .network_fit import fit_networks
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
    may_be_copies: bool = True,
    effort: str = "medium",
    noise: str = "auto",
    center: bool = True,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    processes: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> ScaledGP:
    """Fit an exact GP whose features, noise and calibration are found from the training rows alone.

    Large tables: several small networks are trained, each without one fold of the rows; all their features together
    are the features of one exact GP; the rows that each network has not seen tell how noisy which rows are; rows that
    nothing was trained on set the scale of the error bars; a closing pass takes in all rows. Small tables: Fourier
    features with a length scale per column, fitted full-batch.

    Args:
        inputs: ``(rows, columns)`` numbers.
        targets: ``(rows,)`` numbers.
        counts: ``(rows,)`` positive: how many equal rows each row stands for; None means one. Exact on small tables.
            On large ones networks are trained with counts relative to their mean, and noise and posterior are exact.
        may_be_copies: Whether rows that occur or count several times may be copies, which say no more than one row. They
            are taken as copies where their targets agree far more often than by chance.
        effort: ``"low"``, ``"medium"`` or ``"high"``; see :data:`~finitegp.automatic.EFFORTS`.
        noise: ``"constant"``; ``"input"``, which depends on the input: a network on large tables, log-linear in the
            columns on small ones; or ``"auto"``: whichever of both the rows speak for.
        center: Whether the prior mean is the mean target, or zero.
        settings: Changes to the settings of the effort, by name; see :class:`~finitegp.automatic.AutoSettings`.
        seed: Determines everything.
        processes: Networks trained at once, which does not change the result; None means one per core on tables that
            are worth it.
        progress: Called with a word on each finished part.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> inputs = generator.normal(size=(60, 2))
        >>> targets = 100 + 10 * np.sin(inputs[:, 0]) + generator.normal(size=60)
        >>> fit = fit_auto(inputs, targets, effort="low")
        >>> prediction = fit.predict([[1.0, 0.0]])
        >>> fit.record["path"], abs(float(prediction.mean) - 108.4) < 3
        ('kernel', True)
    """
    if effort not in EFFORTS:
        raise ValueError(f"effort must be one of {list(EFFORTS)}, but is {effort!r}.")
    if noise not in ("auto", "constant", "input"):
        raise ValueError(f"noise must be 'auto', 'constant' or 'input', but is {noise!r}.")
    changes = {} if noise == "auto" else {"input_noise": noise == "input"}
    chosen = EFFORTS[effort].with_changes(changes | dict(settings or {}))
    values, observed, counted = _check(inputs, targets, counts)
    started = time.perf_counter()
    total = len(values)
    if total <= _MOST_TO_MERGE:
        values, observed, counted = merge_equal_rows(values, observed, counted)
    record: dict[str, Any] = {"effort": effort, "seed": seed, "rows": total, "settings": chosen.to_dict()}
    scalers = fit_inputs_scaler(values, counted), fit_target_scaler(observed, counted, center=center)
    table = Table(scalers[0].transform(values), scalers[1].transform(observed), counted)
    if len(values) <= chosen.small_rows:
        record |= {"path": "kernel", "why": f"at most {chosen.small_rows} rows"}
        fit = _fit_small(table, scalers, chosen, record, may_be_copies=may_be_copies, seed=seed, progress=progress)
    else:
        record |= {"path": "networks", "why": f"more than {chosen.small_rows} rows"}
        fitted = fit_networks(table, chosen, record, seed=seed, processes=processes, progress=progress)
        scores = record.pop("conformal", None)
        fit = ScaledGP(
            (student_component(fitted, record.pop("degrees_of_freedom", None)),),
            *scalers,
            conformal=None if scores is None else ConformalScores.from_json(scores),
            record=record,
        )
    record["seconds"] = time.perf_counter() - started
    return fit


def _fit_small(
    table: Table,
    scalers: tuple[Standardizer, Standardizer],
    settings: AutoSettings,
    record: dict[str, Any],
    *,
    may_be_copies: bool,
    seed: int,
    progress: Callable[[str], None] | None,
) -> ScaledGP:
    found = fit_small_table(
        table.inputs,
        table.targets,
        table.counts,
        may_be_copies=may_be_copies,
        input_noise=settings.input_noise,
        seed=seed,
        threads=min(torch.get_num_threads(), 4),
        progress=progress,
    )
    inputs_scaler, target_scaler = scalers
    record |= found.notes | {"kernels": {component.name: component.weight for component in found.components}}
    return ScaledGP(
        found.components,
        inputs_scaler,
        Standardizer(
            target_scaler.mean + found.target_shift * target_scaler.scale, found.target_unit * target_scaler.scale
        ),
        spread=found.spread,
        conformal=ConformalScores.of(found.normal_scores, "out-of-fold rows") if len(found.normal_scores) else None,
        record=record,
    )


def fit_inputs_scaler(inputs: Array, counts: Array | None = None) -> Standardizer:
    """Standardises columns; one that does not vary is left out of account, whatever its value in new rows."""
    found = Standardizer.fit(inputs, counts)
    spread, size = np.ptp(inputs, axis=0), np.abs(inputs).max(axis=0)
    return Standardizer(found.mean, np.where(spread <= 1e-12 * size, np.inf, found.scale))


def fit_target_scaler(targets: Array, counts: Array | None = None, *, center: bool = True) -> Standardizer:
    """Standardises targets, or divides them by their root mean square for a prior mean of zero."""
    if center:
        return Standardizer.fit(targets, counts)
    scale = np.sqrt(np.average(np.square(targets), weights=counts))
    return Standardizer(mean=np.zeros(()), scale=np.where(scale > 0.0, scale, 1.0))


def _check(inputs: Any, targets: Any, counts: Any) -> tuple[Array, Array, Array | None]:
    """All rows as float64, every value checked by name, row and column."""
    source = ArraySource(inputs, targets, counts=counts)
    rows = source.rows(0, source.num_data)
    if rows.observed.shape[1] != 1:
        raise DataError(f"targets must be one column, but are {rows.observed.shape[1]}: fit one model per column.")
    if source.num_data < _FEWEST_ROWS:
        raise DataError(f"At least {_FEWEST_ROWS} rows are needed, but there are {source.num_data}.")
    values, observed = rows.inputs.double().numpy(), rows.observed[:, 0].numpy()
    if float(np.ptp(observed)) == 0.0:
        raise DataError(f"All targets are {observed[0]}: there is nothing to learn.")
    return values, observed, None if rows.counts is None else rows.counts.numpy()
