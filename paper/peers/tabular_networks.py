"""``realmlp`` and ``tabm``: two networks made for tables, through pytabkit.

RealMLP-TD (Holzmüller et al., 2024) raises and lowers its learning rate over a number of epochs fixed beforehand. TabM
(Gorishniy et al., 2025) has a constant rate and is ended by validation rows. A limit in the middle would leave the one
at a high rate and the other unfinished: how many epochs fit is found before, by the pace of a few, and then nothing
cuts the fit.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from ..outcome import DatasetSplit, Outcome
from .contract import Index, ScaledSplit, Stopwatch, constant_noise, hold_out, merge_settings, require

#: ``epochs`` and ``batch_size`` are the method's own. ``max_seconds`` of None is no limit.
REALMLP_DEFAULTS: dict[str, Any] = {
    "epochs": 256,
    "batch_size": 256,
    "validation_fraction": 0.1,
    "threads": 1,
    "max_seconds": 240.0,
}

#: The method's own are 32 members of width 512, made for a GPU: on one core an epoch of 40,000 rows would take 70
#: seconds, and with these 3. ``epochs`` is a cap that ``patience`` epochs without gain should come before.
TABM_DEFAULTS: dict[str, Any] = {
    "members": 16,
    "width": 128,
    "learning_rate": 2e-3,
    "epochs": 1000,
    "patience": 16,
    "batch_size": 256,
    "validation_fraction": 0.1,
    "threads": 1,
    "max_seconds": 240.0,
}

# Fits of one and of so many epochs tell what an epoch takes.
_PROBE_EPOCHS = 3


def realmlp(split: DatasetSplit, *, seed: int, settings: Mapping[str, Any]) -> Outcome:
    """RealMLP-TD on squared error, its best epoch on validation rows; the noise is the error on those rows."""
    used = merge_settings("realmlp", REALMLP_DEFAULTS, settings)
    return _fit_and_predict(split, seed, used, require("pytabkit", "realmlp").RealMLP_TD_Regressor, verbosity=0)


def tabm(split: DatasetSplit, *, seed: int, settings: Mapping[str, Any]) -> Outcome:
    """TabM on squared error, ended by validation rows; the noise is the error on those rows."""
    used = merge_settings("tabm", TABM_DEFAULTS, settings)
    return _fit_and_predict(
        split,
        seed,
        used,
        require("pytabkit", "tabm").TabM_D_Regressor,
        patience=used["patience"],
        lr=used["learning_rate"],
        tabm_k=used["members"],
        d_block=used["width"],
        verbosity=1,  # prints a line for each epoch, which is the only trace of their number
    )


def _fit_and_predict(
    split: DatasetSplit, seed: int, used: Mapping[str, Any], regressor: Callable[..., Any], **own: object
) -> Outcome:
    make = partial(
        regressor,
        device="cpu",
        random_state=seed,
        n_threads=used["threads"],
        batch_size=used["batch_size"],
        **own,
    )
    scaled = ScaledSplit.of(split)
    stopwatch = Stopwatch()
    _, held_out = hold_out(len(scaled.targets), used["validation_fraction"], seed)
    with _quiet() as printed:
        epochs = _fitting_epochs(make, scaled, held_out, used, stopwatch)
        printed.truncate(0)
        model = make(n_epochs=epochs).fit(scaled.inputs, scaled.targets, val_idxs=held_out)
        noise = constant_noise(scaled.targets[held_out] - model.predict(scaled.inputs[held_out]))
        elapsed = stopwatch.elapsed
        mean = model.predict(scaled.test_inputs)
    # Without lines of epochs, all were run.
    run = printed.getvalue().count("(val)") or epochs
    details = {"settings": used, "epochs": run, "shortened": run == epochs < used["epochs"]}
    return scaled.outcome(mean, noise, elapsed, details)


def _fitting_epochs(
    make: Callable[..., Any], scaled: ScaledSplit, held_out: Index, used: Mapping[str, Any], stopwatch: Stopwatch
) -> int:
    """The epochs asked for, or what fits into the limit by the pace of a few; at least one."""
    limit, wanted = used["max_seconds"], int(used["epochs"])
    if limit is None or wanted <= _PROBE_EPOCHS:
        return wanted
    make(n_epochs=1).fit(scaled.inputs, scaled.targets, val_idxs=held_out)
    first = stopwatch.seconds
    make(n_epochs=_PROBE_EPOCHS).fit(scaled.inputs, scaled.targets, val_idxs=held_out)
    probed = stopwatch.seconds - first
    # The difference leaves out what a fit costs besides its epochs; on a busy machine it may come out too low.
    pace = max((probed - first) / (_PROBE_EPOCHS - 1), 0.5 * probed / _PROBE_EPOCHS)
    return max(min(wanted, int((limit - stopwatch.seconds) / pace)), 1)


@contextlib.contextmanager
def _quiet() -> Iterator[io.StringIO]:
    """Warnings, progress bars and Lightning's words on devices are kept away; what was printed is yielded."""
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning.pytorch")]
    levels = [logger.level for logger in loggers]
    printed = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")  # of Lightning, about loaders and loggers that the user does not choose
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        try:
            yield printed
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
