"""Search for the choices that the paper's experiments leave open, by distance to its published cells.

A run is one training of SCGD or BSGD with the linear kernel on one table: batches of 128 rows, 100 epochs, split 0,
seed 0. A setting is everything else but the learning rate, and is the same for both methods and all tables. The rate is
chosen per table and method by the lowest exact NLML, as in the paper. The measure, fixed before the search, is the mean
over 16 cells (4 tables, 2 methods, NLML and RMSE) of ``|ours - published| / published deviation``.

The training loop is independent of the library: NumPy with a hand-written backward pass, BLAS and LAPACK through SciPy,
AdaDelta on one flat vector.

    python paper/choices.py run --data DIR --table bike --method scgd --rate 1 --set inputs=unit w_start=zero
    python paper/choices.py search --data DIR --stage bsgd-one        # goes on where it stopped
    python paper/choices.py rank
    python paper/choices.py check --data DIR                          # gradients and AdaDelta against torch
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import torch  # noqa: E402
from scipy.linalg import blas, lapack  # noqa: E402

RESULTS = Path(__file__).resolve().parent.parent / "results" / "choices.jsonl"
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


# ---------------------------------------------------------------------------------------------------------------------
# Data
# ---------------------------------------------------------------------------------------------------------------------


def load(folder: Path, table: str, inputs: str, targets: str) -> dict[str, Any]:
    """Training and test rows of split 0, scaled on the training rows in float64."""
    frame = pd.read_parquet(folder / f"{table}.parquet")
    x = frame.filter(regex=r"^x\d+$").to_numpy(np.float64)
    y = frame["y"].to_numpy(np.float64)
    test = frame["test0"].to_numpy()
    train = x[~test]
    shift, scale = np.zeros(x.shape[1]), np.ones(x.shape[1])
    if inputs in ("standard", "white"):
        shift, scale = train.mean(0), train.std(0)
    elif inputs in ("unit", "symmetric"):
        low, high = train.min(0), train.max(0)
        shift, scale = (low, high - low) if inputs == "unit" else ((low + high) / 2, (high - low) / 2)
    if inputs == "clip":
        x = np.clip((x - train.mean(0)) / np.where(train.std(0) > 0, train.std(0), 1.0), -5, 5)
        shift, scale = x[~test].mean(0), x[~test].std(0)
    if inputs == "robust":
        low, shift, high = np.quantile(train, (0.25, 0.5, 0.75), axis=0)
        scale = high - low
    if inputs == "triple":
        shift, scale = train.mean(0), train.std(0) / 3
    x = (x - shift) / np.where(scale > 0, scale, 1.0)
    if inputs == "white":
        train = x[~test] - x[~test].mean(0)
        values, vectors = np.linalg.eigh(train.T @ train / len(train))
        x = (x - x[~test].mean(0)) @ (vectors / np.sqrt(np.maximum(values, 1e-10 * values[-1])))
    y_shift, y_scale = (y[~test].mean(), y[~test].std()) if targets == "standard" else (0.0, 1.0)
    return {
        "x": x[~test],
        "y": (y[~test] - y_shift) / y_scale,
        "x_test": x[test],
        "y_test": y[test],
        "y_shift": float(y_shift),
        "y_scale": float(y_scale),
    }


# ---------------------------------------------------------------------------------------------------------------------
# Model: parameters in one flat vector
# ---------------------------------------------------------------------------------------------------------------------


class Parameters:
    """Views into one flat vector: the network, then the weights (SCGD only), the noise and the output scale."""

    def __init__(self, columns: int, with_weights: bool, dtype: Any) -> None:
        shapes = {"w1": (columns, WIDTH), "b1": (WIDTH,), "w2": (WIDTH, WIDTH), "b2": (WIDTH,)}
        shapes |= {"w": (WIDTH if with_weights else 0,), "noise": (1,), "scale": (1,)}
        self.flat = np.zeros(sum(math.prod(shape) for shape in shapes.values()), dtype)
        start = 0
        for name, shape in shapes.items():
            stop = start + math.prod(shape)
            setattr(self, name, self.flat[start:stop].reshape(shape))
            start = stop


def initialise(p: Parameters, kind: str, seed: int) -> None:
    """Fill the network's parameters."""
    torch.manual_seed(seed)
    for weight, bias in ((p.w1, p.b1), (p.w2, p.b2)):
        layer = torch.nn.Linear(*weight.shape)
        if kind != "torch":
            torch.nn.init.zeros_(layer.bias)
            if kind == "he":
                torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            else:
                torch.nn.init.xavier_uniform_(layer.weight)
        weight[...] = layer.weight.detach().numpy().T
        bias[...] = layer.bias.detach().numpy()


def features(p: Parameters, x: np.ndarray, last_relu: bool, output_scale: bool) -> tuple[np.ndarray, np.ndarray]:
    """The first layer's output and the features."""
    h = x @ p.w1
    h += p.b1
    np.maximum(h, 0, out=h)
    z = h @ p.w2
    z += p.b2
    if last_relu:
        np.maximum(z, 0, out=z)
    if output_scale:
        z *= np.exp(0.5 * p.scale[0])
    return h, z


def backward(
    p: Parameters, g: Parameters, x: np.ndarray, h: np.ndarray, z: np.ndarray, dz: np.ndarray, o: dict[str, Any]
) -> None:
    """Network gradients from the gradient in the features; overwrites ``dz``."""
    if o["output_scale"]:
        g.scale[0] = 0.5 * np.vdot(dz, z)
        dz *= np.exp(0.5 * p.scale[0])
    if o["last_relu"]:
        dz *= z > 0
    np.matmul(h.T, dz, out=g.w2)
    dz.sum(0, out=g.b2)
    dh = dz @ p.w2.T
    dh *= h > 0
    np.matmul(x.T, dh, out=g.w1)
    dh.sum(0, out=g.b1)


