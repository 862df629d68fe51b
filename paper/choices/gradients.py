"""The gradients of SCGD and BSGD, and their check against automatic differentiation."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch
from scipy.linalg import blas, lapack

from .adadelta import AdaDelta
from .exact import factorise
from .network import Parameters, backward, features, initialise
from .settings import BATCH, METHODS, TRACKING, WIDTH, options_of

_DIAGONAL = np.diag_indices(WIDTH)


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
