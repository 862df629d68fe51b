"""The kernels of small tables, and their exact posteriors as ones of finite features."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..component import Component
from ..data.arrays import ArraySource
from ..features import ConcatenatedFeatures, ConstantFeatures, LandmarkFeatures, LinearFeatures
from ..kernel_gp import Array, KernelForm, KernelRows, noise_of
from ..model import FeatureGP, FittedGP
from ..posterior import WeightPosterior
from ..statistics import sum_statistics

LINEAR = "linear"
FORMS = {
    LINEAR: KernelForm(),
    "matern52": KernelForm("matern52"),
    "rbf per column": KernelForm("rbf", length_scale_per_column=True),
    "matern32 per column": KernelForm("matern32", length_scale_per_column=True),
}
# Rows that outliers and the spread are learned from: more make them hardly better, and cost grows with the cube.
LEARNING_ROWS = 600


def kernel_features(
    form: KernelForm, parameters: Array, inputs: Array, *, keep_rows: bool = True
) -> ConcatenatedFeatures:
    """The finite features of a kernel: intercept and linear trend as they are, the stationary part on landmarks.

    Columns that do not vary have no part in the kernel; their landmarks are equal, so that any length scale does.

    Args:
        form: Which kernel.
        parameters: Its parameters.
        inputs: ``(rows, columns)``.
        keep_rows: Whether the rows are the landmarks, which makes the features exact; otherwise means of neighbours.
    """
    varying = np.ptp(inputs, axis=0) > 0.0
    count, columns = max(int(varying.sum()), 1), inputs.shape[1]
    maps: list[nn.Module] = [
        ConstantFeatures(form.prior.intercept),
        LinearFeatures(columns, bias=False, magnitude=math.exp(parameters[1]) / count),
    ]
    if form.correlation is not None:
        length_scales = np.ones(columns)
        length_scales[varying] = np.exp(parameters[3:])
        landmarks = inputs if keep_rows else neighbour_means(inputs, length_scales)
        maps.append(
            LandmarkFeatures.at(
                landmarks, kernel=form.correlation, length_scales=length_scales, variance=math.exp(parameters[2])
            )
        )
    return ConcatenatedFeatures(*maps)


def condition_kernel(
    form: KernelForm, parameters: Array, inputs: Array, rows: KernelRows, *, keep_rows: bool = True
) -> FittedGP:
    """The posterior of a kernel as one of finite features; with the rows as landmarks it is the same to rounding.

    Args:
        form: Which kernel.
        parameters: Its parameters.
        inputs: ``(rows, columns)`` with the columns that do not vary.
        rows: The same rows without these columns.
        keep_rows: Whether the rows are the landmarks; otherwise means of neighbours are, and what these do not see of
            a row counts as noise of the row. A line has no landmarks, but then a noise of its own.
    """
    features = kernel_features(form, parameters, inputs, keep_rows=keep_rows)
    model = FeatureGP(features, noise_variance=noise_of(parameters))
    if form.correlation is not None:  # of rows that come later, and of all where landmarks are no rows
        model.unseen_scale = 1.0 / model.noise_variance
    return model.condition(_source(inputs, rows), optimize_noise=not keep_rows and form.correlation is None)


def _source(inputs: Array, rows: KernelRows) -> ArraySource:
    weights = None if bool((rows.noise_scales == 1.0).all()) else 1.0 / rows.noise_scales
    counts = None if bool((rows.counts == 1.0).all()) else rows.counts
    return ArraySource(inputs, rows.targets, weights, counts=counts)


class Line:
    """The line given rows: what :class:`KernelPosterior` finds with a matrix of all rows, by sums of few numbers.

    Args:
        parameters: Of the line.
        rows: What it is conditioned on.
    """

    def __init__(self, parameters: Array, rows: KernelRows) -> None:
        form = FORMS[LINEAR]
        self.rows, self.noise = rows, noise_of(parameters)
        self._fitted = condition_kernel(form, parameters, rows.inputs, rows)
        self.scale = Component(self._fitted, scale_degrees=form.prior.scale_degrees).variance_factor

    def leave_groups_out(self, groups: npt.NDArray[np.intp]) -> tuple[Array, Array]:
        """As that of :class:`KernelPosterior`."""
        means, variances = np.empty((2, len(groups)))
        parts = [np.flatnonzero(groups == group) for group in np.unique(groups)]
        model = self._fitted.model
        sums = [model.statistics(_source(self.rows.inputs[part], self.rows.take(part))) for part in parts]
        for number, part in enumerate(parts):
            # Not all sums without those of the part: where there is next to no noise, differences are rounding.
            others = WeightPosterior(sum_statistics(sums[:number] + sums[number + 1 :]), self.noise)
            found = others.predict(self._fitted.features(self.rows.inputs[part])[0])
            means[part], variances[part] = found.mean.numpy(), found.epistemic_variance.numpy()
        return means, self.scale * (variances + self.noise * self.rows.noise_scales)


def landmark_rows(rows: KernelRows) -> tuple[Tensor, Tensor]:
    """Weights of landmark rows in the row sums, and weights times targets."""
    weights = rows.counts / rows.noise_scales
    return torch.from_numpy(weights), torch.from_numpy((weights * rows.targets)[:, None])


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
