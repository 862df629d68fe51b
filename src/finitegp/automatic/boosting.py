"""Gradient-boosted trees beside networks and kernels, by scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from ..trees import NEVER, BoostedTrees
from .table import Array, Table

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingRegressor


class TreeSize(NamedTuple):
    """How large each tree may grow, how small its leaves may be, and how much of each tree is added."""

    depth: int
    leaves: int
    rate: float = 0.1
    fewest_per_leaf: int = 5


SMALL_TREES, LARGE_TREES = TreeSize(6, 16), TreeSize(8, 64)
#: On logarithms of squared errors, most of which are chance.
NOISE_TREES = TreeSize(4, 8, rate=0.05, fewest_per_leaf=20)
_PENALTY = 5.0
# Small trees that are best nearly all of them leave something to larger ones; these take longer to predict with, and
# have to lower the mean squared error by so much.
_NEARLY_ALL, _CLEAR_GAIN = 0.9, 0.02


def fit_trees(
    training: Table, held_out: Table, trees: int, *, seed: int, one_thread: bool = False
) -> BoostedTrees | None:
    """Trees on squared error, as many of them as rows set aside are predicted best by.

    Rows of few kinds, such as years of the same person, want trees that can tell many of them apart: where nearly all
    small trees are of use, larger ones are tried too.

    Args:
        training: Standardised rows.
        held_out: Rows that decide how many trees are kept, and how large they are.
        trees: The most.
        seed: Which of many rows the bins of columns are made from.
        one_thread: Whether other threads have the other cores: the trees are the same.

    Returns:
        The trees; None if scikit-learn keeps its trees in a form that is not known here.
    """
    threads = 1 if one_thread else None
    found = _fit_size(training, held_out, trees, SMALL_TREES, seed, threads)
    if found.best > _NEARLY_ALL * trees:
        large = _fit_size(training, held_out, trees, LARGE_TREES, seed, threads)
        if large.loss < (1.0 - _CLEAR_GAIN) * found.loss:
            found = large
    return complete_trees(found.model, found.best, held_out.inputs, found.expected, found.size)


class _Grown(NamedTuple):
    """Trees of one size, how many of them are best, and what these predict for rows set aside."""

    model: HistGradientBoostingRegressor
    size: TreeSize
    best: int
    expected: Array
    loss: float


def _fit_size(training: Table, held_out: Table, trees: int, size: TreeSize, seed: int, threads: int | None) -> _Grown:
    with threadpool_limits(threads, user_api="openmp"):
        model = grow_trees(training, trees, seed, size)
    with threadpool_limits(1, user_api="openmp"):  # a tree at a time, threads wait for each other longer than they work
        stages = enumerate(model.staged_predict(held_out.inputs), 1)
        losses = ((held_out.mean((stage - held_out.targets) ** 2), best, stage) for best, stage in stages)
        loss, best, expected = min(losses, key=lambda each: each[0])
    return _Grown(model, size, best, expected, loss)


def predict_other_half(training: Table, like: BoostedTrees, *, seed: int, one_thread: bool = False) -> Array:
    """``(rows,)`` predictions of trees that were grown without the half of the rows in which a row is."""
    size = next(each for each in (SMALL_TREES, LARGE_TREES) if like.columns.shape[1] == 2**each.depth - 1)
    halves = np.random.default_rng(seed).permutation(len(training)) % 2
    found = np.empty(len(training))
    with threadpool_limits(1 if one_thread else None, user_api="openmp"):
        for half in (0, 1):
            out = halves == half
            model = grow_trees(training.take(np.flatnonzero(~out)), len(like.leaves), seed, size)
            found[out] = model.predict(training.inputs[out])
    return found


class CrossFittedTrees(NamedTuple):
    """What trees of the other folds predict, and what grows as many on all rows as predict other folds best.

    Attributes:
        out_of_fold: ``(rows,)``.
        grow: Trees of all rows.
    """

    out_of_fold: Array
    grow: Callable[[], BoostedTrees]


def cross_fit_trees(rows: Table, folds: npt.NDArray[np.intp], trees: int, *, seed: int) -> CrossFittedTrees | None:
    """Trees on squared error, as many of them as rows of other folds are predicted best by.

    By one thread: the tables are small, and threads, or folds side by side, wait for each other longer than they work.

    Args:
        rows: Standardised rows.
        folds: ``(rows,)`` the fold of each.
        trees: The most.
        seed: As in :func:`fit_trees`.

    Returns:
        None if scikit-learn keeps its trees in a form that is not known here.
    """
    stages = np.empty((trees, len(rows)))
    with threadpool_limits(1, user_api="openmp"):
        for fold in range(int(folds.max()) + 1):
            out = folds == fold
            model = grow_trees(rows.take(np.flatnonzero(~out)), trees, seed, SMALL_TREES)
            stages[:, out] = list(model.staged_predict(rows.inputs[out]))
    best = int(np.argmin(np.square(stages - rows.targets) @ rows.shares()))
    if complete_trees(model, best + 1, rows.inputs[out], stages[best, out], SMALL_TREES) is None:
        return None

    def grow() -> BoostedTrees:
        with threadpool_limits(1, user_api="openmp"):
            model = grow_trees(rows, best + 1, seed, SMALL_TREES)
            whole = complete_trees(model, best + 1, rows.inputs, model.predict(rows.inputs), SMALL_TREES)
        assert whole is not None, "trees of all rows are in the form of those of a fold"
        return whole

    return CrossFittedTrees(stages[best], grow)


def boosting_bytes(rows: int, columns: int, trees: int, size: TreeSize) -> int:
    """Bytes that scikit-learn takes while trees grow."""
    # As they are binned: a byte each, and a copy with columns side by side; gradients, predictions, orders of rows.
    binned = rows * (2 * columns + 48)
    # Of each node that waits: 255 bins of a column, three numbers each.
    histograms = (size.leaves + 2) * columns * 256 * 24
    return binned + histograms + 256 * size.leaves * trees


def tree_bytes(trees: int, size: TreeSize) -> int:
    """Of complete trees: columns, thresholds and leaves."""
    return 3 * 8 * (1 << size.depth) * trees


def grow_trees(rows: Table, trees: int, seed: int, size: TreeSize) -> HistGradientBoostingRegressor:
    """scikit-learn's own, of standardised rows."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(
        learning_rate=size.rate,
        max_iter=trees,
        max_leaf_nodes=size.leaves,
        max_depth=size.depth,
        min_samples_leaf=size.fewest_per_leaf,
        l2_regularization=_PENALTY,
        early_stopping=False,
        random_state=seed,
    )
    # Weights of one would give the same trees in three times the time.
    counts = None if rows.counts is None or bool((rows.counts == 1.0).all()) else rows.counts
    return model.fit(rows.inputs, rows.targets, counts)


