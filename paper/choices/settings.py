"""The options of a setting, and the published cells that a setting should meet."""

from __future__ import annotations

from typing import Any

WIDTH = 128
BATCH = 128
EPOCHS = 100
LOOKS = (20, 100, 1000)  #: evenly spread over a run; each is contained in the next
TRACKING = 0.9
TABLES = ("bike", "elevators", "pol", "kin40k")
METHODS = ("bsgd", "scgd")
RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)

#: (method, table): NLML and its deviation, RMSE and its deviation; batch 128, linear kernel.
PUBLISHED: dict[tuple[str, str], tuple[float, float, float, float]] = {
    ("scgd", "bike"): (-1.358, 0.029, 0.123, 0.011),
    ("scgd", "elevators"): (-1.399, 0.022, 0.101, 0.002),
    ("scgd", "kin40k"): (-1.618, 0.030, 0.071, 0.003),
    ("scgd", "pol"): (2.150, 0.140, 2.413, 0.234),
    ("bsgd", "bike"): (-1.311, 0.126, 0.056, 0.004),
    ("bsgd", "elevators"): (-1.173, 0.005, 0.091, 0.003),
    ("bsgd", "kin40k"): (-1.224, 0.038, 0.078, 0.003),
    ("bsgd", "pol"): (2.223, 0.037, 2.642, 0.110),
}

#: Every option with its values; the first is the default.
OPTIONS: dict[str, tuple[Any, ...]] = {
    "targets": ("standard", "raw"),
    "inputs": ("standard", "unit", "symmetric", "raw", "white", "triple", "robust", "clip"),
    # white: standardised, then rotated to unit covariance; triple: standardised times three; robust: median and
    # quartiles as scikit-learn's RobustScaler; clip: standardised, cut at +-5, standardised again.
    "adadelta": ("0.9/1e-6", "0.95/1e-7", "0.95/1e-8", "0.95/1e-6", "0.9/1e-8"),
    "init": ("torch", "he", "glorot"),
    "last_relu": (True, False),
    "noise": ("log", "variance", "sigma", "softplus"),
    "noise_start": (0.1, 0.01, 0.693, 1.0),
    "noise_least": (1e-8, 1e-6, 1e-4, 1e-3),
    "output_scale": (False, True),
    "loss": ("row", "total", "batch"),
    "dtype": ("float32", "float64"),
    "drop_last": (False, True),
    "sampling": ("epochs", "replacement"),
    # How often a run looks at the exact NLML; the lowest is kept. A run also gives the results with fewer looks.
    "looks": LOOKS,
    # SCGD only. w_start: "ridge" is the posterior mean given all rows, "small" normal / sqrt(d), "linear" that of
    # torch.nn.Linear(d, 1), "tiny" a tenth of it. track: "before" is the paper's order; "after" averages the batch in
    # first, as automatic differentiation of log|(1 - b) F + b F_S| would have it (its gradient carries the factor b).
    "w_start": ("zero", "ridge", "normal", "small", "linear", "tiny"),
    "f_start": ("batches", "full", "identity"),
    "track": ("before", "after"),
    # BSGD only.
    "jitter": (0.0, 1e-6, 1e-5, 1e-4),
}
ONLY = {"w_start": "scgd", "f_start": "scgd", "track": "scgd", "jitter": "bsgd"}


def options_of(method: str, setting: dict[str, Any]) -> dict[str, Any]:
    """The setting with defaults filled in, without the options that the method does not have."""
    unknown = set(setting) - set(OPTIONS)
    if unknown:
        raise ValueError(f"unknown options: {sorted(unknown)}")
    full = {name: setting.get(name, values[0]) for name, values in OPTIONS.items()}
    return {name: value for name, value in full.items() if ONLY.get(name, method) == method}


def parse_setting(pairs: list[str]) -> dict[str, Any]:
    """``name=value`` pairs, values of the type that the option has."""
    setting: dict[str, Any] = {}
    for pair in pairs:
        name, value = pair.split("=", 1)
        kind = type(OPTIONS[name][0])
        setting[name] = value.lower() == "true" if kind is bool else kind(value)
    return setting
