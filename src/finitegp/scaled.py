"""``ScaledGP``: what a fit leaves behind, with the verbs of :class:`~finitegp.FittedGP` in the user's units."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from .arguments import check_arguments, check_at_least_one
from .component import Component, SpreadModel, combine
from .conformal import ConformalScores
from .data import ArraySource, Rows, ScaledSource, Scaling
from .data.arrays import check_rows
from .data.scaling import Standardizer
from .errors import DataError, NumericalError
from .extrapolation import ExcessVariance
from .lite.hashing import RepeatedRows, SeenValues, change_rows, merge_repeated, row_hashes
from .model import FittedGP
from .predictive import Prediction, StudentMixture, check_coverage
from .processes import in_threads, one_thread
from .trees import BoostedTrees

Array = npt.NDArray[np.float64]

_FARTHEST = 1e8  # in standard deviations
# Rows that a thread predicts at once.
_SHARE_ROWS = 1024
#: Up to so many rows at once are predicted in float64; of more, float32 is tried where it is next to that.
FEW_ROWS = 4096
#: Where intervals come from; see :meth:`ScaledGP.interval`.
INTERVAL_METHODS = ("predictive", "gaussian", "conformal")


@check_arguments
@dataclass(frozen=True, eq=False)
class ScaledGP:
    """One or several exact GPs with the scaling around them: predictions, row updates and evidence in the user's units.

    Attributes:
        components: The GPs; their predictions mix.
        inputs_scaler: Scales inputs.
        target_scaler: Standardises the target.
        trees: Boosted trees that have a part in the mean, or None.
        spread: A model of how the spread of errors depends on the row, or None.
        excess: A model of what is not known outside of the training rows, or None.
        conformal: Scores of left-out rows, or None.
        record: What was chosen, and why; everything in it is JSON, and no prediction depends on it.
        keeps_rows: Whether the features hold training rows, as landmarks.
        counts_copies_once: Whether equal rows with equal targets were recognised as copies, which count once.
        outliers: Factors on the noise variance of training rows that are not trusted, by the hash of the row
            (:func:`~finitegp.lite.hashing.row_hashes`): such a row is forgotten as it was taken in.
        repeated: Targets of rows by a hash of their inputs, where rows of the table repeat by themselves; or None.
    """

    components: tuple[Component, ...]
    inputs_scaler: Standardizer
    target_scaler: Standardizer
    trees: BoostedTrees | None = None
    spread: SpreadModel | None = None
    excess: ExcessVariance | None = None
    conformal: ConformalScores | None = None
    record: dict[str, Any] = field(default_factory=dict)
    keeps_rows: bool = False
    counts_copies_once: bool = False
    outliers: Mapping[str, float] = field(default_factory=dict)
    repeated: RepeatedRows | None = None

    @property
    def fitted(self) -> FittedGP:
        """The GP with the largest weight."""
        return max(self.components, key=lambda component: component.weight).fitted

    @property
    def chunk_size(self) -> int:
        """Rows that pass through the features at once: memory grows with it, results do not."""
        return self.fitted.chunk_size

    def with_chunks(self, chunk_size: int) -> ScaledGP:
        """The same fit with another number of rows at once."""
        fitted = [FittedGP(each.fitted.model, each.fitted.posterior, chunk_size=chunk_size) for each in self.components]
        pairs = zip(self.components, fitted, strict=True)
        spread = self.spread
        if spread is not None:
            inner = FittedGP(spread.fitted.model, spread.fitted.posterior, chunk_size=chunk_size)
            spread = replace(spread, fitted=inner)
        return replace(self, components=tuple(replace(one, fitted=each) for one, each in pairs), spread=spread)

    @property
    def distribution(self) -> str:
        """The name of the predictive distribution of rows that are equal to none that was seen."""
        if len(self.components) > 1 or self.spread is not None or self.components[0].tail is not None:
            return "a mixture of Student's t"
        freedom = self.components[0].degrees_of_freedom
        if math.isinf(freedom):
            return "a normal distribution"
        return f"Student's t with {freedom:.3g} degrees of freedom"

    @property
    def num_data(self) -> float:
        """The rows that the posterior has seen, counts respected."""
        return self.fitted.posterior.statistics.num_data

    def predict(
        self, inputs: ArrayLike, *, return_covariance: bool = False, new: npt.NDArray[np.bool_] | None = None
    ) -> Prediction:
        """Predict new observations in the target's units.

        More than 4,096 rows at once are predicted in float32 where the fit's noise is large enough for that: means
        change by less than a thousandth of the smallest standard deviation, and deviations by less than a thousandth.

        Args:
            inputs: ``(rows, columns)``.
            return_covariance: Whether to add the covariance of the noise-free function.
            new: ``(rows,)`` which rows are none that were seen, though their inputs may be equal.
        """
        size = _row_count(inputs) if return_covariance else self.chunk_size
        parts = self._predict_parts(inputs, size, return_covariance=return_covariance, new=new)
        return Prediction.concatenate(list(parts))

    def predict_chunks(self, inputs: ArrayLike) -> Iterator[Prediction]:
        """Predictions chunk by chunk, for more rows than there is room for predictions of."""
        return self._predict_parts(inputs, self.chunk_size)

    def _predict_parts(
        self,
        inputs: ArrayLike,
        size: int,
        *,
        return_covariance: bool = False,
        new: npt.NDArray[np.bool_] | None = None,
    ) -> Iterator[Prediction]:
        rounded = _row_count(inputs) > FEW_ROWS
        for start, scaled, checked, seen in self._chunks(inputs, size, new):
            if return_covariance:
                found = self._predict_share(scaled, checked, False, return_covariance=True)
            else:
                shares = list(_shares(scaled, checked, rounded))
                found = Prediction.concatenate(in_threads(self._predict_share, shares))
            wrong = ~(torch.isfinite(found.mean.reshape(len(scaled), -1)).all(dim=1) & torch.isfinite(found.variance))
            if bool(wrong.any()):
                raise NumericalError(
                    f"The prediction for row {start + int(wrong.nonzero()[0])} is no number in floating point: its "
                    "inputs lie too far from those of the training rows, or the targets are too large."
                )
            yield found if seen is None else self._with_seen(found, seen)

    def _predict_share(
        self, scaled: Array, checked: Rows, rounded: bool, *, return_covariance: bool = False
    ) -> Prediction:
        predicted = [
            each.fitted.predict_rows(checked, return_covariance=return_covariance, rounded=rounded)
            for each in self.components
        ]
        return self._in_target_units(self._combine(scaled, self._with_trees(scaled, predicted)))

    def predict_mean(self, inputs: ArrayLike) -> Tensor:
        """Only the mean in the target's units, at a fraction of the cost."""
        found = torch.empty(_row_count(inputs), dtype=torch.float64)
        scale, shift = float(self.target_scaler.scale), float(self.target_scaler.mean)
        size, rounded = self.chunk_size, len(found) > FEW_ROWS
        for start, scaled, checked, seen in self._chunks(inputs, size):
            shares = list(_shares(scaled, checked, rounded))
            mean = torch.cat(in_threads(self._mean_of_share, shares)) * scale + shift
            if seen is not None:
                mean += torch.from_numpy(seen.chances) * (torch.from_numpy(seen.values) - mean)
            found[start : start + size] = mean
        return found

    def _mean_of_share(self, scaled: Array, checked: Rows, rounded: bool) -> Tensor:
        means = [each.weight * each.fitted.mean_of_rows(checked, rounded=rounded) for each in self.components]
        mean = torch.stack(means).sum(dim=0)
        return mean if self.trees is None else self.trees.blend(scaled, mean)

    def interval(
        self, inputs: ArrayLike, coverage: float | Sequence[float] = 0.9, *, method: str = "predictive"
    ) -> tuple[Tensor, Tensor]:
        """Lower and upper ends of the intervals that hold new observations with this probability.

        Args:
            inputs: ``(rows, columns)``.
            coverage: Between 0 and 1; several, in a last dimension of the ends, come from one prediction.
            method: ``"predictive"``, as the predictive distribution has it; ``"gaussian"``, from mean and standard
                deviation alone; or ``"conformal"``, the quantiles that held this share of rows which the model that
                predicted them had not seen: see :class:`~finitegp.conformal.ConformalScores`.
        """
        return self.interval_of(self.predict(inputs), coverage, method=method)

    def interval_of(
        self, prediction: Prediction, coverage: float | Sequence[float] = 0.9, *, method: str = "predictive"
    ) -> tuple[Tensor, Tensor]:
        """:meth:`interval` of rows that have been predicted already."""
        if np.ndim(coverage):
            levels = np.ravel(coverage).tolist()
            if not levels:
                raise ValueError("coverage must be a number or several, but is empty.")
            ends = [self.interval_of(prediction, level, method=method) for level in levels]
            lower, upper = (torch.stack(each, dim=-1) for each in zip(*ends, strict=True))
            return lower, upper
        coverage = check_coverage(float(np.asarray(coverage)))
        if method not in INTERVAL_METHODS:
            raise ValueError(f"method must be one of {list(INTERVAL_METHODS)}, but is {method!r}.")
        if method == "gaussian":
            return replace(prediction, mixture=None).interval(coverage)
        if method == "predictive":
            return prediction.interval(coverage)
        if self.conformal is None:
            raise ValueError(
                "Conformal intervals need a fit that left rows out to count on, and the noise of that fit: take those "
                "of the predictive distribution instead."
            )
        score = self.conformal.at(coverage)
        if self.conformal.in_deviations:
            return prediction.mean - score * prediction.std, prediction.mean + score * prediction.std
        below = float(torch.special.ndtr(torch.tensor(-score, dtype=torch.float64)))
        return prediction.quantile(max(below, 1e-300)), prediction.quantile(min(1.0 - below, 1.0 - 1e-16))

    def log_density(self, inputs: ArrayLike, targets: ArrayLike) -> Tensor:
        """``(rows,)`` log predictive density of observed targets."""
        try:
            observed = torch.as_tensor(targets, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            raise DataError("targets must be one number per row, but hold something else.") from None
        return self.predict(inputs).log_density(observed)

    def outside(self, inputs: ArrayLike) -> Array | None:
        """``(rows, columns)`` how far each value lies outside of the training rows, in deviations of its column.

        Zero inside; None if the fit does not know.
        """
        if self.excess is None:
            return None
        _row_count(inputs)
        values, count = np.asarray(inputs, dtype=np.float64), self.inputs_scaler.num_columns
        found = self.excess.outside(self.inputs_scaler.transform(values)).numpy()[:, :count]
        mean, scale = self.inputs_scaler.mean[:count], self.inputs_scaler.scale[:count]
        # A column that never varied has no unit: any other value is as far out as can be.
        constant = np.isinf(scale)
        away = np.abs(values - mean) > 1e-9 * np.abs(mean)
        return np.where(constant & away, np.inf, found)

    @torch.no_grad()
    def sample(
        self, inputs: ArrayLike, num_samples: int = 1, *, seed: int = 0, new: npt.NDArray[np.bool_] | None = None
    ) -> Tensor:
        """``(num_samples, rows)`` joint draws of new observations, noise included.

        Each row by itself is distributed as in :meth:`predict`; rows are correlated as those of the GP are.

        Args:
            inputs: ``(rows, columns)``.
            num_samples: Draws of each row.
            seed: Of the draws.
            new: As in :meth:`predict`.
        """
        check_at_least_one(num_samples=num_samples)
        if seed < 0:
            raise ValueError(f"seed must not be negative, but is {seed}.")
        random = np.random.default_rng(seed)
        scaled = self._scaled_inputs(inputs)
        with _few_threads(len(scaled)):
            draws = self._draw(scaled, num_samples, random)
        draws = draws * float(self.target_scaler.scale) + float(self.target_scaler.mean)
        if self.repeated is not None:
            seen = self.repeated.look_up(np.asarray(inputs, dtype=np.float64))
            same = random.random(draws.shape) < (seen.chances if new is None else np.where(new, 0.0, seen.chances))
            draws = np.where(same, seen.values + self.repeated.tolerance * random.normal(size=draws.shape), draws)
        return torch.from_numpy(draws)

    def _draw(self, scaled: Array, num_samples: int, random: np.random.Generator) -> Array:
        """``(num_samples, rows)`` draws of standardised targets."""
        plain = [component.fitted.predict(scaled) for component in self.components]
        predicted = self._with_trees(scaled, plain)
        together = self._combine(scaled, predicted)
        weights = [component.weight for component in self.components]
        mixture = together.mixture or _gaussian(together)
        tails = [component.tail for component in self.components]
        if self.spread is not None:  # the component that the spread adds follows the heaviest GP
            weights = [*((1.0 - self.spread.share) * np.array(weights)), self.spread.share]
            tails.append(self.spread.tail)
        tailed = [number for number, tail in enumerate(tails) if tail is not None]
        chosen = random.choice(len(weights), size=num_samples, p=np.array(weights) / np.sum(weights))
        draws = np.empty((num_samples, len(scaled)))
        for index in np.unique(chosen):
            rows = np.flatnonzero(chosen == index)
            follows = int(index) if index < len(predicted) else int(np.argmax(weights[: len(predicted)]))
            normal = self._normal_draws(scaled, follows, plain[follows], len(rows), random)
            for row, values in zip(rows, normal, strict=True):
                kinds, tail = np.full(len(scaled), index), tails[index]
                if tail is not None:  # each row by itself
                    kinds[random.random(len(scaled)) < tail.share] = len(weights) + tailed.index(index)
                draws[row] = mixture.draw(values, kinds)
        return draws

    def leave_one_out(self, inputs: ArrayLike, targets: ArrayLike) -> Prediction:
        """For each training row, the prediction of the fit without it (:meth:`forget`), in closed form.

        Boosted trees, where they have a part in the mean, have seen the row.
        """
        scaled, observed = self.inputs_scaler.transform(inputs), self.target_scaler.transform(targets)
        data = ArraySource(scaled, observed, self._trust(inputs, targets), chunk_size=self.fitted.chunk_size)
        predicted, factors = [], []
        for component in self.components:
            with _few_threads(len(scaled)):
                inside, (left_out, noises) = component.fitted.predict(scaled), component.fitted.leave_out(data)
            factors.append(component.variance_factors_without(torch.from_numpy(observed), inside, left_out, noises))
            # A row's weight is how far it was trusted; a new observation there has the noise of any other.
            predicted.append(replace(left_out, noise_variance=inside.noise_variance))
        blended = self._with_trees(scaled, predicted)
        found = self._in_target_units(self._combine(scaled, blended, np.stack(factors)))
        if self.repeated is None:
            return found
        rows, own, _ = _rows(inputs, targets, None)
        return self._with_seen(found, self.repeated.look_up(rows, own))

    def update(self, inputs: ArrayLike, targets: ArrayLike, counts: ArrayLike | None = None) -> ScaledGP:
        """The fit with more rows: exact posteriors of all rows, with features, noise and scaling kept.

        Where the fit recognised copies, equal rows with equal targets count once, unless ``counts`` are given.
        """
        return self._with_rows(inputs, targets, counts, forget=False)

    def forget(self, inputs: ArrayLike, targets: ArrayLike, counts: ArrayLike | None = None) -> ScaledGP:
        """The fit without these rows, as if the posteriors had never seen them; copies as in :meth:`update`."""
        return self._with_rows(inputs, targets, counts, forget=True)

    def _with_rows(self, inputs: ArrayLike, targets: ArrayLike, counts: ArrayLike | None, *, forget: bool) -> ScaledGP:
        repeated = self.repeated
        if repeated is not None:
            ArraySource(inputs, targets, counts=counts)  # which refuses what is wrong with the rows by its name
            given = _rows(inputs, targets, counts)
            once = self.counts_copies_once
            chosen, repeated = change_rows(repeated, *given, forget=forget, copies_once=once)
            if not chosen.any():
                return replace(self, repeated=repeated)
            inputs, targets = (each[chosen] for each in given[:2])
        data = self._scaled_source(inputs, targets, counts, seen=forget)
        with _few_threads(data.num_data or 0):
            changed = [each.fitted.forget(data) if forget else each.fitted.update(data) for each in self.components]
        return replace(self.with_fitted(changed), repeated=repeated)

    def merge(self, other: ScaledGP) -> ScaledGP:
        """The fit with the rows of both, which must stem from one fit."""
        same = len(self.components) == len(other.components) and all(
            np.array_equal(getattr(one, name), getattr(two, name))
            for one, two in ((self.inputs_scaler, other.inputs_scaler), (self.target_scaler, other.target_scaler))
            for name in ("mean", "scale", "limits")
        )
        if not same:
            raise DataError(
                "Only fits that stem from one fit can be merged, but these scale inputs or targets differently: copy a "
                "fitted regressor and use partial_fit on the copies."
            )
        pairs = zip(self.components, other.components, strict=True)
        found = self.with_fitted([mine.fitted.merge(theirs.fitted) for mine, theirs in pairs])
        return replace(found, repeated=merge_repeated(self.repeated, other.repeated))

    def evidence(
        self, inputs: ArrayLike | None = None, targets: ArrayLike | None = None, counts: ArrayLike | None = None
    ) -> float:
        """The log marginal likelihood of all rows seen, in the target's units; of several GPs, of their mixture.

        Given the rows themselves it is computed from them, which is possible where row sums alone would cancel.

        Raises:
            NumericalError: If the noise is so small that the value would not be reliable in floating point.
        """
        if (inputs is None) != (targets is None):
            raise DataError("inputs and targets must be given together, or neither.")
        rows = None if inputs is None or targets is None else (inputs, targets)
        data = None if rows is None else self._scaled_source(*rows, counts, seen=True)
        with one_thread():
            parts = [
                math.log(component.weight)
                + component.log_evidence(None if data is None else component.fitted.model.likelihood(data))
                for component in self.components
            ]
        scaled = float(torch.logsumexp(torch.tensor(parts, dtype=torch.float64), dim=0))
        return scaled - self.num_data * math.log(float(self.target_scaler.scale))

    def with_fitted(self, fitted: Sequence[FittedGP]) -> ScaledGP:
        """The same fit with these posteriors in place of its own."""
        if len(fitted) != len(self.components):
            raise DataError(f"fitted must be {len(self.components)} posteriors, but are {len(fitted)}.")
        pairs = zip(self.components, fitted, strict=True)
        nothing: dict[str, Any] = {"landmark_weights": None, "landmark_targets": None}
        changed = [replace(component, fitted=each, **nothing) for component, each in pairs]
        return replace(self, components=tuple(changed))

    def _with_trees(self, scaled: Array, predicted: list[Prediction]) -> list[Prediction]:
        """The predictions with the trees' part of the mean taken in."""
        if self.trees is None:
            return predicted
        return [replace(each, mean=self.trees.blend(scaled, each.mean)) for each in predicted]

    def _with_seen(self, prediction: Prediction, seen: SeenValues) -> Prediction:
        assert self.repeated is not None
        return prediction.with_values(*seen, self.repeated.tolerance)

    def _chunks(
        self, inputs: ArrayLike, size: int, new: npt.NDArray[np.bool_] | None = None
    ) -> Iterator[tuple[int, Array, Rows, SeenValues | None]]:
        """Scaled rows in pieces of this size, as they are and checked, with the number of their first row.

        Where rows repeat by themselves, with the targets of equal rows.
        """
        rows: Any = inputs  # arrays, lists and arrays on disk are cut alike
        if _row_count(inputs) == 0:
            raise DataError("inputs have no rows: the data are empty.")
        for start in range(0, _row_count(inputs), size):
            scaled = self._scaled_inputs(rows[start : start + size])
            checked = check_rows(torch.from_numpy(scaled), None, numbers=start)
            seen = None
            if self.repeated is not None:
                seen = self.repeated.look_up(np.asarray(rows[start : start + size], dtype=np.float64))
                if new is not None:
                    seen = seen._replace(chances=np.where(new[start : start + size], 0.0, seen.chances))
            yield start, scaled, checked, seen

    def _scaled_inputs(self, inputs: ArrayLike) -> Array:
        # Farther out there is nothing more to know, and squares would overflow.
        return np.clip(self.inputs_scaler.transform(inputs), -_FARTHEST, _FARTHEST)

    def _scaled_source(
        self, inputs: ArrayLike, targets: ArrayLike, counts: ArrayLike | None, *, seen: bool = False
    ) -> ScaledSource:
        """Rows as the posteriors take them, scaled as they pass; those that they have ``seen`` as they were trusted."""
        if self.counts_copies_once and counts is None:
            different = np.unique(np.column_stack([np.asarray(inputs), np.asarray(targets)]), axis=0)
            inputs, targets = different[:, :-1], different[:, -1]
        weights = self._trust(inputs, targets) if seen else None
        rows = ArraySource(inputs, targets, weights, counts=counts, chunk_size=self.chunk_size)
        return ScaledSource(rows, Scaling(self.inputs_scaler, self.target_scaler))

    def _trust(self, inputs: ArrayLike, targets: ArrayLike) -> Array | None:
        """``(rows,)`` weights of rows that were seen, below one for outliers; None if all are one."""
        if not self.outliers:
            return None
        return np.array([1.0 / self.outliers.get(key, 1.0) for key in row_hashes(inputs, targets)])

    def _combine(self, scaled: Array, predicted: Sequence[Prediction], factors: Array | None = None) -> Prediction:
        return combine(scaled, predicted, self.components, self.spread, self.excess, factors)

    def _normal_draws(
        self, scaled: Array, index: int, predicted: Prediction, count: int, random: np.random.Generator
    ) -> Array:
        """``(count, rows)`` standard normal values, correlated as new observations by this component are."""
        fitted = self.components[index].fitted
        functions = fitted.sample(count, seed=int(random.integers(2**31)))(scaled) - predicted.mean
        features, _ = fitted.features(scaled)
        lost = fitted.residual_covariance(torch.from_numpy(scaled), features)
        if bool(lost.diagonal().any()):
            lost.diagonal().add_(1e-9 * float(lost.diagonal().max()) + 1e-300)
            factor = torch.linalg.cholesky_ex(lost)[0]
            functions = functions + torch.from_numpy(random.normal(size=(count, len(scaled)))) @ factor.mT
        noise = predicted.noise_variance.clone()
        if self.excess is not None:
            noise += self.excess.variance(torch.from_numpy(scaled)) / self.components[index].variance_factor
        values = functions + noise.sqrt() * torch.from_numpy(random.normal(size=(count, len(scaled))))
        return (values / (predicted.epistemic_variance + noise).sqrt()).numpy()

    def _in_target_units(self, prediction: Prediction) -> Prediction:
        return prediction.in_units(float(self.target_scaler.mean), float(self.target_scaler.scale))


def _gaussian(prediction: Prediction) -> StudentMixture:
    one = np.ones((1, 1))
    return StudentMixture(
        np.ones(1), prediction.mean.cpu().numpy()[None], prediction.std.cpu().numpy()[None], math.inf * one
    )


def _few_threads(rows: int) -> AbstractContextManager[object]:
    """One thread for few rows, on which threads wait for each other longer than they work."""
    return one_thread() if rows <= FEW_ROWS else nullcontext()


def _shares(scaled: Array, checked: Rows, rounded: bool) -> Iterator[tuple[Array, Rows, bool]]:
    """The rows of a chunk, as they are and checked, in shares for threads, and whether float32 will do."""
    if len(scaled) <= _SHARE_ROWS:
        yield scaled, checked, rounded
        return
    for start in range(0, len(scaled), _SHARE_ROWS):
        rows = slice(start, start + _SHARE_ROWS)
        yield scaled[rows], checked.take(rows), rounded


def _rows(inputs: ArrayLike, targets: ArrayLike, counts: ArrayLike | None) -> tuple[Array, Array, Array | None]:
    rows, values = np.asarray(inputs, dtype=np.float64), np.asarray(targets, dtype=np.float64).reshape(-1)
    return rows, values, None if counts is None else np.asarray(counts, dtype=np.float64)


def _row_count(inputs: ArrayLike) -> int:
    """How many rows there are; what has none is an error."""
    shape = np.shape(inputs) if not hasattr(inputs, "shape") else tuple(inputs.shape)
    if len(shape) != 2:
        raise DataError(f"inputs must be (rows, columns), but have shape {shape}.")
    return int(shape[0])
