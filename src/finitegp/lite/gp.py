"""One exact GP of a model file: formulas of features and noise, and the posterior of row sums that can change."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from .container import Header, inside
from .modules import SEEN, Block, Roots, cholesky, feature_blocks, log_noise_scale
from .program import (
    Array,
    LiteError,
    Value,
    affine,
    apply,
    beside,
    constant,
    evaluate,
    largest,
    solve_lower,
    solved,
    total,
)

Arrays = dict[str, Array]
#: What files call the row sums.
SUMS = ("gram", "projected_targets", "target_sum_of_squares", "log_scale_sum")
#: Far above rounding on another processor, far below what a different module gives.
PROBE_TOLERANCE = 1e-6
_ROWS = 512


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

    @property
    def unseen_scale(self) -> float:
        """The growth of a row's noise scale in the sums with the variance that landmarks do not see of it, per unit."""
        return float(self.header.get("unseen_scale", 0.0))

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
        unseen = self._unseen(blocks, plain)
        if unseen is not None:
            unknown = unknown + unseen
        noise = constant(self.noise) if log_scale is None else self.noise * apply("exp", log_scale)
        return affine(features, self.weights[:, :1]), unknown, noise

    def _unseen(self, blocks: list[Block], plain: list[Value], tolerance: float = 0.0) -> Value | None:
        """The variance that features on landmarks do not see, but for a part of the kernel's; None: no landmarks."""
        found: Value | None = None
        for block, mine in zip(blocks, plain, strict=True):
            if block.variance:
                seen = total(mine.squared) + tolerance * block.variance if tolerance else total(mine.squared)
                lost = self.output_scale * largest(block.variance - seen, 0.0)
                found = lost if found is None else found + lost
        return found

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
            if "unseen" in given:  # noise of this row in the sums, zero at landmarks
                with np.errstate(divide="ignore"):
                    log_scale = np.logaddexp(log_scale, np.log(self.unseen_scale * given["unseen"][:, 0]))
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
        plain = [each.features for each in blocks]
        found = {"features": math.sqrt(self.output_scale) * beside(plain)}
        unseen = self._unseen(blocks, plain, SEEN) if self.unseen_scale else None
        return (
            found
            | ({} if log_scale is None else {"log_scale": log_scale})
            | ({} if unseen is None else {"unseen": unseen})
        )

    def changed(self, sums: Sums) -> GP:
        """The same GP with other sums; what forgetting leaves must be sums of rows."""
        diagonal = np.diagonal(sums.gram)
        if sums.rows < 0.0 or np.any(diagonal < -1e-8 * np.diagonal(self.sums.gram).max()):
            raise LiteError("The rows to forget are not among those seen: pass exactly the rows that were taken in.")
        return replace(self, sums=sums)


def read_gp(header: Header, arrays: Arrays, columns: int) -> GP:
    """A GP from its entry in a file; what the file has of its features must come out as stored."""
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
    if not (gp.noise > 0.0 and empty.rows > 0.0 and projected.ndim == 2 and 0.0 <= gp.unseen_scale < math.inf):
        raise LiteError("its sums or its noise make no sense")
    if "probe.inputs" in arrays:
        found = evaluate(gp._feature_outputs(columns), arrays["probe.inputs"])
        scales = found["log_scale"][:, 0] if "log_scale" in found else np.zeros(len(found["features"]))
        mine, stored = found["features"], arrays["probe.features"]
        if gp.roots:  # features on landmarks depend on who factorises, their products do not
            mine, stored = mine @ mine.T, stored @ stored.T
        for one, other in ((mine, stored), (scales, arrays["probe.log_noise_scale"])):
            if one.shape != other.shape or not np.allclose(one, other, rtol=PROBE_TOLERANCE, atol=PROBE_TOLERANCE):
                raise LiteError("its features do not come out as when it was saved: use the library finitegp")
    if "landmark_weights" in arrays:
        places = next(each for name, each in arrays.items() if name.endswith(".landmarks"))
        weights, targets = arrays["landmark_weights"], arrays.get("landmark_targets")
        values = np.zeros(len(places)) if targets is None else targets[:, 0] / weights
        sums = gp.sums_of(places, values, weights, None)
        if targets is not None:  # older files hold the products themselves
            projected = sums.projected
        return replace(gp, sums=empty._replace(gram=sums.gram, projected=projected))
    if arrays["statistics.gram"].shape != (features, features):
        raise LiteError("its sums are not square")
    return replace(gp, sums=empty._replace(gram=arrays["statistics.gram"]))
