"""Places that stand for rows without being rows: means of neighbours (microaggregation)."""

from __future__ import annotations

import numpy as np

from .table import Array


def neighbour_means(inputs: Array, length_scales: Array, size: int = 3) -> Array:
    """``(groups, columns)`` means of at least ``size`` different rows that lie close together.

    The row farthest out that is in no group yet takes its nearest neighbours that are in none; what is left over in the
    end joins the nearest groups. On a grid a mean may lie where a row lies, about which it then reveals nothing.

    Args:
        inputs: ``(rows, columns)``.
        length_scales: ``(columns,)``: the units of distances.
        size: Of a group. A table of fewer different rows is one group.

    Example:
        >>> rows = np.array([[0.0], [0.1], [0.5], [8.0], [8.1], [8.5], [9.0]])
        >>> neighbour_means(rows, np.ones(1)).round(1).tolist()
        [[0.2], [8.4]]
    """
    different = np.unique(inputs, axis=0)
    places = different / length_scales
    groups: list[list[int]] = []
    free = np.arange(len(places))
    while len(free) >= size or not groups:
        outermost = free[np.argmax(np.square(places[free] - places.mean(axis=0)).sum(axis=1))]
        order = np.argsort(np.square(places[free] - places[outermost]).sum(axis=1), kind="stable")
        groups.append(free[order[:size]].tolist())
        free = np.delete(free, order[:size])
    centres = np.array([places[group].mean(axis=0) for group in groups])
    for row in free:
        groups[int(np.argmin(np.square(centres - places[row]).sum(axis=1)))].append(int(row))
    return np.array([different[group].mean(axis=0) for group in groups])
