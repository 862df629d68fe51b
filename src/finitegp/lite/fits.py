"""One fit of a model file: exact GPs with the scaling around them, as formulas and as row sums that can change."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from .linear_algebra import cholesky
from .modules import Block, Roots, feature_blocks, log_noise_scale, soft_clipped
from .program import (
    Array,
    LiteError,
    Value,
    affine,
    apply,
    beside,
    boosted,
    clipped,
    constant,
    evaluate,
    largest,
    least,
    less,
    smallest,
    solve_lower,
    solved,
    squared_distances,
    take,
    total,
)
from .student import Mixture, variance_factor

Arrays = dict[str, Array]
_Stored = TypeVar("_Stored", bound=npt.NDArray[np.generic])
# Of scaled inputs, of distances outside of what was seen, and of coordinates that distances to centres are taken in.
_FARTHEST, _SLOWING, _CLIP = 1e8, 10.0, 4.0
_PROBE_TOLERANCE = 1e-6
# Of numbers whose squares are computed.
_LARGEST = 1e150
_ROWS = 512
# What each part of a file may hold; anything else may change predictions in a way that is not known here.
_GP = {"feature_map", "noise", "noise_variance", "num_data", "chunk_size"}
_KNOWN = {
    "fit": {"components", "record", "keeps_rows", "counts_copies_once", "outliers", "inputs_scaler", "target_scaler"}
    | {"conformal", "spread", "excess", "trees"},
    "component": _GP | {"name", "weight", "factor", "degrees_of_freedom", "scale_degrees", "tail"},
    "spread": {"shift", "unit", "strength", "factor", "degrees_of_freedom", "share", "limits", "gp"},
    "excess": {"threshold", "nearness"},
    "trees": {"weight"},
}
_SUMS = ("gram", "projected_targets", "target_sum_of_squares", "log_scale_sum")


class Sums(NamedTuple):
    """Row sums, which add: Gram matrix, products with the target, its squares, log noise scales, and rows."""

    gram: Array
    projected: Array
    squares: Array
    log_scales: Array
    rows: float

    def plus(self, other: Sums, sign: float = 1.0) -> Sums:
        """The sums with, or without, other rows."""
        gram, projected, squares, log_scales = (
            np.asarray(mine + sign * theirs) for mine, theirs in zip(self[:4], other[:4], strict=True)
        )
        return Sums(gram, projected, squares, log_scales, self.rows + sign * other.rows)


@dataclass(frozen=True, eq=False)
class GP:
    """An exact GP on scaled inputs: formulas of features and noise, and the posterior of its row sums.

    Attributes:
        header: Its entry in the file's header.
        arrays: Its arrays in the file.
        sums: Of all rows seen.
        roots: Factors of landmarks, which all formulas of this GP share.
    """

    header: Mapping[str, Any]
    arrays: Arrays
    sums: Sums
    roots: Roots

    @property
    def noise(self) -> float:
        """The noise variance, apart from each row's scale."""
        return float(self.header["noise_variance"])

    @cached_property
    def factor(self) -> Array:
        """The lower factor of ``Z'Z + s I``."""
        return cholesky(self.sums.gram + self.noise * np.eye(len(self.sums.gram)))

    @cached_property
    def weights(self) -> Array:
        """``(features, targets)`` posterior means."""
        half = solve_lower(self.factor, self.sums.projected)
        return np.asarray(np.linalg.solve(self.factor.T, half))

    @property
    def evidence(self) -> float:
        """The log marginal likelihood, but for what does not depend on the features."""
        half = solve_lower(self.factor, self.sums.projected)
        volume = 2.0 * float(np.log(np.diagonal(self.factor)).sum()) - len(self.factor) * math.log(self.noise)
        return 0.5 * (float(np.square(half).sum()) / self.noise - float(half.shape[1]) * volume)

    def parts(self, x: Value) -> tuple[list[Block], Value | None]:
        """Features without their common factor, and the log noise scale, of scaled inputs."""
        mine = inside(self.arrays, "model.feature_map.")
        blocks = feature_blocks(self.header["feature_map"], mine, x, self.roots)
        features = beside([block.features for block in blocks])
        noise = inside(self.arrays, "model.noise.")
        return blocks, log_noise_scale(self.header["noise"], noise, x, features, self.roots)

    @property
    def output_scale(self) -> float:
        """The factor on the kernel."""
        return float(np.exp(self.arrays["model.log_output_scale"]))

    def mean(self, x: Value) -> Value:
        """The posterior mean of the first target."""
        blocks, _ = self.parts(x)
        return affine(math.sqrt(self.output_scale) * beside([each.features for each in blocks]), self.weights[:, :1])

    def predict(self, x: Value) -> tuple[Value, Value, Value]:
        """Mean, variance of the function, and variance of the noise."""
        blocks, log_scale = self.parts(x)
        plain = [block.features for block in blocks]
        features = math.sqrt(self.output_scale) * beside(plain)
        unknown = self.noise * total(solved(features, self.factor).squared)
        for block, mine in zip(blocks, plain, strict=True):
            if block.variance:
                unknown = unknown + self.output_scale * largest(block.variance - total(mine.squared), 0.0)
        noise = constant(self.noise) if log_scale is None else self.noise * apply("exp", log_scale)
        return affine(features, self.weights[:, :1]), unknown, noise

    def sums_of(self, inputs: Array, targets: Array, row_weights: Array | None, counts: Array | None) -> Sums:
        """Row sums of scaled rows."""
        outputs = self._feature_outputs(inputs.shape[1])
        found: Sums | None = None
        for start in range(0, len(inputs), _ROWS):
            rows = slice(start, start + _ROWS)
            given = evaluate(outputs, inputs[rows])
            z, y = given["features"], targets[rows][:, None]
            times = np.ones(len(z)) if counts is None else counts[rows]
            log_scale = given["log_scale"][:, 0] if "log_scale" in given else np.zeros(len(z))
            if row_weights is not None:
                log_scale = log_scale - np.log(row_weights[rows])
            weighted = z * (np.exp(-log_scale) * times)[:, None]
            squares = np.sum(np.square(y) * (np.exp(-log_scale) * times)[:, None], axis=0)
            mine = Sums(weighted.T @ z, weighted.T @ y, squares, np.asarray(log_scale @ times), float(times.sum()))
            found = mine if found is None else found.plus(mine)
        if found is None or not np.isfinite(found.gram).all():
            raise LiteError("there are no rows, or their features are no numbers in floating point")
        return found

    def _feature_outputs(self, columns: int) -> dict[str, Value]:
        x = Value("input", columns)
        blocks, log_scale = self.parts(x)
        features = math.sqrt(self.output_scale) * beside([each.features for each in blocks])
        return {"features": features, **({} if log_scale is None else {"log_scale": log_scale})}

    def changed(self, sums: Sums) -> GP:
        """The same GP with other sums; what forgetting leaves must be sums of rows."""
        diagonal = np.diagonal(sums.gram)
        if sums.rows < 0.0 or np.any(diagonal < -1e-8 * np.diagonal(self.sums.gram).max()):
            raise LiteError("The rows to forget are not among those seen: pass exactly the rows that were taken in.")
        return replace(self, sums=sums)


