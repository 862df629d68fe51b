"""One treatment for every peer: error bars and Student's t from rows that its fits had not seen.

Our default averages networks trained on folds, learns how noisy a row is from residuals of left-out rows, and gives its
predictive distribution the tails that they have. This does the same to any peer, from outside, with the same left-out
rows for all: who is better then is the fit, not the likelihood around it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from sklearn.ensemble import HistGradientBoostingRegressor

from finitegp.error_shape import ErrorShape
from finitegp.errors import DataError

from ..outcome import Array, DatasetSplit, Outcome
from .contract import SMALLEST_NOISE, Index, PeerFunction, Stopwatch

#: Settings of the treatment; all others are the peer's.
DEFAULTS: dict[str, Any] = {"folds": 5}

#: Squared standardised residuals below this share of their mean are repetitions or chance, not certainty.
_FLOOR = 1e-6
#: The bounds of our default's degrees of freedom.
_FEWEST_DEGREES, _MOST_DEGREES = 2.05, 200.0


class LeftOut(NamedTuple):
    """What fits without a fold said of its rows, and their mean of the test rows.

    Attributes:
        mean: ``(training rows,)`` prediction of each row by the fit that had not seen it.
        std: ``(training rows,)`` its own standard deviation.
        test_mean: ``(test rows,)`` mean prediction of all fits.
        test_std: ``(test rows,)`` root mean square of their standard deviations.
        fits: The outcomes, one per fold.
    """

    mean: Array
    std: Array
    test_mean: Array
    test_std: Array
    fits: list[Outcome]


class StudentFit(NamedTuple):
    """Student's t around standardised residuals: their standard deviation, its shape, and the density reached."""

    deviation: float
    shape: ErrorShape
    nlpd: float


def with_treatment(peer: PeerFunction) -> PeerFunction:
    """The peer with error bars and tails from left-out rows.

    The peer is fitted without each of ``folds`` parts of the training rows; the mean of these fits is the prediction.
    Of each training row there is then a residual by a fit that had not seen it, divided by that fit's own standard
    deviation. Two scales compete for the largest density of these under Student's t: the peer's own deviations times a
    constant, and these times what boosted trees make of the logarithm of the squared residuals, given inputs,
    prediction and own deviation; each row is judged by trees that had not seen it. The residuals are those of single
    fits, so that the error bars of their mean are a little wide.
    """

    def fit_and_predict(split: DatasetSplit, *, seed: int, settings: Mapping[str, Any]) -> Outcome:
        own = {name: value for name, value in settings.items() if name not in DEFAULTS}
        folds = make_folds(len(split.inputs), settings.get("folds", DEFAULTS["folds"]), seed)
        left_out = fit_without_folds(peer, split, folds, seed=seed, settings=own)
        stopwatch = Stopwatch()
        errors = (split.targets - left_out.mean) / left_out.std
        columns = np.column_stack([split.inputs, left_out.mean, np.log(left_out.std)])
        test_columns = np.column_stack([split.test_inputs, left_out.test_mean, np.log(left_out.test_std)])
        log_variance, test_log_variance = cross_fit_log_variance(columns, errors, folds, test_columns, seed=seed)
        constant, learned = fit_student(errors), fit_student(errors, log_variance)
        chosen, factor = constant, np.ones(len(test_columns))
        if learned.nlpd < constant.nlpd:
            chosen, factor = learned, np.exp(0.5 * test_log_variance)
        smallest = SMALLEST_NOISE * float(np.std(split.targets))
        elapsed = stopwatch.elapsed
        details = {
            "settings": left_out.fits[0].details["settings"] | {"folds": len(folds)},
            "scale": "learned" if chosen is learned else "own",
            "degrees_of_freedom": chosen.shape.degrees_of_freedom,
            "left_out_rmse": float(np.sqrt(np.mean((split.targets - left_out.mean) ** 2))),
            "left_out_nlpd": chosen.nlpd + float(np.mean(np.log(left_out.std))),
            "left_out_rows": digest_folds(folds),
            "shortened": any(fit.details.get("shortened", False) for fit in left_out.fits),
            "fits": [_without_settings(fit) for fit in left_out.fits],
        }
        return Outcome(
            mean=left_out.test_mean,
            std=np.maximum(left_out.test_std * factor * chosen.deviation, smallest),
            seconds=elapsed.processor + sum(fit.seconds for fit in left_out.fits),
            wall_seconds=elapsed.wall + sum(fit.wall_seconds or 0.0 for fit in left_out.fits),
            error_shape=chosen.shape,
            details=details,
        )

    return fit_and_predict


