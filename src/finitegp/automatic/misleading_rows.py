"""Rows that are not what they seem: copies of one row, targets that no smooth function explains, and atoms.

An atom is one value that a large share of the targets has, such as zero, and that no density describes.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy.special import rel_entr

from ..kernel_gp import Array, KernelPosterior, KernelRows, fit_from_several_starts
from ..lite.hashing import SAME, Pairs, RepeatedRows, different_pairs, input_codes
from .boosting import SMALL_TREES, grow_trees
from .kernels import FORMS, LEARNING_ROWS
from .table import FEWEST_SINGLE_ROWS, Table

Groups = npt.NDArray[np.intp]

# Groups of equal rows that are needed to say anything, how many others of a group make a difference, and how likely
# targets agree by chance where they are said not to.
_FEWEST_REPEATED, _MOST_OTHERS, _BY_CHANCE = 10, 3, 1e-6
# The same of copies of rows: a few are told from chance also in the smallest tables.
_COPIES_BY_CHANCE = 1e-4
# Which share of equal pairs may be so by chance, and how many rows show how coarse columns are.
_SHARE_BY_CHANCE, _ROWS_FOR_CHANCE = 1e-3, 20_000
# Wild targets of large tables are so many robust units from the median, and so many times as far as the next nearer
# one; at most this share of the rows is wild. Trees that tell whether other columns explain them.
_WILD_UNITS, _WILD_GAP, _MOST_WILD, _WILD_TREES = 20.0, 3.0, 0.005, 100
# A value that this share of the targets has is an atom.
ATOM_SHARE = 0.05
# Among fewer rows none is told from the tail of the others.
_FEWEST_WITH_OUTLIER = 10
# Fewer rows with it do not outweigh the others.
_FEWEST_IN_ATOM = 10
# Rows that are enough to learn the noise of the others from.
_NOISE_ROWS = 300


def equal_rows(inputs: Array) -> Groups:
    """The number of the group of equal rows that each row belongs to."""
    return np.asarray(np.unique(inputs, axis=0, return_inverse=True)[1]).ravel()


def are_copies(rows: KernelRows, groups: Groups) -> bool:
    """Whether equal inputs are copies of rows rather than repeated measurements.

    Copies agree in their targets nearly always, and far more often than two targets agree by chance.
    """
    sizes = np.bincount(groups, rows.counts)
    repeated = sizes > 1.0
    if not repeated.any():
        return False
    targets = rows.targets
    centres = np.bincount(groups, targets * rows.counts) / sizes
    same = np.abs(targets - centres[groups]) <= 1e-9 * (np.abs(targets) + targets.std())
    agree = np.bincount(groups, ~same)[repeated] == 0
    chance = _chance_of_agreement(targets, groups)
    return bool(agree.mean() > 0.95 and int(repeated.sum()) * math.log(chance) < math.log(_COPIES_BY_CHANCE))


def _chance_of_agreement(targets: Array, groups: Groups) -> float:
    """How often two rows with different inputs have the same target, one more pair taken to have it."""
    pairs = agreeing = 1.0
    for sign, members in ((1.0, None), (-1.0, groups)):
        inside = np.zeros(len(targets), np.intp) if members is None else members
        sizes = np.bincount(inside)
        alike = np.unique(np.column_stack([inside, targets]), axis=0, return_counts=True)[1]
        pairs += sign * float((sizes * (sizes - 1.0)).sum()) / 2.0
        agreeing += sign * float((alike * (alike - 1.0)).sum()) / 2.0
    return agreeing / pairs


def gross_outliers(rows: KernelRows, seed: int) -> tuple[float, float, Array]:
    """Shift and unit of the targets, and factors on the noise of rows that no smooth function explains."""
    targets = rows.targets
    median = float(np.median(targets))
    distances = np.abs(targets - median)
    unit = 1.4826 * float(np.median(distances))
    nothing = 0.0, 1.0, rows.noise_scales
    far = int((distances > 8.0 * unit).sum())
    # One of twenty rows is no part of a tail yet.
    if unit <= 0.0 or far == 0 or (far >= 0.05 * len(targets) and (far > 1 or len(targets) < _FEWEST_WITH_OUTLIER)):
        return nothing
    standardized = (targets - median) / unit
    scales = np.where(np.abs(standardized) < 6.0, 1.0, np.maximum(1.0, np.square(standardized) / 16.0))
    form = FORMS["matern52"]
    learning = np.arange(len(targets))
    if len(learning) > LEARNING_ROWS:
        # All that stand out, and some of the others.
        order = np.argsort(-np.abs(standardized))
        rest = np.random.default_rng(seed).permutation(order[LEARNING_ROWS // 4 :])
        learning = np.sort(np.concatenate([order[: LEARNING_ROWS // 4], rest[: LEARNING_ROWS * 3 // 4]]))
    for _ in range(3):
        part = KernelRows(rows.inputs, standardized, scales, rows.counts)
        parameters = fit_from_several_starts(form, part.take(learning), (1.0, 0.3), steps=30, seed=seed)
        posterior = KernelPosterior(form, parameters, part)
        mean, variance = posterior.leave_one_out()
        # Of one trusted observation: a row with a count is the mean of that many.
        trusted = np.maximum(variance - posterior.scale * posterior.noise * (scales / rows.counts - 1.0), 1e-12)
        found = (4.0 + np.square(standardized - mean) / trusted) / 5.0
        scales = np.where(found > 5.0, found, 1.0)
    return (median, unit, scales) if bool((scales > 1.0).any()) else nothing


def limits_without_wild_targets(rows: Table, *, seed: int) -> tuple[float, float] | None:
    """The smallest and the largest target of the rows that are not wild, or None if no target is wild.

    Wild are a few targets far from all others, such as one mistyped, where boosted trees that did not see the row
    expect nothing of the kind. The tail of a distribution reaches far out, too, but without a gap.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> inputs = generator.normal(size=(500, 1))
        >>> targets = np.append(inputs[:-1, 0], 1e6)
        >>> limits = limits_without_wild_targets(Table(inputs, targets), seed=0)
        >>> limits == (targets.min(), np.sort(targets)[-2])
        True
    """
    targets = rows.targets
    median = float(np.median(targets))
    distances = np.abs(targets - median)
    unit = 1.4826 * float(np.median(distances))
    if unit <= 0.0 or distances.max() <= _WILD_UNITS * unit:
        return None
    # From the farthest that may be an ordinary one outward: the first gap.
    order = np.argsort(distances)
    first = len(order) - 1 - max(1, int(_MOST_WILD * len(order)))
    outer = distances[order[first:]]
    gaps = np.flatnonzero((outer[1:] > _WILD_GAP * outer[:-1]) & (outer[1:] > _WILD_UNITS * unit))
    if not len(gaps):
        return None
    farthest = outer[gaps[0]]
    inside = np.clip(targets, median - farthest, median + farthest)
    halves, expected = np.random.default_rng(seed).permutation(len(targets)) % 2, np.empty(len(targets))
    for half in (0, 1):
        others = rows.take(np.flatnonzero(halves != half))
        others = replace(others, targets=inside[halves != half])
        expected[halves == half] = grow_trees(others, _WILD_TREES, seed, SMALL_TREES).predict(
            rows.inputs[halves == half]
        )
    far = distances > farthest
    wild = far & ((expected - median) * np.sign(targets - median) < 0.5 * farthest)
    kept = targets[~wild]
    return (float(kept.min()), float(kept.max())) if wild.any() else None


def find_repeated_rows(inputs: Array, targets: Array, counts: Array | None) -> RepeatedRows | None:
    """The targets of rows, if rows repeat by themselves and mostly with the same target; otherwise None.

    Each row of a group of equal inputs is left out once: where the others agree, it counts whether it agrees with them.
    None also where values are so coarse that rows may be equal without being the same thing.

    Args:
        inputs: ``(rows, columns)`` in the user's units.
        targets: ``(rows,)``.
        counts: How many equal rows each row stands for.
    """
    weights = np.ones(len(targets)) if counts is None else counts
    tolerance = SAME * float(targets.std())
    if bool((weights != np.round(weights)).any()) or not tolerance > 0.0:
        return None
    codes, values = input_codes(inputs), np.round((targets - targets.min()) / tolerance)
    order = np.lexsort((values, codes))
    # Of each target in each group how many rows have it; then of each group how many rows, and how many targets.
    group = np.cumsum(np.diff(codes[order], prepend=-1.0) != 0.0) - 1
    starts = np.flatnonzero(np.append(True, (np.diff(group) != 0) | (np.diff(values[order]) != 0.0)))
    sizes, group = np.add.reduceat(weights[order], starts), group[starts]
    rows, different, alone = np.bincount(group, sizes), np.bincount(group), np.bincount(group, sizes == 1.0)
    total, repeated = rows.sum(), rows > 1.0
    if rows[~repeated].sum() < FEWEST_SINGLE_ROWS * total or repeated.sum() < _FEWEST_REPEATED:
        return None
    others = np.minimum(rows - 1.0, _MOST_OTHERS).astype(np.int64)
    agree = np.where(different == 1, rows, 0.0) * repeated
    trials = agree + np.where(different == 2, alone, 0.0)
    share = float(agree.sum() / max(trials.sum(), 1.0))
    chance = _chance_of_agreement(values, np.unique(codes, return_inverse=True)[1])
    if share - chance < 0.5 * (1.0 - chance):
        return None
    surprise = float(rel_entr(share, chance) + rel_entr(1.0 - share, 1.0 - chance))
    if repeated.sum() * surprise < -math.log(_BY_CHANCE):
        return None
    # On a grid different things have equal inputs, and what agrees there says nothing of the next one.
    different_rows = inputs[np.unique(codes, return_index=True)[1]]
    if pairs_by_chance(different_rows) > _SHARE_BY_CHANCE * float((rows * (rows - 1.0)).sum()):
        return None
    agreed, tried = (np.bincount(others, each, minlength=_MOST_OTHERS + 1)[1:] for each in (agree, trials))
    agreement = [0.5]
    for agreeing, all_of_them in zip(agreed, tried, strict=True):
        # As if two had been seen that agree as one fewer did: where there is no evidence, more others do no harm.
        agreement.append((agreeing + 2.0 * agreement[-1]) / (all_of_them + 2.0))
    kept = different_pairs(Pairs(codes, targets, weights), tolerance)
    # Nobody can be surer than by all that were tried.
    most = (trials.sum() + 1.0) / (trials.sum() + 2.0)
    return RepeatedRows(*kept, np.minimum(agreement[1:], most), tolerance)


def pairs_by_chance(inputs: Array) -> float:
    """How many ordered pairs of these rows were equal if the values of columns were drawn independently.

    Columns of two values, which may be those of one category, are drawn together.
    """
    some = inputs[:: -(-len(inputs) // _ROWS_FOR_CHANCE)]
    expected = len(inputs) * (len(inputs) - 1.0)
    switches = ((some == some.min(axis=0)) | (some == some.max(axis=0))).all(axis=0)
    for columns in (some[:, switches], *some[:, ~switches].T):
        sizes = np.unique(columns, axis=0, return_counts=True)[1]
        expected *= float((sizes * (sizes - 1.0)).sum()) / max(len(some) * (len(some) - 1.0), 1.0)
    return expected


def atom(targets: Array, counts: Array | None = None) -> tuple[float, float] | None:
    """A value that at least a twentieth of the targets have, and their share, if it is no step of a coarse scale.

    Example:
        >>> atom(np.array([0.0, 0.0, 0.0, 1.2, 3.4, 2.2, 7.1]))
        (0.0, 0.42857142857142855)
    """
    values, places = np.unique(targets, return_inverse=True)
    totals = np.bincount(places, counts)
    first = int(totals.argmax())
    others = np.delete(totals, first)
    typical = float(np.sort(others)[-max(1, len(others) // 20)]) if len(others) else 0.0
    share = float(totals[first] / totals.sum())
    return (float(values[first]), share) if share >= ATOM_SHARE and totals[first] > 2.0 * typical else None


def dithered(rows: KernelRows, seed: int) -> KernelRows:
    """The rows, those in an atom with random errors of the deviation that the noise of all others has.

    Where inputs tell the atom, its rows have no error at all. Their density grows without bound as the noise goes to
    zero: they outweigh all other rows, for which such a kernel is useless. With the errors of the others, all rows
    speak for the same noise.
    """
    found = atom(rows.targets, rows.counts)
    inside = np.zeros(len(rows.targets), dtype=bool) if found is None else rows.targets == found[0]
    if inside.sum() < _FEWEST_IN_ATOM or inside.all():
        return rows
    form, random = FORMS["matern52"], np.random.default_rng(seed)
    some = rows.take(random.permutation(np.flatnonzero(~inside))[:_NOISE_ROWS])
    parameters = fit_from_several_starts(form, some, (1.0, 0.3), steps=30, seed=seed)
    posterior = KernelPosterior(form, parameters, some)
    deviations = math.sqrt(posterior.scale * posterior.noise) / np.sqrt(rows.counts)
    errors = deviations * random.normal(size=len(inside))
    return replace(rows, targets=rows.targets + np.where(inside, errors, 0.0))
