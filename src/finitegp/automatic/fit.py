"""``fit_auto``: from arrays to calibrated predictions without a choice to make."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data import ArraySource
from ..data.scaling import Standardizer
from ..error_shape import GAUSSIAN, ErrorShape, interval_around
from ..errors import DataError
from ..model import FittedGP, concatenate_predictions
from ..posterior import Prediction
from .conformal import conformal_multiplier, conformal_record
from .kernel_fit import fit_kernels
from .network_fit import fit_networks
from .processes import with_one_thread
from .settings import EFFORTS
from .table import Array, Table
from .tails import choose_error_shape, error_shape_of

_FEWEST_ROWS = 5
#: Where intervals come from; see :meth:`AutoFit.deviations`.
INTERVAL_METHODS = ("predictive", "gaussian", "conformal")


@dataclass(frozen=True, eq=False)
class AutoFit:
    """The outcome of :func:`fit_auto`: one exact GP with the scaling around it.

    Attributes:
        fitted: The exact posterior on scaled inputs and targets.
        inputs_scaler: Scales inputs.
        target_scaler: Standardises the target.
        record: What was chosen, and why; everything in it is JSON.
    """

    fitted: FittedGP
    inputs_scaler: Standardizer
    target_scaler: Standardizer
    record: dict[str, Any]

    def predict(self, inputs: Any, *, return_covariance: bool = False) -> Prediction:
        """Predict new observations in the target's units; optionally with the covariance of the noise-free function."""
        size = len(inputs) if return_covariance else self.fitted.chunk_size
        # At least one part, so that no rows are refused by who can name what is wrong.
        parts = [
            self.fitted.predict(
                self.inputs_scaler.transform(inputs[start : start + size]), return_covariance=return_covariance
            )
            for start in range(0, max(len(inputs), 1), max(size, 1))
        ]
        return self.in_target_units(parts[0] if len(parts) == 1 else concatenate_predictions(parts))

    @property
    def error_shape(self) -> ErrorShape:
        """Of predictive distributions: a Gaussian, or Student's t if left-out rows spoke for it."""
        return error_shape_of(self.record)

    def deviations(self, coverage: float = 0.9, *, method: str = "predictive") -> float:
        """How many standard deviations to each side of the mean hold a new observation with this probability.

        Args:
            coverage: Between 0 and 1.
            method: ``"predictive"``, as the predictive distribution has it; ``"gaussian"``, as if that were Gaussian;
                or ``"conformal"``, as counted on rows that the networks had not seen (on small tables, leave-one-out):
                holds on average over rows whatever the distribution of errors.
        """
        if method not in INTERVAL_METHODS:
            raise ValueError(f"method must be one of {list(INTERVAL_METHODS)}, but is {method!r}.")
        if method == "conformal":
            if "conformal" not in self.record:
                raise ValueError(
                    "Conformal intervals need a fit that kept rows aside to count on, and the noise of that fit: take "
                    "those of the predictive distribution instead."
                )
            return conformal_multiplier(self.record["conformal"], coverage)
        return (self.error_shape if method == "predictive" else GAUSSIAN).deviations(coverage)

    def interval(self, inputs: Any, coverage: float = 0.9, *, method: str = "predictive") -> tuple[Tensor, Tensor]:
        """Lower and upper ends of the intervals that hold new observations with this probability.

        ``method`` is that of :meth:`deviations`.
        """
        deviations = self.deviations(coverage, method=method)
        prediction = self.predict(inputs)
        return interval_around(prediction.mean, prediction.std, deviations)

    def in_target_units(self, prediction: Prediction) -> Prediction:
        """A prediction of the scaled target as one of the target itself."""
        scale, mean = float(self.target_scaler.scale), float(self.target_scaler.mean)
        return Prediction(
            mean=prediction.mean * scale + mean,
            epistemic_variance=prediction.epistemic_variance * scale**2,
            noise_variance=prediction.noise_variance * scale**2,
            covariance=None if prediction.covariance is None else prediction.covariance * scale**2,
            error_shape=self.error_shape,
        )


