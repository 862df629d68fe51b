"""``load`` and :class:`LiteModel`: predictions, intervals and exact updates of a model file, with NumPy alone."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from .container import Header, inside, read_file, write_file
from .fits import Fit, read_fit
from .program import Array, LiteError, evaluate
from .student import Mixture
from .tables import Encoder, Table, read_table
from .target_scale import COVERAGES, Scale

_ROWS = 512
METHODS = ("predictive", "gaussian", "conformal")


@dataclass(frozen=True, eq=False)
class LitePrediction:
    """The prediction for some rows, in the target's units: ``(rows,)``, or ``(rows, targets)`` of several.

    Attributes:
        mean: The mean of a new observation.
        std: Its standard deviation, noise included.
        epistemic_std: The part of it that more rows would take away; NaN where the target is modelled on another scale.
        noise_std: The part that stays; NaN in the same case.
        interval: Lower and upper ends of central intervals: ``interval(coverage, method="predictive")``; methods are
            ``"predictive"``, ``"gaussian"`` and ``"conformal"``, as in the library.
    """

    mean: Array
    std: Array
    epistemic_std: Array
    noise_std: Array
    interval: Callable[..., tuple[Array, Array]]


@dataclass(frozen=True, eq=False)
class _Rows:
    """Predictions of one fit, on the scale of the fit."""

    fit: Fit
    mean: Array
    epistemic: Array
    noise: Array
    mixture: Mixture

    @property
    def std(self) -> Array:
        return np.sqrt(self.epistemic + self.noise)

    def interval(self, coverage: float, method: str) -> tuple[Array, Array]:
        if method not in METHODS:
            raise LiteError(f"method must be one of {list(METHODS)}, but is {method!r}.")
        if not 0.0 < coverage < 1.0:
            raise LiteError(f"coverage must lie between 0 and 1, but is {coverage}.")
        if method == "conformal":
            return self._conformal(coverage)
        ends = 0.5 - 0.5 * coverage, 0.5 + 0.5 * coverage
        if method == "predictive":
            return self.mixture.quantile(ends[0]), self.mixture.quantile(ends[1])
        reach = _normal_quantile(ends[1]) * self.std
        return self.mean - reach, self.mean + reach

    def _conformal(self, coverage: float) -> tuple[Array, Array]:
        stored = self.fit.header.get("conformal")
        if stored is None:
            raise LiteError("The model has no conformal scores: take the intervals of the predictive distribution.")
        scores = np.sort(np.array(stored["scores"], dtype=np.float64))
        rank = math.ceil((len(scores) + 1) * coverage - 1e-9)
        if rank > len(scores):
            most = len(scores) / (len(scores) + 1)
            raise LiteError(f"coverage {coverage} cannot be promised by its scores: ask for at most {most:.3f}.")
        score = float(scores[rank - 1])
        if stored.get("in_deviations", True):
            return self.mean - score * self.std, self.mean + score * self.std
        below = 0.5 * math.erfc(score * math.sqrt(0.5))
        return self.mixture.quantile(max(below, 1e-300)), self.mixture.quantile(min(1.0 - below, 1.0 - 1e-16))


@dataclass(frozen=True, eq=False)
class LiteModel:
    """A fitted model that needs NumPy and nothing else; made by :func:`load`, never changed.

    Attributes:
        header: Of the file.
        fits: One per target.
        encoder: Turns tables into numbers; None for models of arrays.
        scale: On which the target is modelled.
        column_names: What a row holds: columns of the table, or of the array if they have names.
    """

    header: Mapping[str, Any]
    fits: tuple[Fit, ...]
    encoder: Encoder | None
    scale: Scale
    column_names: list[str] | None

    @property
    def rows(self) -> float:
        """Rows in the posterior, counts respected."""
        return max(self.fits[0].gps, key=lambda gp: float(gp.header.get("weight", 1.0))).sums.rows

    def predict(self, rows: Table | ArrayLike) -> LitePrediction:
        """Predict new observations.

        Args:
            rows: ``(rows, columns)`` numbers, or for models of tables (and of arrays with names) a mapping of names to
                columns or a data frame.
        """
        inputs, unknown = self.inputs(rows)
        new = np.zeros(len(inputs), bool) if unknown is None else np.asarray(unknown.any(axis=1))
        found = [predict_fit(fit, inputs, new=new) for fit in self.fits]
        if self.encoder is not None:
            return self._of_table(found[0], inputs, unknown)

        def interval(coverage: float = 0.9, method: str = "predictive") -> tuple[Array, Array]:
            lower, upper = zip(*(each.interval(coverage, method) for each in found), strict=True)
            return _join(lower), _join(upper)

        return LitePrediction(
            _join([each.mean for each in found]),
            _join([each.std for each in found]),
            _join([np.sqrt(each.epistemic) for each in found]),
            _join([np.sqrt(each.noise) for each in found]),
            interval,
        )

    def _of_table(self, found: _Rows, inputs: Array, unknown: npt.NDArray[np.bool_] | None) -> LitePrediction:
        mean, std = found.mean.copy(), found.std.copy()
        if unknown is not None:
            # What the fit never saw is replaced by what it saw, in several ways: never surer than any of them.
            assert self.encoder is not None
            which = np.flatnonzero(unknown.any(axis=1))
            filled = self.encoder.combinations(inputs[which], unknown[which])
            tried = [predict_fit(self.fits[0], each, new=True) for each in filled]
            means, stds = [each.mean for each in tried], [each.std for each in tried]
            together = np.sqrt(np.mean(np.square(stds), axis=0) + np.var(means, axis=0))
            mean[which] = np.mean(means, axis=0)
            std[which] = np.maximum.reduce([together, *stds, std[which]])

        def interval(coverage: float = 0.9, method: str = "predictive") -> tuple[Array, Array]:
            lower, upper = found.interval(coverage, method)
            if unknown is not None:
                lower, upper = (mean + (end - found.mean) * (std / found.std) for end in (lower, upper))
            return self.scale.inverse(lower), self.scale.inverse(upper)

        if self.scale.name != "identity":
            nothing = np.full(len(mean), np.nan)
            ends = zip(*map(interval, COVERAGES), strict=True)
            lower, upper = (np.stack(each, axis=1) for each in ends)
            return LitePrediction(*self.scale.moments(lower, upper), nothing, nothing, interval)
        wider = std / found.std
        return LitePrediction(
            self.scale.inverse(mean), std, wider * np.sqrt(found.epistemic), wider * np.sqrt(found.noise), interval
        )

    def update(self, rows: Table | ArrayLike, targets: ArrayLike, counts: ArrayLike | None = None) -> LiteModel:
        """The model with more rows: the exact posterior of all of them, with features, noise and scaling kept."""
        return self._changed(rows, targets, counts, 1.0)

    def forget(self, rows: Table | ArrayLike, targets: ArrayLike, counts: ArrayLike | None = None) -> LiteModel:
        """The model without rows that it has seen, as if it had never seen them."""
        return self._changed(rows, targets, counts, -1.0)

    def merge(self, other: LiteModel) -> LiteModel:
        """The model with the rows of both, which must stem from one fit."""
        if not isinstance(other, LiteModel):
            raise LiteError(f"other must be a LiteModel, but is {other!r:.60}.")
        if len(self.fits) != len(other.fits) or self.header.get("table") != other.header.get("table"):
            raise LiteError("Only models that stem from one fit can be merged, but their targets or tables differ.")
        pairs = zip(self.fits, other.fits, strict=True)
        return replace(self, fits=tuple(mine.merged(theirs) for mine, theirs in pairs))

    def _changed(self, rows: Table | ArrayLike, targets: ArrayLike, counts: ArrayLike | None, sign: float) -> LiteModel:
        inputs, _ = self.inputs(rows)
        values = _numbers("targets", targets)
        values = values.reshape(len(inputs), -1) if values.size == len(inputs) * len(self.fits) else values
        if values.shape != (len(inputs), len(self.fits)):
            raise LiteError(f"targets must be {len(inputs)} rows of {len(self.fits)}, but have shape {values.shape}.")
        scaled = self.scale.forward(values)
        if not np.isfinite(scaled).all():
            raise LiteError("A target is missing, infinite, or impossible on the scale of the model: correct the row.")
        times = None if counts is None else _numbers("counts", counts).reshape(-1)
        if times is not None and (len(times) != len(inputs) or not np.all((times > 0.0) & np.isfinite(times))):
            raise LiteError(f"counts must be {len(inputs)} positive numbers.")
        fits = [fit.change(inputs, scaled[:, number], times, sign) for number, fit in enumerate(self.fits)]
        return replace(self, fits=tuple(fits))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a model file that the library reads, with the rows taken in so far in its sums."""
        header, arrays = dict(self.header), dict[str, Any]()
        entries = []
        for number, fit in enumerate(self.fits):
            entry, mine = fit.stored()
            entries.append(entry)
            arrays |= {f"fits.{number}.{name}": array for name, array in mine.items()}
        if self.header["format_version"] == 1:
            raise LiteError("Files of version 1 are read but not written: save the model with the library first.")
        write_file(path, header | {"fits": entries}, arrays)

    def inputs(self, rows: Table | ArrayLike) -> tuple[Array, npt.NDArray[np.bool_] | None]:
        """Rows as numbers, every one checked; and of a table what in it is new, or None."""
        if self.encoder is not None:
            return self.encoder.encode(read_table(rows))
        if self.column_names is not None and (hasattr(rows, "keys") or hasattr(rows, "columns")):
            table = read_table(rows)
            absent = [name for name in self.column_names if name not in table]
            if absent:
                raise LiteError(f"There is no column {absent[0]!r}; there are {', '.join(map(repr, table))}.")
            rows = np.column_stack([_numbers(f"Column {name!r}", table[name]) for name in self.column_names])
        inputs = _numbers("rows", rows)
        columns = self.fits[0].columns
        if inputs.ndim != 2 or inputs.shape[1] != columns or len(inputs) == 0:
            raise LiteError(f"rows must be at least one row of {columns} numbers, but have shape {inputs.shape}.")
        if not np.isfinite(inputs).all():
            row, column = np.argwhere(~np.isfinite(inputs))[0]
            raise LiteError(f"Row {row}, column {column} is {inputs[row, column]}: it must be a finite number.")
        return inputs, None


