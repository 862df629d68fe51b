"""What a prediction is worth where no row was seen: variance that grows with the distance to what was seen.

Features learned from rows say nothing of where there were none. Neither does the posterior over their weights: the rows
determine the weights everywhere. So rows outside get a variance of their own, from how far outside they are and from
how much the columns matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .errors import ModelFileError
from .features import SoftClip

Array = npt.NDArray[np.float64]

# Values of a column closer than this, in its units, belong together: what lies between them was seen.
_GAP = 0.1
# At most so many stretches of values per column are kept: the widest gaps count.
_MOST_RUNS = 64
_MOST_CENTRES = 500
_CLUSTERED_ROWS = 10_000
# Rows set aside that are farther from all centres than this share of them are outside.
_INSIDE = 0.98
# Standardised columns with a smaller range are constant but for rounding.
_SMALLEST_RANGE = 1e-9
# So many units outside, growth slows down: beyond, a heavy tail is more likely than a function that keeps growing.
_SLOWING = 10.0
# Keeps everything finite, whatever the input.
_FARTHEST = 1e300
# Clusters of fewer rows are dropped: a centre is the mean of several rows, never a row.
_FEWEST_IN_CLUSTER = 3
_EFFECT_ROWS = 400
_TENSORS = ("effects", "units", "run_starts", "run_ends", "centres")


def total_effects(
    predict_mean: Callable[[Array], Array], inputs: Array, rng: np.random.Generator, rows: int = _EFFECT_ROWS
) -> Array:
    r"""How much of the variance of a prediction goes when each column is known no more: total Sobol indices.

    Jansen's estimator, :math:`\tfrac12 E[(f(x) - f(x'))^2]`, where :math:`x'` has the value of column j of another
    row. In squared units of the prediction; not divided by its variance.

    Args:
        predict_mean: Maps ``(rows, columns)`` to ``(rows,)``.
        inputs: ``(rows, columns)`` of which at most ``rows`` are drawn.
        rng: Draws rows and their exchange.
        rows: How many.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> effects = total_effects(lambda x: 3 * x[:, 0] + x[:, 1], rng.normal(size=(5000, 3)), rng, rows=5000)
        >>> effects.round(0).tolist()
        [9.0, 1.0, 0.0]
    """
    chosen = inputs[rng.permutation(len(inputs))[:rows]]
    columns = chosen.shape[1]
    changed = np.repeat(chosen[None], columns + 1, axis=0)
    for column in range(columns):
        changed[column + 1, :, column] = rng.permutation(chosen[:, column])
    values = predict_mean(changed.reshape(-1, columns)).reshape(columns + 1, -1)
    effects: Array = 0.5 * np.mean((values[1:] - values[0]) ** 2, axis=1)
    return effects


@dataclass(frozen=True, eq=False)
class ExcessVariance:
    r"""Variance of rows outside of what was seen, in squared units of the standardised target.

    .. math:: V(x) = \kappa \sum_j t_j\, g(e_j) + \max(0, d^2(x) - q)

    :math:`e_j` is how far the value of column j lies outside of the values that were seen, in units of the column, zero
    inside: outside of its range or within a gap. :math:`t_j` is the total effect of the column on the prediction,
    :math:`g` grows with the cube of the distance at first and slows down later, and :math:`d` is the distance to the
    nearest of some centres of the rows, with columns weighted by their effect, which sees rows whose columns are each
    within their range, but not together; :math:`q` is what nearly all rows that were set aside had.

    Attributes:
        effects: ``(columns,)`` total effects; zero where a column was constant.
        units: ``(columns,)`` what distances are measured in: the larger of standard deviation and an eighth of the range.
        run_starts: ``(columns, runs)`` where stretches of values begin, in increasing order.
        run_ends: ``(columns, runs)`` where they end.
        centres: ``(centres, columns)`` of rows, softly clipped and weighted; means of several rows each.
        threshold: The squared distance to centres that is still inside.
        factor: On the sum over columns.
    """

    effects: Tensor
    units: Tensor
    run_starts: Tensor
    run_ends: Tensor
    centres: Tensor
    threshold: float
    factor: float

    @classmethod
    def fit(
        cls, inputs: Array, effects: Array, held_out: Array | None = None, *, factor: float = 6.0, seed: int = 0
    ) -> ExcessVariance:
        """Measure what was seen.

        Args:
            inputs: ``(rows, columns)`` standardised rows that a model was fitted to.
            effects: ``(columns,)`` from :func:`total_effects`, of the standardised target.
            held_out: Further rows like these, which say what is still inside; None takes a fifth of ``inputs``.
            factor: On the sum over columns.
            seed: Determines the centres.
        """
        if held_out is None:
            order = np.random.default_rng(seed).permutation(len(inputs))
            few = max(1, len(inputs) // 5)
            clustered, measured = inputs[order[few:]], inputs[order[:few]]
        else:
            clustered, measured = inputs, held_out
        spread = np.ptp(inputs, axis=0)
        constant = spread < _SMALLEST_RANGE
        units = np.where(constant, 1.0, np.maximum(inputs.std(axis=0), spread / 8.0))
        starts, ends = _runs(inputs / units)
        found = cls(
            effects=torch.from_numpy(np.where(constant, 0.0, effects)),
            units=torch.from_numpy(units),
            run_starts=torch.from_numpy(starts),
            run_ends=torch.from_numpy(ends),
            centres=torch.zeros(1, inputs.shape[1], dtype=torch.float64),
            threshold=0.0,
            factor=factor,
        )
        centres = _centres(found._coordinates(torch.from_numpy(clustered)).numpy(), seed)
        found = cls(*(getattr(found, name) for name in _TENSORS[:-1]), torch.from_numpy(centres), 0.0, factor)
        distances = found._nearest(torch.from_numpy(measured))
        threshold = float(torch.quantile(distances[:100_000], _INSIDE))
        return cls(*(getattr(found, name) for name in _TENSORS), threshold, factor)

    def outside(self, inputs: Tensor | Array) -> Tensor:
        """``(rows, columns)`` how far each value lies outside of what was seen, in units of its column; 0 inside."""
        values = (torch.as_tensor(inputs, dtype=torch.float64) / self.units).t().contiguous()
        after = torch.searchsorted(self.run_starts, values, right=True)
        last = self.run_starts.shape[1] - 1
        # The run that begins at or before a value, and the next one.
        behind = values - self.run_ends.gather(1, (after - 1).clamp(min=0))
        behind = torch.where(after == 0, torch.inf, behind).clamp(min=0.0)
        ahead = self.run_starts.gather(1, after.clamp(max=last)) - values
        ahead = torch.where(after > last, torch.inf, ahead).clamp(min=0.0)
        return torch.minimum(behind, ahead).clamp(max=_FARTHEST).t()

    def variance(self, inputs: Tensor | Array) -> Tensor:
        """``(rows,)`` to be added to the epistemic variance."""
        rows = torch.as_tensor(inputs, dtype=torch.float64)
        by_column = growth(self.outside(rows)) @ self.effects
        return self.factor * by_column + (self._nearest(rows) - self.threshold).clamp(min=0.0)

    def _coordinates(self, rows: Tensor) -> Tensor:
        return SoftClip(rows.shape[1]).double()(rows) * self.effects.sqrt()

    def _nearest(self, rows: Tensor) -> Tensor:
        """Squared distances to the nearest centre."""
        parts = [
            torch.cdist(self._coordinates(part), self.centres).min(dim=1).values.square()
            for part in torch.split(rows, 4096)
        ]
        return torch.cat(parts) if parts else rows.new_zeros(0)

    def config(self) -> dict[str, Any]:
        """What is not in the tensors, as JSON."""
        return {"threshold": self.threshold, "factor": self.factor}

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {name: getattr(self, name) for name in _TENSORS}

    @classmethod
    def from_tensors(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> ExcessVariance:
        """What :meth:`config` and :meth:`tensors` were taken of; shapes and values are checked."""
        try:
            found = [tensors[name].to(torch.float64) for name in _TENSORS]
            threshold, factor = float(config["threshold"]), float(config["factor"])
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"The variance outside of the training rows is incomplete: {error}") from None
        effects, units, starts, ends, centres = found
        columns = len(effects)
        shapes = effects.shape == units.shape == (columns,) and starts.shape == ends.shape and starts.ndim == 2
        if not (shapes and len(starts) == columns and centres.ndim == 2 and centres.shape[1] == columns):
            raise ModelFileError("The variance outside of the training rows has tensors whose shapes do not fit.")
        finite = all(bool(torch.isfinite(tensor).all()) for tensor in found)
        sorted_runs = bool((starts.diff(dim=1) >= 0).all()) and bool((starts <= ends).all())
        positive = bool((units > 0).all()) and bool((effects >= 0).all())
        if not (finite and sorted_runs and positive and 0.0 <= threshold < np.inf and 0.0 <= factor < np.inf):
            raise ModelFileError("The variance outside of the training rows has values that make no sense.")
        return cls(*found, threshold, factor)


def growth(distance: Tensor) -> Tensor:
    r""":math:`\tfrac14 e + e^2 + e^3`, and beyond ten units a logarithm in the place of the distance.

    Example:
        >>> growth(torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)).tolist()
        [0.0, 2.25, 12.5]
        >>> bool(torch.isfinite(growth(torch.tensor(1e300, dtype=torch.float64))))
        True
    """
    slowed = torch.where(
        distance <= _SLOWING, distance, _SLOWING * (1.0 + torch.log(distance.clamp(min=_SLOWING) / _SLOWING))
    )
    return slowed * (0.25 + slowed * (1.0 + slowed))


def _runs(values: Array) -> tuple[Array, Array]:
    """``(columns, runs)`` starts and ends of stretches without gaps, padded by repeating the last one."""
    starts, ends = [], []
    for column in values.T:
        seen = np.unique(column)
        gaps = np.diff(seen)
        cuts = np.flatnonzero(gaps >= _GAP)
        if len(cuts) >= _MOST_RUNS:
            cuts = np.sort(cuts[np.argsort(-gaps[cuts], kind="stable")[: _MOST_RUNS - 1]])
        starts.append(seen[np.concatenate([[0], cuts + 1])])
        ends.append(seen[np.concatenate([cuts, [len(seen) - 1]])])
    most = max(len(each) for each in starts)
    pad = [
        np.pad(np.stack(both), ((0, 0), (0, most - len(both[0]))), "edge") for both in zip(starts, ends, strict=True)
    ]
    together = np.stack(pad)
    return np.ascontiguousarray(together[:, 0]), np.ascontiguousarray(together[:, 1])


def _centres(coordinates: Array, seed: int) -> Array:
    """Means of a few rows each, which are no rows."""
    from sklearn.cluster import MiniBatchKMeans

    rows = coordinates[np.random.default_rng(seed).permutation(len(coordinates))[:_CLUSTERED_ROWS]]
    count = max(1, min(_MOST_CENTRES, len(rows) // 4))
    found = MiniBatchKMeans(count, n_init=1, random_state=seed, batch_size=1024).fit(rows)
    sizes = np.bincount(found.predict(rows), minlength=count)
    large = sizes >= min(_FEWEST_IN_CLUSTER, sizes.max())
    centres: Array = found.cluster_centers_[large].astype(np.float64)
    return centres
