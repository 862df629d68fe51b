"""``realmlp``: RealMLP with its tuned defaults (Holzmüller et al., 2024), through pytabkit."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import Any

from ..outcome import DatasetSplit, Outcome
from .contract import ScaledSplit, Stopwatch, constant_noise, hold_out, merge_settings, require

#: ``epochs`` and ``batch_size`` are the method's own.
DEFAULTS: dict[str, Any] = {
    "epochs": 256,
    "batch_size": 256,
    "validation_fraction": 0.1,
    "threads": 1,
    "max_seconds": 240.0,
}

# Fits of one and of so many epochs tell what an epoch takes; a share of the limit is kept for a pace that varies.
_PROBE_EPOCHS = 3
_RESERVE = 0.1


def fit_and_predict(split: DatasetSplit, *, seed: int, settings: Mapping[str, Any]) -> Outcome:
    """RealMLP-TD on squared error, its best epoch on validation rows; the noise is the error on those rows.

    Its learning rate goes up and down over a number of epochs fixed beforehand, so a time limit that cuts it off would
    harm it. If so many epochs do not fit, by the pace of a few, it is run with fewer instead.
    """
    used = merge_settings("realmlp", DEFAULTS, settings)
    regressor = require("pytabkit", "realmlp").RealMLP_TD_Regressor
    scaled = ScaledSplit.of(split)
    stopwatch = Stopwatch()
    _, held_out = hold_out(len(scaled.targets), used["validation_fraction"], seed)

    def fit(epochs: int) -> Any:
        model = regressor(
            device="cpu",
            random_state=seed,
            n_threads=used["threads"],
            n_epochs=epochs,
            batch_size=used["batch_size"],
            verbosity=0,
        )
        left = max(used["max_seconds"] - stopwatch.seconds, 1.0)
        return model.fit(scaled.inputs, scaled.targets, val_idxs=held_out, time_to_fit_in_seconds=left)

    epochs, shortened = used["epochs"], False
    with warnings.catch_warnings(), _quiet_lightning():
        warnings.simplefilter("ignore")  # of Lightning, about loaders and loggers that the user does not choose
        if epochs > _PROBE_EPOCHS:
            fit(1)
            between = stopwatch.seconds
            fit(_PROBE_EPOCHS)
            probed = stopwatch.seconds - between
            # The difference leaves out what a fit costs besides its epochs; on a busy machine it may come out too low.
            pace = max((probed - between) / (_PROBE_EPOCHS - 1), 0.5 * probed / _PROBE_EPOCHS)
            fitting = int((1.0 - _RESERVE) * (used["max_seconds"] - stopwatch.seconds) / pace)
            if fitting < epochs:
                epochs, shortened = max(fitting, 1), True
        model = fit(epochs)
        noise = constant_noise(scaled.targets[held_out] - model.predict(scaled.inputs[held_out]))
        seconds = stopwatch.seconds
        mean = model.predict(scaled.test_inputs)
    details = {"settings": used, "epochs": epochs, "stopped_at_time_limit": shortened}
    return scaled.outcome(mean, noise, seconds, details)


class _quiet_lightning:  # noqa: N801 - used like a function
    """Lightning says at every fit which devices it found; only warnings pass inside."""

    def __enter__(self) -> None:
        self._levels = {name: logging.getLogger(name).level for name in ("pytorch_lightning", "lightning.pytorch")}
        for name in self._levels:
            logging.getLogger(name).setLevel(logging.WARNING)

    def __exit__(self, *error: object) -> None:
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)
