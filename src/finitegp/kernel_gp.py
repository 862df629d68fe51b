r"""``KernelGP``: the exact Gaussian process of a small table, with priors on its kernel and its scale integrated out.

The covariance of the targets is :math:`v R` with

.. math:: R = 4 \cdot 11' + m\,XX'/d + a\,c(X, X) + s\,\mathrm{diag}(u / n),

an intercept, a linear trend, a stationary kernel with correlation ``c``, and noise; ``u`` are noise scales and ``n`` is
how many equal rows a row stands for. The scale has the prior :math:`v \sim \mathrm{InvGamma}(\alpha/2, \alpha/2)` and
is integrated out, so that targets and predictions are Student's t with :math:`\alpha + n` degrees of freedom.
Inputs and targets are expected standardised: the priors are in these units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .errors import NumericalError
from .lapack import factorise_in_place, invert_in_place

Array = npt.NDArray[np.float64]

_LEAST_NOISE = 1e-8
# The most rows of the short searches that choose a start.
_SEARCH_ROWS = 300
_PIECE_ROWS = 32
_ROOT3, _ROOT5 = math.sqrt(3.0), math.sqrt(5.0)
CORRELATIONS = ("rbf", "matern32", "matern52")
# Of the logarithms that are parameters; those of noise and length scales are closer.
BOUNDS = (-20.0, 12.0)


def correlation(squared_distances: Array, kind: str) -> tuple[Array, Array]:
    r"""The correlation, and its derivative in the squared distance times minus two.

    With :math:`D = \sum_j (x_j - x'_j)^2 / \ell_j^2`, the derivative in :math:`\log \ell_j` is the second result times
    the part of column j in ``D``.
    """
    if kind == "rbf":
        values = np.exp(-0.5 * squared_distances)
        return values, values
    # In place where it can be: the arrays are larger than caches, and every new one has to be fetched.
    distances = np.sqrt(squared_distances)
    distances *= _ROOT3 if kind == "matern32" else _ROOT5
    decay = np.negative(distances)
    np.exp(decay, out=decay)
    distances += 1.0
    if kind == "matern32":
        distances *= decay
        decay *= 3.0
        return distances, decay
    values = squared_distances * (5.0 / 3.0)
    values += distances
    values *= decay
    decay *= distances
    decay *= 5.0 / 3.0
    return values, decay


def squared_distances(one: Array, other: Array) -> Array:
    """``(rows of one, rows of other)``, never negative."""
    found = (-2.0 * one) @ other.T
    found += np.square(one).sum(1)[:, None]
    found += np.square(other).sum(1)
    np.maximum(found, 0.0, out=found)
    return np.asarray(found)


@dataclass(frozen=True)
class KernelPrior:
    """Means and deviations of the logarithms of what a kernel is made of, for standardised inputs and targets.

    Attributes:
        noise: Of the noise variance.
        linear: Of the variance of the linear trend.
        signal: Of the variance of the stationary kernel.
        level: Of the common level of the length scales, beside half the logarithm of the number of columns.
        column_spread: How far single columns lie from it, with tails that let a few go far.
        shared_deviation: Deviation of the one length scale of all columns.
        intercept: Variance of the intercept.
        scale_degrees: Degrees of freedom of the prior of the scale, whose mean square is one.
    """

    noise: tuple[float, float] = (math.log(0.1), 2.0)
    linear: tuple[float, float] = (math.log(0.3), 2.0)
    signal: tuple[float, float] = (0.0, 1.5)
    level: tuple[float, float] = (0.5, 1.5)
    column_spread: float = 0.5
    shared_deviation: float = 1.8
    intercept: float = 4.0
    scale_degrees: float = 2.0


@dataclass(frozen=True)
class KernelForm:
    """Which kernel: the intercept and the linear trend are always there.

    Attributes:
        correlation: One of ``"rbf"``, ``"matern32"``, ``"matern52"``, or None for the linear trend alone.
        length_scale_per_column: Or one for all columns.
        prior: Of its parameters.
    """

    correlation: str | None = None
    length_scale_per_column: bool = False
    prior: KernelPrior = KernelPrior()

    def __post_init__(self) -> None:
        """Check the name."""
        if self.correlation is not None and self.correlation not in CORRELATIONS:
            raise ValueError(f"correlation must be one of {list(CORRELATIONS)} or None, but is {self.correlation!r}.")

    def num_length_scales(self, columns: int) -> int:
        """How many length scales there are."""
        return 0 if self.correlation is None else columns if self.length_scale_per_column else 1

    def start(self, columns: int, relative_length_scale: float = 1.0) -> Array:
        """Logarithms of noise, linear trend, signal and length scales, before any fitting."""
        count = self.num_length_scales(columns)
        level = math.log(relative_length_scale) + 0.5 * math.log(columns)
        prior = self.prior
        found = [prior.noise[0], prior.linear[0]] + ([prior.signal[0]] + [level] * count if count else [])
        return np.array(found)


@dataclass(frozen=True, eq=False)
class KernelRows:
    """Rows that a kernel GP is fitted to or conditioned on.

    Attributes:
        inputs: ``(rows, columns)``, standardised.
        targets: ``(rows,)``, standardised.
        noise_scales: ``(rows,)``: factors on the noise variance, above one for rows that are not trusted.
        counts: ``(rows,)``: how many equal rows each row stands for.
    """

    inputs: Array
    targets: Array
    noise_scales: Array
    counts: Array

    @classmethod
    def of(
        cls, inputs: Array, targets: Array, noise_scales: Array | None = None, counts: Array | None = None
    ) -> KernelRows:
        """Rows that are trusted and stand for themselves where nothing else is given."""
        ones = np.ones(len(targets))
        return cls(
            np.ascontiguousarray(inputs),
            targets,
            ones if noise_scales is None else noise_scales,
            ones if counts is None else counts,
        )

    def take(self, index: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> KernelRows:
        """Some of the rows."""
        return KernelRows(self.inputs[index], self.targets[index], self.noise_scales[index], self.counts[index])

    @property
    def total(self) -> float:
        """How many rows they stand for."""
        return float(self.counts.sum())


def noise_of(parameters: Array) -> float:
    """The noise variance of a trusted row, before the factor on all variances."""
    return math.exp(parameters[0]) + _LEAST_NOISE


def log_prior(form: KernelForm, parameters: Array, columns: int) -> tuple[float, Array]:
    """The log prior density of the logarithms, up to a constant, and its gradient."""
    prior = form.prior
    means, deviations = np.array([prior.noise, prior.linear, prior.signal]).T
    plain = min(len(parameters), 3)
    standardized = (parameters[:plain] - means[:plain]) / deviations[:plain]
    value = -0.5 * float(standardized @ standardized)
    gradient = np.zeros_like(parameters)
    gradient[:plain] = -standardized / deviations[:plain]
    count = form.num_length_scales(columns)
    if count:
        # Distances of standardised rows grow with the root of the number of columns.
        offsets = parameters[3:] - prior.level[0] - 0.5 * math.log(columns)
        level_variance, spread = prior.level[1] ** 2, prior.column_spread
        if count == 1:
            value -= 0.5 * float(offsets[0] / prior.shared_deviation) ** 2
            gradient[3] = -offsets[0] / prior.shared_deviation**2
        else:
            shrink = level_variance / (level_variance + spread**2 / count)
            level = shrink * float(offsets.mean())
            deviation = (offsets - level) / spread
            root = np.sqrt(1.0 + np.square(deviation))
            value -= float((root - 1.0).sum()) + 0.5 * level**2 / level_variance
            by_deviation = -deviation / (root * spread)
            gradient[3:] = by_deviation - (by_deviation.sum() + level / level_variance) * shrink / count
    return value, gradient


class KernelGP:
    """One kernel on one set of rows: the penalised evidence, its gradient and its optimum.

    Args:
        form: Which kernel.
        rows: What it is fitted to.
    """

    def __init__(self, form: KernelForm, rows: KernelRows) -> None:
        self.form, self.rows = form, rows
        self.columns = rows.inputs.shape[1]
        self._linear = rows.inputs @ rows.inputs.T / self.columns
        # With one length scale the distances are always the same up to a factor.
        shared = form.correlation is not None and not form.length_scale_per_column
        self._distances = squared_distances(rows.inputs, rows.inputs) if shared else None
        if self._distances is not None:
            np.fill_diagonal(self._distances, 0.0)

    def loss(self, parameters: Array) -> tuple[float, Array]:
        """Minus the log of evidence times prior, up to a constant, and its gradient in the logarithms."""
        from scipy.linalg.lapack import dpotrs

        rows, total = self.rows, self.rows.total
        noise = noise_of(parameters)
        covariance, stationary, slope, scaled = self._covariance(parameters)
        covariance[np.diag_indices_from(covariance)] += noise * rows.noise_scales / rows.counts
        # Symmetric, so its transpose is the matrix itself, in LAPACK's order.
        factor = covariance.T
        if factorise_in_place(factor):
            return 1e10, np.zeros_like(parameters)
        solved = dpotrs(factor, rows.targets, lower=1)[0]
        prior_degrees = self.form.prior.scale_degrees
        freedom, squares = prior_degrees + total, prior_degrees + float(rows.targets @ solved)
        prior, prior_gradient = log_prior(self.form, parameters, self.columns)
        log_volume = 2.0 * float(np.log(factor.diagonal()).sum())
        # Copies of a row have its noise each, of which the mean of them, above, has a part.
        log_volume += float(((rows.counts - 1.0) * np.log(noise * rows.noise_scales)).sum())
        value = 0.5 * (log_volume + freedom * math.log(squares)) - prior
        inverse = factor
        invert_in_place(inverse)
        inverse[np.diag_indices_from(inverse)] *= 0.5
        weights = np.outer((freedom / squares) * solved, solved)  # twice the derivative in the covariance
        weights -= inverse.T
        weights -= inverse
        gradient = -prior_gradient
        noise_slope = weights.diagonal() @ (rows.noise_scales / rows.counts) - float((rows.counts - 1.0).sum()) / noise
        gradient[0] -= 0.5 * math.exp(parameters[0]) * noise_slope
        gradient[1] -= 0.5 * math.exp(parameters[1]) * float(np.vdot(weights, self._linear))
        if stationary is not None and slope is not None:
            signal = math.exp(parameters[2])
            gradient[2] -= 0.5 * signal * float(np.vdot(weights, stationary))
            weights *= slope
            if self._distances is not None:
                gradient[3] -= 0.5 * signal * math.exp(-2.0 * parameters[3]) * float(np.vdot(weights, self._distances))
            else:
                along = weights.sum(1) @ np.square(scaled) - np.einsum("ij,ij->j", scaled, weights @ scaled)
                gradient[3:] -= signal * along
        return value, gradient

    def fit(self, start: Array, *, steps: int = 60) -> tuple[Array, float]:
        """The optimum that L-BFGS finds from here, and its loss."""
        from scipy.optimize import minimize

        lower, upper = (np.full(len(start), bound) for bound in BOUNDS)
        lower[0], upper[0] = -16.0, 3.0
        lower[3:] = -5.0
        found = minimize(
            self.loss,
            np.clip(start, lower, upper),
            jac=True,
            method="L-BFGS-B",
            bounds=list(zip(lower, upper, strict=True)),
            options={"maxiter": steps, "maxcor": 20, "ftol": 1e-9, "gtol": 1e-4 * math.sqrt(len(self.rows.targets))},
        )
        return np.asarray(found.x), float(found.fun)

    def condition(self, parameters: Array) -> KernelPosterior:
        """The exact posterior at these parameters."""
        return KernelPosterior(self.form, parameters, self.rows)

    def _covariance(self, parameters: Array) -> tuple[Array, Array | None, Array | None, Array]:
        """Without noise; the correlation and its slope; the inputs in length scales."""
        covariance = math.exp(parameters[1]) * self._linear
        covariance += self.form.prior.intercept
        inputs = self.rows.inputs
        if self.form.correlation is None:
            return covariance, None, None, inputs
        if self._distances is not None:
            scaled = inputs
            distances = self._distances * math.exp(-2.0 * parameters[3])
        else:
            scaled = inputs * np.exp(-parameters[3:])
            distances = squared_distances(scaled, scaled)
            np.fill_diagonal(distances, 0.0)
        values, slope = correlation(distances, self.form.correlation)
        covariance += math.exp(parameters[2]) * values
        return covariance, values, slope, scaled


class KernelPosterior:
    """A kernel GP conditioned on rows: Student's t for new observations.

    Args:
        form: Which kernel.
        parameters: Logarithms of noise, linear trend, signal and length scales.
        rows: What it is conditioned on.

    Attributes:
        degrees_of_freedom: Of predictions.
        scale: The posterior mean of the factor on all variances.
    """

    def __init__(self, form: KernelForm, parameters: Array, rows: KernelRows) -> None:
        from scipy.linalg.lapack import dpotrs

        self.form, self.parameters, self.rows = form, parameters, rows
        covariance = self._kernel(rows.inputs, rows.inputs)
        noise = self.noise * rows.noise_scales / rows.counts
        for jitter in (0.0, 1e-8, 1e-6):
            self._factor = covariance.copy().T
            self._factor[np.diag_indices_from(self._factor)] += noise + jitter
            if factorise_in_place(self._factor) == 0:
                break
        else:
            raise NumericalError("The covariance of the rows is not positive definite.")
        self._solved = dpotrs(self._factor, rows.targets, lower=1)[0]
        prior_degrees = form.prior.scale_degrees
        self.degrees_of_freedom = prior_degrees + rows.total
        self.scale = (prior_degrees + float(rows.targets @ self._solved)) / self.degrees_of_freedom

    @property
    def noise(self) -> float:
        """The noise variance of a trusted row, before the factor on all variances."""
        return noise_of(self.parameters)

    def mean(self, inputs: Array) -> Array:
        """Only the mean of the function, at a fraction of the cost."""
        return np.asarray(self._kernel(inputs, self.rows.inputs) @ self._solved)

    def predict(self, inputs: Array) -> tuple[Array, Array]:
        """Mean and variance of the function at new rows; the noise variance is ``scale * noise`` everywhere."""
        from scipy.linalg.lapack import dtrtrs

        cross = self._kernel(self.rows.inputs, inputs)
        prior = self.form.prior.intercept + math.exp(self.parameters[1]) * np.square(inputs).sum(1) / inputs.shape[1]
        if self.form.correlation is not None:
            prior = prior + math.exp(self.parameters[2])
        half = dtrtrs(self._factor, cross, lower=1)[0]
        variance = np.maximum(prior - np.square(half).sum(0), 0.0)
        return np.asarray(cross.T @ self._solved), np.asarray(self.scale * variance)

    def leave_one_out(self) -> tuple[Array, Array]:
        """Mean and variance, noise included, of each row given all others, at the same parameters and scale."""
        inverse = self._factor.copy("F")
        invert_in_place(inverse)
        precision = inverse.diagonal()
        return np.asarray(self.rows.targets - self._solved / precision), np.asarray(self.scale / precision)

    def leave_groups_out(self, groups: npt.NDArray[np.intp]) -> tuple[Array, Array]:
        """Mean and variance of one observation of each row given the rows of all other groups, at these parameters."""
        inverse = self._factor.copy("F")
        invert_in_place(inverse)
        variances = 1.0 / inverse.diagonal()
        means = self.rows.targets - self._solved * variances
        diagonal = inverse.diagonal().copy()
        inverse += inverse.T
        inverse[np.diag_indices_from(inverse)] = diagonal
        for group in np.flatnonzero(np.bincount(groups) > 1):
            index = np.flatnonzero(groups == group)
            block = np.linalg.inv(inverse[np.ix_(index, index)])
            means[index] = self.rows.targets[index] - block @ self._solved[index]
            variances[index] = block.diagonal()
        # A row that stands for several is the mean of that many observations.
        variances += self.noise * self.rows.noise_scales * (1.0 - 1.0 / self.rows.counts)
        return np.asarray(means), np.asarray(self.scale * variances)

    def _kernel(self, one: Array, other: Array) -> Array:
        found = np.empty((len(one), len(other)))
        lengths = np.exp(-self.parameters[3:])
        # A few rows at a time stay in a core's cache through all steps.
        for start in range(0, len(one), _PIECE_ROWS):
            rows, part = one[start : start + _PIECE_ROWS], found[start : start + _PIECE_ROWS]
            np.matmul(rows, other.T, out=part)
            part *= math.exp(self.parameters[1]) / one.shape[1]
            part += self.form.prior.intercept
            if self.form.correlation is not None:
                distances = squared_distances(rows * lengths, other * lengths)
                part += math.exp(self.parameters[2]) * correlation(distances, self.form.correlation)[0]
        return found


def fit_from_several_starts(
    form: KernelForm,
    rows: KernelRows,
    relative_length_scales: Sequence[float],
    *,
    steps: int = 60,
    seed: int = 0,
) -> Array:
    """The best optimum from several length scales: short searches on some of the rows, then the best ones on all."""
    gp, columns = KernelGP(form, rows), rows.inputs.shape[1]
    if form.correlation is None:
        return gp.fit(form.start(columns), steps=steps)[0]
    few = gp
    if len(rows.targets) > _SEARCH_ROWS:
        few = KernelGP(form, rows.take(np.random.default_rng(seed).permutation(len(rows.targets))[:_SEARCH_ROWS]))
    tried = sorted(
        (few.fit(form.start(columns, relative), steps=12)[::-1] for relative in relative_length_scales),
        key=lambda found: found[0],
    )
    best, loss = gp.fit(tried[0][1], steps=steps)
    if len(tried) > 1 and tried[1][0] - tried[0][0] < 3.0 and np.abs(tried[1][1] - tried[0][1]).max() > 0.5:
        second, second_loss = gp.fit(tried[1][1], steps=steps)
        if second_loss < loss:
            best = second
    return best
