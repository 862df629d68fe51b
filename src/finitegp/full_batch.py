"""Full-batch fitting of small problems with L-BFGS on the exact gradient: the oracle for every stochastic method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .algorithms.exact import exact_gradient
from .arguments import check_arguments, check_at_least_one
from .data.iterables import as_source
from .data.sources import Data
from .errors import FeatureMapError, NumericalError
from .model import FeatureGP

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult


@check_arguments
@dataclass(frozen=True)
class FullBatchResult:
    """How a full-batch fit ended.

    Attributes:
        nlml: The exact NLML per row at the end.
        gradient_norm: The norm of the exact gradient of the NLML per row at the end: near zero at an optimum, unless
            the noise variance is held up by its lower bound.
        iterations: L-BFGS iterations made.
        evaluations: Two-pass gradients computed.
        converged: Whether no component of the gradient is larger than the tolerance, but for that of a noise variance
            at its lower bound.
        message: The optimizer's own words.
    """

    nlml: float
    gradient_norm: float
    iterations: int
    evaluations: int
    converged: bool
    message: str


@check_arguments
def fit_full_batch(
    model: FeatureGP,
    data: Data,
    *,
    max_iterations: int = 500,
    gradient_tolerance: float = 1e-7,
    minimum_noise_variance: float = 1e-10,
    progress: Callable[[int, float], None] | None = None,
) -> FullBatchResult:
    """Minimise the exact NLML over all parameters with L-BFGS; the model keeps the best parameters found.

    Args:
        model: Fitted in place, in its own float type; ``model.double()`` first for tight optima.
        data: Training rows; every iteration makes two passes over them.
        max_iterations: Limit on L-BFGS iterations.
        gradient_tolerance: Stop when no component of the gradient of the NLML per row is larger.
        minimum_noise_variance: Lower bound of the noise variance.
        progress: Called after every iteration with its number and the NLML per row.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> inputs = torch.randn(200, 1, generator=generator, dtype=torch.float64)
        >>> targets = 3 * inputs[:, 0] + 0.1 * torch.randn(200, generator=generator, dtype=torch.float64)
        >>> model = FeatureGP(torch.nn.Linear(1, 1, bias=False), noise_variance=1.0).double()
        >>> result = fit_full_batch(model, (inputs, targets))
        >>> result.converged, 0.008 < model.noise_variance < 0.012
        (True, True)
    """
    from scipy.optimize import minimize  # here, because it takes most of a second to import

    check_at_least_one(max_iterations=max_iterations)
    if not 0.0 < minimum_noise_variance < 1e150:
        raise ValueError(f"minimum_noise_variance must be a positive, finite number, but is {minimum_noise_variance}.")
    source = as_source(data)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    best: dict[str, Any] = {"nlml": np.inf, "point": _flatten(parameters)}
    bounds: list[tuple[float | None, float | None]] = []
    for parameter in parameters:
        lower = float(np.log(minimum_noise_variance)) if parameter is model.noise.log_variance else None
        bounds.extend([(lower, None)] * parameter.numel())
    lowest = np.array([-np.inf if lower is None else lower for lower, _ in bounds])

    def objective(point: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        _write(parameters, point)
        try:
            found = exact_gradient(model, source)
            gradient = _flatten([_gradient_of(parameter) for parameter in parameters]) / found.likelihood.num_data
            if not (np.isfinite(found.likelihood.rounding_error) and np.isfinite(gradient).all()):
                raise NumericalError("The exact gradient is no number: scale inputs and targets to sizes of order one.")
        except (NumericalError, FeatureMapError):
            # A line search may step where nothing can be evaluated: a larger value makes it step back (an infinite one
            # makes it compute with numbers that are none). At the starting point there is nowhere to step back to.
            if not np.isfinite(best["nlml"]):
                raise
            return best["nlml"] + max(1.0, abs(best["nlml"])), np.zeros_like(point)
        if found.likelihood.nlml < best["nlml"]:
            best["nlml"], best["point"] = found.likelihood.nlml, point.copy()
            best["gradient_norm"] = found.gradient_norm / found.likelihood.num_data
            downhill = np.where((point <= lowest) & (gradient > 0.0), 0.0, gradient)
            best["steepest"] = float(np.abs(downhill).max(initial=0.0))
        return found.likelihood.nlml, gradient

    iterations = 0

    def callback(intermediate_result: OptimizeResult) -> None:
        nonlocal iterations
        iterations += 1
        if progress is not None:
            progress(iterations, float(intermediate_result.fun))

    result = minimize(
        objective,
        best["point"],
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        callback=callback,
        options={"maxiter": max_iterations, "gtol": gradient_tolerance, "ftol": 1e-13, "maxcor": 30},
    )
    _write(parameters, best["point"])
    model.zero_grad(set_to_none=True)
    return FullBatchResult(
        nlml=float(best["nlml"]),
        gradient_norm=float(best["gradient_norm"]),
        iterations=iterations,
        evaluations=int(result.nfev),
        converged=best["steepest"] <= gradient_tolerance,
        message=str(result.message),
    )


def _gradient_of(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _flatten(tensors: Sequence[Tensor]) -> npt.NDArray[np.float64]:
    return np.concatenate([t.detach().double().cpu().numpy().ravel() for t in tensors])


@torch.no_grad()
def _write(parameters: Sequence[Tensor], point: npt.NDArray[np.float64]) -> None:
    offset = 0
    for parameter in parameters:
        values = torch.from_numpy(point[offset : offset + parameter.numel()].copy())
        parameter.copy_(values.reshape(parameter.shape))
        offset += parameter.numel()
