"""One fit of a model file: exact GPs with the scaling around them, as formulas and as row sums that can change."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .container import Header, inside
from .entries import Shape, Spread, Tail, check_scaler, read_shapes, read_spread, second_version
from .gp import GP, SUMS, Arrays, read_gp
from .hashing import RepeatedRows, change_rows, merge_repeated, read_repeated, row_hashes
from .modules import soft_clipped
from .program import (
    Array,
    LiteError,
    Value,
    apply,
    beside,
    boosted,
    check_trees,
    clipped,
    constant,
    evaluate,
    largest,
    least,
    less,
    smallest,
    squared_distances,
    take,
    total,
)
from .student import Mixture, variance_of_student

# Of scaled inputs, of distances outside of what was seen, and of coordinates that distances to centres are taken in.
_FARTHEST, _SLOWING, _CLIP = 1e8, 10.0, 4.0
# From the origin of a logarithmic scale, in units.
_LOG_FARTHEST = 1e15
# What each part of a file may hold; anything else may change predictions in a way that is not known here.
_GP = {"feature_map", "noise", "noise_variance", "num_data", "chunk_size", "unseen_scale"}
_KNOWN = {
    "fit": {"components", "record", "keeps_rows", "counts_copies_once", "outliers", "inputs_scaler", "target_scaler"}
    | {"conformal", "spread", "excess", "trees", "repeated"},
    "component": _GP | {"name", "weight", "factor", "degrees_of_freedom", "scale_degrees", "tail"},
    "spread": {"shift", "unit", "strength", "factor", "degrees_of_freedom", "share", "limits", "gp", "tail"},
    "excess": {"threshold", "nearness"},
    "trees": {"weight"},
    "repeated": {"agreement", "tolerance"},
}


@dataclass(frozen=True, eq=False)
class Fit:
    """The ``ScaledGP`` of the library: predictions in the target's units, and rows that come and go.

    Attributes:
        header: The file's entry of this fit.
        arrays: Its arrays.
        gps: One GP for each component.
        shapes: The weight and the errors of each.
        spread: The GP of how much larger errors are in some rows; or None.
        spread_shape: What else there is of it.
        repeated: Targets of rows that may come again, which formulas do not know; or None.
    """

    header: Mapping[str, Any]
    arrays: Arrays
    gps: tuple[GP, ...]
    shapes: tuple[Shape, ...]
    spread: GP | None
    spread_shape: Spread | None = None
    repeated: RepeatedRows | None = None

    @property
    def columns(self) -> int:
        """How many numbers a row has."""
        return len(self.arrays["inputs_scaler.scale"]) - len(self.arrays.get("inputs_scaler.log_unit", ()))

    @property
    def distribution(self) -> str:
        """``"normal"``, ``"student"`` (one with the same degrees of freedom inside) or ``"mixture"``."""
        if len(self.gps) > 1 or self.spread is not None or self._tails():
            return "mixture"
        return "normal" if math.isinf(self.shapes[0].degrees_of_freedom) else "student"

    def _variance_factor(self, index: int) -> float:
        shape, gp = self.shapes[index], self.gps[index]
        factor, prior = shape.factor**2, shape.scale_degrees
        if not prior:
            return factor
        explained = float((gp.sums.projected * gp.weights).sum())
        fit = max(float(gp.sums.squares.sum()) - explained, 0.0) / gp.noise
        return factor * (prior + fit) / (prior + gp.sums.rows)

    @cached_property
    def outputs(self) -> dict[str, Value]:
        """Formulas of a prediction: mean, variances, and the mixture's means, scales and degrees of freedom.

        Infinite degrees of freedom stay out of formulas: a mixture that is normal has none.
        """
        scaler = inside(self.arrays, "inputs_scaler.")
        given = _with_logarithms(Value("input", self.columns), scaler)
        x = clipped((given - scaler["mean"]) * (1.0 / scaler["scale"]), -_FARTHEST, _FARTHEST)
        factors = np.array([self._variance_factor(index) for index in range(len(self.gps))])
        predicted = [gp.predict(x) for gp in self.gps]
        if "trees" in self.header:
            predicted = [(self._with_trees(x, mean), unknown, noise) for mean, unknown, noise in predicted]
        means, unknown, noises = (beside(list(each)) for each in zip(*predicted, strict=True))
        squares, spreads = factors * (unknown + noises), factors * self._error_variances()
        shares = np.array([shape.weight for shape in self.shapes])
        parts = noises / (unknown + noises)
        whole, (weights, freedoms) = self._with_tails(means, squares, parts), self.mixture_parts(spread=False)
        symmetric = not any(tail.least_part for _, tail in self._tails())
        if len(predicted) == 1 and self.spread is None and symmetric:
            mean, noise, epistemic = predicted[0][0], spreads * noises, spreads * unknown
        else:
            mean, variance = _moments(weights, *whole, freedoms)
            noise = total((shares * spreads) * noises)
            if self.spread is not None:
                share = noise / variance
                pooled = total(shares * (squares + (means - mean).squared))
                parts = beside([parts, total((shares * factors) * noises) / total(shares * squares)])
                square = self._spread_square(x, mean, pooled)
                whole = self._with_tails(beside([means, mean]), beside([squares, square]), parts)
                weights, freedoms = self.mixture_parts()
                mean, variance = _moments(weights, *whole, freedoms)
                noise = share * variance
            epistemic = variance - noise
        means, squares = whole
        finite = np.isfinite(freedoms)
        found: dict[str, Value] = {"freedoms": constant(np.where(finite, freedoms, 3.0))} if finite.any() else {}
        if "excess" in self.header:
            excess = self._excess(x)
            epistemic = epistemic + excess
            before = variance_of_student(freedoms) * squares
            squares = before + excess
            if finite.any():
                found["freedoms"] = found["freedoms"] * (squares / before).squared
                squares = squares * (1.0 - np.where(finite, 2.0, 0.0) / found["freedoms"])
        scale, shift = float(self.arrays["target_scaler.scale"]), float(self.arrays["target_scaler.mean"])
        return found | {
            "mean": mean * scale + shift,
            "epistemic_variance": largest(epistemic, 0.0) * scale**2,
            "noise_variance": noise * scale**2,
            "means": means * scale + shift,
            "scales": apply("sqrt", squares) * scale,
        }

    def _with_trees(self, x: Value, mean: Value) -> Value:
        """The mean in which boosted trees have a part."""
        arrays = inside(self.arrays, "trees.")
        columns = arrays["columns"].astype(np.int64)
        found = boosted(x, columns, arrays["thresholds"], arrays["leaves"])
        return mean + float(self.header["trees"]["weight"]) * (found - mean)

    def _tails(self, *, spread: bool = True) -> list[tuple[int, Tail]]:
        """Numbers of distributions of whose errors a share is of another kind, with the latter."""
        shapes: list[Shape | Spread] = [*self.shapes]
        shapes += [self.spread_shape] if spread and self.spread_shape is not None else []
        return [(number, shape.tail) for number, shape in enumerate(shapes) if shape.tail is not None]

    def _with_tails(self, means: Value, squares: Value, parts: Value) -> tuple[Value, Value]:
        """Means and squared scales of the distributions, followed by those of their tails.

        Where noise has a smaller part of the squared scales than in rows that show skewed errors, these have less.
        """
        tails = [(number, tail) for number, tail in self._tails() if number < means.width]
        if not tails:
            return means, squares
        own = np.array([number for number, _ in tails], dtype=np.int64)
        shares, factors, _, offsets, main_factors, least = np.array([tail for _, tail in tails]).T
        if not offsets.any():
            return beside([means, take(means, own)]), beside([squares, take(squares, own) * factors**2])
        moved, narrowed = np.zeros(means.width), np.ones(means.width)
        moved[own], narrowed[own] = -shares * offsets, main_factors**2
        if least.any():
            lowest = np.ones(means.width)
            lowest[own] = np.maximum(least, 1e-300)
            parts = smallest(parts * (1.0 / lowest), 1.0)
        else:
            parts = constant(np.ones(means.width))
        scales, theirs = apply("sqrt", parts * squares), take(parts, own)
        far = take(means, own) + take(scales, own) * ((1.0 - shares) * offsets)
        wide = take(squares, own) * (theirs * (factors**2 - 1.0) + 1.0)
        return beside([means + scales * moved, far]), beside([squares * (parts * (narrowed - 1.0) + 1.0), wide])

    def _error_variances(self) -> Array:
        """``(components,)`` variances of errors in squared scales."""
        found = variance_of_student(np.array([shape.degrees_of_freedom for shape in self.shapes]))
        for number, (share, factor, freedom, offset, main_factor, _) in self._tails(spread=False):
            wide = factor**2 * float(variance_of_student(np.array(freedom)))
            near = (1.0 - share) * main_factor**2 * found[number]
            found[number] = near + share * wide + share * (1.0 - share) * offset**2
        return found

    def mixture_parts(self, *, spread: bool = True) -> tuple[Array, Array]:
        """Weights and degrees of freedom of the mixture: of components, the model of the spread, and their tails."""
        tails = self._tails(spread=spread)
        weights = np.array([shape.weight for shape in self.shapes])
        freedoms = [shape.degrees_of_freedom for shape in self.shapes]
        if self.spread_shape is not None and spread:
            share = self.spread_shape.share
            weights = np.append((1.0 - share) * weights, share)
            freedoms.append(self.spread_shape.degrees_of_freedom)
        parts = [tail.share * weights[number] for number, tail in tails]
        for number, tail in tails:
            weights[number] *= 1.0 - tail.share
        freedoms += [tail.degrees_of_freedom for _, tail in tails]
        return np.append(weights, parts), np.array(freedoms, dtype=np.float64)

    def _spread_square(self, x: Value, mean: Value, pooled: Value) -> Value:
        """The squared scale of the component that the model of the spread adds."""
        shape = self.spread_shape
        assert self.spread is not None and shape is not None  # noqa: PT018
        centres, units = self.arrays["spread.centres"], self.arrays["spread.units"]
        extra = clipped((beside([apply("log", pooled), mean]) - centres) * (1.0 / units), -4.0, 4.0)
        found = self.spread.mean(beside([x, extra])) * shape.unit + shape.shift
        return shape.factor**2 * pooled * apply("exp", shape.strength * clipped(found, *shape.limits))

    def _excess(self, x: Value) -> Value:
        """The variance of rows outside of what was seen."""
        arrays, stored = inside(self.arrays, "excess."), self.header["excess"]
        starts, ends, effects = arrays["run_starts"], arrays["run_ends"], arrays["effects"]
        columns, runs = starts.shape
        scaled = x * (1.0 / arrays["units"])
        spread = take(scaled, np.repeat(np.arange(columns), runs))
        gaps = largest(starts.reshape(-1) - spread, spread - ends.reshape(-1))
        outside = least(largest(gaps, 0.0), runs)
        slowed = smallest(outside, _SLOWING) + _SLOWING * apply("log", largest(outside, _SLOWING) * (1.0 / _SLOWING))
        growth = slowed * (0.25 + slowed * (1.0 + slowed))
        below, above = arrays["factors"].T
        middle = np.sqrt(below * above)
        factors = middle + less(scaled, starts[:, 0]) * (below - middle) + less(ends[:, -1], scaled) * (above - middle)
        found = total(factors * growth * effects)
        nearness = float(stored["nearness"])
        if nearness > 0.0:
            coordinates = soft_clipped(x, _CLIP) * np.sqrt(effects)
            nearest = least(squared_distances(coordinates, arrays["centres"]))
            found = found + nearness * largest(nearest - float(stored["threshold"]), 0.0)
        return found

    def mixture(self, found: Mapping[str, Array]) -> Mixture:
        """The predictive distributions of evaluated outputs."""
        weights, fixed = self.mixture_parts()
        freedoms = (
            np.where(np.isfinite(fixed), found["freedoms"], math.inf)
            if "freedoms" in found
            else np.full((1, 1), math.inf)
        )
        return Mixture(weights, found["means"], found["scales"], np.broadcast_to(freedoms, found["means"].shape))

    def change(self, inputs: Array, targets: Array, counts: Array | None, sign: float) -> Fit:
        """The fit with rows, or without rows that it has seen."""
        repeated, once = self.repeated, bool(self.header["counts_copies_once"])
        if repeated is not None:
            chosen, repeated = change_rows(repeated, inputs, targets, counts, forget=sign < 0.0, copies_once=once)
            if not chosen.any():
                return replace(self, repeated=repeated)
            inputs, targets = inputs[chosen], targets[chosen]
        if self.header["counts_copies_once"] and counts is None:
            different = np.unique(np.column_stack([inputs, targets]), axis=0)
            inputs, targets = different[:, :-1], different[:, -1]
        outliers = self.header["outliers"]
        trust = None
        if sign < 0.0 and outliers:
            trust = np.array([1.0 / float(outliers.get(key, 1.0)) for key in row_hashes(inputs, targets)])
        scaler, of_targets = (inside(self.arrays, name) for name in ("inputs_scaler.", "target_scaler."))
        given = evaluate({"x": _with_logarithms(Value("input", self.columns), scaler)}, inputs)["x"]
        x = (given - scaler["mean"]) / scaler["scale"]
        targets = np.clip(targets, *of_targets["limits"]) if "limits" in of_targets else targets
        y = (targets - of_targets["mean"]) / of_targets["scale"]
        gps = [gp.changed(gp.sums.plus(gp.sums_of(x, y, trust, counts), sign)) for gp in self.gps]
        return replace(self, gps=tuple(gps), repeated=repeated)

    def merged(self, other: Fit) -> Fit:
        """The fit with the rows of both, which must stem from one fit."""
        names = [name for name in self.arrays if ".model." in name or "_scaler." in name]
        same = len(self.gps) == len(other.gps) and all(
            name in other.arrays and np.array_equal(self.arrays[name], other.arrays[name]) for name in names
        )
        pairs = list(zip(self.gps, other.gps, strict=True)) if same else []
        if not same or any(one.noise != two.noise or one.unseen_scale != two.unseen_scale for one, two in pairs):
            raise LiteError("Only models that stem from one fit can be merged, but features, noise or scaling differ.")
        gps = tuple(mine.changed(mine.sums.plus(theirs.sums)) for mine, theirs in pairs)
        return replace(self, gps=gps, repeated=merge_repeated(self.repeated, other.repeated))

    def stored(self) -> tuple[Header, dict[str, npt.NDArray[np.generic]]]:
        """Header entry and arrays of a file with the sums as they are now."""
        header, arrays = dict(self.header), dict[str, npt.NDArray[np.generic]](self.arrays)
        header.pop("repeated", None)
        arrays = {name: each for name, each in arrays.items() if not name.startswith("repeated.")}
        if self.repeated is not None and len(self.repeated.codes):
            header["repeated"], seen = self.repeated.stored()
            arrays |= {f"repeated.{name}": each for name, each in seen.items()}
        # Of trees, in the mean or in the noise: whole numbers, which are computed with as float64 here.
        looked_at = [name for name in arrays if name.rpartition(".")[2] == "columns"]
        arrays |= {name: arrays[name].astype(np.int64) for name in looked_at}
        header["components"] = [
            {**entry, "num_data": gp.sums.rows} for entry, gp in zip(header["components"], self.gps, strict=True)
        ]
        for number, gp in enumerate(self.gps):
            prefix = f"components.{number}."
            arrays.pop(f"{prefix}landmark_weights", None)
            arrays |= {f"{prefix}statistics.{name}": each for name, each in zip(SUMS, gp.sums[:4], strict=True)}
        return header, arrays


def _with_logarithms(given: Value, scaler: Arrays) -> Value:
    """The columns, followed by some of them on scales that are linear up to a unit, and logarithmic beyond."""
    if "log_unit" not in scaler:
        return given
    away = take(given, scaler["log_columns"].astype(np.int64)) - scaler["log_origin"]
    z = clipped(away * (1.0 / scaler["log_unit"]), -_LOG_FARTHEST, _LOG_FARTHEST)
    square = z.squared
    inverse = apply("log1p", apply("abs", z) + square / (1.0 + apply("sqrt", 1.0 + square)))
    return beside([given, apply("sign", z) * inverse])


def _moments(weights: Array, means: Value, squares: Value, freedoms: Array) -> tuple[Value, Value]:
    mean = total(weights * means)
    return mean, total(weights * (variance_of_student(freedoms) * squares + (means - mean).squared))


def read_fit(header: Header, stored: Mapping[str, npt.NDArray[np.generic]]) -> Fit:
    """A fit from its entry in a file of either version; the probe of the file must come out as stored."""
    arrays: Arrays = {name: np.asarray(each, np.float64) for name, each in stored.items()}
    header, arrays = second_version(header, arrays)
    shapes = read_shapes(header["components"])
    parts = [("component", each) for each in header["components"]]
    parts += [
        ("fit", header),
        *((name, header[name]) for name in ("spread", "excess", "trees", "repeated") if name in header),
    ]
    for part, entries in parts:
        if unknown := sorted(set(entries) - _KNOWN[part]):
            raise LiteError(f"its {part} holds {unknown[0]!r}, which is not known here: use a newer release")
    if not isinstance(header.get("counts_copies_once"), bool) or not isinstance(header.get("outliers"), Mapping):
        raise LiteError("what it holds of its training rows makes no sense")
    for name, array in arrays.items():
        if not np.isfinite(array).all() and not name.startswith("inputs_scaler.scale"):
            raise LiteError(f"its array {name!r} has values that are not finite")
    columns = len(arrays["inputs_scaler.scale"])
    check_scaler("inputs_scaler", inside(arrays, "inputs_scaler."), 1)
    check_scaler("target_scaler", inside(arrays, "target_scaler."), 0)
    if "excess" in header:
        _check_excess(inside(arrays, "excess."), columns)
    gps = [
        read_gp(entry, inside(arrays, f"components.{number}."), columns)
        for number, entry in enumerate(header["components"])
    ]
    if "trees" in header:
        trees = inside(arrays, "trees.")
        check_trees(header["trees"]["weight"], trees["columns"], trees["thresholds"], trees["leaves"], columns)
    spread = header.get("spread")
    return Fit(
        header,
        arrays,
        tuple(gps),
        shapes,
        None if spread is None else read_gp(spread["gp"], inside(arrays, "spread."), columns + 2),
        None if spread is None else read_spread(spread),
        read_repeated(header["repeated"], inside(arrays, "repeated.")) if "repeated" in header else None,
    )


def _check_excess(arrays: Arrays, columns: int) -> None:
    runs, centres = arrays["run_starts"].shape[-1], len(arrays["centres"])
    shapes = {
        **{"run_starts": (columns, runs), "run_ends": (columns, runs), "effects": (columns,), "units": (columns,)},
        **{"factors": (columns, 2), "centres": (centres, columns)},
    }
    if runs == 0 or centres == 0 or any(arrays[name].shape != shape for name, shape in shapes.items()):
        raise LiteError("its variance outside of the training rows has arrays whose shapes do not fit")
    if not all(bool(np.all(arrays[name] >= 0.0)) for name in ("effects", "factors")) or not np.all(
        arrays["units"] > 0.0
    ):
        raise LiteError("its variance outside of the training rows makes no sense")