@dataclass(frozen=True, eq=False)
class Fit:
    """What the library calls ``ScaledGP``: predictions in the target's units, and rows that come and go.

    Attributes:
        header: The file's entry of this fit.
        arrays: Its arrays.
        gps: One GP for each component.
        spread: The GP of how much larger errors are in some rows; or None.
    """

    header: Mapping[str, Any]
    arrays: Arrays
    gps: tuple[GP, ...]
    spread: GP | None

    @property
    def columns(self) -> int:
        """How many numbers a row has."""
        return len(self.arrays["inputs_scaler.scale"])

    @property
    def distribution(self) -> str:
        """``"normal"``, ``"student"`` (one with the same degrees of freedom inside) or ``"mixture"``."""
        if len(self.gps) > 1 or self.spread is not None or self._tails():
            return "mixture"
        return "normal" if self.header["components"][0]["degrees_of_freedom"] is None else "student"

    def _variance_factor(self, index: int) -> float:
        component, gp = self.header["components"][index], self.gps[index]
        factor, prior = float(component["factor"]) ** 2, float(component["scale_degrees"])
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
        scaler = {name: self.arrays[f"inputs_scaler.{name}"] for name in ("mean", "scale")}
        x = clipped((Value("input", self.columns) - scaler["mean"]) * (1.0 / scaler["scale"]), -_FARTHEST, _FARTHEST)
        components = self.header["components"]
        factors = np.array([self._variance_factor(index) for index in range(len(self.gps))])
        weights, freedoms = self.mixture_parts(spread=False)
        own = np.array([number for number, _ in self._tails()], dtype=np.int64)
        wide = np.array([float(tail[1]) ** 2 for _, tail in self._tails()])
        predicted = [gp.predict(x) for gp in self.gps]
        if "trees" in self.header:
            predicted = [(self._with_trees(x, mean), unknown, noise) for mean, unknown, noise in predicted]
        means, unknown, noises = (beside(list(each)) for each in zip(*predicted, strict=True))
        squares, spreads = factors * (unknown + noises), factors * self._error_variances()
        shares = np.array([float(each["weight"]) for each in components])
        if len(own):  # errors of a tail lie around the same means
            means, squares = (beside([each, take(each, own)]) for each in (means, squares))
            squares = squares * np.concatenate([np.ones(len(components)), wide])
        if len(predicted) == 1 and self.spread is None:
            mean, noise, epistemic = predicted[0][0], spreads * noises, spreads * unknown
        else:
            mean, variance = _moments(weights, means, squares, freedoms)
            noise = total((shares * spreads) * noises)
            if self.spread is not None:
                share = noise / variance
                pooled = total(weights * (squares + (means - mean).squared))
                means = beside([means, mean])
                squares = beside([squares, self._spread_square(x, mean, pooled)])
                weights, freedoms = self.mixture_parts()
                mean, variance = _moments(weights, means, squares, freedoms)
                noise = share * variance
            epistemic = variance - noise
        finite = np.isfinite(freedoms)
        found: dict[str, Value] = {"freedoms": constant(np.where(finite, freedoms, 3.0))} if finite.any() else {}
        if "excess" in self.header:
            excess = self._excess(x)
            epistemic = epistemic + excess
            before = variance_factor(freedoms) * squares
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

    def _tails(self) -> list[tuple[int, Any]]:
        """Components of whose errors a share is larger than the others: share, factor on the scale, freedom."""
        stored = enumerate(self.header["components"])
        return [(number, each["tail"]) for number, each in stored if each.get("tail") is not None]

    def _error_variances(self) -> Array:
        """``(components,)`` variances of errors in squared scales."""
        found = variance_factor(
            np.array([each["degrees_of_freedom"] or math.inf for each in self.header["components"]])
        )
        for number, (share, factor, freedom) in self._tails():
            wide = float(factor) ** 2 * float(variance_factor(np.array(freedom or math.inf)))
            found[number] = (1.0 - float(share)) * found[number] + float(share) * wide
        return found

    def mixture_parts(self, *, spread: bool = True) -> tuple[Array, Array]:
        """Weights and degrees of freedom of the mixture: of components, their tails, and the model of the spread."""
        components, tails = self.header["components"], self._tails()
        weights = np.array([float(each["weight"]) for each in components])
        freedoms = [each["degrees_of_freedom"] or math.inf for each in components]
        parts = [float(tail[0]) * weights[number] for number, tail in tails]
        for number, tail in tails:
            weights[number] *= 1.0 - float(tail[0])
        weights = np.append(weights, parts)
        freedoms += [tail[2] or math.inf for _, tail in tails]
        if self.spread is not None and spread:
            share = float(self.header["spread"]["share"])
            weights = np.append((1.0 - share) * weights, share)
            freedoms.append(float(self.header["spread"]["degrees_of_freedom"]))
        return weights, np.array(freedoms, dtype=np.float64)

    def _spread_square(self, x: Value, mean: Value, pooled: Value) -> Value:
        """The squared scale of the component that the model of the spread adds."""
        assert self.spread is not None
        stored = self.header["spread"]
        centres, units = self.arrays["spread.centres"], self.arrays["spread.units"]
        extra = clipped((beside([apply("log", pooled), mean]) - centres) * (1.0 / units), -4.0, 4.0)
        found = self.spread.mean(beside([x, extra])) * float(stored["unit"]) + float(stored["shift"])
        log_factor = float(stored["strength"]) * clipped(found, *map(float, stored["limits"]))
        return float(stored["factor"]) ** 2 * pooled * apply("exp", log_factor)

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
        if self.header["counts_copies_once"] and counts is None:
            different = np.unique(np.column_stack([inputs, targets]), axis=0)
            inputs, targets = different[:, :-1], different[:, -1]
        outliers = self.header["outliers"]
        trust = None
        if sign < 0.0 and outliers:
            trust = np.array([1.0 / float(outliers.get(key, 1.0)) for key in row_hashes(inputs, targets)])
        scaler = {name: self.arrays[name] for name in self.arrays if name.startswith(("inputs_s", "target_s"))}
        x = (inputs - scaler["inputs_scaler.mean"]) / scaler["inputs_scaler.scale"]
        y = (targets - scaler["target_scaler.mean"]) / scaler["target_scaler.scale"]
        gps = [gp.changed(gp.sums.plus(gp.sums_of(x, y, trust, counts), sign)) for gp in self.gps]
        return replace(self, gps=tuple(gps))

    def merged(self, other: Fit) -> Fit:
        """The fit with the rows of both, which must stem from one fit."""
        names = [name for name in self.arrays if ".model." in name or "_scaler." in name]
        same = len(self.gps) == len(other.gps) and all(
            name in other.arrays and np.array_equal(self.arrays[name], other.arrays[name]) for name in names
        )
        if not same or any(mine.noise != theirs.noise for mine, theirs in zip(self.gps, other.gps, strict=True)):
            raise LiteError("Only models that stem from one fit can be merged, but features, noise or scaling differ.")
        pairs = zip(self.gps, other.gps, strict=True)
        return replace(self, gps=tuple(mine.changed(mine.sums.plus(theirs.sums)) for mine, theirs in pairs))

    def stored(self) -> tuple[dict[str, Any], Arrays]:
        """Header entry and arrays of a file with the sums as they are now."""
        header, arrays = dict(self.header), dict(self.arrays)
        header["components"] = [
            {**entry, "num_data": gp.sums.rows} for entry, gp in zip(header["components"], self.gps, strict=True)
        ]
        for number, gp in enumerate(self.gps):
            prefix = f"components.{number}."
            arrays.pop(f"{prefix}landmark_weights", None)
            arrays |= {f"{prefix}statistics.{name}": each for name, each in zip(_SUMS, gp.sums[:4], strict=True)}
        return header, arrays