def fit_auto(
    inputs: Any,
    targets: Any,
    *,
    counts: Any = None,
    effort: str = "medium",
    noise: str = "auto",
    center: bool = True,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    processes: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> AutoFit:
    """Fit an exact GP whose features, noise and calibration are found from the training rows alone.

    Large tables: several small networks are trained, each without one fold of the rows; all their features together
    are the features of one exact GP; the rows that each network has not seen tell how noisy which rows are; rows that
    nothing was trained on set the scale of the error bars; a closing pass takes in all rows. Small tables: Fourier
    features with a length scale per column, fitted full-batch.

    Args:
        inputs: ``(rows, columns)`` numbers.
        targets: ``(rows,)`` numbers.
        counts: ``(rows,)`` positive: how many equal rows each row stands for; None means one. Exact on small tables.
            On large ones networks are trained with counts relative to their mean, and noise and posterior are exact.
        effort: ``"low"``, ``"medium"`` or ``"high"``; see :data:`~finitegp.automatic.EFFORTS`.
        noise: ``"constant"``; ``"input"``, which depends on the input: a network on large tables, log-linear in the
            columns on small ones; or ``"auto"``: whichever of both the rows speak for.
        center: Whether the prior mean is the mean target, or zero.
        settings: Changes to the settings of the effort, by name; see :class:`~finitegp.automatic.AutoSettings`.
        seed: Determines everything.
        processes: Networks trained at once, which does not change the result; None means one per core on tables that
            are worth it.
        progress: Called with a word on each finished part.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> inputs = generator.normal(size=(60, 2))
        >>> targets = 100 + 10 * np.sin(inputs[:, 0]) + generator.normal(size=60)
        >>> fit = fit_auto(inputs, targets, effort="low")
        >>> prediction = fit.predict([[1.0, 0.0]])
        >>> fit.record["path"], abs(float(prediction.mean) - 108.4) < 3
        ('kernel', True)
    """
    if effort not in EFFORTS:
        raise ValueError(f"effort must be one of {list(EFFORTS)}, but is {effort!r}.")
    if noise not in ("auto", "constant", "input"):
        raise ValueError(f"noise must be 'auto', 'constant' or 'input', but is {noise!r}.")
    changes = {} if noise == "auto" else {"input_noise": noise == "input"}
    chosen = EFFORTS[effort].with_changes(changes | dict(settings or {}))
    values, observed, counted = _check(inputs, targets, counts)
    started = time.perf_counter()
    target_scaler = fit_target_scaler(observed, counted, center=center)
    scaled_targets = target_scaler.transform(observed)
    record: dict[str, Any] = {"effort": effort, "seed": seed, "rows": len(values), "settings": chosen.to_dict()}
    inputs_scaler = Standardizer.fit(values, counted)
    scaled = inputs_scaler.transform(values)
    if len(values) <= chosen.small_rows:
        data = ArraySource(scaled, scaled_targets, counts=counted)
        depends = None if noise == "auto" and chosen.input_noise else noise == "input"
        model, left_out = with_one_thread(fit_kernels, data, chosen, input_noise=depends, seed=seed, progress=progress)
        record |= {"path": "kernel", "why": f"at most {chosen.small_rows} rows", "leave_one_out_nlpd": left_out}
        fitted = model.condition(data)
        without = fitted.leave_one_out(data)
        standardized = ((torch.from_numpy(scaled_targets) - without.mean) / without.std).numpy()
        record["conformal"] = conformal_record(standardized, "leave-one-out")
        if chosen.heavy_tails:
            rows = Table(scaled, scaled_targets, counted)
            shape = choose_error_shape([(standardized, rows.mean)], rows.total)
            record["degrees_of_freedom"] = shape.degrees_of_freedom
    else:
        record |= {"path": "networks", "why": f"more than {chosen.small_rows} rows"}
        table = Table(scaled, scaled_targets, counted)
        fitted = fit_networks(table, chosen, record, seed=seed, processes=processes, progress=progress)
    record["seconds"] = time.perf_counter() - started
    return AutoFit(fitted, inputs_scaler, target_scaler, record)


def fit_target_scaler(targets: Array, counts: Array | None = None, *, center: bool = True) -> Standardizer:
    """Standardises targets, or divides them by their root mean square for a prior mean of zero."""
    if center:
        return Standardizer.fit(targets, counts)
    scale = np.sqrt(np.average(np.square(targets), weights=counts))
    return Standardizer(mean=np.zeros(()), scale=np.where(scale > 0.0, scale, 1.0))


def _check(inputs: Any, targets: Any, counts: Any) -> tuple[Array, Array, Array | None]:
    """All rows as float64, every value checked by name, row and column."""
    source = ArraySource(inputs, targets, counts=counts)
    rows = source.rows(0, source.num_data)
    if rows.observed.shape[1] != 1:
        raise DataError(f"targets must be one column, but are {rows.observed.shape[1]}: fit one model per column.")
    if source.num_data < _FEWEST_ROWS:
        raise DataError(f"At least {_FEWEST_ROWS} rows are needed, but there are {source.num_data}.")
    values, observed = rows.inputs.double().numpy(), rows.observed[:, 0].numpy()
    if float(np.ptp(observed)) == 0.0:
        raise DataError(f"All targets are {observed[0]}: there is nothing to learn.")
    return values, observed, None if rows.counts is None else rows.counts.numpy()
