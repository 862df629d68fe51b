"""Fits with a feature map or an algorithm that the user has chosen, and fits that learn nothing but the posterior."""

from __future__ import annotations

import copy
import math
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ..algorithms import BSGD, SCGD, Lagged, Minimax
from ..algorithms.base import Algorithm
from ..callbacks import Callback, ProgressBar, Validation
from ..component import Component
from ..data import ArraySource
from ..data.scaling import Standardizer, fit_target_scaler
from ..features import ConcatenatedFeatures, ConstantFeatures, FourierFeatures, LinearFeatures, MLPFeatures
from ..full_batch import fit_full_batch
from ..model import FeatureGP
from ..noise import ConstantNoise, InputNoise, NoiseModel
from ..processes import one_thread
from ..scaled import ScaledGP
from ..schedules import cosine_decay, make_optimizer
from ..training import train
from .parameters import Parameters, chosen, is_auto

Array = npt.NDArray[np.float64]

# With fewer rows, holding some out costs more than stopping early gains.
_FEWEST_ROWS_TO_HOLD_OUT = 100
_LEARNING_RATE = 1e-2  # of Adam with cosine decay
_HIDDEN, _NOISE_HIDDEN, _BATCH_SIZE = (128, 128, 128), 64, 128
# Of Lagged: batches between refreshes, and batches that its statistics cover.
_BLOCK, _WINDOW = 5, 100
# By effort: passes over the rows, and the fewest steps.
_EPOCHS_AND_STEPS = {"low": (6, 1500), "medium": (12, 4000), "high": (40, 6000)}
_FOURIER_FEATURES = {"low": 256, "medium": 512, "high": 512}
# Features trained on few rows can reproduce them exactly, which means nothing for new rows: the noise deviation stays
# above a thousandth of the target's.
_SMALLEST_NOISE_VARIANCE = 1e-6
_MEASUREMENTS, _PATIENCE = 20, 5
# Up to this number of rows Fourier features are fitted full-batch.
_MOST_ROWS_FOR_EXACT = 1500


def fit_given(
    inputs: Array, targets: Array, counts: Array | None, chosen_by: Parameters, seed: int, start: ScaledGP | None = None
) -> ScaledGP:
    """Train the features and with the algorithm that were chosen, then condition on all rows.

    ``start`` is an earlier fit to go on from, with its features, noise and scaling.
    """
    started = time.perf_counter()
    feature_map, algorithm = _method(chosen_by, len(inputs))
    inputs_scaler = Standardizer.fit(inputs, counts) if start is None else start.inputs_scaler
    target_scaler = (
        fit_target_scaler(targets, counts, center=chosen_by.normalize_y) if start is None else start.target_scaler
    )
    data = ArraySource(inputs_scaler.transform(inputs), target_scaler.transform(targets), counts=counts)
    record: dict[str, Any] = {
        "path": "given",
        "algorithm": algorithm,
        "feature_map": feature_map if isinstance(feature_map, str) else type(feature_map).__name__,
        "rows": len(data),
        "seed": seed,
    }
    # A module of the user's own may draw random numbers, such as dropout, from torch's global generator.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if start is None:
            features = _make_features(data.input_dim, feature_map, chosen_by.effort, seed)
            model = FeatureGP(features, noise_model=_make_noise(data, chosen_by.noise))
        else:
            model = copy.deepcopy(start.fitted.model).requires_grad_(True)
            model.log_output_scale.requires_grad_(False)
        model = model.to(chosen_by.device, torch.float64 if algorithm == "exact" else _float_type(feature_map))
        if algorithm == "exact":
            _train_exact(model, data, chosen(chosen_by.epochs), record)
        else:
            # Small networks are trained fastest by one thread, most of all beside other programs.
            with one_thread() if isinstance(feature_map, str) else nullcontext():
                _train_batches(model, data, algorithm, chosen_by, seed, record)
    fitted = model.condition(data)
    record["seconds"] = time.perf_counter() - started
    return ScaledGP((Component(fitted),), inputs_scaler, target_scaler, record=record)