def _moments(weights: Array, means: Value, squares: Value, freedoms: Array) -> tuple[Value, Value]:
    mean = total(weights * means)
    return mean, total(weights * (variance_factor(freedoms) * squares + (means - mean).squared))


def row_hashes(inputs: Array, targets: Array) -> list[str]:
    """The library's name for each row and its target."""
    rows = np.column_stack([inputs, targets]) + 0.0
    return [hashlib.sha256(row.astype("<f8").tobytes()).hexdigest()[:32] for row in rows]


def inside(arrays: Mapping[str, _Stored], prefix: str) -> dict[str, _Stored]:
    """The arrays whose names begin so, under the rest of their names."""
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}


def read_fit(header: Mapping[str, Any], stored: Mapping[str, npt.NDArray[np.generic]]) -> Fit:
    """A fit from its entry in a file of either version; the probe of the file must come out as stored."""
    arrays: Arrays = {name: np.asarray(each, np.float64) for name, each in stored.items()}
    if "components" not in header:
        header, arrays = _second_version(header, arrays)
    parts = [("component", each) for each in header["components"]]
    parts += [("fit", header), *((name, header[name]) for name in ("spread", "excess", "trees") if name in header)]
    for part, entries in parts:
        if unknown := sorted(set(entries) - _KNOWN[part]):
            raise LiteError(f"its {part} holds {unknown[0]!r}, which is not known here: use a newer release")
    if not isinstance(header.get("counts_copies_once"), bool) or not isinstance(header.get("outliers"), Mapping):
        raise LiteError("what it holds of its training rows makes no sense")
    for name, array in arrays.items():
        if not np.isfinite(array).all() and not name.startswith("inputs_scaler.scale"):
            raise LiteError(f"its array {name!r} has values that are not finite")
    columns = len(arrays["inputs_scaler.scale"])
    for name, shape in (("inputs_scaler.", (columns,)), ("target_scaler.", ())):
        mean, scale = arrays[f"{name}mean"], arrays[f"{name}scale"]
        if (
            mean.shape != shape
            or scale.shape != shape
            or not np.all((np.abs(mean) < _LARGEST) & (scale > 1.0 / _LARGEST))
        ):
            raise LiteError(f"its {name[:-1]} makes no sense")
    if not float(arrays["target_scaler.scale"]) < _LARGEST:
        raise LiteError("its target_scaler makes no sense")
    if "excess" in header:
        _check_excess(inside(arrays, "excess."), columns)
    gps = [
        _read_gp(entry, inside(arrays, f"components.{number}."), columns)
        for number, entry in enumerate(header["components"])
    ]
    if "trees" in header:
        _check_trees(header["trees"]["weight"], inside(arrays, "trees."), columns)
    spread = header.get("spread")
    return Fit(
        header,
        arrays,
        tuple(gps),
        None if spread is None else _read_gp(spread["gp"], inside(arrays, "spread."), columns + 2),
    )


