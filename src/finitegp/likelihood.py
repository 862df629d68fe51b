r"""The exact marginal likelihood from statistics: its value, and its optimum in noise and scale.

With :math:`F = Z'Z + s I`, :math:`c = Z'y`, :math:`q = y'y` over scaled rows (see :class:`FeatureStatistics`):

.. math::
    \mathrm{NLML} = \tfrac12\Big[ \underbrace{(q - c'F^{-1}c)/s}_{\text{fit}}
        + \underbrace{\log|F| + (n - d)\log s + \textstyle\sum_i \log v_i}_{\text{complexity}}
        + \underbrace{n \log 2\pi}_{\text{constant}} \Big]

Several target columns share features and noise: their likelihoods multiply, so the terms add.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .arguments import check_arguments, check_noise_variance, check_positive
from .errors import DataError, NumericalError
from .linalg import CholeskyFactor, cholesky, symmetric_eigen
from .statistics import FeatureStatistics

# First-order rounding analysis gives small constants times the unit round-off; this covers them.
_ROUNDING = 8.0 * torch.finfo(torch.float64).eps
# Above this estimated relative rounding error of one pass, a second one is made.
_ONE_PASS_TOLERANCE = 1e-10


@check_arguments
@dataclass(frozen=True)
class MarginalLikelihood:
    """The negative log marginal likelihood with its named terms, each a total over all rows and targets.

    Attributes:
        fit: How badly the targets are explained, ``(q - c'F^-1 c) / (2 s)``.
        complexity: What the flexibility of the features costs, ``(log|F| + (n - d) log s + sum log v) / 2``.
        constant: ``n log(2 pi) / 2``.
        num_data: The number of rows ``n``.
        rounding_error: An estimate of the error of ``total_nlml`` from floating point.
    """

    fit: float
    complexity: float
    constant: float
    num_data: float
    rounding_error: float

    @property
    def total_nlml(self) -> float:
        """The negative log marginal likelihood of all rows."""
        return self.fit + self.complexity + self.constant

    @property
    def nlml(self) -> float:
        """The negative log marginal likelihood per row, as the paper's tables report it."""
        return self.total_nlml / self.num_data

    @property
    def relative_rounding_error(self) -> float:
        """``rounding_error`` relative to the size of the terms."""
        return self.rounding_error / (abs(self.fit) + abs(self.complexity) + self.constant)


def regularized_gram_factor(statistics: FeatureStatistics, noise_variance: float) -> CholeskyFactor:
    """The Cholesky factor of ``F = Z'Z + s I``."""
    regularized_gram = statistics.gram.clone()
    regularized_gram.diagonal().add_(noise_variance)
    return cholesky(regularized_gram, noise_variance=noise_variance)


@check_arguments
def negative_log_marginal_likelihood(
    statistics: FeatureStatistics,
    noise_variance: float,
    *,
    residual_sum_of_squares: float | None = None,
    feature_rounding: float = 0.0,
    tolerance: float = 1e-4,
) -> MarginalLikelihood:
    """The exact negative log marginal likelihood.

    The fit ``q - c'F^-1 c`` cancels when the noise is small. The rounding error is estimated, and a value that is not
    reliable is refused. A second pass over the rows avoids the cancellation: with ``w = F^-1 c`` the same fit is
    ``||Zw - y||^2 / s + ||w||^2``, a sum of positive terms; pass the first sum as ``residual_sum_of_squares``
    (:meth:`FeatureGP.nlml` does this by itself).

    Args:
        statistics: The row sums.
        noise_variance: The noise variance ``s``, positive.
        residual_sum_of_squares: ``||Zw - y||^2`` over scaled rows and all targets at ``w = F^-1 c``.
        feature_rounding: Relative rounding error of the features themselves: 0 if they were computed in float64, the
            machine epsilon of their type if the feature map insists on a coarser one.
        tolerance: The largest estimated rounding error that is accepted, relative to the size of the terms.

    Raises:
        NumericalError: If the estimated rounding error is larger than ``tolerance``, or ``F`` is not positive definite.

    Example:
        One feature, one row: the target's variance is ``z^2 + s``.

        >>> statistics = FeatureStatistics.from_batch(torch.tensor([[2.0]]), torch.tensor([3.0]))
        >>> value = negative_log_marginal_likelihood(statistics, noise_variance=0.5)
        >>> expected = 0.5 * (9.0 / 4.5 + math.log(4.5) + math.log(2 * math.pi))
        >>> abs(value.total_nlml - expected) < 1e-12
        True
    """
    noise_variance = check_noise_variance(noise_variance)
    if statistics.num_data <= 0:
        raise DataError("There are no rows: the likelihood of no data is not defined.")
    n, (d, t) = statistics.num_data, statistics.projected_targets.shape
    factor = regularized_gram_factor(statistics, noise_variance)
    weights = factor.solve(statistics.projected_targets)
    squared_weights = float(weights.square().sum())
    target_squares = float(statistics.target_sum_of_squares.sum())
    gram_trace = float(statistics.gram.trace()) + noise_variance * d
    inverse_trace = float(factor.half_solve(torch.eye(d).to(factor.lower)).square().sum())
    # Features off by a relative epsilon move the residuals by up to epsilon |Z| |w|, and log|F| as much.
    row_error = (_ROUNDING + feature_rounding) * math.sqrt(gram_trace * squared_weights + target_squares)
    volume_error = feature_rounding * math.sqrt(gram_trace * inverse_trace)
    if residual_sum_of_squares is not None and not residual_sum_of_squares >= 0.0:
        raise DataError(f"residual_sum_of_squares must not be negative, but is {residual_sum_of_squares}.")
    if residual_sum_of_squares is None:
        unexplained = target_squares - float((statistics.projected_targets * weights).sum())
        fit_error = _ROUNDING * (gram_trace * squared_weights + target_squares)
        fit_error += 2.0 * math.sqrt(max(unexplained, 0.0)) * row_error + row_error**2
    else:
        unexplained = residual_sum_of_squares + noise_variance * squared_weights
        # The weights minimise, so their own rounding error enters squared.
        gram_error = _ROUNDING * gram_trace
        weight_error = gram_error * gram_error * squared_weights * inverse_trace  # a power would raise OverflowError
        fit_error = 2.0 * math.sqrt(residual_sum_of_squares) * row_error + row_error**2 + weight_error
    complexity_error = t * (_ROUNDING * gram_trace + factor.jitter) * inverse_trace
    complexity_error += t * (2.0 * volume_error + volume_error**2)
    result = MarginalLikelihood(
        fit=0.5 * unexplained / noise_variance,
        complexity=0.5
        * t
        * float(factor.log_determinant() + (n - d) * math.log(noise_variance) + statistics.log_scale_sum),
        constant=0.5 * n * t * math.log(2.0 * math.pi),
        num_data=n,
        rounding_error=0.5 * (fit_error / noise_variance + complexity_error),
    )
    if not result.relative_rounding_error <= tolerance:
        raise NumericalError(
            f"The marginal likelihood cannot be trusted: estimated relative rounding error "
            f"{result.relative_rounding_error:.1e} at noise variance {noise_variance:.3g} and mean squared target "
            f"{target_squares / (n * t):.3g} (jitter {factor.jitter:.1e}). Use float64 features and FeatureGP.nlml, "
            "which makes a second pass over the rows, or a larger noise variance."
        )
    return result


def likelihood_in_passes(
    statistics: FeatureStatistics,
    noise_variance: float,
    residual_squares: Callable[[Tensor], float],
    *,
    feature_rounding: float = 0.0,
) -> MarginalLikelihood:
    """:func:`negative_log_marginal_likelihood`, with a second pass over the rows where the first would cancel.

    Args:
        statistics: The row sums.
        noise_variance: The noise variance ``s``, positive.
        residual_squares: The second pass: the sum of squared residuals ``||Zw - y||^2`` at weights ``w``.
        feature_rounding: Relative rounding error of the features themselves.
    """
    value = negative_log_marginal_likelihood(
        statistics, noise_variance, feature_rounding=feature_rounding, tolerance=math.inf
    )
    if value.relative_rounding_error <= _ONE_PASS_TOLERANCE:
        return value
    weights = regularized_gram_factor(statistics, noise_variance).solve(statistics.projected_targets)
    return negative_log_marginal_likelihood(
        statistics,
        noise_variance,
        residual_sum_of_squares=residual_squares(weights),
        feature_rounding=feature_rounding,
    )


@check_arguments
@dataclass(frozen=True)
class NoiseOptimum:
    """The best noise variance (and output scale) for fixed features.

    Attributes:
        noise_variance: The optimal noise variance ``s``.
        output_scale: The optimal factor ``a`` on the kernel (features times ``sqrt(a)``); 1.0 if it was not optimised.
        nlml: The negative log marginal likelihood per row at the optimum.
        at_floor: True if the noise variance stopped at the lower bound instead of at an optimum.
    """

    noise_variance: float
    output_scale: float
    nlml: float
    at_floor: bool


@check_arguments
def optimal_noise(
    statistics: FeatureStatistics, *, optimize_output_scale: bool = False, relative_floor: float = 1e-10
) -> NoiseOptimum:
    r"""The noise variance, and on request the output scale, that minimise the NLML for fixed features.

    One eigendecomposition :math:`Z'Z = Q \Lambda Q'` makes each evaluation cost ``O(d)``. With :math:`\rho = s/a` and
    :math:`R(\rho) = q - \sum_i (Q'c)_i^2 / (\lambda_i + \rho)` the best noise for a given ratio is
    :math:`s = R(\rho) / n`, which leaves a search in one dimension.

    Args:
        statistics: The row sums.
        optimize_output_scale: Also optimise the factor ``a`` on the kernel.
        relative_floor: Lower bound of the noise variance, relative to the mean squared target.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> features = torch.randn(2000, 3, generator=generator)
        >>> noise = 0.5 * torch.randn(2000, generator=generator)
        >>> statistics = FeatureStatistics.from_batch(features, features.sum(dim=1) + noise)
        >>> 0.23 < optimal_noise(statistics).noise_variance < 0.27
        True
    """
    n, t = statistics.num_data, statistics.projected_targets.shape[1]
    target_squares = float(statistics.target_sum_of_squares.sum())
    if n <= 0 or target_squares <= 0.0:
        raise DataError("The targets are all zero or there are no rows: there is no noise variance to estimate.")
    mean_square = target_squares / (n * t)
    eigenvalues, eigenvectors = symmetric_eigen(statistics.gram)
    eigenvalues = eigenvalues.clamp_min(0.0)
    projected_squares = (eigenvectors.mT @ statistics.projected_targets).square().sum(dim=1)
    check_positive(relative_floor=relative_floor)
    floor = relative_floor * mean_square

    def unexplained(ratio: Tensor) -> Tensor:
        explained = (projected_squares / (eigenvalues + ratio[:, None])).sum(dim=1)
        return (target_squares - explained).clamp_min(1e-14 * target_squares)

    def total_nlml(noise: Tensor, ratio: Tensor) -> Tensor:
        log_volume = torch.log1p(eigenvalues / ratio[:, None]).sum(dim=1)
        scale_free = t * (log_volume + n * noise.log() + statistics.log_scale_sum + n * math.log(2.0 * math.pi))
        return 0.5 * (unexplained(ratio) / noise + scale_free)

    def best_noise(ratio: Tensor) -> Tensor:
        return (unexplained(ratio) / (n * t)).clamp_min(floor)

    def profile(log_ratio: Tensor) -> Tensor:
        ratio = log_ratio.exp()
        return total_nlml(best_noise(ratio) if optimize_output_scale else ratio, ratio)

    if optimize_output_scale:
        largest = float(eigenvalues[-1]) or 1.0
        lower, upper = math.log(largest * 1e-15), math.log(largest * 1e4)
    else:
        lower, upper = math.log(floor), math.log(10.0 * mean_square)
    log_ratio = _minimize_on_interval(profile, lower, upper, statistics.gram.device)
    ratio = log_ratio.exp()
    noise = best_noise(ratio) if optimize_output_scale else ratio
    return NoiseOptimum(
        noise_variance=float(noise),
        output_scale=float(noise / ratio) if optimize_output_scale else 1.0,
        nlml=float(total_nlml(noise, ratio)) / n,
        at_floor=float(noise) <= floor * 1.001,
    )


def _minimize_on_interval(
    function: Callable[[Tensor], Tensor], lower: float, upper: float, device: torch.device
) -> Tensor:
    """The minimiser of a vectorised function of one variable: a grid against local minima, then a root of the slope.

    The slope is used because a minimum found from values alone is only good to half the digits.
    """
    grid = torch.linspace(lower, upper, 129, dtype=torch.float64, device=device)
    best = int(function(grid).argmin())
    left, right = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)])

    def slope(point: float) -> float:
        with torch.enable_grad():
            variable = torch.tensor([point], dtype=torch.float64, device=device, requires_grad=True)
            (gradient,) = torch.autograd.grad(function(variable).sum(), variable)
        return float(gradient)

    if slope(left) < 0.0 < slope(right):
        from scipy.optimize import brentq  # here, because it takes most of a second to import

        return torch.tensor([brentq(slope, left, right, xtol=1e-13)], dtype=torch.float64, device=device)
    return grid[best : best + 1]
