"""Permutation importance: how much worse the predictions get when one input is shuffled between rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from .contents import Importance, ImportanceTable

Array = npt.NDArray[np.float64]
_SCREENING_ROWS = 40_000  # predictions for a quick look at all inputs


def measure_importance(
    predict_mean: Callable[[Array], Array],
    inputs: Array,
    targets: Array,
    groups: Mapping[str, list[int]],
    *,
    max_rows: int = 1000,
    max_inputs: int = 30,
    repeats: int = 5,
    seed: int = 0,
) -> ImportanceTable:
    """Shuffle each input between held-out rows and see how the RMSE grows.

    Args:
        predict_mean: From ``(rows, columns)`` to the predicted mean ``(rows,)``.
        inputs: Held-out rows.
        targets: Their targets.
        groups: The columns that make up each input; they are shuffled together, as the columns of a one-hot encoded
            text column must be.
        max_rows: Rows used at most, drawn by the seed.
        max_inputs: Inputs measured at most. If there are more, one shuffle of a few rows decides which.
        repeats: Shuffles of each input.
        seed: Of the rows and the shuffles.

    Example:
        >>> inputs = np.random.default_rng(0).normal(size=(200, 2))
        >>> table = measure_importance(lambda rows: rows[:, 1], inputs, inputs[:, 1], {"a": [0], "b": [1]})
        >>> [entry.name for entry in table.entries], table.entries[1].increase
        (['b', 'a'], 0.0)
    """
    generator = np.random.default_rng(seed)
    kept = np.sort(generator.permutation(len(inputs))[:max_rows])
    rows, observed = inputs[kept], targets[kept]
    names = list(groups)
    if len(names) > max_inputs:
        few = slice(0, max(20, min(len(rows), _SCREENING_ROWS // len(names))))
        quick = [
            float(np.mean(_shuffled_squares(predict_mean, rows[few], observed[few], groups[name], generator)))
            for name in names
        ]
        names = [names[index] for index in np.argsort(quick, kind="stable")[::-1][:max_inputs]]
    squares = (predict_mean(rows) - observed) ** 2
    base = float(np.sqrt(np.mean(squares)))
    entries = []
    for name in names:
        shuffled = np.stack(
            [_shuffled_squares(predict_mean, rows, observed, groups[name], generator) for _ in range(repeats)]
        )
        increases = np.sqrt(shuffled.mean(axis=1)) - base
        # The derivative of a square root makes an error of the RMSE from that of the mean square.
        error = float(np.std(shuffled.mean(axis=0) - squares)) / (2.0 * max(base, 1e-300) * len(rows) ** 0.5)
        entries.append(Importance(name, float(increases.mean()), float(increases.std()), error))
    entries.sort(key=lambda entry: -entry.increase)
    return ImportanceTable(entries, len(rows), len(inputs), len(groups), repeats, base)


def _shuffled_squares(
    predict_mean: Callable[[Array], Array],
    rows: Array,
    targets: Array,
    columns: list[int],
    generator: np.random.Generator,
) -> Array:
    """The squared error of each row."""
    shuffled = rows.copy()
    shuffled[:, columns] = rows[generator.permutation(len(rows))][:, columns]
    squares: Array = (predict_mean(shuffled) - targets) ** 2
    return squares