def fit_without_learning(
    inputs: Array, targets: Array, counts: Array | None, chosen_by: Parameters, seed: int, *, why: str
) -> ScaledGP:
    """A kernel as it is before any fitting, conditioned on the rows: for rows that nothing can be learned from."""
    inputs_scaler = Standardizer.fit(inputs, counts)
    target_scaler = fit_target_scaler(targets, counts, center=chosen_by.normalize_y)
    data = ArraySource(inputs_scaler.transform(inputs), target_scaler.transform(targets), counts=counts)
    features = _kernel_features(data.input_dim, _FOURIER_FEATURES[chosen_by.effort], seed=seed)
    fitted = FeatureGP(features, noise_variance=0.1).double().condition(data)
    record = {"path": "prior", "why": why, "rows": len(data), "seed": seed}
    return ScaledGP((Component(fitted),), inputs_scaler, target_scaler, record=record)


def refit_noise(inputs: Array, targets: Array, counts: Array | None, start: ScaledGP) -> ScaledGP:
    """The features and scaling of an earlier fit with the noise and the posterior of new rows."""
    started = time.perf_counter()
    data = ArraySource(start.inputs_scaler.transform(inputs), start.target_scaler.transform(targets), counts=counts)
    fitted = []
    for component in start.components:
        model = copy.deepcopy(component.fitted.model)
        model.optimize_noise(data)
        fitted.append(model.condition(data))
    record = start.record | {"why": "features of the fit before", "rows": len(data)}
    record["seconds"] = time.perf_counter() - started
    # What was learned from left-out rows was about the standard deviations of the old noise.
    components = [replace(each, factor=1.0, degrees_of_freedom=math.inf) for each in start.components]
    return replace(
        start,
        components=tuple(components),
        record=record,
        spread=None,
        conformal=None,
        counts_copies_once=False,
        outliers={},
    ).with_fitted(fitted)


def _method(regressor: Parameters, rows: int) -> tuple[str | nn.Module, str]:
    """The feature map and the algorithm of a fit that is not automatic, where one of them was chosen."""
    feature_map, algorithm = regressor.feature_map, regressor.algorithm
    if is_auto(feature_map):
        feature_map = "fourier" if algorithm == "exact" else "mlp"
    if is_auto(algorithm):
        small = rows <= _MOST_ROWS_FOR_EXACT
        algorithm = "exact" if small and isinstance(feature_map, str) and feature_map == "fourier" else "lagged"
    return feature_map, algorithm


def _make_features(input_dim: int, feature_map: str | nn.Module, effort: str, seed: int) -> nn.Module:
    if isinstance(feature_map, nn.Module):
        return copy.deepcopy(feature_map)
    if feature_map == "mlp":
        return MLPFeatures(input_dim, hidden=_HIDDEN, activation="mish", initialization="he", seed=seed)
    return _kernel_features(input_dim, _FOURIER_FEATURES[effort], seed=seed)


def _kernel_features(input_dim: int, num_features: int, *, seed: int) -> nn.Module:
    """Fourier features of a Gaussian kernel, a linear trend and an intercept, for standardised inputs and targets."""
    fourier = FourierFeatures(
        input_dim,
        num_features,
        length_scales=math.sqrt(input_dim),  # distances of standardised rows grow like this
        sampling="orthogonal",
        seed=seed,
    )
    return ConcatenatedFeatures(fourier, LinearFeatures(input_dim, magnitude=0.1), ConstantFeatures())


def _float_type(feature_map: str | nn.Module) -> torch.dtype:
    parameters = feature_map.parameters() if isinstance(feature_map, nn.Module) else ()
    return next((each.dtype for each in parameters if each.is_floating_point()), torch.float32)


def _make_noise(data: ArraySource, noise: str) -> NoiseModel:
    if noise != "input":
        return ConstantNoise(0.1)
    layers = nn.Linear(data.input_dim, _NOISE_HIDDEN), nn.Tanh(), nn.Linear(_NOISE_HIDDEN, 1)
    nn.init.zeros_(layers[-1].weight)  # starts as constant noise
    nn.init.zeros_(layers[-1].bias)
    return InputNoise(nn.Sequential(*layers), reads="inputs", variance=0.1)