def _check_trees(weight: object, arrays: Arrays, inputs: int) -> None:
    columns, thresholds, leaves = (arrays[name] for name in ("columns", "thresholds", "leaves"))
    nodes = columns.shape[1] if columns.ndim == 2 and len(columns) else 0
    good = isinstance(weight, float) and 0.0 < weight <= 1.0 and 0 < nodes < 1024 and not nodes & (nodes + 1)
    good = good and thresholds.shape == columns.shape and leaves.shape == (len(columns), nodes + 1)
    if not good or columns.min() < 0 or columns.max() >= inputs or np.any(columns != np.floor(columns)):
        raise LiteError("its trees make no sense")


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


def _second_version(header: Any, arrays: Arrays) -> tuple[Any, Arrays]:
    """The first version had one GP, with the shape of its errors and its conformal scores in the record."""
    record = header["record"]
    freedom = record.get("degrees_of_freedom")
    own = ("feature_map", "noise", "noise_variance", "num_data")
    component = {
        **{name: header[name] for name in own},
        "weight": 1.0,
        "factor": 1.0 if freedom is None else math.sqrt((freedom - 2.0) / freedom),
        "degrees_of_freedom": freedom,
        "scale_degrees": 0.0,
    }
    conformal = {} if record.get("conformal") is None else {"conformal": record["conformal"]}
    moved = ("model.", "statistics.", "probe.")
    arrays = {f"components.0.{name}" if name.startswith(moved) else name: each for name, each in arrays.items()}
    return {"components": [component], "counts_copies_once": False, "outliers": {}, **conformal}, arrays


