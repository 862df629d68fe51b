"""What a fitted estimator says of its training, and estimators around fits that were made elsewhere."""

from __future__ import annotations

import platform
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import sklearn
import torch

from ..automatic import AutoFit
from .evidence import log_density_or_none

if TYPE_CHECKING:
    from .regressor import GPRegressor


def training_summary(fits: list[AutoFit], *, rows: int, total_weight: float, seconds: float) -> dict[str, Any]:
    """Rows, seconds, versions and the record of each fit; everything in it is JSON."""
    return {
        "rows": rows,
        "total_weight": total_weight,
        "rows_added": 0,
        "rows_forgotten": 0,
        "columns": len(fits[0].inputs_scaler.scale),
        "targets": len(fits),
        "seconds": seconds,
        "versions": _versions(),
        "fits": [fit.record for fit in fits],
    }


def as_regressor(fit: AutoFit, **parameters: Any) -> GPRegressor:
    """A fitted :class:`~finitegp.GPRegressor` around a fit, such as that of rows that were never in memory.

    Args:
        fit: From :func:`~finitegp.out_of_core.fit_within_memory` or :func:`~finitegp.automatic.fit_auto`.
        parameters: Of the estimator, for a later ``fit``.

    Example:
        >>> from finitegp.automatic import fit_auto
        >>> inputs = np.random.default_rng(0).normal(size=(30, 1))
        >>> fit = fit_auto(inputs, np.sin(inputs[:, 0]), effort="low")
        >>> regressor = as_regressor(fit, effort="low")
        >>> regressor.predict(inputs).shape, regressor.n_features_in_
        ((30,), 1)
    """
    from .regressor import GPRegressor

    regressor = GPRegressor(**parameters)
    fit = replace(fit, record=fit.record | {"log_marginal_likelihood": log_density_or_none(fit)})
    total = float(fit.fitted.posterior.statistics.num_data)
    rows, seconds = int(fit.record.get("rows", total)), float(fit.record.get("seconds", 0.0))
    regressor.fits_ = [fit]
    regressor.n_features_in_ = len(fit.inputs_scaler.scale)
    regressor.training_summary_ = training_summary([fit], rows=rows, total_weight=total, seconds=seconds)
    return regressor


def _versions() -> dict[str, str]:
    from .. import __version__

    return {
        "finitegp": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
        "python": platform.python_version(),
    }