def noise_value(raw: float, kind: str, least: float) -> tuple[float, float]:
    """The noise variance ``s`` and ``ds / d raw``."""
    if kind == "log":
        return math.exp(raw), math.exp(raw)
    if kind == "variance":
        return raw, 1.0
    if kind == "sigma":
        return raw * raw, 2.0 * raw
    return least + (math.log1p(math.exp(-abs(raw))) + max(raw, 0.0)), 1.0 / (1.0 + math.exp(-raw))


def noise_raw(value: float, kind: str, least: float) -> float:
    """The parameter at which the noise variance is ``value``; also the bound, for ``value = least``."""
    if kind == "log":
        return math.log(value)
    if kind == "variance":
        return value
    if kind == "sigma":
        return math.sqrt(value)
    return -1e9 if value <= least else math.log(math.expm1(value - least))


class AdaDelta:
    """torch.optim.Adadelta on one flat vector."""

    def __init__(self, size: int, rate: float, rho: float, eps: float, dtype: Any) -> None:
        self.rate, self.rho, self.eps = rate, rho, eps
        self.square, self.moved = np.zeros(size, dtype), np.zeros(size, dtype)
        self.a, self.b = np.empty(size, dtype), np.empty(size, dtype)

    def step(self, flat: np.ndarray, gradient: np.ndarray) -> None:
        """One update of ``flat`` in place."""
        a, b, square, moved, rho = self.a, self.b, self.square, self.moved, self.rho
        np.multiply(gradient, gradient, out=a)
        a *= 1 - rho
        square *= rho
        square += a
        np.add(moved, self.eps, out=a)
        np.add(square, self.eps, out=b)
        a /= b
        np.sqrt(a, out=a)
        a *= gradient
        np.multiply(a, a, out=b)
        b *= 1 - rho
        moved *= rho
        moved += b
        a *= self.rate
        flat -= a


# ---------------------------------------------------------------------------------------------------------------------
# Exact values
# ---------------------------------------------------------------------------------------------------------------------