def complete_trees(
    model: HistGradientBoostingRegressor, count: int, inputs: Array, expected: Array, size: TreeSize
) -> BoostedTrees | None:
    """The first trees of a model, each filled up to a complete one; None if they do not predict what is expected.

    scikit-learn has no public way to its trees.
    """
    nodes = 2**size.depth - 1
    columns = np.zeros((count, nodes), np.int64)
    thresholds, leaves = np.full((count, nodes), NEVER), np.zeros((count, nodes + 1))
    try:
        for tree, (predictor,) in enumerate(model._predictors[:count]):
            _fill(predictor.nodes, columns[tree], thresholds[tree], leaves[tree])
        leaves[0] += float(np.ravel(model._baseline_prediction)[0])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None
    found = BoostedTrees(columns, thresholds, leaves)
    return found if np.allclose(found.predict(inputs), expected, rtol=1e-6, atol=1e-9) else None


def _fill(stored: npt.NDArray[np.void], columns: npt.NDArray[np.int64], thresholds: Array, leaves: Array) -> None:
    nodes = len(columns)
    waiting = [(0, 0)]  # a place in the complete tree, and the stored node that stands there
    while waiting:
        place, number = waiting.pop()
        node = stored[number]
        if place >= nodes:
            leaves[place - nodes] = node["value"]
        elif node["is_leaf"]:  # to the left, where rows go, and on to a leaf
            waiting.append((2 * place + 1, number))
        else:
            columns[place], thresholds[place] = node["feature_idx"], node["num_threshold"]
            waiting += [(2 * place + 1, int(node["left"])), (2 * place + 2, int(node["right"]))]
