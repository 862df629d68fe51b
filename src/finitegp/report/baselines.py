"""Scores of predictive distributions with their sampling errors, and the baselines that a model has to beat."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from ..error_shape import GAUSSIAN, ErrorShape
from ..metrics import score
from .contents import ModelScores

Array = npt.NDArray[np.float64]
_MOST_LINEAR_ROWS = 50_000


def score_model(name: str, mean: Array, std: Array, targets: Array, error_shape: ErrorShape = GAUSSIAN) -> ModelScores:
    """All scores of one model, with standard errors over the rows.

    Example:
        >>> found = score_model("mean", np.zeros(4), np.ones(4), np.array([-1.0, 1.0, -1.0, 1.0]))
        >>> found.rmse, found.mae, found.r_squared, found.coverage[0.9]
        (1.0, 1.0, 0.0, 1.0)
    """
    found = score(torch.tensor(mean), torch.tensor(std), torch.tensor(targets), error_shape=error_shape)
    errors = targets - mean
    squares, sizes = errors**2, np.abs(errors)
    surprise = np.log(std) - error_shape.log_density(torch.tensor(errors / std)).numpy()
    root = math.sqrt(len(targets))
    variance = float(np.var(targets))
    return ModelScores(
        name=name,
        rmse=found.rmse,
        mae=float(sizes.mean()),
        r_squared=1.0 - float(squares.mean()) / variance if variance > 0.0 else None,
        nlpd=found.nlpd,
        crps=found.crps,
        coverage=found.coverage,
        rmse_error=float(squares.std()) / root / (2.0 * found.rmse) if found.rmse > 0.0 else 0.0,
        mae_error=float(sizes.std()) / root,
        nlpd_error=float(surprise.std()) / root,
    )


def predict_linear(inputs: Array, targets: Array, held_out_inputs: Array, *, seed: int) -> tuple[Array, Array]:
    """Mean and standard deviation of a Bayesian ridge regression, on at most 50,000 of the training rows.

    Of very many columns, on as many rows as a few seconds allow: its cost is ``rows * columns^2``.
    """
    from sklearn.linear_model import BayesianRidge
    from sklearn.preprocessing import StandardScaler

    columns = inputs.shape[1]
    most = min(_MOST_LINEAR_ROWS, max(5 * columns, int(2e10 / columns**2)))
    kept = np.sort(np.random.default_rng(seed).permutation(len(inputs))[:most])
    scaler = StandardScaler().fit(inputs[kept])
    # The target is standardised too: the priors of the ridge are made for numbers of order one.
    center, scale = float(targets[kept].mean()), float(targets[kept].std()) or 1.0
    model = BayesianRidge().fit(scaler.transform(inputs[kept]), (targets[kept] - center) / scale)
    mean, std = model.predict(scaler.transform(held_out_inputs), return_std=True)
    return mean * scale + center, np.maximum(std * scale, 1e-12 * scale)
