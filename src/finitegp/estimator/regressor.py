"""``GPRegressor``: exact Gaussian-process regression as a scikit-learn estimator."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt
import sklearn
import torch
from numpy.typing import ArrayLike
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import nn

from .. import __version__
from ..arguments import check_arguments, check_at_least_one
from ..automatic.fit import check_device, fit_auto
from ..automatic.table import merge_equal_rows
from ..errors import DataError, NumericalError, warn_caller
from ..formatting import parse_seconds
from ..persistence.fits import load_regressor, save_regressor
from ..scaled import ScaledGP
from .given import fit_given, fit_without_learning, refit_noise
from .parameters import (
    FEW_ROWS,
    Parameters,
    RandomState,
    automatic_options,
    check_parameters,
    checked_inputs,
    checked_levels,
    checked_rows,
    is_automatic,
    is_constant,
    more_rows,
    rows_in_place,
    seed_of,
)
from .progress import stage_progress, tell_expected

if TYPE_CHECKING:
    from ..export.onnx_graph import OnnxExport

Array = npt.NDArray[np.float64]


@check_arguments
class GPRegressor(MultiOutputMixin, RegressorMixin, Parameters):  # type: ignore[misc]
    """Exact Gaussian-process regression on finite features, with honest error bars.

    By default everything is found from the training rows: a kernel on small tables, networks on large ones, noise and
    calibration (:func:`~finitegp.automatic.fit_auto`). Inputs are standardised inside. Any ``feature_map`` or
    ``algorithm`` other than ``"auto"`` is trained as given; a closing exact pass takes in all rows.

    The fitted estimator keeps features and row sums, so rows can be added, forgotten and merged exactly. On small
    tables the features hold the rows themselves, unless ``keep_rows`` is False; otherwise no row is kept.

    Args:
        feature_map: ``"auto"``, ``"mlp"``, ``"fourier"``, or any ``nn.Module`` from ``(rows, columns)`` to
            ``(rows, features)``; a copy is trained.
        algorithm: ``"auto"``, ``"exact"`` (L-BFGS on the exact gradient), or with mini-batches ``"lagged"``,
            ``"scgd"``, ``"minimax"``, ``"bsgd"``.
        noise: ``"constant"``, ``"input"`` (depends on the input) or ``"auto"``.
        effort: ``"low"``, ``"medium"`` or ``"high"``: how much time to spend.
        batch_size: Rows per step; ``"auto"`` leaves it to the effort. This and the next two have no effect on the
            automatic fit of a small table, which has exact kernels and no mini-batches.
        epochs: Passes over the rows (iterations of ``"exact"``), or ``"auto"``.
        learning_rate: Of Adam, or ``"auto"``.
        validation_fraction: The share of rows that only calibrate or stop training; the closing pass uses them too.
        early_stopping: For a given feature map or algorithm with mini-batches: stop when the predictive density of
            held-out rows no longer improves, and keep the best state. ``"auto"``: from 500 rows on.
        normalize_y: Whether the prior mean is the mean target (True) or zero (False). Units never matter.
        random_state: A number makes the fit reproducible.
        device: Where networks are trained, such as ``"cuda"`` or, for the automatic fit only, ``"mps"``. An automatic
            fit ends on the CPU (:func:`~finitegp.automatic.fit_source`); a given feature map stays on the device.
        verbose: Draw a progress bar.
        warm_start: Whether a second ``fit`` starts from the features, noise and scaling of the first. Given features
            are trained on; automatic ones are kept, and only noise and posterior come from the new rows.
        memory_budget: Such as ``"64MB"``: the automatic fit and predictions take at most so much memory besides the
            rows that are given and what is returned. Fewer rows pass at once, features are learned from fewer of them,
            and only where that is not enough, there are fewer features; see :func:`~finitegp.fit_source`, which also
            takes rows that are not in memory at all. Arrays of more than 10,000 rows that are mapped from files, such
            as ``numpy.load(..., mmap_mode="r")``, stay there, in their own precision.
        time_budget: Such as ``"60s"`` or ``"5min"``, of the automatic fit of all targets together: there are fewer
            steps, then fewer networks, where the effort is expected to take longer.
        keep_rows: Whether the automatic fit of a small table may hold its rows; see
            :func:`~finitegp.automatic.fit_source`. False costs some accuracy, and gives files that can be passed on
            and row sums that can be merged. It has no effect on other fits, which hold none.
        repeated_rows: Whether the automatic fit may predict a row that is equal to training rows by their targets, if
            rows of the table repeat with the same target. Set it to False if equal inputs are measured anew.

    Attributes:
        fits_: One :class:`~finitegp.scaled.ScaledGP` per target column: posterior, scalers, record.
        training_summary_: Rows, seconds, versions and the record of each fit; everything in it is JSON.
        n_features_in_: Number of input columns.
        feature_names_in_: Their names, if they came with names.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> X = generator.uniform(-2, 2, size=(80, 2))
        >>> y = 100 + 10 * np.sin(2 * X[:, 0]) + generator.normal(size=80)
        >>> gp = GPRegressor(effort="low", random_state=0).fit(X, y)
        >>> mean, std = gp.predict([[0.7, 0.0]], return_std=True)
        >>> bool(abs(mean[0] - 110) < 2), bool(0.5 < std[0] < 2)
        (True, True)
        >>> lower, upper = gp.predict_interval([[0.7, 0.0]], coverage=0.9)
        >>> bool(lower[0] < mean[0] < upper[0])
        True
    """

    fits_: list[ScaledGP]
    training_summary_: dict[str, Any]
    n_features_in_: int
    feature_names_in_: npt.NDArray[np.object_]

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> GPRegressor:
        """Fit to ``X`` ``(rows, columns)`` and ``y`` ``(rows,)`` or ``(rows, targets)``; one model per target.

        Args:
            X: NumPy, pandas, polars or torch.
            y: Numbers.
            sample_weight: ``(rows,)``: a row of weight ``k`` stands for ``k`` rows that were measured to be equal, one
                of weight 0 for none. Without weights, equal rows with equal targets in a small table (at most 2000
                different rows) are taken as copies and count once, where they agree far more often than by chance.
                Where they are not, and for a given feature map or algorithm, weights and repeated rows give the same
                fit to the last bit. On large tables scaling, noise and posterior have the meaning exactly, while
                networks are trained with weights relative to their mean, as are the kernels of small ones: that a row
                agrees with itself is no evidence of little noise. Weights that mean importance or precision rather than
                numbers of rows make the posterior too narrow or too wide by their mean: divide them by it.
        """
        check_parameters(self)
        check_device(self.device, self.memory_budget)
        before = self.fits_ if self.warm_start and hasattr(self, "fits_") else None
        in_place = rows_in_place(self, X, y, sample_weight) if before is None and is_automatic(self) else None
        inputs, targets, counts = in_place or checked_rows(self, X, y, sample_weight, reset=before is None, fewest=2)
        columns = [targets] if len(targets.shape) == 1 else [targets[:, each] for each in range(targets.shape[1])]
        if before is not None and len(before) != len(columns):
            raise ValueError(
                f"y has {len(columns)} target columns, but the fit that warm_start goes on from has {len(before)}."
            )
        started = time.perf_counter()
        seed = seed_of(self.random_state)
        options: dict[str, Any] = {"may_be_copies": sample_weight is None}
        if self.time_budget is not None:
            options["time_budget"] = parse_seconds(self.time_budget) / len(columns)
        fits = []
        for number, column in enumerate(columns):
            rows = inputs, column, counts
            if len(inputs) <= FEW_ROWS:
                rows = merge_equal_rows(*rows)
            label = "fit" if len(columns) == 1 else f"fit target {number + 1} of {len(columns)}"
            fit = self._fit_one(*rows, None if before is None else before[number], seed, label, options)
            fits.append(replace(fit, record=fit.record | {"log_marginal_likelihood": _evidence(fit, *rows)}))
        self.fits_ = fits
        self.training_summary_ = _training_summary(fits, len(inputs), counts, time.perf_counter() - started)
        return self

    @overload
    def predict(self, X: ArrayLike) -> Array: ...
    @overload
    def predict(self, X: ArrayLike, return_std: Literal[True]) -> tuple[Array, Array]: ...
    @overload
    def predict(self, X: ArrayLike, *, return_cov: Literal[True]) -> tuple[Array, Array]: ...
    @overload
    def predict(self, X: ArrayLike, return_std: bool, return_cov: bool = ...) -> Array | tuple[Array, Array]: ...
    def predict(self, X: ArrayLike, return_std: bool = False, return_cov: bool = False) -> Array | tuple[Array, Array]:
        """The mean prediction ``(rows,)`` or ``(rows, targets)``.

        More than 4,096 rows at once are predicted in float32 where noise allows it: see :meth:`.ScaledGP.predict`.

        Args:
            X: ``(rows, columns)``.
            return_std: Also return the standard deviation of a new observation, noise included, in the same shape.
            return_cov: Also return the covariance of new observations, noise on its diagonal, ``(rows, rows)`` or
                ``(rows, rows, targets)``.
        """
        if return_std and return_cov:
            raise RuntimeError("At most one of return_std or return_cov can be requested.")
        inputs = checked_inputs(self, X)
        if return_cov:
            predictions = [fit.predict(inputs, return_covariance=True) for fit in self.fits_]
            noises = [torch.diag(prediction.noise_variance) for prediction in predictions]
            known = [each.covariance for each in predictions if each.covariance is not None]
            covariances = [covariance + noise for covariance, noise in zip(known, noises, strict=True)]
            return _join([prediction.mean for prediction in predictions]), _join(covariances)
        if not return_std:
            return _join([fit.predict_mean(inputs) for fit in self.fits_])
        # Of each chunk only what is returned is kept, in its place: many small tensors take more than their numbers.
        found = torch.empty(2, len(self.fits_), len(inputs), dtype=torch.float64)
        for number, fit in enumerate(self.fits_):
            start = 0
            for part in fit.predict_chunks(inputs):
                own = slice(start, start + len(part.mean))
                found[0, number, own], found[1, number, own] = part.mean, part.std
                start = own.stop
        return _join(list(found[0])), _join(list(found[1]))

    def predict_interval(
        self, X: ArrayLike, coverage: float | Sequence[float] = 0.9, method: str = "predictive"
    ) -> tuple[Array, Array]:
        """Lower and upper end of the central interval that holds a new observation with probability ``coverage``.

        Args:
            X: ``(rows, columns)``.
            coverage: Between 0 and 1; several give ends of shape ``(rows, coverages)``, or ``(rows, targets,
                coverages)``, from one prediction.
            method: ``"predictive"``, from the predictive distribution, after an automatic fit a mixture of Student's t;
                ``"gaussian"``, from the standard deviations alone; or ``"conformal"`` after an automatic fit: from what
                was counted on rows that were left out.
        """
        inputs = checked_inputs(self, X)
        ends = [fit.interval(inputs, coverage, method=method) for fit in self.fits_]
        return _join([lower for lower, _ in ends], axis=1), _join([upper for _, upper in ends], axis=1)

    def quantile(self, X: ArrayLike, level: float | Sequence[float]) -> Array:
        """The targets that new observations do not exceed with probability ``level``.

        The ends of :meth:`predict_interval` at coverage ``c`` are those at ``(1 - c) / 2`` and ``(1 + c) / 2``.

        Args:
            X: ``(rows, columns)``.
            level: Between 0 and 1; several give ``(rows, levels)`` or ``(rows, targets, levels)``, from one prediction.
        """
        inputs, levels = checked_inputs(self, X), checked_levels(level)
        predicted = [fit.predict(inputs) for fit in self.fits_]
        found = [torch.stack([each.quantile(one) for one in levels], dim=-1) for each in predicted]
        return _join(found if np.ndim(level) else [each[..., 0] for each in found], axis=1)

    def log_density(self, X: ArrayLike, y: ArrayLike) -> Array:
        """The log predictive density of observed targets, ``(rows,)`` or ``(rows, targets)``.

        Minus its mean is the NLPD.

        Args:
            X: ``(rows, columns)`` that the regressor has not seen.
            y: Their targets.
        """
        inputs, targets, _ = more_rows(self, X, y)
        return _join(
            [fit.predict(inputs).log_density(torch.tensor(targets[:, column])) for column, fit in enumerate(self.fits_)]
        )

    def sample_y(self, X: ArrayLike, n_samples: int = 1, random_state: RandomState = 0) -> Array:
        """Draw joint new observations, noise included: ``(rows, n_samples)`` or ``(rows, targets, n_samples)``."""
        check_at_least_one(n_samples=n_samples)
        inputs, random = checked_inputs(self, X), check_random_state(random_state)
        draws = [fit.sample(inputs, n_samples, seed=int(random.randint(2**31 - 1))).T for fit in self.fits_]
        return _join(draws, axis=1)

    def outside(self, X: ArrayLike) -> Array:
        """How far each value lies outside of what the fit saw, ``(rows, columns)``, in deviations of its column.

        Zero inside of a column's range and, on large tables, outside of its gaps; infinite where a column that never
        varied has another value. Error bars there grow with it.

        Raises:
            DataError: After a fit of a given feature map, which does not learn what was seen.
        """
        inputs = checked_inputs(self, X)
        known = [found for fit in self.fits_ if (found := fit.outside(inputs)) is not None]
        if len(known) < len(self.fits_):
            raise DataError("What lies outside is known after automatic fits only, those without a feature_map.")
        return np.asarray(np.maximum.reduce(known))

    def partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> GPRegressor:
        """Take up more rows: the exact posterior of all rows so far, with features, noise and scaling kept.

        The first call is ``fit``. Costs one pass over the new rows, however many there were before.
        """
        if not hasattr(self, "fits_"):
            return self.fit(X, y, sample_weight)
        return self._change(X, y, sample_weight, add=True)

    def forget(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> GPRegressor:
        """Remove training rows exactly, as if the posterior had never seen them; features, noise and scaling stay."""
        return self._change(X, y, sample_weight, add=False)

    def merge(self, other: GPRegressor) -> GPRegressor:
        """Take up all rows of another regressor with the same features, noise and scaling.

        Both must stem from one fit, such as copies of it that saw different rows with ``partial_fit``. Rows of that
        first fit then are in both: ``forget`` them in one.
        """
        check_is_fitted(self, "fits_")
        check_is_fitted(other, "fits_")
        if len(self.fits_) != len(other.fits_):
            raise DataError(f"Regressors with {len(self.fits_)} and {len(other.fits_)} targets cannot be merged.")
        self.fits_ = [mine.merge(theirs) for mine, theirs in zip(self.fits_, other.fits_, strict=True)]
        summary = other.training_summary_
        added = summary["rows"] + summary["rows_added"] - summary["rows_forgotten"]
        self.training_summary_ = self.training_summary_ | {"rows_added": self.training_summary_["rows_added"] + added}
        return self

    def log_marginal_likelihood(self) -> float:
        """The exact log density of all rows seen, in the targets' units, summed over targets.

        Raises:
            NumericalError: If the noise is so small that the value would not be reliable in floating point, which can
                happen after rows were added or forgotten, when only row sums are at hand.
        """
        check_is_fitted(self, "fits_")
        summary = self.training_summary_
        changed = summary["rows_added"] or summary["rows_forgotten"]
        known = [None if changed else fit.record.get("log_marginal_likelihood") for fit in self.fits_]
        return sum(fit.evidence() if value is None else value for fit, value in zip(self.fits_, known, strict=True))

    @property
    def log_marginal_likelihood_value_(self) -> float:
        """The value of :meth:`log_marginal_likelihood`."""
        return self.log_marginal_likelihood()

    def leave_one_out(self, X: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
        """For each training row the mean and standard deviation that the posterior without it predicts: closed form.

        The rows must be among those that the regressor has seen (it keeps none itself). Features, noise and scaling
        stay as they are. Of a row that was seen several times, one copy is left out.
        """
        inputs, targets, _ = more_rows(self, X, y)
        left_out = [fit.leave_one_out(inputs, targets[:, column]) for column, fit in enumerate(self.fits_)]
        return _join([prediction.mean for prediction in left_out]), _join([prediction.std for prediction in left_out])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted regressor into one file, without pickle.

        Training rows are in it only after the automatic fit of a small table; see ``keep_rows``.
        """
        check_is_fitted(self, "fits_")
        save_regressor(self, path)

    def to_onnx(self, path: str | os.PathLike[str], *, double: bool = False, intervals: bool = True) -> OnnxExport:
        """Write the fitted regressor as an ONNX graph: :func:`finitegp.export.to_onnx`. Needs the extra ``onnx``."""
        from ..export.onnx_graph import to_onnx

        return to_onnx(self, path, double=double, intervals=intervals)

    @classmethod
    def load(cls, path: str | os.PathLike[str], feature_map: nn.Module | None = None) -> GPRegressor:
        """Read a regressor that :meth:`save` wrote; a custom ``feature_map`` module has to be passed in."""
        loaded: GPRegressor = load_regressor(cls, path, feature_map=feature_map)
        return loaded

    def _fit_one(
        self,
        inputs: Array,
        targets: Array,
        counts: Array | None,
        start: ScaledGP | None,
        seed: int,
        label: str,
        options: dict[str, Any],
    ) -> ScaledGP:
        constant = is_constant(targets)
        if constant:
            warn_caller(
                f"All targets are {targets[0]:.6g}: there is nothing to learn, and the error bars mean nothing."
            )
        if start is not None and is_automatic(self):
            return refit_noise(inputs, targets, counts, start)
        if constant:
            return fit_without_learning(inputs, targets, counts, self, seed, why="all targets are equal")
        if not is_automatic(self):
            return fit_given(inputs, targets, counts, self, seed, start)
        options = automatic_options(self, len(inputs), seed) | options
        with stage_progress(label, shown=bool(self.verbose)) as progress:
            if self.verbose:
                options |= {"on_expected": tell_expected, "on_plan": lambda plan: print(plan, file=sys.stderr)}
            return fit_auto(inputs, targets, counts=counts, progress=progress, **options)

    def _change(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, *, add: bool) -> GPRegressor:
        inputs, targets, counts = more_rows(self, X, y, sample_weight)
        self.fits_ = [
            (fit.update if add else fit.forget)(inputs, targets[:, column], counts)
            for column, fit in enumerate(self.fits_)
        ]
        name = "rows_added" if add else "rows_forgotten"
        self.training_summary_ = self.training_summary_ | {name: self.training_summary_[name] + len(inputs)}
        return self