def _train_exact(model: FeatureGP, data: ArraySource, iterations: int | None, record: dict[str, Any]) -> None:
    history: list[dict[str, float]] = []
    result = fit_full_batch(
        model,
        data,
        max_iterations=iterations or 500,
        progress=lambda iteration, nlml: history.append({"epoch": iteration, "nlml": nlml}),
    )
    record |= {"history": history, "converged": result.converged, "stop_reason": result.message}


def _train_batches(
    model: FeatureGP, data: ArraySource, method: str, settings: Parameters, seed: int, record: dict[str, Any]
) -> None:
    fewest_epochs, fewest_steps = _EPOCHS_AND_STEPS[settings.effort]
    holds_out = chosen(settings.early_stopping)
    if holds_out is None:
        holds_out = len(data) >= _FEWEST_ROWS_TO_HOLD_OUT
    order = np.random.default_rng(seed).permutation(len(data))
    held_out = order[: max(1, int(settings.validation_fraction * len(data)))] if holds_out else order[:0]
    kept = order[len(held_out) :]
    if len(kept) < 2:
        raise ValueError(f"early_stopping leaves {len(kept)} of {len(data)} rows to train on: set it to False.")
    training = _subset(data, kept)
    batch_size = min(chosen(settings.batch_size) or _BATCH_SIZE, len(training))
    steps_per_epoch = -(-len(training) // batch_size)
    epochs = chosen(settings.epochs) or max(fewest_epochs, -(-fewest_steps // steps_per_epoch))
    algorithm = _make_algorithm(model, training, method)
    callbacks: list[Callback] = []
    if holds_out:
        every = max(1, math.ceil(epochs / _MEASUREMENTS))
        callbacks.append(Validation(_subset(data, held_out), every=every, patience=_PATIENCE))
    if settings.verbose:
        callbacks.append(ProgressBar())
    run = train(
        algorithm,
        make_optimizer(algorithm, learning_rate=chosen(settings.learning_rate) or _LEARNING_RATE),
        training,
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
        schedule=cosine_decay(epochs * steps_per_epoch),
        callbacks=callbacks,
    )
    model.optimize_noise(training)
    model.noise.set_variance(max(model.noise_variance, _SMALLEST_NOISE_VARIANCE))
    record |= {"history": run.history, "stop_reason": run.stop_reason or "all epochs", "diverged": run.diverged}
    if holds_out:
        factor = _calibrate(model, training, _subset(data, held_out))
        record["validation"] = {"rows": len(held_out), "variance_factor": factor}
    if run.best is not None:
        record["validation"] |= {"nlpd": run.best.value, "epoch": run.best.epoch}


def _calibrate(model: FeatureGP, training: ArraySource, held_out: ArraySource) -> float:
    """Scale all predictive variances so that they match the errors on the held-out rows; the mean stays as it is."""
    prediction = model.condition(training).predict(held_out.inputs)
    squares = (prediction.mean - prediction.mean.new_tensor(held_out.targets)).square()
    factor = float(np.average((squares / prediction.variance).cpu().numpy(), weights=held_out.counts))
    factor = max(factor, _SMALLEST_NOISE_VARIANCE / model.noise_variance)
    model.noise.set_variance(model.noise_variance * factor)
    model.set_output_scale(model.output_scale * factor)
    return factor


def _make_algorithm(model: FeatureGP, training: ArraySource, method: str) -> Algorithm:
    rows, columns = len(training), training.input_dim
    if method == "lagged":
        return Lagged(model, rows, block=_BLOCK, window=_WINDOW, input_dim=columns)
    kinds: dict[str, Any] = {"scgd": SCGD, "minimax": Minimax, "bsgd": BSGD}
    algorithm: Algorithm = kinds[method](model, rows, input_dim=columns)
    return algorithm


def _subset(data: ArraySource, rows: npt.NDArray[np.int64]) -> ArraySource:
    counts = None if data.counts is None else data.counts[rows]
    return ArraySource(data.inputs[rows], data.targets[rows], counts=counts)