def _read_gp(header: Any, arrays: Arrays, columns: int) -> GP:
    projected = arrays["statistics.projected_targets"]
    features = len(projected)
    empty = Sums(
        np.zeros((features, features)),
        projected,
        arrays["statistics.target_sum_of_squares"],
        arrays["statistics.log_scale_sum"],
        float(header["num_data"]),
    )
    gp = GP(header, arrays, empty, {})
    if not (gp.noise > 0.0 and empty.rows > 0.0 and projected.ndim == 2):
        raise LiteError("its sums or its noise make no sense")
    if "probe.inputs" in arrays:
        found = evaluate(gp._feature_outputs(columns), arrays["probe.inputs"])
        scales = found["log_scale"][:, 0] if "log_scale" in found else np.zeros(len(found["features"]))
        mine, stored = found["features"], arrays["probe.features"]
        if gp.roots:  # features on landmarks depend on who factorises, their products do not
            mine, stored = mine @ mine.T, stored @ stored.T
        for one, other in ((mine, stored), (scales, arrays["probe.log_noise_scale"])):
            if one.shape != other.shape or not np.allclose(one, other, rtol=_PROBE_TOLERANCE, atol=_PROBE_TOLERANCE):
                raise LiteError("its features do not come out as when it was saved: use the library finitegp")
    if "landmark_weights" in arrays:
        places = next(each for name, each in arrays.items() if name.endswith(".landmarks"))
        sums = gp.sums_of(places, np.zeros(len(places)), arrays["landmark_weights"], None)
        if "landmark_targets" in arrays:  # older files hold the products themselves
            at_places = evaluate(gp._feature_outputs(columns), places)["features"]
            projected = at_places.T @ arrays["landmark_targets"]
        return replace(gp, sums=empty._replace(gram=sums.gram, projected=projected))
    if arrays["statistics.gram"].shape != (features, features):
        raise LiteError("its sums are not square")
    return replace(gp, sums=empty._replace(gram=arrays["statistics.gram"]))