def load(path: str | os.PathLike[str]) -> LiteModel:
    """Read a model that ``finitegp fit``, ``GPRegressor.save``, ``TableRegressor.save`` or ``save_fit`` wrote.

    Files of both versions are read. Refused by name: statistics of sites, checkpoints and models with modules of one's
    own. Dates are taken as dates or ISO text only.

    Raises:
        LiteError: If the file is damaged, truncated, of a newer version or something else.
    """
    header, arrays = read_file(path)
    kind = header.get("kind")
    if kind not in ("fit", "regressor", "table"):
        raise LiteError(
            f"{path} holds a {str(kind)[:60]!r}, not a model: only models can be loaded here. The library's merge "
            "makes a model of the statistics of sites."
        )
    return read_model(str(path), header, arrays)


def read_model(name: str, header: Header, arrays: Mapping[str, npt.NDArray[np.generic]]) -> LiteModel:
    """The model of a header and arrays; ``name`` is what errors call it."""
    try:
        stored = header["fits"]
        if not isinstance(stored, list) or not 1 <= len(stored) <= max(len(arrays), 1):
            raise LiteError("it holds no fit")
        fits = tuple(read_fit(entry, inside(arrays, f"fits.{number}.")) for number, entry in enumerate(stored))
        table = header.get("table") or {}
        encoder = Encoder.read(table["encoder"]) if header.get("kind") == "table" else None
        scale = Scale.from_dict(table.get("target_scale"))
        for fit in fits:
            predict_fit(
                fit, fit.arrays["inputs_scaler.mean"][None, : fit.columns]
            )  # what is missing or too large shows here
        names = (header.get("regressor") or {}).get("feature_names_in")
        if encoder is not None:
            names = [column["name"] for column in encoder.used]
            if encoder.width != fits[0].columns or len(fits) > 1:
                raise LiteError("its encoding of tables does not fit the model")
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, StopIteration) as error:
        text = str(error) if isinstance(error, LiteError) else f"its parts make no sense ({error!r})"
        raise LiteError(f"{name} cannot be used: {text}.") from None
    return LiteModel(header, fits, encoder, scale, names)


