"""How a cell of the paper's methods, or of ours, is run.

The same for all methods: inputs are standardised on the training rows in float64, the network is the paper's (two
layers of 128 with ReLU), and the state with the lowest exact NLML over the run counts. With the setting
``protocol="paper"`` the rest is that of :mod:`paper.protocol`; otherwise the target is standardised, too, the noise
variance starts at 0.1 of its variance, and the optimizer is any of the library's. Predictions are those of the exact
posterior given all training rows, except SVGP with the Gaussian kernel, which has only its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from finitegp.algorithms import BSGD, SCGD, Algorithm, Lagged, Minimax, PaperMinimax
from finitegp.callbacks import ExactNLML
from finitegp.data.scaling import Standardizer
from finitegp.features import ComposedFeatures, FourierFeatures, MLPFeatures
from finitegp.likelihood import negative_log_marginal_likelihood
from finitegp.model import FeatureGP
from finitegp.noise import ConstantNoise, InputNoise, NoiseModel
from finitegp.schedules import cosine_decay, make_optimizer
from finitegp.statistics import sum_statistics
from finitegp.training import train

from .cells import OUR_METHODS, PAPER_METHODS, Cell
from .outcome import DatasetSplit, Outcome
from .protocol import INITIAL_NOISE_VARIANCE, PAPER, Looks, PaperAdadelta, as_they_are
from .svgp import SVGP

STEPS: type[PaperSteps] | None
try:
    from .fused import PaperSteps, RememberingSCGD

    STEPS = PaperSteps
except ImportError:  # without Numba: the same results by the library's own steps
    STEPS = None

WIDTH = 128
NUM_FOURIER_FEATURES = 1000
_OPTIMIZER_SETTINGS = ("protocol", "optimizer", "learning_rate", "weight_decay")
#: What each method may be told besides its optimizer.
_SETTINGS: dict[str, tuple[str, ...]] = {
    "minimax": ("penalty", "penalty_growth", "penalty_steps"),
    "minimax-stable": ("penalty", "penalty_growth", "penalty_steps", "damping", "window"),
    "scgd": ("tracking_rate",),
    "svgp": ("num_inducing", "initial_distribution"),
    "bsgd": (),
    "lagged": ("block", "window", "weight_update", "noise_update", "include_current"),
    "lagged-input-noise": ("block", "window", "weight_update", "noise_update", "include_current", "noise_width"),
}


def run_method(split: DatasetSplit, cell: Cell) -> Outcome:
    """Train one of the paper's methods or ours and predict the test rows."""
    settings = dict(cell.settings)
    _check(cell)
    by_protocol = settings.get("protocol") == PAPER["protocol"]
    inputs_scaler = Standardizer.fit(split.inputs)
    target_scaler = as_they_are(split.targets) if by_protocol else Standardizer.fit(split.targets)
    data = inputs_scaler.transform(split.inputs), target_scaler.transform(split.targets)
    scale = float(target_scaler.scale)
    test_inputs = inputs_scaler.transform(split.test_inputs)
    # SVGP has an exact Gaussian kernel on the network; the others have its Fourier features.
    fourier = cell.kernel == "gaussian" and cell.method != "svgp"
    model = make_model(split.inputs.shape[1], fourier=fourier, settings=settings, method=cell.method, seed=cell.seed)
    algorithm = _make_algorithm(model, cell, torch.from_numpy(data[0]))
    optimizer: torch.optim.Optimizer
    compiled = False
    if by_protocol:
        optimizer = PaperAdadelta(algorithm, settings["learning_rate"])
        if STEPS is not None:
            if fourier and type(algorithm) is SCGD:
                algorithm.__class__ = RememberingSCGD
            compiled = not any(STEPS.problems(algorithm, optimizer))
    else:
        optimizer = make_optimizer(
            algorithm,
            settings["optimizer"],
            learning_rate=settings["learning_rate"],
            weight_decay=settings.get("weight_decay", 0.0),
        )
    epochs, batch_size = cell.epochs or 1, cell.batch_size or 1
    steps = epochs * -(-len(split.inputs) // batch_size)
    exact = cell.kernel == "linear" or fourier
    # By the protocol a look at the exact likelihood after every epoch; otherwise, and where a look takes as long as an
    # epoch (1000 features), twenty in a run. Each is one pass.
    every = 1 if by_protocol and not fourier else max(1, epochs // 20)
    look = Looks(every) if by_protocol else ExactNLML(every=every, offset=math.log(scale))
    callbacks = [look] if exact else []
    run = train(
        algorithm,
        optimizer,
        data,
        epochs=epochs,
        batch_size=batch_size,
        seed=cell.seed,
        schedule=cosine_decay(steps) if settings.get("optimizer") == "adam" else None,
        callbacks=callbacks,
        compiled=STEPS if STEPS is not None and compiled else False,
    )
    details: dict[str, Any] = {
        "steps": run.step,
        "best_epoch": None if run.best is None else run.best.epoch,
        "diverged": run.diverged,
        "compiled": compiled,
    }
    if exact:
        details |= _likelihoods(model, data, math.log(scale), optimize=cell.method in OUR_METHODS)
        prediction = model.condition(data).predict(test_inputs)
    else:
        assert isinstance(algorithm, SVGP)
        prediction = algorithm.predict(test_inputs)
    if isinstance(algorithm, SVGP):
        details["negative_elbo"] = algorithm.negative_elbo(data) + math.log(scale)
    return Outcome(
        mean=target_scaler.inverse(prediction.mean.numpy()),
        std=prediction.std.numpy() * scale,
        seconds=run.seconds,
        details=details,
    )


def make_model(input_dim: int, *, fourier: bool, settings: Mapping[str, Any], method: str, seed: int) -> FeatureGP:
    """The paper's network, with Fourier features of a Gaussian kernel on it or without."""
    network = MLPFeatures(input_dim, hidden=(WIDTH, WIDTH), seed=seed)
    feature_map: nn.Module = network
    if fourier:
        # The network starts with features of length about sqrt(128 / 2): a length scale of that order.
        spectrum = FourierFeatures(WIDTH, NUM_FOURIER_FEATURES, ard=False, length_scales=5.0, seed=seed)
        feature_map = ComposedFeatures(network, spectrum)
    noise: NoiseModel = ConstantNoise(INITIAL_NOISE_VARIANCE)
    if method == "lagged-input-noise":
        width = settings.get("noise_width", 64)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            hidden, output = nn.Linear(input_dim, width), nn.Linear(width, 1)
        nn.init.zeros_(output.weight)  # starts as constant noise
        nn.init.zeros_(output.bias)
        head = nn.Sequential(hidden, nn.ReLU(), output)
        noise = InputNoise(head, reads="inputs", variance=INITIAL_NOISE_VARIANCE)
    return FeatureGP(feature_map, noise_model=noise)


def _check(cell: Cell) -> None:
    if cell.method not in PAPER_METHODS + OUR_METHODS:
        raise ValueError(f"method must be one of {PAPER_METHODS + OUR_METHODS}, but is {cell.method!r}.")
    if cell.kernel not in ("linear", "gaussian"):
        raise ValueError(f"kernel must be 'linear' or 'gaussian', but is {cell.kernel!r}.")
    known = _OPTIMIZER_SETTINGS + _SETTINGS[cell.method]
    unknown = sorted(set(cell.settings) - set(known))
    if unknown:
        raise ValueError(f"{cell.method} has no setting {unknown[0]!r}; it has {', '.join(known)}.")


def _make_algorithm(model: FeatureGP, cell: Cell, inputs: torch.Tensor) -> Algorithm:
    rows, settings = len(inputs), dict(cell.settings)
    options = {name: settings[name] for name in _SETTINGS[cell.method] if name in settings}
    if cell.method == "minimax":
        return PaperMinimax(model, rows, **options)
    if cell.method == "minimax-stable":
        return Minimax(model, rows, **options)
    if cell.method == "scgd":
        return SCGD(model, rows, **options)
    if cell.method == "bsgd":
        return BSGD(model, rows)
    if cell.method == "svgp":
        # The paper: as many inducing points as rows in a batch.
        count = min(options.get("num_inducing", cell.batch_size or 1), rows)
        chosen = SVGP.choose_inducing_inputs(inputs, count, seed=cell.seed).to(model.dtype)
        kernel = "linear" if cell.kernel == "linear" else "rbf"
        start = options.get("initial_distribution", "solved")
        return SVGP(model, rows, inducing_inputs=chosen, kernel=kernel, initial_distribution=start)
    options.pop("noise_width", None)
    return Lagged(model, rows, **options)


def _likelihoods(model: FeatureGP, data: Any, offset: float, *, optimize: bool) -> dict[str, Any]:
    """The NLML as trained in the network's own float type and again in float64, and at the optimal noise.

    The paper's methods keep the noise that they learned; for ours the closed-form optimum is part of the method.
    """
    trained = model.noise_variance
    if optimize:
        model.optimize_noise(data)
    statistics = sum_statistics(model.partial_statistics(data))
    narrow = negative_log_marginal_likelihood(statistics, model.noise_variance, tolerance=math.inf).nlml
    found = {"nlml": narrow + offset, "nlml_float64": model.nlml(data) + offset}
    kept = model.noise_variance
    model.optimize_noise(data)
    found["nlml_optimal_noise"] = model.nlml(data) + offset
    model.noise.set_variance(kept)
    return found | {"noise_variance": kept, "noise_variance_trained": trained}
