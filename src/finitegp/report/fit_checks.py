"""Checks of the table and of the model: columns, rows and targets that mislead; features, noise and matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ..data.naming import listed
from ..formatting import percent, shown
from .contents import Finding

Array = npt.NDArray[np.float64]
#: The columns of each input.
Groups = Mapping[str, list[int]]
#: The share of rows from which on one target value is very common.
COMMON = 0.15
_MOST_COLUMNS, _MOST_NAMED = 1000, 5
_CHUNK = 10_000


def check_few_rows(rows: int, columns: int, held_out_rows: int) -> Finding | None:
    """Too few rows to learn from, or too few to judge by.

    Example:
        >>> check_few_rows(30, 5, 10).severity, check_few_rows(1000, 5, 100)
        ('warning', None)
    """
    if rows < 50 or rows < 3 * columns:
        return Finding(
            "warning",
            "Few training rows",
            f"{shown(rows)} training rows for {shown(columns)} column{'s' if columns > 1 else ''}.",
            "Get more rows, or drop columns that cannot matter; read the error bars rather than the predictions.",
            "Get more rows, or --drop columns that cannot matter; read the error bars rather than the predictions.",
        )
    if held_out_rows < 50:
        return Finding(
            "note",
            "Few held-out rows",
            f"All scores come from {shown(held_out_rows)} held-out rows.",
            "Read the scores with their standard errors, or judge by leave-one-out, which uses all training rows.",
            "Read the scores as rough, or use --cv 10, which judges all rows.",
        )
    return None


def check_constant_columns(inputs: Array, groups: Groups) -> Finding | None:
    """Inputs with one value only."""
    same = np.ptp(inputs, axis=0) == 0.0
    constant = [name for name, columns in groups.items() if same[columns].all()]
    if not constant:
        return None
    return Finding(
        "note",
        "Constant columns" if len(constant) > 1 else "A constant column",
        f"The same value on every row: {listed(constant)}.",
        "Harmless, but useless: leave them out. If the column should vary, look at how the table was made.",
        "Harmless, but useless: --drop them. If the column should vary, look at how the table was made.",
    )


def check_duplicate_columns(inputs: Array, groups: Groups) -> Finding | None:
    """Inputs that are the same up to unit and origin: each column of one is a column of the other, and the reverse.

    Two inputs whose gaps are in the same rows are not meant, nor are the two columns of a yes-no text.

    Example:
        >>> values = np.random.default_rng(0).normal(size=(50, 2))
        >>> metres = np.column_stack([values, 100 * values[:, 0]])
        >>> check_duplicate_columns(metres, {"metres": [0], "age": [1], "centimetres": [2]}).evidence
        "The same up to unit and origin: 'metres' and 'centimetres'."
    """
    varying = np.flatnonzero(np.ptp(inputs, axis=0) > 0.0)[:_MOST_COLUMNS]
    if len(varying) < 2 or len(inputs) < 3:
        return None
    values = inputs[:, varying]
    unit = values - values.mean(axis=0)
    unit /= np.linalg.norm(unit, axis=0)
    same = np.abs(unit.T @ unit) > 1.0 - 1e-10
    place = {int(column): number for number, column in enumerate(varying)}
    members = {name: [place[each] for each in columns if each in place] for name, columns in groups.items()}
    sets: list[list[str]] = []
    for name, own in members.items():
        for known in sets:
            other = members[known[0]]
            between = same[np.ix_(own, other)]
            if between.any(axis=0).all() and between.any(axis=1).all() and not _one_hot_pair(values, own, other):
                known.append(name)
                break
        else:
            sets.extend([[name]] if own else [])
    doubled = [" and ".join(map(repr, each)) for each in sets if len(each) > 1]
    if not doubled:
        return None
    return Finding(
        "warning",
        "Duplicate columns",
        f"The same up to unit and origin: {'; '.join(doubled[:6])}"
        f"{f'; and {len(doubled) - 6} more' if len(doubled) > 6 else ''}.",
        "Keep one of each: duplicates share their importance, so that each looks less important than it is.",
        "Keep one of each and --drop the others: duplicates share their importance, so that each looks less important "
        "than it is.",
    )


def _one_hot_pair(values: Array, own: list[int], other: list[int]) -> bool:
    """Whether two columns are those of a text with two values."""
    one, two = values[:, own[0]], values[:, other[0]]
    alone = len(own) == len(other) == 1
    return alone and set(np.unique(one)) == {0.0, 1.0} and bool(np.all(one + two == 1.0))


def check_telling_columns(inputs: Array, targets: Array, names: Sequence[str]) -> Finding | None:
    """One column that alone nearly determines the target: known only afterwards, perhaps.

    Rows are sorted by the column, and each target is compared with the straight line between its two neighbours. If
    nearly all lie next to it, the column reveals the target, by whatever function. For targets that have nothing to do
    with the column, the mean squared distance is 1.5 times their variance.

    Example:
        >>> column = np.random.default_rng(0).normal(size=(500, 1))
        >>> check_telling_columns(column, column[:, 0] ** 2, ["paid"]).severity
        'warning'
    """
    # Beside its own copy a row says nothing about its column.
    rows = np.unique(np.column_stack([inputs, targets]), axis=0)
    inputs, targets = rows[:, :-1], rows[:, -1]
    if len(targets) < 30:
        return None
    # A table that is sorted by its target would make every column with ties look telling: ties come in random order.
    shuffled = np.random.default_rng(0).permutation(len(targets))
    values, observed = inputs[shuffled], targets[shuffled]
    telling = []
    for index in range(min(inputs.shape[1], _MOST_COLUMNS)):
        order = np.argsort(values[:, index], kind="stable")
        x, y = values[order, index], observed[order]
        gap = x[2:] - x[:-2]
        weight = np.where(gap > 0.0, (x[1:-1] - x[:-2]) / np.where(gap > 0.0, gap, 1.0), 0.5)
        squares = (y[1:-1] - (1.0 - weight) * y[:-2] - weight * y[2:]) ** 2
        # Rows at the ends of the column are far from their neighbours: one in fifty may be off. The variance is that of
        # the same rows, or one wild target would make it dwarf the distances of all others.
        kept = np.argsort(squares, kind="stable")[: int(0.98 * len(squares))]
        if float(np.mean(squares[kept])) < 1e-3 * 1.5 * float(np.var(y[1:-1][kept])):
            telling.append(names[index])
    if not telling:
        return None
    return Finding(
        "warning",
        "A column gives the target away" if len(telling) == 1 else "Columns give the target away",
        f"Alone determines the target nearly perfectly: {listed(telling)}.",
        "If it would not be known when predictions are made, or was computed from the target, leave it out and fit "
        "again.",
        "If it would not be known when predictions are made, or was computed from the target, --drop it and fit again.",
    )


def check_shared_rows(inputs: Array, targets: Array, held_out_inputs: Array, held_out_targets: Array) -> Finding | None:
    """Held-out rows that are also training rows: their scores are no test."""
    # Adding zero turns a negative zero into a positive one, whose bytes differ.
    ours = [row.tobytes() for row in np.column_stack([held_out_inputs, held_out_targets]) + 0.0]
    wanted, met = set(ours), set()
    for start in range(0, len(inputs), _CHUNK):  # training rows may be many: only those that match are kept
        part = slice(start, start + _CHUNK)
        met |= wanted & {row.tobytes() for row in np.column_stack([inputs[part], targets[part]]) + 0.0}
    shared = sum(row in met for row in ours)
    share = shared / len(held_out_targets)
    if share < 0.02:
        return None
    return Finding(
        "problem" if share >= 0.2 else "warning",
        "Held-out rows are also training rows",
        f"{shared} of {len(held_out_targets)} held-out rows ({percent(share)}) occur among the training rows with the "
        "same target.",
        "Remove repeated rows before splitting, or split by what they belong to (customer, day, experiment).",
        "Remove them from one of the tables, or hold out whole customers, days or experiments: --group COLUMN.",
    )


def check_repeated_targets(targets: Array) -> Finding | None:
    """A target with few or much repeated values, which no Gaussian describes.

    Example:
        >>> check_repeated_targets(np.repeat([0.0, 1.0], 100)).title
        'The target has few distinct values'
        >>> check_repeated_targets(np.random.default_rng(0).normal(size=200))
    """
    if len(targets) < 50:
        return None
    values, counts = np.unique(targets, return_counts=True)
    most = int(counts.argmax())
    if len(values) <= 10:
        return Finding(
            "warning",
            "The target has few distinct values",
            f"Only {len(values)} distinct values in {shown(len(targets))} rows.",
            "If they are classes, a classifier fits better; if they are counts or grades, read the intervals as rough.",
        )
    if counts[most] / len(targets) >= COMMON:
        return Finding(
            "warning",
            "One target value is very common",
            f"{percent(counts[most] / len(targets), 0)} of the rows have the target {shown(float(values[most]), 4)}.",
            "If it stands for missing, capped or zero, treat these rows apart: drop them, or first predict whether a "
            "row is one of them.",
        )
    return None


def check_wild_targets(targets: Array, label: Callable[[int], str]) -> Finding | None:
    """A few targets ten times as far from the middle as all others: mistyped, or totals of other rows.

    Args:
        targets: Of all rows.
        label: What to call a row; a row that occurs twice has one name.

    Example:
        >>> targets = np.append(np.random.default_rng(0).normal(10.0, size=200), 9500.0)
        >>> check_wild_targets(targets, "row {}".format).evidence
        'row 200 has 9,500; all other targets lie between 7.6 and 12.'
    """
    if len(targets) < 20:
        return None
    distances = np.abs(targets - np.median(targets))
    order = np.argsort(-distances, kind="stable")
    farthest = distances[order[: max(2, len(targets) // 100) + 1]]
    wild = int(np.flatnonzero((farthest[:-1] >= 10.0 * farthest[1:]) & (farthest[1:] > 0.0)).max(initial=-1)) + 1
    if wild == 0:
        return None
    found = {label(int(row)): f"{label(int(row))} has {shown(float(targets[row]), 4)}" for row in order[:wild]}
    few, others = list(found.values())[:_MOST_NAMED], targets[order[wild:]]
    more = f" and {len(found) - len(few)} more" if len(found) > len(few) else ""
    low, high = (shown(float(end)) for end in (others.min(), others.max()))
    return Finding(
        "warning",
        "A target is far from all others" if len(found) == 1 else "Some targets are far from all others",
        f"{', '.join(few)}{more}; all other targets lie between {low} and {high}.",
        "Correct the value or leave the row out, if it is mistyped, in another unit or a total of other rows: it can "
        "decide the scores, and widen the error bars of all rows.",
    )


def check_skewed_target(targets: Array) -> Finding | None:
    """A positive target with a long tail, which a logarithm would make nearly symmetric.

    Example:
        >>> check_skewed_target(np.exp(np.random.default_rng(0).normal(size=500))).severity
        'note'
    """
    if len(targets) < 50 or float(targets.min()) <= 0.0:
        return None
    plain, logarithm = _skewness(targets), _skewness(np.log(targets))
    if plain < 1.5 or abs(logarithm) > 0.5 * plain:
        return None
    return Finding(
        "note",
        "The target is skewed",
        f"All targets are positive and their skewness is {shown(plain, 2)}; that of their logarithm is "
        f"{shown(logarithm, 2)}.",
        "Predicting the logarithm, as TableRegressor(target_scale='log') does, may do better, and makes errors "
        "relative and intervals positive.",
        "Fit with --target-scale log, which makes errors relative and intervals positive, and compare the scores.",
    )


def _skewness(values: Array) -> float:
    deviation = values - values.mean()
    spread = float(deviation.std())
    return float(np.mean(deviation**3)) / spread**3 if spread > 0.0 else 0.0


def check_dead_features(dead: int, num_features: int) -> Finding | None:
    """Features that are zero on every row carry nothing: units of a network that have died.

    Weight decay on ReLU networks prunes units as a matter of course, so how many are left decides how bad it is.

    Example:
        >>> [check_dead_features(dead, 128).severity for dead in (126, 120, 64)], check_dead_features(3, 128)
        (['problem', 'warning', 'note'], None)
    """
    share, alive = dead / num_features, num_features - dead
    if share < 0.25:
        return None
    return Finding(
        "problem" if alive < 4 else "warning" if alive < 16 else "note",
        "Many features are dead",
        f"{dead} of {num_features} features ({percent(share, 0)}) are zero on every training row.",
        "Lower the learning rate or the weight decay, or use an activation that cannot die, as "
        "MLPFeatures(activation='gelu') has. If accuracy is good as it is, a narrower network will do as well and cost "
        "less.",
        "If accuracy is good as it is, nothing has to be done; otherwise try another --seed or --effort.",
    )


def check_collapsed_features(effective_dimension: float, num_features: int) -> Finding | None:
    """Many features that all mean the same: the kernel has collapsed onto a direction or two.

    Example:
        >>> check_collapsed_features(1.2, 128).severity, check_collapsed_features(60.0, 128)
        ('problem', None)
    """
    if num_features < 20 or effective_dimension >= 4.0:
        return None
    return Finding(
        "problem" if effective_dimension < 2.0 else "warning",
        "Features have collapsed",
        f"The {num_features} features act like {shown(effective_dimension, 2)}: the error bars can hardly tell known "
        "inputs from new ones.",
        "Lower the learning rate, train shorter, or use GPRegressor(feature_map='fourier'). Check whether the inputs "
        "carry information on the target at all: see the importance section.",
        "Check whether the inputs carry information on the target at all: see the importance section.",
    )


def check_noise_bound(
    relative_noise: float, floored_share: float = 0.0, r_squared: float | None = None
) -> Finding | None:
    """Noise that has run into its lower bound, or that has taken up the whole target.

    Args:
        relative_noise: Mean noise variance over the variance of the target.
        floored_share: The share of rows whose own noise is at the bound of its network.
        r_squared: What is explained of held-out rows: noise that depends on the row is no share of the variance.

    Example:
        >>> check_noise_bound(1e-9).severity, check_noise_bound(0.99).severity, check_noise_bound(0.1)
        ('problem', 'problem', None)
    """
    if relative_noise <= 1e-7:
        return Finding(
            "problem",
            "Noise is at its lower bound",
            f"The noise variance is {shown(relative_noise, 2)} of the target's variance: the model believes that "
            "targets have no noise at all.",
            "Look for a column that gives the target away, for repeated rows, or for targets made by a formula. If the "
            "target is truly free of noise, the error bars are only as good as the features.",
        )
    if relative_noise >= 0.97 and (r_squared is None or r_squared < 0.03):
        return Finding(
            "problem",
            "Noise explains everything",
            f"The noise variance is {percent(relative_noise, 0)} of the target's variance: nothing was learned from "
            "the inputs.",
            "Check that the right target was chosen and that rows of inputs and target belong together; add inputs "
            "that bear on the target; raise the effort.",
            "Check that the right --target was chosen and that rows of inputs and target belong together; add columns "
            "that bear on the target; use --effort high.",
        )
    if floored_share >= 0.05:
        return Finding(
            "warning",
            "Noise of some rows is at its lower bound",
            f"The predicted noise of {percent(floored_share)} of the held-out rows is as small as it may be.",
            "Look for repeated rows or few distinct targets there; use GPRegressor(noise='constant') if the error bars "
            "of such rows are too narrow.",
            "Look for repeated rows or few distinct targets there.",
        )
    return None


def check_conditioning(condition_number: float, jitter: float) -> Finding | None:
    """Matrices that floating point can no longer handle well.

    Example:
        >>> check_conditioning(1e15, 0.0).severity, check_conditioning(1e7, 0.0)
        ('problem', None)
    """
    if jitter == 0.0 and condition_number < 1e12:
        return None
    added = f", and {shown(jitter, 2)} had to be added to the diagonal to factorise it" if jitter > 0.0 else ""
    return Finding(
        "problem" if jitter > 0.0 or condition_number >= 1e14 else "warning",
        "Badly conditioned features",
        f"The condition number of the regularised Gram matrix is {condition_number:.1e}{added}; about "
        f"{_digits_left(condition_number)} of 16 digits are left.",
        "Scale inputs and target to order one, remove duplicate columns, use fewer features or a larger noise "
        "variance.",
        "Leave out duplicate columns with --drop.",
    )


def _digits_left(condition_number: float) -> int:
    return round(16.0 - math.log10(min(max(condition_number, 1.0), 1e16)))
