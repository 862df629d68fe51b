"""``bayesridge`` and ``sklearn-gpr``: scikit-learn's Bayesian linear regression and exact Gaussian process."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge

from finitegp.errors import DataError

from ..outcome import DatasetSplit, Outcome
from .contract import ScaledSplit, Stopwatch, merge_settings

BAYESRIDGE_DEFAULTS: dict[str, Any] = {"max_iter": 300, "tol": 1e-3}

#: ``max_rows``: its memory grows with the square of the rows and its time with the cube. ``ard``: a length scale per
#: column instead of one.
GPR_DEFAULTS: dict[str, Any] = {"n_restarts_optimizer": 2, "max_rows": 3000, "ard": True}


def bayesridge(split: DatasetSplit, *, seed: int, settings: Mapping[str, Any]) -> Outcome:
    """Bayesian linear regression with noise and weight precision from the evidence; nothing in it is random."""
    used = merge_settings("bayesridge", BAYESRIDGE_DEFAULTS, settings)
    scaled = ScaledSplit.of(split)
    stopwatch = Stopwatch()
    model = BayesianRidge(max_iter=used["max_iter"], tol=used["tol"]).fit(scaled.inputs, scaled.targets)
    elapsed = stopwatch.elapsed
    mean, std = model.predict(scaled.test_inputs, return_std=True)
    return scaled.outcome(mean, std, elapsed, {"settings": used, "steps": int(model.n_iter_)})


def gaussian_process(split: DatasetSplit, *, seed: int, settings: Mapping[str, Any]) -> Outcome:
    """An exact Gaussian process, for small tables only."""
    used = merge_settings("sklearn-gpr", GPR_DEFAULTS, settings)
    rows, columns = split.inputs.shape
    if rows > used["max_rows"]:
        raise DataError(
            f"The peer 'sklearn-gpr' is for small tables: {split.name} has {rows} training rows, more than its setting "
            f"max_rows={used['max_rows']}. Its time grows with the cube of the rows."
        )
    scaled = ScaledSplit.of(split)
    stopwatch = Stopwatch()
    # Bounds for standardised columns: a column that matters less than any other ends at the upper one.
    scales = np.full(columns if used["ard"] else 1, np.sqrt(columns))
    kernel = ConstantKernel(1.0, (1e-3, 1e4)) * RBF(scales, (1e-2, 1e4)) + WhiteKernel(0.1, (1e-8, 1e1))
    model = GaussianProcessRegressor(
        kernel, n_restarts_optimizer=used["n_restarts_optimizer"], random_state=seed, alpha=1e-10
    )
    with warnings.catch_warnings():
        # A length scale at its bound, for a column without influence, is no news; nor is L-BFGS out of iterations.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(scaled.inputs, scaled.targets)
    elapsed = stopwatch.elapsed
    # The kernel has the white noise in it, so the deviation includes the noise.
    mean, std = model.predict(scaled.test_inputs, return_std=True)
    details = {"settings": used, "kernel": str(model.kernel_), "nlml": -float(model.log_marginal_likelihood_value_)}
    return scaled.outcome(mean, std, elapsed, details)
