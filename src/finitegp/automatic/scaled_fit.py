"""Kernels and networks for a table in the user's units: columns and targets are scaled, the fit is put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..component import student_component
from ..conformal import ConformalScores
from ..data import ScaledSource, Scaling, Source
from ..data.scaling import (
    Standardizer,
    fit_target_scaler,
    winsorized_standardizer,
    without_constant_columns,
    without_wild_values,
)
from ..lite.hashing import row_hashes
from ..processes import one_thread
from ..scaled import ScaledGP
from .kernel_extrapolation import excess_of_kernels
from .large_table import fit_large_table
from .log_columns import choose_log_columns
from .misleading_rows import find_repeated_rows, limits_without_wild_targets
from .settings import AutoSettings
from .small_table import judge_small_table
from .table import Table


class JudgedFit(NamedTuple):
    """The negative log density of left-out rows in units of the targets, these units, and what makes the fit."""

    left_out_nlpd: float | None  # None where rows are too few for that
    target_scale: float
    fit: Callable[[], ScaledGP]


def judge_kernels(
    table: Table,
    settings: AutoSettings,
    record: dict[str, Any],
    *,
    center: bool,
    may_be_copies: bool,
    keep_rows: bool,
    trees: int,
    seed: int,
    threads: int,
    progress: Callable[[str], None] | None,
) -> JudgedFit:
    """A stack of kernels; see :func:`.judge_small_table`."""
    repeats = may_be_copies and keep_rows and settings.repeated_rows
    repeated = find_repeated_rows(table.inputs, table.targets, table.counts) if repeats else None
    logs = choose_log_columns(table.inputs, table.targets, seed=seed) if settings.log_columns else None
    wide = table.inputs if logs is None else logs.added_to(table.inputs)
    plain = without_wild_values(Standardizer.fit(wide, table.counts), wide, table.counts)
    inputs_scaler = replace(without_constant_columns(plain, wide), logarithms=logs)
    target_scaler = fit_target_scaler(table.targets, table.counts, center=center)
    scaled = inputs_scaler.transform(table.inputs)
    targets = target_scaler.transform(table.targets)
    judged = judge_small_table(
        scaled,
        targets,
        table.counts,
        may_be_copies=may_be_copies,
        input_noise=settings.input_noise,
        skewed_errors=settings.skewed_errors,
        keep_rows=keep_rows,
        learning_rows=settings.learning_rows,
        trees=trees,
        seed=seed,
        threads=threads,
        progress=progress,
    )

    @one_thread()
    def fit() -> ScaledGP:
        found = judged.fit()
        tree_weight = 0.0 if found.trees is None else found.trees.weight
        described = found.notes | {"left_out_nlpd": found.left_out_nlpd}
        described |= {"kernels": {component.name: component.weight for component in found.components}}
        described |= {"tree_weight": tree_weight, "repeated_rows": repeated and repeated.described()}
        described |= {"log_columns": [] if logs is None else logs.columns.tolist()}
        unit = found.target_unit * target_scaler.scale
        doubted = np.flatnonzero(found.rows.noise_scales > 1.0)
        hashes = row_hashes(table.inputs[doubted], table.targets[doubted])
        return ScaledGP(
            found.components,
            inputs_scaler,
            Standardizer(target_scaler.mean + found.target_shift * target_scaler.scale, unit),
            trees=found.trees,
            spread=found.spread,
            conformal=ConformalScores.of(found.normal_scores, "out-of-fold rows", counts=found.score_counts)
            if len(found.normal_scores)
            else None,
            excess=excess_of_kernels(
                found.components,
                scaled,
                found.rows,
                found.parameters,
                tree_weight=tree_weight,
                keep_rows=keep_rows,
                seed=seed,
            ),
            record=record | described,
            keeps_rows=found.spread is not None or any(each.landmark_weights is not None for each in found.components),
            counts_copies_once="copies" in found.notes,
            outliers=dict(zip(hashes, found.rows.noise_scales[doubted].tolist(), strict=True)),
            repeated=repeated,
        )

    return JudgedFit(judged.left_out_nlpd, float(target_scaler.scale), fit)


def fit_networks(
    sample: Table,
    source: Source,
    settings: AutoSettings,
    record: dict[str, Any],
    *,
    center: bool,
    repeats: bool,
    seed: int,
    **options: Any,
) -> ScaledGP:
    """Networks; the sample is overwritten. See :func:`.fit_large_table`."""
    repeated = find_repeated_rows(sample.inputs, sample.targets, sample.counts) if repeats else None
    inputs_scaler = without_constant_columns(winsorized_standardizer(sample.inputs, sample.counts), sample.inputs)
    limits = limits_without_wild_targets(sample, seed=seed)
    if limits is not None:
        record["wild_targets"] = int(((sample.targets < limits[0]) | (sample.targets > limits[1])).sum())
        np.clip(sample.targets, *limits, out=sample.targets)
    target_scaler = fit_target_scaler(sample.targets, sample.counts, center=center, limits=limits)
    # In place: there may be no room for a second table. Nobody else has the sample.
    for values, scaler in ((sample.inputs, inputs_scaler), (sample.targets, target_scaler)):
        np.subtract(values, scaler.mean, out=values)
        np.divide(values, scaler.scale, out=values)
    everything = ScaledSource(source, Scaling(inputs_scaler, target_scaler))
    found = fit_large_table(sample, everything, settings, seed=seed, **options)
    return ScaledGP(
        (student_component(found.fitted, found.error_shape),),
        inputs_scaler,
        target_scaler,
        trees=found.trees,
        excess=found.excess,
        conformal=ConformalScores.of(found.scores, "rows set aside"),
        record=record | found.record | {"repeated_rows": repeated and repeated.described()},
        repeated=repeated,
    )
