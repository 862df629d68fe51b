"""One training with one setting, measured at the iterate with the lowest exact NLML."""

from __future__ import annotations

import math
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .adadelta import AdaDelta
from .data import load
from .exact import exact_nlml, sums
from .gradients import bsgd_gradient, scgd_gradient
from .network import Parameters, features, initialise, noise_raw, noise_value
from .settings import BATCH, EPOCHS, LOOKS, WIDTH, options_of


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