def sums(p: Parameters, x: np.ndarray, y: np.ndarray, o: dict[str, Any], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """``Z'Z`` (lower triangle, Fortran order) and ``Z'y`` over all rows, summed in float64."""
    gram, cross = np.zeros((WIDTH, WIDTH), order="F"), np.zeros(WIDTH)
    for start in range(0, len(x), 1024):
        z = features(p, x[start : start + 1024].astype(dtype, copy=False), o["last_relu"], o["output_scale"])[1]
        z = z.astype(np.float64, copy=False)
        gram = blas.dsyrk(1.0, z.T, beta=1.0, c=gram, lower=1, overwrite_c=1)
        cross += y[start : start + 1024] @ z
    return gram, cross


def factorise(matrix: np.ndarray) -> np.ndarray | None:
    """Lower Cholesky factor of a matrix given by its lower triangle, or None."""
    factor, info = lapack.dpotrf(matrix, lower=1, clean=0)
    if info == 0 and math.isfinite(factor.trace()):
        return factor
    mean = matrix.trace() / len(matrix)
    if not math.isfinite(mean):
        return None
    for relative in (1e-14, 1e-12, 1e-10):
        factor, info = lapack.dpotrf(matrix + relative * mean * np.eye(len(matrix)), lower=1, clean=0)
        if info == 0 and math.isfinite(factor.trace()):
            return factor
    return None


def exact_nlml(gram: np.ndarray, cross: np.ndarray, q: float, s: float, n: int) -> tuple[float, np.ndarray | None]:
    """NLML per row in the targets' units of training, and the posterior mean of the weights."""
    f = gram.copy(order="F")
    f[np.diag_indices(WIDTH)] += s
    factor = factorise(f)
    if factor is None:
        return math.inf, None
    w = lapack.dpotrs(factor, cross, lower=1)[0]
    half_log = np.log(factor.diagonal()).sum()
    value = (q - cross @ w) / s + 2 * half_log + (n - WIDTH) * math.log(s) + n * math.log(2 * math.pi)
    value /= 2 * n
    return (value if math.isfinite(value) else math.inf), w


# ---------------------------------------------------------------------------------------------------------------------
# Training
# ---------------------------------------------------------------------------------------------------------------------


def scgd_gradient(
    p: Parameters, g: Parameters, x: np.ndarray, y: np.ndarray, tracked: np.ndarray, s: float, n: int, o: dict[str, Any]
) -> tuple[float, np.ndarray] | None:
    """Half the gradient of SCGD's loss into ``g``; returns the derivative in ``s`` and the new tracked matrix."""
    b = len(x)
    h, z = features(p, x, o["last_relu"], o["output_scale"])
    wide = z.astype(np.float64, copy=False)
    after = o["track"] == "after"
    if after:
        tracked = blas.dsyrk(TRACKING * n / b, wide.T, beta=1 - TRACKING, c=tracked, lower=1, overwrite_c=1)
        tracked[_DIAGONAL] += TRACKING * s
    factor = factorise(tracked)
    if factor is None:
        return None
    inverse = lapack.dpotri(factor, lower=1)[0]
    trace = inverse.trace()
    weight = TRACKING if after else 1.0
    symm = blas.ssymm if z.dtype == np.float32 else blas.dsymm
    dz = symm(weight * n / b, inverse.astype(z.dtype, copy=False), z.T, lower=1).T
    r = z @ p.w
    r -= y
    dz += np.multiply.outer(r * z.dtype.type(n / b / s), p.w)
    np.matmul(r, z, out=g.w)
    g.w *= n / b / s
    g.w += p.w
    by_noise = 0.5 * (-(n / b) * float(r @ r) / s**2 + (n - WIDTH) / s + weight * trace)
    backward(p, g, x, h, z, dz, o)
    if not after:
        tracked = blas.dsyrk(TRACKING * n / b, wide.T, beta=1 - TRACKING, c=tracked, lower=1, overwrite_c=1)
        tracked[_DIAGONAL] += TRACKING * s
    return by_noise, tracked


_DIAGONAL = np.diag_indices(WIDTH)


def bsgd_gradient(
    p: Parameters, g: Parameters, x: np.ndarray, y: np.ndarray, s: float, o: dict[str, Any]
) -> float | None:
    """The gradient of the batch's own NLML (not divided) into ``g``; returns the derivative in ``s``."""
    h, z = features(p, x, o["last_relu"], o["output_scale"])
    wide = z.astype(np.float64, copy=False)
    k = blas.dsyrk(1.0, wide.T, trans=1, lower=1)
    k[np.diag_indices(len(k))] += s + o["jitter"]
    factor = factorise(k)
    if factor is None:
        return None
    inverse = lapack.dpotri(factor, lower=1)[0]
    alpha = blas.dsymv(1.0, inverse, y.astype(np.float64, copy=False), lower=1)
    by_noise = 0.5 * (inverse.trace() - float(alpha @ alpha))
    inverse = blas.dsyr(-1.0, alpha, lower=1, a=inverse, overwrite_a=1)
    dz = blas.dsymm(1.0, inverse, wide.T, side=1, lower=1).T.astype(z.dtype)
    backward(p, g, x, h, z, dz, o)
    return by_noise


def run(
    folder: Path, table: str, method: str, rate: float, setting: dict[str, Any], seed: int = 0
) -> list[dict[str, Any]]:
    """Train once and measure the kept iterate, for the asked number of looks and each smaller one."""
    o = options_of(method, setting)
    began = time.perf_counter()
    data = load(folder, table, o["inputs"], o["targets"])
    dtype = np.dtype(o["dtype"]).type
    x, y = data["x"].astype(dtype), data["y"].astype(dtype)
    n, offset = len(x), math.log(data["y_scale"])
    q = float(data["y"] @ data["y"])
    rng = np.random.default_rng(seed)
    p, g = (Parameters(x.shape[1], method == "scgd", dtype) for _ in range(2))
    initialise(p, o["init"], seed)
    bound = noise_raw(o["noise_least"], o["noise"], o["noise_least"])
    p.noise[0] = noise_raw(o["noise_start"], o["noise"], o["noise_least"])
    rho, eps = (float(part) for part in o["adadelta"].split("/"))
    optimizer = AdaDelta(len(p.flat), rate, rho, eps, dtype)

    tracked = np.eye(WIDTH, order="F")
    if method == "scgd":
        s = noise_value(float(p.noise[0]), o["noise"], o["noise_least"])[0]
        gram, cross = sums(p, x, y, o, dtype)
        if o["f_start"] == "full":
            tracked = gram + s * np.eye(WIDTH)
        elif o["f_start"] == "batches":
            rows = rng.permutation(n)[: 20 * BATCH]
            tracked = sums(p, x[rows], y[rows], o, dtype)[0] * (n / len(rows)) + s * np.eye(WIDTH)
        tracked = np.asfortranarray(tracked)
        if o["w_start"] == "ridge":
            p.w[...] = exact_nlml(gram, cross, q, s, n)[1]
        elif o["w_start"] == "normal":
            p.w[...] = rng.standard_normal(WIDTH)
        elif o["w_start"] == "small":
            p.w[...] = rng.standard_normal(WIDTH) / math.sqrt(WIDTH)
        elif o["w_start"] in ("linear", "tiny"):
            p.w[...] = rng.uniform(-1.0, 1.0, WIDTH) / math.sqrt(WIDTH) * (0.1 if o["w_start"] == "tiny" else 1.0)

    levels = [level for level in LOOKS if level <= o["looks"]]
    best: dict[int, float] = dict.fromkeys(levels, math.inf)
    best_look: dict[int, float | None] = dict.fromkeys(levels)
    kept = {level: p.flat.copy() for level in levels}
    curve: list[float | None] = []
    broke = False
    starts = range(0, n - n % BATCH if o["drop_last"] else n, BATCH)
    per_epoch = max(1, o["looks"] // EPOCHS)
    look_after = {round((k + 1) * len(starts) / per_epoch): (k + 1) / per_epoch for k in range(per_epoch)}
    for epoch in range(EPOCHS):
        order = rng.permutation(n) if o["sampling"] == "epochs" else rng.integers(0, n, n)
        xs, ys = x[order], y[order]
        for step, start in enumerate(starts, 1):
            xb, yb = xs[start : start + BATCH], ys[start : start + BATCH]
            b = len(xb)
            s, slope = noise_value(float(p.noise[0]), o["noise"], o["noise_least"])
            if method == "scgd":
                found = scgd_gradient(p, g, xb, yb, tracked, s, n, o)
                if found is None:
                    broke = True
                    break
                by_noise, tracked = found
                factor = {"total": 1.0, "row": 1.0 / n, "batch": b / n}[o["loss"]]
            else:
                by_noise = bsgd_gradient(p, g, xb, yb, s, o)
                if by_noise is None:
                    broke = True
                    break
                factor = {"total": n / b, "row": 1.0 / b, "batch": 1.0}[o["loss"]]
            g.noise[0] = by_noise * slope
            if factor != 1.0:
                g.flat *= factor
            optimizer.step(p.flat, g.flat)
            if not p.noise[0] >= bound:
                p.noise[0] = bound
            if step not in look_after:
                continue
            at = epoch + look_after[step]
            asked = [level for level in levels if math.isclose(at * level / EPOCHS, round(at * level / EPOCHS))]
            if not asked:
                continue
            s = noise_value(float(p.noise[0]), o["noise"], o["noise_least"])[0]
            value = exact_nlml(*sums(p, x, data["y"], o, dtype), q, s, n)[0] + offset
            if levels[0] in asked:
                curve.append(round(value, 4) if math.isfinite(value) else None)
            for level in asked:
                if value < best[level]:
                    best[level], best_look[level], kept[level] = value, round(at * level / EPOCHS), p.flat.copy()
        if broke or not np.isfinite(p.flat).all():
            broke = True
            break

    results = []
    for level in levels:
        # The kept iterate, with its features in float64.
        wide = Parameters(x.shape[1], method == "scgd", np.float64)
        wide.flat[...] = kept[level]
        s = noise_value(float(wide.noise[0]), o["noise"], o["noise_least"])[0]
        nlml, w = exact_nlml(*sums(wide, data["x"], data["y"], o, np.float64), q, s, n)
        result: dict[str, Any] = {"table": table, "method": method, "rate": rate, "seed": seed}
        result |= {"options": o | {"looks": level}, "nlml": None, "rmse": None, "train_rmse": None, "rmse_w": None}
        if w is not None and best_look[level] is not None:
            means = [features(wide, rows, o["last_relu"], o["output_scale"])[1] for rows in (data["x_test"], data["x"])]
            truth = data["y_test"], data["y"] * data["y_scale"] + data["y_shift"]

            def error(z: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> float:
                gap = z @ weights * data["y_scale"] + data["y_shift"] - targets
                return float(np.sqrt(np.mean(gap**2)))

            result["nlml"] = nlml + offset
            result["rmse"] = error(means[0], truth[0], w)
            result["train_rmse"] = error(means[1], truth[1], w)
            result["rmse_w"] = error(means[0], truth[0], wide.w) if method == "scgd" else None
        result |= {"noise": s * data["y_scale"] ** 2, "best_look": best_look[level], "curve": curve, "broke_off": broke}
        result |= {"seconds": round(time.perf_counter() - began, 2), "numpy": np.__version__}
        results.append(result | {"torch": torch.__version__, "cpu": cpu_model()})
    return results


def cpu_model() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


# ---------------------------------------------------------------------------------------------------------------------
# Checks
# ---------------------------------------------------------------------------------------------------------------------


def check() -> None:
    """Both gradients against automatic differentiation, and AdaDelta against torch's."""
    rng = np.random.default_rng(0)
    n, columns, s = 1000, 5, 0.3
    x, y = rng.standard_normal((BATCH, columns)), rng.standard_normal(BATCH)
    for method, last_relu in itertools.product(METHODS, (True, False)):
        o = options_of(method, {"last_relu": last_relu, "output_scale": True})
        p, g = (Parameters(columns, method == "scgd", np.float64) for _ in range(2))
        initialise(p, "torch", 0)
        p.scale[0] = 0.2
        t = {k: torch.tensor(getattr(p, k), requires_grad=True) for k in ("w1", "b1", "w2", "b2", "scale")}
        ts = torch.tensor(s, requires_grad=True, dtype=torch.float64)
        tx, ty = torch.from_numpy(x), torch.from_numpy(y)
        z = torch.relu(tx @ t["w1"] + t["b1"]) @ t["w2"] + t["b2"]
        z = (torch.relu(z) if last_relu else z) * torch.exp(0.5 * t["scale"])
        if method == "scgd":
            p.w[...] = rng.standard_normal(WIDTH)
            t["w"] = torch.tensor(p.w, requires_grad=True)
            a = rng.standard_normal((WIDTH, 200))
            tracked = np.asfortranarray(a @ a.T)
            inverse = torch.from_numpy(np.linalg.inv(tracked))
            fit = ((z @ t["w"] - ty) ** 2).sum() / ts + torch.trace(inverse @ z.T @ z)
            loss = n / BATCH * fit + t["w"] @ t["w"] + (n - WIDTH) * ts.log() + ts * inverse.trace()
            (0.5 * loss).backward()
            found = scgd_gradient(p, g, x, y, tracked, s, n, o)
            assert found is not None
            by_noise = found[0]
        else:
            k = z @ z.T + ts * torch.eye(BATCH, dtype=torch.float64)
            (0.5 * (ty @ torch.linalg.solve(k, ty) + torch.logdet(k))).backward()
            by_noise = bsgd_gradient(p, g, x, y, s, o) or math.nan
        for name, value in t.items():
            gap = np.abs(getattr(g, name) - value.grad.numpy()).max() / np.abs(value.grad.numpy()).max()
            assert gap < 1e-8, (method, name, gap)
        assert abs(by_noise / float(ts.grad) - 1) < 1e-8, method
    flat = rng.standard_normal(50)
    mine, parameter = flat.copy(), torch.nn.Parameter(torch.from_numpy(flat.copy()))
    theirs = torch.optim.Adadelta([parameter], lr=0.7, rho=0.95, eps=1e-7)
    ours = AdaDelta(50, 0.7, 0.95, 1e-7, np.float64)
    for _ in range(100):
        gradient = rng.standard_normal(50)
        parameter.grad = torch.from_numpy(gradient.copy())
        theirs.step()
        ours.step(mine, gradient)
    assert np.abs(mine - parameter.detach().numpy()).max() < 1e-12
    print("gradients and AdaDelta agree with torch")


# ---------------------------------------------------------------------------------------------------------------------
# Search
# ---------------------------------------------------------------------------------------------------------------------

Task = tuple[str, str, float, dict[str, Any]]  # table, method, rate, setting; the setting may hold another "seed"


def stages() -> dict[str, list[Task]]:
    """Every stage of the search in the order it was run."""
    plan: dict[str, list[Task]] = {}
    # 1: one option at a time from the defaults, on the table with the smallest deviations.
    plan["1-one-elevators"] = [
        ("elevators", method, rate, change)
        for name in ONE_AT_A_TIME
        for change in ([{}] if name == "adadelta" else []) + [{name: value} for value in OPTIONS[name][1:]]
        for method in METHODS
        for rate in (1.0, 0.1)
        if ONLY.get(name, method) == method
    ]
    # 2: around raw targets, where both methods were nearer; SCGD's own options crossed.
    raw = {"targets": "raw"}
    plan["2-raw"] = [
        (table, "scgd", rate, raw | {"w_start": w, "track": track})
        for w in ("normal", "ridge")
        for track in ("before", "after")
        for rate in (1.0, 3.0)
        for table in ("elevators", "bike")
    ] + [
        (table, "bsgd", rate, raw | change)
        for change in ({}, {"last_relu": False}, {"output_scale": True}, {"init": "glorot"}, {"adadelta": "0.95/1e-6"})
        for rate in (1.0, 3.0)
        for table in ("elevators", "bike")
    ]
    # 3: bike, where 0.9/1e-6 at rates of 1 and more is far off: smaller steps, and a loss that makes eps negligible.
    plan["3-bike-steps"] = [
        ("bike", method, rate, raw | change)
        for rate in (0.1, 0.3, 1.0)
        for method, change in (
            ("scgd", {"loss": "total"}),
            ("bsgd", {"loss": "total"}),
            ("scgd", {"loss": "total", "w_start": "normal"}),
            ("bsgd", {}),
            ("scgd", {"adadelta": "0.95/1e-8", "w_start": "normal"}),
            ("bsgd", {"adadelta": "0.95/1e-8"}),
            ("scgd", {"adadelta": "0.95/1e-8", "loss": "total"}),
            ("bsgd", {"adadelta": "0.95/1e-8", "loss": "total"}),
            ("scgd", {"loss": "total", "track": "after"}),
        )
    ]
    # 4: BSGD on bike, whose noise falls far below its residuals: bounds and parameters of the noise.
    plan["4-bike-noise"] = [
        ("bike", "bsgd", rate, raw | change)
        for rate in (0.3, 1.0)
        for change in (
            {"noise_least": 1e-3},
            {"noise_least": 1e-4},
            {"noise_least": 1e-3, "noise": "variance"},
            {"noise": "variance"},
            {"noise": "sigma"},
            {"noise_least": 1e-3, "last_relu": False},
            {"inputs": "unit"},
            {"inputs": "unit", "noise_least": 1e-3},
        )
    ]
    # 5: with the total loss only rate * sqrt(eps) matters, so one eps is enough; rho 0.95 was better on bike. The
    # noise variance itself as the parameter kept BSGD's noise on bike from collapsing without a bound.
    base = raw | {"noise": "variance", "loss": "total", "adadelta": "0.95/1e-6"}
    plan["5-variance"] = [
        (table, method, rate, base | change)
        for method, change in (
            ("scgd", {"track": "after"}),
            ("bsgd", {}),
            ("scgd", {}),
            ("scgd", {"track": "after", "init": "he"}),
            ("bsgd", {"init": "he"}),
            ("scgd", {"track": "after", "targets": "standard"}),
            ("bsgd", {"targets": "standard"}),
            ("scgd", {"track": "after", "last_relu": False}),
            ("scgd", {"track": "after", "w_start": "small"}),
            ("scgd", {"track": "after", "noise": "log"}),
        )
        for table, rate in (("bike", 0.1), ("elevators", 1.0), ("bike", 0.3))
    ]
    # 6: the same base on the other tables, and the rate between 0.1 and 1 on elevators.
    plan["6-base-all"] = (
        [("elevators", "bsgd", 0.3, base), ("elevators", "scgd", 0.3, base | {"track": "after"})]
        + [("elevators", "scgd", r, base | {"track": "after", "w_start": "ridge"}) for r in (0.3, 1.0)]
        + [("pol", m, r, base) for r in (0.3, 1.0) for m in METHODS]
        + [("pol", "scgd", r, base | {"track": "after"}) for r in (0.3, 1.0)]
        + [("kin40k", m, r, base) for r in (0.3, 1.0) for m in METHODS]
        + [("kin40k", "scgd", r, base | {"track": "after"}) for r in (0.3, 1.0)]
    )
    # 7: SCGD's start of w against its order of tracking, at the rates that were best.
    plan["7-w-start"] = [
        (table, "scgd", rate, base | {"w_start": w, "track": track})
        for table, rate in (("bike", 0.1), ("elevators", 0.3), ("bike", 0.03), ("elevators", 0.1))
        for w in ("linear", "ridge", "small", "zero")
        for track in ("after", "before")
    ]
    # 8: one option at a time again, from the base of stage 5.
    changes: list[dict[str, Any]] = [{"adadelta": "0.9/1e-6"}, {"init": "glorot"}, {"output_scale": True}]
    changes += [{"noise_start": v} for v in (0.01, 0.693, 1.0)] + [{"noise": v} for v in ("sigma", "softplus")]
    changes += [{"dtype": "float64"}, {"sampling": "replacement"}, {"drop_last": True}, {"noise_least": 1e-4}]
    changes += [{"f_start": "full"}, {"f_start": "identity"}, {"loss": "row"}]
    after = {"track": "after"}
    plan["8-one-from-base"] = [
        ("kin40k", "scgd", 0.1, base | after),
        ("kin40k", "bsgd", 0.1, base),
        ("kin40k", "scgd", 0.1, base | after | {"w_start": "ridge"}),
        ("kin40k", "scgd", 0.3, base | after | {"w_start": "ridge"}),
    ] + [
        (table, method, rate, base | change | (after if method == "scgd" else {}))
        for change in changes
        for method, table, rate in (
            ("scgd", "elevators", 0.3),
            ("scgd", "bike", 0.1),
            ("bsgd", "elevators", 0.3),
            ("bsgd", "bike", 0.3),
        )
        if ONLY.get(next(iter(change)), method) == method
    ]
    # 9: the exact NLML jumps from look to look, so the number of looks is a choice too.
    plan["9-looks"] = [
        (table, method, 0.1 if table == "bike" and method == "scgd" else 0.3, base | change | {"looks": 100})
        for table in ("kin40k", "elevators", "bike", "pol")
        for method, change in (("bsgd", {}), ("scgd", {}), ("scgd", after))
    ]
    # 10: small random starts of w with GPyTorch's first noise; and, since BSGD on elevators hardly moves with
    # anything but the inputs' scale (the larger, the lower), larger and whitened inputs.
    many = {"looks": 100}
    plan["10-w-noise-inputs"] = [
        ("elevators", "bsgd", 0.3, base | many | {"inputs": "white"}),
        ("elevators", "bsgd", 0.3, base | many | {"inputs": "triple"}),
        ("bike", "bsgd", 0.3, base | many | {"inputs": "white"}),
        ("elevators", "scgd", 0.3, base | many | after | {"inputs": "white"}),
    ] + [
        (table, "scgd", rate, base | many | after | {"noise_start": 0.693, "w_start": w})
        for w in ("linear", "zero", "small")
        for table, rate in (("bike", 0.1), ("elevators", 0.3), ("kin40k", 0.3))
    ]
    # 11: both inputs on all tables.
    ridge_linear = ("ridge", "linear")
    places = (("elevators", 0.3), ("bike", 0.1), ("pol", 0.3), ("kin40k", 0.3))
    plan["11-all-cells"] = (
        [("elevators", "scgd", 0.3, base | many | after | {"inputs": "white", "w_start": w}) for w in ridge_linear]
        + [("bike", "scgd", 0.1, base | many | after | {"inputs": "white", "w_start": w}) for w in ("linear", "zero")]
        + [(t, "bsgd", 0.3, base | many | {"noise_start": 0.693}) for t, _ in places]
        + [(t, "bsgd", 0.3, base | many | {"inputs": "white"}) for t in ("pol", "kin40k")]
        + [("pol", "scgd", 0.3, base | many | after | {"noise_start": 0.693, "w_start": w}) for w in ("linear", "zero")]
        + [("pol", "scgd", 0.3, base | many | after | {"inputs": "white", "w_start": w}) for w in ("linear", "zero")]
        + [("kin40k", "scgd", 0.3, base | many | after | {"inputs": "white", "w_start": w}) for w in ("linear", "zero")]
        + [(t, "scgd", r, base | many | after | {"w_start": "linear"}) for t, r in places]
    )
    # 12: the larger first noise with standardised targets.
    standard = base | many | {"targets": "standard", "noise_start": 0.693}
    plan["12-standard"] = (
        [("elevators", "scgd", 0.3, standard | after | {"w_start": w}) for w in ("linear", "ridge")]
        + [("bike", "scgd", 0.1, standard | after | {"w_start": w}) for w in ("linear", "ridge")]
        + [("pol", "scgd", 0.3, standard | after | {"w_start": "linear"})]
        + [(t, "bsgd", 0.3, standard) for t in ("elevators", "bike", "pol")]
    )
    # 13: whitened inputs, which brought elevators near: first noise and still smaller starts of w.
    white = base | many | {"inputs": "white"}
    plan["13-white"] = (
        [("bike", "scgd", 0.1, white | after | {"w_start": w, "noise_start": 0.693}) for w in ("linear", "tiny")]
        + [("elevators", "scgd", 0.3, white | after | {"w_start": w, "noise_start": 0.693}) for w in ("linear", "tiny")]
        + [("elevators", "scgd", 0.3, white | {"w_start": "linear"})]
        + [("bike", "scgd", 0.3, white | after | {"w_start": "linear", "noise_start": 0.693})]
        + [(t, "bsgd", 0.3, white | {"noise_start": 0.693}) for t in ("elevators", "bike", "pol")]
        + [("elevators", "bsgd", 1.0, white), ("elevators", "bsgd", 0.1, white)]
    )
    # 14: two inputs of elevators have outliers at 80 and 110 deviations, so standardising hides the rest of them.
    plan["14-outliers"] = [
        (t, m, r, base | many | {"inputs": i} | (after | {"w_start": "linear"} if m == "scgd" else {}))
        for t, m, r in (
            ("elevators", "bsgd", 0.3),
            ("elevators", "scgd", 0.3),
            ("pol", "bsgd", 0.3),
            ("bike", "bsgd", 0.3),
            ("bike", "scgd", 0.1),
        )
        for i in ("robust", "clip")
    ]
    # 15: what whitened inputs and the random start of w still lack.
    plan["15-rest"] = (
        [("kin40k", "scgd", 0.3, white | after | {"w_start": "linear"})]
        + [(t, "scgd", 0.3, white | after | {"w_start": "linear", "noise_start": 0.693}) for t in ("pol", "kin40k")]
        + [("kin40k", "bsgd", 0.3, white | {"noise_start": 0.693})]
        + [(t, "bsgd", 1.0, white) for t in ("pol", "bike")]
        + [("pol", "scgd", 0.3, base | many | after | {"w_start": "linear"})]
        + [("kin40k", "scgd", 0.3, base | many | after | {"w_start": "linear"})]
    )
    # 16: the finalists' other rates: whitened and standardised inputs, w as torch.nn.Linear, both orders of tracking.
    linear = {"w_start": "linear"}
    plan["16-rates"] = (
        [("bike", "scgd", 0.3, white | after | linear), ("bike", "bsgd", 1.0, white), ("pol", "bsgd", 1.0, white)]
        + [("elevators", "scgd", 1.0, white | after | linear), ("pol", "scgd", 1.0, white | after | linear)]
        + [("kin40k", "bsgd", 1.0, white), ("kin40k", "scgd", 1.0, white | after | linear)]
        + [("bike", "scgd", 0.3, base | many | after | linear), ("bike", "bsgd", 1.0, base | many)]
        + [("pol", "bsgd", 1.0, base | many), ("pol", "scgd", 1.0, base | many | after | linear)]
        + [("elevators", "scgd", 1.0, base | many | after | linear), ("elevators", "bsgd", 1.0, base | many)]
        + [("bike", "scgd", r, white | linear) for r in (0.1, 0.3)]
        + [("pol", "scgd", 0.3, white | linear), ("kin40k", "scgd", 0.3, white | linear)]
    )
    # 17: how much a second seed changes.
    plan["17-seed"] = [
        (table, method, rate, base | many | {"seed": 1} | (after | linear if method == "scgd" else {}))
        for table, method, rate in (
            ("elevators", "bsgd", 0.3),
            ("bike", "bsgd", 0.3),
            ("elevators", "scgd", 0.3),
            ("bike", "scgd", 0.1),
            ("kin40k", "bsgd", 0.3),
        )
    ]
    return plan


#: The order in which the options are varied: likely strong ones first.
ONE_AT_A_TIME = (
    *("adadelta", "targets", "loss", "track", "inputs", "w_start", "noise_start", "noise", "init", "last_relu"),
    *("output_scale", "f_start", "dtype", "sampling", "drop_last", "noise_least", "jitter"),
)


def key_of(table: str, method: str, rate: float, options: dict[str, Any], seed: int) -> str:
    """What makes a run."""
    return json.dumps([table, method, float(rate), {k: options[k] for k in sorted(options)}, seed])


def read_results(path: Path) -> list[dict[str, Any]]:
    """All runs kept so far."""
    if not path.exists():
        return []
    found = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    for result in found:
        result["options"].setdefault("looks", LOOKS[0])  # the first stages had no such option
    return found


def _run_task(job: tuple[Path, Task, str]) -> list[dict[str, Any]]:
    folder, (table, method, rate, setting), stage = job
    with np.errstate(all="ignore"):
        seed, setting = _seed_of(setting)
        return [{"stage": stage} | result for result in run(folder, table, method, rate, setting, seed)]


def _seed_of(setting: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return setting.get("seed", 0), {k: v for k, v in setting.items() if k != "seed"}


def search(folder: Path, names: list[str], path: Path, processes: int) -> None:
    """Run what the stages still lack, appending each run as it ends."""
    before = {key_of(r["table"], r["method"], r["rate"], r["options"], r["seed"]) for r in read_results(path)}
    done = set(before)
    jobs = []
    for name in names:
        for task in stages()[name]:
            seed, setting = _seed_of(task[3])
            key = key_of(task[0], task[1], task[2], options_of(task[1], setting), seed)
            if key not in done:
                done.add(key)
                jobs.append((folder, task, name))
    print(f"{len(jobs)} runs", flush=True)
    with multiprocessing.get_context("fork").Pool(processes) as pool, path.open("a") as out:
        for results in pool.imap_unordered(_run_task, jobs):
            for result in results:
                r = result
                if key_of(r["table"], r["method"], r["rate"], r["options"], r["seed"]) in before:
                    continue
                out.write(json.dumps(result) + "\n")
                print(describe(result), flush=True)
            out.flush()


def describe(result: dict[str, Any]) -> str:
    """One run on one line."""
    changed = {k: v for k, v in result["options"].items() if v != OPTIONS[k][0]}
    shown = " ".join(f"{k}={v}" for k, v in changed.items()) or "defaults"
    values = "none" if result["nlml"] is None else f"{result['nlml']:.3f} {result['rmse']:.3f}"
    broke = " broke off" if result["broke_off"] else ""
    head = f"{result['method']} {result['table']} {result['rate']:g}"
    return f"{head}: {values} (look {result['best_look']}, {result['seconds']} s){broke} | {shown}"


# ---------------------------------------------------------------------------------------------------------------------
# Ranking
# ---------------------------------------------------------------------------------------------------------------------


def distances(cell: tuple[str, str], result: dict[str, Any]) -> tuple[float, float]:
    """Distance of NLML and RMSE from the published cell, in its deviations."""
    nlml, nlml_sd, rmse, rmse_sd = PUBLISHED[cell]
    return abs(result["nlml"] - nlml) / nlml_sd, abs(result["rmse"] - rmse) / rmse_sd


def predict_with_w(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same runs with SCGD's RMSE that of its trained weights instead of the exact posterior mean."""
    return [r if r.get("rmse_w") is None else r | {"rmse": r["rmse_w"]} for r in results]


def rank(results: list[dict[str, Any]], tables: tuple[str, ...], methods: tuple[str, ...], top: int) -> None:
    """Print the settings that have every asked cell, nearest first."""
    best: dict[tuple[str, str, str], dict[str, Any]] = {}
    settings: dict[str, dict[str, dict[str, Any]]] = {m: {} for m in methods}
    for r in results:
        if r["nlml"] is None or r["method"] not in methods or r["table"] not in tables or r.get("seed", 0) != 0:
            continue
        name = json.dumps(r["options"], sort_keys=True)
        settings[r["method"]][name] = r["options"]
        at = (r["method"], r["table"], name)
        if at not in best or r["nlml"] < best[at]["nlml"]:
            best[at] = r
    # A setting joins one of each method that agree on what they share.
    rows = []
    for combination in itertools.product(*(settings[m].items() for m in methods)):
        shared = [{k: v for k, v in o.items() if k not in ONLY} for _, o in combination]
        if any(s != shared[0] for s in shared):
            continue
        found = {}
        for m, (name, _) in zip(methods, combination, strict=True):
            for t in tables:
                found[m, t] = best.get((m, t, name))
        if any(r is None for r in found.values()):
            continue
        each = {cell: distances(cell, r) for cell, r in found.items()}
        flat = [v for pair in each.values() for v in pair]
        merged = {k: v for _, o in combination for k, v in o.items()}
        rows.append(
            {
                "total": np.mean(flat),
                "clipped": np.mean(np.minimum(flat, 10)),
                "nlml": np.mean([pair[0] for pair in each.values()]),
                "within": sum(v <= 2 for v in flat),
                "setting": merged,
                "found": found,
            }
        )
    rows.sort(key=lambda row: row["total"])
    print(f"{len(rows)} settings with all of {len(tables) * len(methods) * 2} cells")
    print("total clipped nlml within2 | " + "; ".join(f"{m} {t}" for m in methods for t in tables))
    print("published | " + "; ".join(f"{PUBLISHED[m, t][0]} {PUBLISHED[m, t][2]}" for m in methods for t in tables))
    for row in rows[:top]:
        cells = "; ".join(f"{r['nlml']:.3f} {r['rmse']:.3f} @{r['rate']:g}" for r in row["found"].values())
        changed = {k: v for k, v in row["setting"].items() if v != OPTIONS[k][0]}
        shown = " ".join(f"{k}={v}" for k, v in changed.items()) or "defaults"
        print(f"{row['total']:.2f} {row['clipped']:.2f} {row['nlml']:.2f} {row['within']} | {cells} | {shown}")


def effects(results: list[dict[str, Any]]) -> None:
    """Print what each option does: median differences between runs that differ in nothing else."""
    print("option: from -> to, method table, pairs, median change of NLML and of RMSE")
    for name in OPTIONS:
        groups: dict[str, dict[Any, dict[str, Any]]] = {}
        for r in results:
            if name in r["options"] and r["nlml"] is not None:
                others = {k: v for k, v in r["options"].items() if k != name}
                key = key_of(r["table"], r["method"], r["rate"], others, r["seed"])
                groups.setdefault(key, {})[r["options"][name]] = r
        changes: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
        for group in groups.values():
            values = [value for value in OPTIONS[name] if value in group]
            for a, b in itertools.combinations(values, 2):
                change = group[b]["nlml"] - group[a]["nlml"], group[b]["rmse"] - group[a]["rmse"]
                changes.setdefault((a, b, group[a]["method"], group[a]["table"]), []).append(change)
        for (a, b, method, table), pairs in changes.items():
            nlml, rmse = np.median(np.array(pairs), axis=0)
            print(f"{name}: {a} -> {b}, {method} {table}, {len(pairs)}, {nlml:+.3f} {rmse:+.3f}")


# ---------------------------------------------------------------------------------------------------------------------


def parse_setting(pairs: list[str]) -> dict[str, Any]:
    """``name=value`` pairs, values of the type that the option has."""
    setting: dict[str, Any] = {}
    for pair in pairs:
        name, value = pair.split("=", 1)
        kind = type(OPTIONS[name][0])
        setting[name] = value.lower() == "true" if kind is bool else kind(value)
    return setting


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="one training")
    one.add_argument("--table", choices=TABLES, required=True)
    one.add_argument("--method", choices=METHODS, required=True)
    one.add_argument("--rate", type=float, required=True)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="options: " + ", ".join(OPTIONS))
    many = commands.add_parser("search", help="the stages; goes on where it stopped")
    many.add_argument("--stage", nargs="*", choices=list(stages()), default=list(stages()))
    many.add_argument("--processes", type=int, default=2)
    table = commands.add_parser("rank", help="settings by distance")
    table.add_argument("--tables", nargs="*", choices=TABLES, default=list(TABLES))
    table.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS))
    table.add_argument("--top", type=int, default=20)
    table.add_argument("--rates", nargs="*", type=float, help="only these learning rates")
    table.add_argument("--predict", choices=("exact", "w"), default="exact", help="SCGD's RMSE: posterior mean, or w")
    commands.add_parser("check", help="gradients and AdaDelta against torch")
    for command in (one, many):
        command.add_argument("--data", type=Path, required=True, help="folder with the tables as Parquet files")
    pairs = commands.add_parser("effects", help="what each option does")
    for command in (many, table, pairs):
        command.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.command == "run":
        job = (arguments.table, arguments.method, arguments.rate, parse_setting(arguments.set))
        for result in run(arguments.data, *job, seed=arguments.seed):
            print(json.dumps(result))
    elif arguments.command == "search":
        search(arguments.data, arguments.stage, arguments.results, arguments.processes)
    elif arguments.command == "rank":
        results = read_results(arguments.results)
        results = predict_with_w(results) if arguments.predict == "w" else results
        if arguments.rates:
            results = [r for r in results if r["rate"] in arguments.rates]
        rank(results, tuple(arguments.tables), tuple(arguments.methods), arguments.top)
    elif arguments.command == "effects":
        effects(read_results(arguments.results))
    else:
        check()


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
