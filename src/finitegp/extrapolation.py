"""Variance where no row was seen: it grows with the distance to what was seen.

Features learned from rows know nothing of where there were none. Nor does the posterior over their weights: the rows
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
from .frozen import compressed
from .linalg import cholesky

Array = npt.NDArray[np.float64]

# Values of a column closer than this, in its units, belong together: what lies between them was seen.
_GAP = 0.1
# The most stretches of values that are kept per column: the widest gaps count.
_MOST_RUNS = 64
MOST_CENTRES = 500
CLUSTERED_ROWS = 10_000
# Rows set aside that are farther from all centres than this share of them are outside.
_INSIDE = 0.98
# Standardised columns with a smaller range are constant but for rounding.
_SMALLEST_RANGE = 1e-9
# Stretches of values are extended by what the rows set aside need, but by no more than this, in units.
_MOST_SLACK = 1.0
# This many units outside, growth slows down: beyond, a heavy tail is more likely than a function that keeps growing.
_SLOWING = 10.0
# Keeps everything finite, whatever the input.
_FARTHEST = 1e300
# Clusters of fewer rows are dropped: a centre is the mean of several rows, never a row.
_FEWEST_IN_CLUSTER = 3
_EFFECT_ROWS = 400
_TENSORS = ("effects", "factors", "units", "run_starts", "run_ends", "centres")
# The factor with too few rows, and the limits with enough of them; what these need is multiplied by the safety.
_USUAL_FACTOR, _FACTOR_LIMITS, _SAFETY = 6.0, (2.0, 12.0), 6.0
# Left-out extrapolation: how many rows, the share of them at an end of a column, and how many there must be; columns
# that are tested, the share of all effects that they need, and models whose geometric mean counts.
TESTED_ROWS, MODELS = 3000, 3
_OUTER, _FEWEST_OUTER, _TESTED_COLUMNS, _LEAST_SHARE = 0.1, 20, 8, 0.02
# Rows at a time, where only sums or the nearest centre are kept of them.
PIECE = 256
CHEAP_FREQUENCIES, _CHEAP_NOISES = 128, (1e-4, 1e-3, 1e-2, 1e-1, 1.0)


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
    values = predict_mean(chosen)
    effects = np.empty(columns)
    for column in range(columns):
        changed = chosen.copy()
        changed[:, column] = rng.permutation(chosen[:, column])
        effects[column] = 0.5 * np.mean((predict_mean(changed) - values) ** 2)
    return effects


@dataclass(frozen=True, eq=False)
class ExcessVariance:
    r"""Variance of rows outside of what was seen, in squared units of the standardised target.

    .. math:: V(x) = \sum_j \kappa_j\, t_j\, g(e_j) + \nu \max(0, d^2(x) - q)

    :math:`e_j` is how far the value of column j lies outside of the values that were seen, in units of the column, zero
    inside: outside of its range or within a gap. :math:`t_j` is the total effect of the column on the prediction,
    :math:`\kappa_j` how badly the column is extrapolated (:func:`left_out_factors`), and :math:`g` grows with the cube
    of the distance at first and slows down later. :math:`d` is the distance to the nearest of some centres of the rows,
    with columns weighted by their effect, which sees rows whose columns are each within their range, but not together;
    :math:`q` is what nearly all rows that were set aside had. A column that never varied adds nothing, as nobody can
    know what it does, but :meth:`outside` reports it.

    Attributes:
        effects: ``(columns,)`` total effects; zero where a column was constant.
        factors: ``(columns, 2)`` below and above the range; within gaps their geometric mean holds.
        units: ``(columns,)`` of distances: the larger of standard deviation and an eighth of the range.
        run_starts: ``(columns, runs)`` where stretches of values begin, in increasing order.
        run_ends: ``(columns, runs)`` where they end.
        centres: ``(centres, columns)`` of rows, softly clipped and weighted; means of several rows each.
        threshold: The squared distance to centres that is still inside.
        nearness: The factor on what is beyond.
    """

    effects: Tensor
    factors: Tensor
    units: Tensor
    run_starts: Tensor
    run_ends: Tensor
    centres: Tensor
    threshold: float
    nearness: float = 1.0

    @classmethod
    def fit(
        cls,
        inputs: Array,
        effects: Array,
        held_out: Array | None = None,
        *,
        factors: Array | None = None,
        seed: int = 0,
    ) -> ExcessVariance:
        """Measure what was seen.

        Args:
            inputs: ``(rows, columns)`` standardised rows that a model was fitted to.
            effects: ``(columns,)`` from :func:`total_effects`, of the standardised target.
            held_out: Further rows like these, which show what is still inside; None takes a fifth of ``inputs``.
            factors: ``(columns, 2)`` from :func:`left_out_factors`; None takes what is usual.
            seed: Determines the centres.
        """
        if held_out is None:
            order = np.random.default_rng(seed).permutation(len(inputs))
            few = max(1, len(inputs) // 5)
            clustered, held_out = inputs[order[few:]], inputs[order[:few]]
        else:
            clustered = inputs
        if factors is None:
            factors = np.full((len(effects), 2), _USUAL_FACTOR)
        units, starts, ends = _seen(inputs)
        slack = _slack(clustered, held_out, units)[:, None]
        effects = np.where(np.ptp(inputs, axis=0) < _SMALLEST_RANGE, 0.0, effects)
        centres = _centres(clustered, effects, seed)
        distances = _nearest(_coordinates(held_out[:CLUSTERED_ROWS], effects), centres)
        threshold = float(np.quantile(distances, _INSIDE))
        arrays = (effects, factors, units, starts - slack, ends + slack, centres)
        tensors: dict[str, Any] = {name: torch.from_numpy(array) for name, array in zip(_TENSORS, arrays, strict=True)}
        return cls(**tensors, threshold=threshold)

    def outside(self, inputs: Tensor | Array) -> Tensor:
        """``(rows, columns)`` how far each value lies outside of what was seen, in units of its column; 0 inside."""
        values = torch.as_tensor(inputs, dtype=torch.float64)
        return _distance((values / self.units).t().contiguous(), self.run_starts, self.run_ends).t()

    def variance(self, inputs: Tensor | Array) -> Tensor:
        """``(rows,)`` to be added to the epistemic variance."""
        found = self.by_column(inputs).sum(dim=1)
        return found + self.nearness * self.beyond_centres(inputs) if self.nearness > 0.0 else found

    def by_column(self, inputs: Tensor | Array) -> Tensor:
        """``(rows, columns)`` the part of the variance that comes of each column alone."""
        rows = torch.as_tensor(inputs, dtype=torch.float64)
        outside = self.outside(rows)
        if not bool(outside.any()):  # as nearly always
            return outside
        scaled = rows / self.units
        below, above = scaled < self.run_starts[:, 0], scaled > self.run_ends[:, -1]
        low, high = self.factors.unbind(dim=1)
        factors = torch.where(below, low, torch.where(above, high, (low * high).sqrt()))
        return factors * growth(outside) * self.effects

    def beyond_centres(self, inputs: Tensor | Array) -> Tensor:
        """``(rows,)`` by how much squared distances to the nearest centre exceed what is still inside."""
        rows = torch.as_tensor(inputs, dtype=torch.float64).numpy()
        distances = _nearest(_coordinates(rows, self.effects.numpy()), self.centres.numpy())
        return torch.from_numpy(distances - self.threshold).clamp(min=0.0)

    def config(self) -> dict[str, object]:
        """Everything that is not in the tensors, as JSON."""
        return {"threshold": self.threshold, "nearness": self.nearness}

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {name: getattr(self, name) for name in _TENSORS}

    @classmethod
    def from_tensors(cls, config: Mapping[str, float], tensors: Mapping[str, Tensor]) -> ExcessVariance:
        """The inverse of :meth:`config` and :meth:`tensors`; shapes and values are checked."""
        try:
            found: dict[str, Any] = {name: tensors[name].to(torch.float64).contiguous() for name in _TENSORS}
            threshold, nearness = float(config["threshold"]), float(config["nearness"])
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"The variance outside of the training rows is incomplete: {error}") from None
        columns, starts, ends = found["effects"].numel(), found["run_starts"], found["run_ends"]
        shapes = {"effects": (columns,), "factors": (columns, 2), "units": (columns,), "run_ends": starts.shape}
        fits = all(found[name].shape == shape for name, shape in shapes.items())
        wide = all(each.ndim == 2 and each.numel() > 0 for each in (starts, found["centres"]))
        if not (fits and wide and len(starts) == columns == found["centres"].shape[1]):
            raise ModelFileError("The variance outside of the training rows has tensors whose shapes do not fit.")
        finite = all(bool(torch.isfinite(tensor).all()) for tensor in found.values())
        ordered = bool((starts.diff(dim=1) >= 0).all()) and bool((starts <= ends).all())
        positive = bool((found["units"] > 0).all()) and all(bool((found[k] >= 0).all()) for k in ("effects", "factors"))
        if not (finite and ordered and positive and 0.0 <= threshold < np.inf and 0.0 <= nearness < np.inf):
            raise ModelFileError("The variance outside of the training rows has values that make no sense.")
        return cls(**found, threshold=threshold, nearness=nearness)


def left_out_factors(inputs: Array, targets: Array, effects: Array, *, seed: int = 0) -> Array:
    r"""``(columns, 2)`` how badly each column is extrapolated, below and above, by what the rows themselves show.

    A Bayesian linear model on random Fourier features and the columns themselves is fitted without the outer tenth of a
    column's values, which it then predicts; the factor is the one with which squared errors there are what
    :class:`ExcessVariance` has, times a safety of six: the next step outside is farther than the last one inside.
    Leaving rows out only subtracts their sums. Columns of little effect, and all columns of small tables, get the usual
    factor; no factor leaves the limits.

    Args:
        inputs: ``(rows, columns)`` standardised.
        targets: ``(rows,)`` standardised.
        effects: ``(columns,)`` from :func:`total_effects`.
        seed: Determines features and rows.
    """
    factors = np.full((len(effects), 2), _USUAL_FACTOR)
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(inputs))[:TESTED_ROWS]
    inputs, targets = inputs[chosen], targets[chosen]
    if len(inputs) * _OUTER < _FEWEST_OUTER:
        return factors
    models = [_CheapModel(inputs, targets, effects, rng) for _ in range(MODELS)]
    for column in np.argsort(-effects, kind="stable")[:_TESTED_COLUMNS]:
        values = inputs[:, column]
        low, high = np.quantile(values, [_OUTER, 1.0 - _OUTER])
        for side, outer in enumerate((values < low, values > high)):
            if effects[column] < _LEAST_SHARE * effects.sum() or outer.sum() < _FEWEST_OUTER:
                continue
            units, starts, ends = (torch.from_numpy(each) for each in _seen(inputs[~outer]))
            rows = torch.from_numpy(inputs[outer]) / units
            modelled = (growth(_distance(rows.t().contiguous(), starts, ends)).t() @ torch.from_numpy(effects)).numpy()
            asked = [factor_needed(model.squared_errors(outer), model.mean_square, modelled) for model in models]
            factors[column, side] = np.clip(_SAFETY * np.exp(np.mean(np.log(asked))), *_FACTOR_LIMITS)
    return factors


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


class _CheapModel:
    """A Bayesian linear model on Fourier features of the weighted columns and these themselves, without any rows."""

    def __init__(self, inputs: Array, targets: Array, effects: Array, rng: np.random.Generator) -> None:
        weights = np.sqrt(effects + 0.01 * effects.sum() + 1e-12)
        rows = compressed(inputs) * weights / np.linalg.norm(weights)
        normal = rng.normal(size=(rows.shape[1], CHEAP_FREQUENCIES))
        lengths = np.repeat([0.5, 2.0], CHEAP_FREQUENCIES // 2)
        # Matern 3/2: Student's t with three degrees of freedom.
        self._frequencies = normal / np.sqrt(rng.chisquare(3, size=CHEAP_FREQUENCIES) / 3.0) / lengths
        self._rows, self._targets = rows, targets
        width = 2 * CHEAP_FREQUENCIES + rows.shape[1] + 1
        self._gram, self._projected = np.zeros((width, width)), np.zeros(width)
        # Features of all rows would take more memory than all else.
        for start in range(0, len(rows), PIECE):
            features = self._features(rows[start : start + PIECE])
            self._gram += features.T @ features
            self._projected += features.T @ targets[start : start + PIECE]
        fifth = np.arange(len(rows)) % 5 == 0
        found = {}
        for noise in _CHEAP_NOISES:
            self._noise = noise
            found[noise] = float(np.mean(self.squared_errors(fifth)))
        self._noise = min(found, key=lambda noise: found[noise])
        self.mean_square = found[self._noise]

    def squared_errors(self, left_out: npt.NDArray[np.bool_]) -> Array:
        """Of the rows that are left out."""
        features, targets = self._features(self._rows[left_out]), self._targets[left_out]
        gram = torch.from_numpy(self._gram - features.T @ features)
        gram.diagonal().add_(self._noise)
        projected = torch.from_numpy(self._projected - features.T @ targets)[:, None]
        weights = cholesky(gram, noise_variance=self._noise).solve(projected)[:, 0].numpy()
        errors: Array = (features @ weights - targets) ** 2
        return errors

    def _features(self, rows: Array) -> Array:
        angles = rows @ self._frequencies
        waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) / np.sqrt(CHEAP_FREQUENCIES)
        return np.concatenate([waves, rows, np.ones((len(rows), 1))], axis=1)


def factor_needed(squares: Array, variance: float | Array, modelled: Array) -> float:
    """On what is modelled, so that the mean of squares over variances is one; between 1e-3 and 1e3."""
    low, high = -3.0, 3.0
    for _ in range(30):
        middle = 0.5 * (low + high)
        wide = np.mean(squares / (variance + 10.0**middle * modelled)) < 1.0
        low, high = (low, middle) if wide else (middle, high)
    return float(10.0**high)


def _coordinates(inputs: Array, effects: Array) -> Array:
    weighted = np.empty_like(inputs)
    for start in range(0, len(inputs), PIECE):
        weighted[start : start + PIECE] = compressed(inputs[start : start + PIECE]) * np.sqrt(effects)
    return weighted


def _nearest(coordinates: Array, centres: Array) -> Array:
    """``(rows,)`` squared distances to the nearest centre."""
    found = np.empty(len(coordinates))
    squares = np.square(centres).sum(axis=1)[:, None]
    for start in range(0, len(coordinates), PIECE):
        rows = coordinates[start : start + PIECE]
        # Those of the row itself are the same for all centres.
        nearest = (squares - 2.0 * centres @ rows.T).min(axis=0)
        found[start : start + PIECE] = np.maximum(nearest + np.square(rows).sum(axis=1), 0.0)
    return found


def _seen(inputs: Array, units: Array | None = None) -> tuple[Array, Array, Array]:
    """Units ``(columns,)``, and starts and ends ``(columns, runs)`` of stretches without gaps in these units."""
    # Column by column: there may be no room for a second table.
    if units is None:
        spread, deviations = np.ptp(inputs, axis=0), np.array([column.std() for column in inputs.T])
        units = np.where(spread < _SMALLEST_RANGE, 1.0, np.maximum(deviations, spread / 8.0))
    starts, ends = [], []
    for column, unit in zip(inputs.T, units, strict=True):
        values = np.unique(column / unit)
        gaps = np.diff(values)
        cuts = np.flatnonzero(gaps >= _GAP)
        if len(cuts) >= _MOST_RUNS:
            cuts = np.sort(cuts[np.argsort(-gaps[cuts], kind="stable")[: _MOST_RUNS - 1]])
        starts.append(values[np.concatenate([[0], cuts + 1])])
        ends.append(values[np.concatenate([cuts, [len(values) - 1]])])
    most = max(len(each) for each in starts)
    # Where there are fewer, the last one is repeated.
    padded = [[np.pad(each, (0, most - len(each)), "edge") for each in side] for side in (starts, ends)]
    return units, np.stack(padded[0]), np.stack(padded[1])


def _slack(inputs: Array, held_out: Array, units: Array) -> Array:
    """``(columns,)`` how far outside of rows new rows like these come anyhow, in units of the column."""
    _, starts, ends = (torch.from_numpy(each) for each in _seen(inputs, units))
    values = torch.from_numpy(held_out / units).t().contiguous()
    farthest: Array = _distance(values, starts, ends).amax(dim=1).clamp(max=_MOST_SLACK).numpy()
    return farthest


def _distance(values: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """``(columns, rows)`` distance of each value to the nearest stretch of its column."""
    if starts.shape[1] == 1:
        return torch.maximum(starts - values, values - ends).clamp(min=0.0, max=_FARTHEST)
    after = torch.searchsorted(starts, values, right=True)
    last = starts.shape[1] - 1
    # The stretch that begins at or before a value, and the next one.
    behind = (values - ends.gather(1, (after - 1).clamp(min=0))).clamp(min=0.0)
    ahead = (starts.gather(1, after.clamp(max=last)) - values).clamp(min=0.0)
    behind = torch.where(after == 0, torch.inf, behind)
    ahead = torch.where(after > last, torch.inf, ahead)
    return torch.minimum(behind, ahead).clamp(max=_FARTHEST)


def _centres(inputs: Array, effects: Array, seed: int) -> Array:
    """Coordinates of means of a few rows each, which are no rows."""
    from sklearn.cluster import MiniBatchKMeans

    chosen = np.random.default_rng(seed).permutation(len(inputs))[:CLUSTERED_ROWS]
    rows = _coordinates(inputs[chosen], effects)
    count = max(1, min(MOST_CENTRES, len(rows) // 4))
    found = MiniBatchKMeans(count, n_init=1, random_state=seed, batch_size=1024).fit(rows)
    sizes = np.bincount(found.predict(rows), minlength=count)
    large = sizes >= min(_FEWEST_IN_CLUSTER, sizes.max())
    centres: Array = found.cluster_centers_[large].astype(np.float64)
    return centres