@check_arguments
def as_regressor(fit: ScaledGP, **parameters: Any) -> GPRegressor:
    """A fitted :class:`~finitegp.GPRegressor` around a fit, such as that of rows that were never in memory.

    Args:
        fit: From :func:`~finitegp.fit_within_memory` or :func:`~finitegp.automatic.fit_auto`.
        parameters: Of the estimator, for a later ``fit``.

    Example:
        >>> from finitegp.automatic import fit_auto
        >>> inputs = np.random.default_rng(0).normal(size=(30, 1))
        >>> fit = fit_auto(inputs, np.sin(inputs[:, 0]), effort="low")
        >>> regressor = as_regressor(fit, effort="low")
        >>> regressor.predict(inputs).shape, regressor.n_features_in_
        ((30,), 1)
    """
    regressor = GPRegressor(**parameters)
    rows, seconds = int(fit.record.get("rows", fit.num_data)), float(fit.record.get("seconds", 0.0))
    regressor.fits_ = [fit]
    regressor.n_features_in_ = fit.inputs_scaler.num_columns
    summary = _training_summary([fit], rows, None, seconds)
    regressor.training_summary_ = summary | {"total_weight": float(fit.num_data)}
    return regressor


def _training_summary(fits: list[ScaledGP], rows: int, counts: Array | None, seconds: float) -> dict[str, object]:
    """Rows, seconds, versions and the record of each fit; everything in it is JSON."""
    versions = {"finitegp": __version__, "torch": torch.__version__, "numpy": np.__version__}
    return {
        "rows": rows,
        "total_weight": float(rows if counts is None else counts.sum()),
        "rows_added": 0,
        "rows_forgotten": 0,
        "columns": fits[0].inputs_scaler.num_columns,
        "targets": len(fits),
        "seconds": seconds,
        "versions": versions | {"scikit-learn": sklearn.__version__, "python": platform.python_version()},
        "fits": [fit.record for fit in fits],
    }


def _join(parts: list[torch.Tensor], axis: int = -1) -> Array:
    """Tensors of several targets as one array with a new axis for them; that of a single target as it is."""
    arrays: list[Array] = [part.detach().cpu().numpy() for part in parts]
    return arrays[0] if len(arrays) == 1 else np.stack(arrays, axis=axis)


def _evidence(fit: ScaledGP, inputs: Array, targets: Array, counts: Array | None) -> float | None:
    """From row sums, or from the rows where sums cancel; None if even that cannot be trusted."""
    for rows in ((), (inputs, targets, None if fit.counts_copies_once else counts)):
        with suppress(NumericalError):
            return fit.evidence(*rows)
    return None
