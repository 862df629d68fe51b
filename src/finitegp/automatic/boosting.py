"""Gradient-boosted trees beside the networks, by scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..trees import NEVER, BoostedTrees
from .table import Array, Table

DEPTH, LEAVES = 6, 16
_RATE, _FEWEST_PER_LEAF, _PENALTY = 0.1, 5, 5.0


def fit_trees(training: Table, held_out: Table, trees: int, *, seed: int) -> BoostedTrees | None:
    """Trees on squared error, as many of them as rows set aside are predicted best by.

    Args:
        training: Standardised rows.
        held_out: Rows that decide how many trees are kept.
        trees: The most.
        seed: Which of many rows the bins of columns are made from.

    Returns:
        The trees; None if scikit-learn keeps its trees in a form that is not known here.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(
        learning_rate=_RATE,
        max_iter=trees,
        max_leaf_nodes=LEAVES,
        max_depth=DEPTH,
        min_samples_leaf=min(_FEWEST_PER_LEAF, max(1, len(training) // 20)),
        l2_regularization=_PENALTY,
        early_stopping=False,
        random_state=seed,
    )
    model.fit(training.inputs, training.targets, training.counts)
    stages = enumerate(model.staged_predict(held_out.inputs), 1)
    best, expected = min(stages, key=lambda stage: held_out.mean((stage[1] - held_out.targets) ** 2))
    try:
        found = _complete(model, best)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None
    return found if np.allclose(found.predict(held_out.inputs), expected, rtol=1e-6, atol=1e-9) else None


def _complete(model: Any, count: int) -> BoostedTrees:
    """The first trees of a model, each filled up to a complete one.

    scikit-learn has no public way to its trees; the caller compares predictions.
    """
    nodes = 2**DEPTH - 1
    columns = np.zeros((count, nodes), np.int64)
    thresholds, leaves = np.full((count, nodes), NEVER), np.zeros((count, nodes + 1))
    for tree, (predictor,) in enumerate(model._predictors[:count]):
        _fill(predictor.nodes, columns[tree], thresholds[tree], leaves[tree])
    leaves[0] += float(np.ravel(model._baseline_prediction)[0])
    return BoostedTrees(columns, thresholds, leaves)


def _fill(stored: Any, columns: npt.NDArray[np.int64], thresholds: Array, leaves: Array) -> None:
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