def make_folds(rows: int, count: int, seed: int) -> list[Index]:
    """Disjoint row numbers that together are all rows; nothing else than rows, count and seed determines them.

    Example:
        >>> [len(fold) for fold in make_folds(12, 5, seed=0)]
        [3, 3, 2, 2, 2]
    """
    if count < 2:
        raise ValueError(f"folds must be at least 2, but is {count}.")
    if rows < 2 * count:
        raise DataError(f"{count} folds need at least {2 * count} training rows, but there are {rows}.")
    return [np.sort(fold) for fold in np.array_split(np.random.default_rng(seed).permutation(rows), count)]


def digest_folds(folds: Sequence[Index]) -> str:
    """Equal for equal folds: shows in the records that all peers had the same left-out rows."""
    return f"{zlib.crc32(np.concatenate([np.append(fold, -1) for fold in folds]).astype('<i8').tobytes()):08x}"


def fit_without_folds(
    peer: PeerFunction, split: DatasetSplit, folds: Sequence[Index], *, seed: int, settings: Mapping[str, Any]
) -> LeftOut:
    """Fit the peer without each fold, and predict the fold and the test rows; their targets are kept from it."""
    mean, std = np.empty(len(split.targets)), np.empty(len(split.targets))
    fits = []
    for number, fold in enumerate(folds):
        kept = np.delete(np.arange(len(split.targets)), fold)
        unseen = np.concatenate([split.inputs[fold], split.test_inputs])
        unknown = np.full(len(unseen), np.nan)
        part = DatasetSplit(split.name, split.split, split.inputs[kept], split.targets[kept], unseen, unknown)
        found = peer(part, seed=seed * len(folds) + number, settings=settings)
        mean[fold], std[fold] = found.mean[: len(fold)], found.std[: len(fold)]
        fits.append(found)
    tests = [(fit.mean[len(fold) :], fit.std[len(fold) :]) for fit, fold in zip(fits, folds, strict=True)]
    test_mean = np.mean([part for part, _ in tests], axis=0)
    test_std = np.sqrt(np.mean([part**2 for _, part in tests], axis=0))
    return LeftOut(mean, std, test_mean, test_std, fits)


def cross_fit_log_variance(
    columns: Array, errors: Array, folds: Sequence[Index], test_columns: Array, *, seed: int
) -> tuple[Array, Array]:
    """The expected log square of each error by trees without its fold; of test rows, the mean of all these trees."""
    squares = errors**2
    logs = np.log(np.maximum(squares, _FLOOR * max(float(squares.mean()), np.finfo(float).tiny)))
    found, tests = np.empty(len(errors)), []
    for number, fold in enumerate(folds):
        kept = np.delete(np.arange(len(errors)), fold)
        model = HistGradientBoostingRegressor(
            learning_rate=0.05,
            max_iter=500,
            max_leaf_nodes=15,
            min_samples_leaf=20,
            l2_regularization=1.0,
            early_stopping=True,
            validation_fraction=0.1,
            n_iter_no_change=20,
            random_state=seed * len(folds) + number,
        ).fit(columns[kept], logs[kept])
        found[fold] = model.predict(columns[fold])
        tests.append(model.predict(test_columns))
    return found, np.mean(tests, axis=0)


def fit_student(errors: Array, log_variance: Array | None = None) -> StudentFit:
    """Standard deviation and degrees of freedom with the largest density of errors over the root of their variance.

    Example:
        >>> found = fit_student(2.0 * np.random.default_rng(0).standard_t(4.0, size=5000))
        >>> abs(found.deviation / (2.0 * math.sqrt(2.0)) - 1.0) < 0.05, 3.5 < found.shape.degrees_of_freedom < 4.5
        (True, True)
    """
    logs = np.zeros(len(errors)) if log_variance is None else log_variance
    values = torch.from_numpy(errors * np.exp(-0.5 * logs))
    # Of exact repetitions the middle may be zero.
    middle = max(float(values.abs().median()), 1e-3 * float(values.square().mean().sqrt()), np.finfo(float).tiny)

    def best_for(log_excess: float) -> StudentFit:
        shape = ErrorShape(2.0 + math.exp(log_excess))

        def loss(log_deviation: float) -> float:
            density = shape.log_density(values * math.exp(-log_deviation))
            return log_deviation - float(density.mean())

        start = math.log(middle) - math.log(shape.deviations(0.5))
        found = minimize_scalar(loss, bounds=(start - 5.0, start + 5.0), method="bounded")
        return StudentFit(math.exp(float(found.x)), shape, float(found.fun))

    bounds = math.log(_FEWEST_DEGREES - 2.0), math.log(_MOST_DEGREES - 2.0)
    found = minimize_scalar(lambda value: best_for(float(value)).nlpd, bounds=bounds, method="bounded")
    best = best_for(float(found.x))
    return best._replace(nlpd=best.nlpd + 0.5 * float(logs.mean()))


def _without_settings(fit: Outcome) -> dict[str, Any]:
    return {name: value for name, value in fit.details.items() if name != "settings"} | {"seconds": fit.seconds}