def predict_fit(fit: Fit, inputs: Array, *, new: bool | npt.NDArray[np.bool_] = False) -> _Rows:
    """Predictions of one fit for inputs that have been checked; those of ``new`` rows as if none were equal to them."""
    parts = [evaluate(fit.outputs, inputs[start : start + _ROWS]) for start in range(0, len(inputs), _ROWS)]
    found = {name: np.concatenate([part[name] for part in parts]) for name in fit.outputs}
    mean, epistemic, noise = (found[name][:, 0] for name in ("mean", "epistemic_variance", "noise_variance"))
    wrong = ~(np.isfinite(mean) & np.isfinite(epistemic + noise))
    if wrong.any():
        raise LiteError(f"The prediction for row {int(np.argmax(wrong))} is no number: its inputs lie too far out.")
    mixture = fit.mixture(found)
    if fit.repeated is None:
        return _Rows(fit, mean, epistemic, noise, mixture)
    values, chances = fit.repeated.look_up(inputs)
    mixture = mixture.with_values(values, np.where(new, 0.0, chances), fit.repeated.tolerance)
    ratio = mixture.variance / (epistemic + noise)  # of what is left, noise is the same part as before
    return _Rows(fit, mixture.mean, ratio * epistemic, ratio * noise, mixture)


def _numbers(name: str, values: object) -> Array:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise LiteError(f"{name} must be numbers, but is {values!r:.60}.") from None


def _join(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.stack(parts, axis=-1)


def _normal_quantile(probability: float) -> float:
    from statistics import NormalDist  # which takes long to import

    return NormalDist().inv_cdf(probability)
