"""Predictions for rows that a model has not seen, and their scores beside those of the baselines it has to beat."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..metrics import Scores, score
from .reported_model import Predicted, as_reported_model
from .residuals import thin

Array = npt.NDArray[np.float64]
_MOST_LINEAR_ROWS = 50_000


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Predictions of a model for held-out rows, and how good they are.

    Attributes:
        predicted: For each row.
        scores: The model's first, then the baselines'.
        seconds: To predict.
    """

    predicted: Predicted
    scores: list[Scores]
    seconds: float


class Baseline(NamedTuple):
    """Predictions of a baseline: means and standard deviations of Gaussians."""

    name: str
    mean: Array
    std: Array

    def score(self, targets: Array) -> Scores:
        """Its scores."""
        return score(self.mean, self.std, targets, name=self.name)


def baselines(training: tuple[Array, Array], inputs: Array, *, seed: int) -> list[Baseline]:
    """A Bayesian ridge regression, and the mean and spread of the training rows if these differ."""
    linear = Baseline("linear", *predict_linear(*training, inputs, seed=seed))
    return [linear, *_constant(len(inputs), float(training[1].mean()), float(training[1].std()))]


def _constant(rows: int, mean: float | None, std: float) -> list[Baseline]:
    known = mean is not None and std > 0.0
    return [Baseline("mean", np.full(rows, mean), np.full(rows, std))] if known else []


def evaluate(
    model: object,
    inputs: Array,
    targets: Array,
    *,
    training: tuple[Array, Array] | None = None,
    target_index: int = 0,
    seed: int = 0,
) -> Evaluation:
    """Predict held-out rows once, and score the predictions and those of the baselines.

    The baselines are a Bayesian ridge regression and the mean and spread of the training rows; without these, the
    latter where the model knows them.

    Args:
        model: As for :func:`.gather_contents`, which takes the result as ``evaluation``.
        inputs: ``(rows, columns)`` that the model was not trained on.
        targets: ``(rows,)``.
        training: Inputs and targets of the rows it was trained on, or of a sample of them.
        target_index: Which target, if the estimator has several.
        seed: Of the sample of training rows for the linear baseline.

    Example:
        >>> from finitegp import FeatureGP
        >>> from finitegp.features import LinearFeatures
        >>> inputs = np.random.default_rng(0).normal(size=(80, 2))
        >>> targets = inputs[:, 0] + 0.1 * np.random.default_rng(1).normal(size=80)
        >>> training = inputs[:60], targets[:60]
        >>> fitted = FeatureGP(LinearFeatures(2), 0.01).condition(training)
        >>> found = evaluate(fitted, inputs[60:], targets[60:], training=training)
        >>> [scores.name for scores in found.scores], found.scores[0].rmse < 0.2
        (['this model', 'linear', 'mean'], True)
    """
    reported = as_reported_model(model, target_index)
    started = time.perf_counter()
    predicted = reported.predict(inputs)
    seconds = time.perf_counter() - started
    scores = [score(predicted.mean, predicted.std, targets, mixture=predicted.mixture)]
    if training is not None:
        others = baselines(training, inputs, seed=seed)
    else:
        others = _constant(len(inputs), reported.target_mean, reported.target_scale)
    return Evaluation(predicted, scores + [each.score(targets) for each in others], seconds)


def predict_linear(inputs: Array, targets: Array, held_out_inputs: Array, *, seed: int) -> tuple[Array, Array]:
    """Mean and standard deviation of a Bayesian ridge regression, on at most 50,000 of the training rows.

    Of very many columns, on as many rows as a few seconds allow: its cost is ``rows * columns^2``.
    """
    from sklearn.linear_model import BayesianRidge
    from sklearn.preprocessing import StandardScaler

    columns = inputs.shape[1]
    most = min(_MOST_LINEAR_ROWS, max(5 * columns, int(2e10 / columns**2)))
    kept = thin(len(inputs), most, seed=seed)
    scaler = StandardScaler().fit(inputs[kept])
    # The target is standardised too: the priors of the ridge are made for numbers of order one.
    center, scale = float(targets[kept].mean()), float(targets[kept].std()) or 1.0
    model = BayesianRidge().fit(scaler.transform(inputs[kept]), (targets[kept] - center) / scale)
    mean, std = model.predict(scaler.transform(held_out_inputs), return_std=True)
    return mean * scale + center, np.maximum(std * scale, 1e-12 * scale)
