"""``as_regressor``: an estimator around a fit that was made elsewhere."""

from __future__ import annotations

from typing import Any

from ..arguments import check_arguments
from ..scaled import ScaledGP
from .regressor import GPRegressor
from .summary import training_summary


@check_arguments
def as_regressor(fit: ScaledGP, **parameters: Any) -> GPRegressor:
    """A fitted :class:`~finitegp.GPRegressor` around a fit, such as that of rows that were never in memory.

    Args:
        fit: From :func:`~finitegp.fit_within_memory` or :func:`~finitegp.automatic.fit_auto`.
        parameters: Of the estimator, for a later ``fit``.

    Example:
        >>> import numpy as np
        >>> from finitegp.automatic import fit_auto
        >>> inputs = np.random.default_rng(0).normal(size=(30, 1))
        >>> fit = fit_auto(inputs, np.sin(inputs[:, 0]), effort="low")
        >>> regressor = as_regressor(fit, effort="low")
        >>> regressor.predict(inputs).shape, regressor.n_features_in_
        ((30,), 1)
    """
    regressor = GPRegressor(**parameters)
    total = float(fit.num_data)
    rows, seconds = int(fit.record.get("rows", total)), float(fit.record.get("seconds", 0.0))
    regressor.fits_ = [fit]
    regressor.n_features_in_ = len(fit.inputs_scaler.scale)
    regressor.training_summary_ = training_summary([fit], rows=rows, total_weight=total, seconds=seconds)
    return regressor
