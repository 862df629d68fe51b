"""Held-out rows: residuals by input, unexpected rows, calibration of error bars, importance of inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..formatting import shown
from .contents import Calibration, Importance, ImportanceTable, Outliers, ResidualPanel
from .evaluation import Predicted, thin

Array = npt.NDArray[np.float64]
_MOST_POINTS = 400
_MOST_CATEGORIES = 8
_MOST_OUTLIERS = 10
_MOST_ROWS = 1000  # that inputs are shuffled between
_SCREENING_ROWS = 40_000  # predictions for a quick look at all inputs
_NOMINAL = np.append(np.arange(1, 20) / 20.0, 0.99)


def residual_panel(
    name: str,
    columns: Array,
    column_names: Sequence[str],
    standardized: Array,
    *,
    seed: int = 0,
) -> ResidualPanel:
    """Standardized residuals against one input, with local means over all rows.

    Args:
        name: Of the input.
        columns: ``(rows, k)``: one column, those of a one-hot encoded text, or other columns that belong together,
            such as the parts of a date; of the last, the one with most different values is shown.
        column_names: Of the ``k`` columns.
        standardized: ``(rows,)`` residuals on the scale of a standard normal.
        seed: Of the rows that are drawn and of how far dots of a category are moved apart.
    """
    if columns.shape[1] > 1 and not is_one_hot(columns):
        chosen = int(np.argmax([len(np.unique(column)) for column in columns.T]))
        name, columns, column_names = column_names[chosen], columns[:, [chosen]], [column_names[chosen]]
    codes, categories = _categories(name, columns, column_names)
    drawn = thin(len(columns), _MOST_POINTS, seed=seed)
    if categories is None:
        values = columns[:, 0]
        # Equal values come in random order: in that of the table, a group of them would be neighbours there too.
        order = np.lexsort((np.random.default_rng(seed).permutation(len(values)), values))
        groups = np.array_split(order, max(1, min(12, round(len(values) ** 0.5 / 2))))
        centers = np.array([np.median(values[group]) for group in groups])
        shown_values = values[drawn]
    else:
        groups = [np.flatnonzero(codes == number) for number in range(len(categories))]
        centers = np.arange(len(categories), dtype=np.float64)
        shown_values = codes[drawn] + np.random.default_rng(seed).uniform(-0.28, 0.28, len(drawn))
    # A single row has no spread of its own: the error of a standardized residual is then one.
    errors = [np.std(standardized[g], ddof=1) / np.sqrt(len(g)) if len(g) > 1 else 1.0 for g in groups]
    return ResidualPanel(
        name=name,
        categories=categories,
        values=shown_values,
        residuals=standardized[drawn],
        centers=centers,
        local_mean=np.array([np.mean(standardized[group]) for group in groups]),
        local_error=np.array(errors),
        local_rows=np.array([len(group) for group in groups]),
        total=len(columns),
        deviations=NormalDist().inv_cdf(0.95),
    )


def is_one_hot(columns: Array) -> bool:
    """Whether each row has at most one 1 and otherwise zeros.

    Example:
        >>> is_one_hot(np.eye(3)), is_one_hot(np.array([[2024.0, 1.0]])), is_one_hot(np.ones((1, 2)))
        (True, False, False)
    """
    return bool(np.isin(columns, (0.0, 1.0)).all() and (columns.sum(axis=1) <= 1.0).all())


def label_in(column: str, group: str) -> str:
    """The value that a column of a group stands for.

    Example:
        >>> label_in("color=red", "color"), label_in("red", "color")
        ('red', 'red')
    """
    return column.removeprefix(group).lstrip("=_: ") or column


def _categories(
    name: str, columns: Array, column_names: Sequence[str]
) -> tuple[npt.NDArray[np.int64], list[str] | None]:
    """The number of each row's category and the categories' names; None for names if the input is a number."""
    if columns.shape[1] > 1:
        labels = [label_in(other, name) for other in column_names]
        codes = np.where(columns.max(axis=1) > 0.0, columns.argmax(axis=1), len(labels))
        labels.append("other")
    else:
        values, codes = np.unique(columns[:, 0], return_inverse=True)
        if len(values) > _MOST_CATEGORIES:
            return codes, None
        labels = [shown(float(value), 4) for value in values]
    # Only categories that occur; the rarest of many are shown as one.
    counts = np.bincount(codes, minlength=len(labels))
    kept = [int(code) for code in np.argsort(-counts, kind="stable")[:_MOST_CATEGORIES] if counts[code] > 0]
    kept.sort()
    renumbered = np.full(len(labels), len(kept))
    renumbered[kept] = np.arange(len(kept))
    result = renumbered[codes]
    names = [labels[code] for code in kept] + (["others"] if bool((result == len(kept)).any()) else [])
    return result, names


class ExpectedRows(NamedTuple):
    """Rows, what a model that has not seen them expects of each, and what to call each."""

    inputs: Array
    targets: Array
    predicted: Predicted
    numbers: npt.NDArray[np.int64]


def find_outliers(
    source: str,
    judged: ExpectedRows,
    value_columns: Sequence[tuple[str, list[int], list[str]]],
    *,
    rows_of: int,
    distribution: str = "a normal distribution",
) -> Outliers:
    """The rows farthest from what was expected of them, on the scale of a standard normal.

    Args:
        source: ``"leave-one-out"`` or ``"held-out"``.
        judged: The rows.
        value_columns: Inputs to show with each row: name, columns, and the names of these columns.
        rows_of: How many rows there are, if these are a sample.
        distribution: What the predictive distribution is called.
    """
    from scipy.special import ndtri

    inputs, targets, predicted, row_numbers = judged
    mean, std = predicted.mean, predicted.std
    standardized = predicted.normal_scores(targets)
    order = np.argsort(-np.abs(standardized), kind="stable")[:_MOST_OUTLIERS]
    ranked = np.sort(standardized)
    expected = ndtri((np.arange(len(ranked)) + 0.5) / len(ranked))
    # Both tails in full, the middle thinned evenly: nothing happens there.
    tail, rows = 60, len(ranked)
    middle = np.linspace(tail, rows - tail - 1, 140).astype(int) if rows > 2 * tail + 140 else np.arange(rows)
    kept = np.unique(np.concatenate([np.arange(min(tail, rows)), middle, np.arange(max(rows - tail, 0), rows)]))
    return Outliers(
        source=source,
        expected=expected[kept],
        standardized=ranked[kept],
        row_numbers=[int(number) for number in row_numbers[order]],
        targets=targets[order],
        mean=mean[order],
        std=std[order],
        values=[[_value(inputs, row, columns, labels) for _, columns, labels in value_columns] for row in order],
        value_names=[name for name, _, _ in value_columns],
        beyond_three=int((np.abs(standardized) > 3.0).sum()),
        expected_beyond_three=rows * 2.0 * NormalDist().cdf(-3.0),
        distribution=distribution,
        rows=rows,
        rows_of=rows_of,
    )


def _value(inputs: Array, row: int, columns: list[int], labels: list[str]) -> str:
    values = inputs[row, columns]
    if len(values) == 1:
        return shown(float(values[0]), 4)
    if is_one_hot(inputs[:, columns]):
        return labels[int(values.argmax())] if float(values.max()) > 0.0 else "other"
    return ", ".join(shown(float(value), 4) for value in values)


def measure_calibration(predicted: Predicted, targets: Array) -> Calibration:
    """Compare predictive distributions with what was observed.

    The bands show where a calibrated model would lie with 95 % probability, each point by itself: counts are binomial,
    and the sum of squared normal scores of a group is chi-squared. The observed spread of a group is its predicted
    spread times the root mean square of its normal scores, so that one row of a heavy tail does not drown the others.

    Example:
        >>> targets = np.random.default_rng(0).normal(size=1000)
        >>> found = measure_calibration(Predicted(np.zeros(1000), np.ones(1000)), targets)
        >>> int(found.bin_counts.sum()), bool(abs(found.observed[9] - 0.5) < 0.05)
        (1000, True)
    """
    from scipy.special import ndtr
    from scipy.stats import binom, chi2

    rows, std = len(targets), predicted.std
    scores = predicted.normal_scores(targets)
    transform = ndtr(scores)
    bins = 20 if rows >= 1000 else 10 if rows >= 100 else 5
    counts, edges = np.histogram(transform, bins=bins, range=(0.0, 1.0))
    central = np.abs(2.0 * transform - 1.0)  # the smallest central interval that holds the target
    groups = np.array_split(np.argsort(std, kind="stable"), min(10, max(1, rows // 7)))
    sizes = np.array([len(group) for group in groups])
    spread = np.array([np.sqrt(np.mean(std[group] ** 2)) for group in groups])
    observed = spread * np.array([np.sqrt(np.mean(scores[group] ** 2)) for group in groups])
    # Rows of a group have nearly the same spread.
    low, high = np.sqrt(chi2.ppf([[0.025], [0.975]], sizes) / sizes)
    return Calibration(
        bin_edges=edges,
        bin_counts=counts,
        bin_band=(float(binom.ppf(0.025, rows, 1 / bins)), float(binom.ppf(0.975, rows, 1 / bins))),
        nominal=_NOMINAL,
        observed=np.array([np.mean(central <= level) for level in _NOMINAL]),
        nominal_low=binom.ppf(0.025, rows, _NOMINAL) / rows,
        nominal_high=binom.ppf(0.975, rows, _NOMINAL) / rows,
        predicted_spread=spread,
        observed_spread=observed,
        spread_low=spread * low,
        spread_high=spread * high,
        spread_rows=sizes,
    )


def measure_importance(
    predict_mean: Callable[[Array], Array],
    inputs: Array,
    targets: Array,
    groups: Mapping[str, list[int]],
    *,
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
    kept = np.sort(generator.permutation(len(inputs))[:_MOST_ROWS])
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
        unit = base or float(increases.mean()) or 1.0
        error = float(np.std((shuffled.mean(axis=0) - squares) / unit)) / (2.0 * len(rows) ** 0.5)
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
