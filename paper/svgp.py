"""``SVGP``: the stochastic variational Gaussian process, through GPyTorch, to compare with."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from finitegp.algorithms.base import Algorithm, BatchGradient
from finitegp.data import ArraySource, Rows, as_source
from finitegp.errors import DataError
from finitegp.model import FeatureGP
from finitegp.predictive import Prediction


class _Marginals(NamedTuple):
    """The variational posterior at some rows; all ``(rows,)`` but ``features`` ``(rows, d)`` and the scalar."""

    features: Tensor
    log_noise_scale: Tensor | None
    mean: Tensor
    variance: Tensor
    noise_variance: Tensor
    divergence: Tensor

    def squared_residuals(self, targets: Tensor) -> Tensor:
        if targets.shape != (len(self.mean), 1):
            raise DataError(f"SVGP takes targets (rows, 1), but got {tuple(targets.shape)}.")
        return (targets[:, 0].to(self.mean) - self.mean).square()

    def expected_loss(self, squared_residuals: Tensor) -> Tensor:
        """``(rows,)`` expected negative log density of the targets under the variational posterior."""
        spread = (squared_residuals + self.variance) / self.noise_variance
        return 0.5 * (spread + self.noise_variance.log() + math.log(2.0 * math.pi))


class SVGP(Algorithm):
    r"""Stochastic variational inference with inducing points in input space (Hensman et al., 2013), through GPyTorch.

    The function values :math:`u` at :math:`m` inducing inputs have the whitened variational distribution
    :math:`q(u) = N(L\mu, L S L')`, :math:`LL' = K_{uu}`, which gives each row a Gaussian :math:`q(f_i) = N(\mu_i,
    \tau_i)`. Network, noise, kernel, inducing inputs, :math:`\mu` and :math:`S` all descend the negative evidence lower
    bound per row, estimated from a batch without bias:

    .. math:: \tfrac1b \sum_{i \in S} \tfrac12\Big[\frac{(y_i - \mu_i)^2 + \tau_i}{s v_i} + \log(2\pi s v_i)\Big]
        + \tfrac1n \mathrm{KL}\big(q(u)\,\|\,p(u)\big) \;\ge\; \mathrm{NLML} / n .

    The inducing inputs are rows like those of the data: at every step they pass through the network together with the
    batch. The noise is the model's own, constant or input-dependent, so with the linear kernel the exact likelihood and
    posterior of the same network and noise are at hand after training (``model.nlml``, ``model.condition``).

    GPyTorch starts ``q(u)`` at the prior, and then the quickest way down is to shrink the prior: with a ReLU after the
    last layer and the linear kernel all features can die in the first epochs, for good. So :meth:`initialize` starts
    it at its optimum for the first features instead, in closed form.

    GPyTorch adds a jitter to the diagonals of the covariance of the inducing values and of the rows: 1e-4 if the model
    is float32 when this object is made, 1e-6 if it is float64 (or what its setting ``variational_cholesky_jitter`` says
    at that time). The bound holds with it, but is looser by at least ``jitter / (2 s)`` per row, which keeps the noise
    from falling far below the jitter: use ``model.double()`` for targets that are almost free of noise.

    Needs the extra ``finitegp[peers]``.

    Args:
        model: The model to train, in place.
        num_data: The number of rows ``n``.
        inducing_inputs: ``(num_inducing, input_dim)`` where the inducing points start; see
            :meth:`choose_inducing_inputs`. The paper takes as many as there are rows in a batch.
        kernel: On the model's features. ``"linear"`` is the model's own kernel :math:`a\,\phi(x)'\phi(x')`; ``"rbf"``
            is :math:`c \exp(-a|\phi(x) - \phi(x')|^2 / (2 l^2))` with learned magnitude ``c`` and length scale ``l``,
            both one at the start (the model's ``output_scale`` ``a`` is one unless it was set).
        learn_inducing: Whether the inducing inputs are trained.
        initial_distribution: What :meth:`initialize` sets ``q(u)`` to: ``"solved"`` is its optimum for the first
            features, ``"prior"`` is GPyTorch's own start.
        input_dim: The number of input columns; checked against the inducing inputs.
        num_targets: Only one target is supported.
        minimum_noise_variance: The noise variance is kept at or above this.

    Example:
        >>> from finitegp.features import LinearFeatures
        >>> inputs = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
        >>> targets = 2 * inputs[:, 0] + 0.1 * torch.sin(40 * inputs[:, 0])
        >>> model = FeatureGP(LinearFeatures(1), noise_variance=0.1).double()
        >>> chosen = SVGP.choose_inducing_inputs(inputs, count=5, seed=0)
        >>> algorithm = SVGP(model, num_data=40, inducing_inputs=chosen)
        >>> optimizer = torch.optim.Adam(algorithm.parameter_groups(), lr=0.05)
        >>> for _ in range(100):
        ...     _ = algorithm.step([Rows(inputs, targets[:, None])], optimizer)
        >>> bound, exact = algorithm.negative_elbo((inputs, targets)), model.nlml((inputs, targets))
        >>> exact < bound < exact + 0.02
        True
        >>> abs(float(algorithm.predict([[0.5]]).mean) - 1.0) < 0.1
        True
    """

    def __init__(
        self,
        model: FeatureGP,
        num_data: int,
        *,
        inducing_inputs: Tensor,
        kernel: str = "linear",
        learn_inducing: bool = True,
        initial_distribution: str = "solved",
        input_dim: int | None = None,
        num_targets: int = 1,
        minimum_noise_variance: float = 1e-8,
    ) -> None:
        if num_targets != 1:
            raise ValueError(f"SVGP supports one target only, but num_targets is {num_targets}: train one per target.")
        if kernel not in ("linear", "rbf"):
            raise ValueError(f"kernel must be 'linear' or 'rbf', but is {kernel!r}.")
        if initial_distribution not in ("solved", "prior"):
            raise ValueError(f"initial_distribution must be 'solved' or 'prior', but is {initial_distribution!r}.")
        inducing_inputs = _check_inducing_inputs(model, inducing_inputs, input_dim)
        super().__init__(
            model,
            num_data,
            input_dim=inducing_inputs.shape[1],
            num_targets=num_targets,
            minimum_noise_variance=minimum_noise_variance,
        )
        self.initial_distribution = initial_distribution
        gpytorch = _import_gpytorch()
        self.prior = _Prior(kernel).to(inducing_inputs)
        # The jitter is fixed here because the whitened parameters have no meaning under another one, such as that of a
        # float64 copy.
        self.strategy: Any = gpytorch.variational.VariationalStrategy(
            self.prior,
            inducing_inputs,
            gpytorch.variational.CholeskyVariationalDistribution(len(inducing_inputs)),
            learn_inducing_locations=learn_inducing,
            jitter_val=float(gpytorch.settings.variational_cholesky_jitter.value(inducing_inputs.dtype)),
        ).to(inducing_inputs)
        # Else GPyTorch's own call would set the distribution anew, with a random mean.
        self.strategy.variational_params_initialized.fill_(1)

    @staticmethod
    def choose_inducing_inputs(inputs: Any, count: int, seed: int = 0) -> Tensor:
        """``count`` different rows of ``inputs`` ``(rows, columns)``, drawn uniformly; ``seed`` determines which."""
        rows: Tensor = torch.as_tensor(inputs)
        if rows.ndim != 2:
            raise ValueError(f"inputs must be two-dimensional (rows, columns), but have shape {tuple(rows.shape)}.")
        if not 1 <= count <= len(rows):
            raise ValueError(f"count must lie between 1 and the number of rows ({len(rows)}), but is {count}.")
        chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:count]
        return rows[chosen.to(rows.device)]

    @property
    def inducing_inputs(self) -> Tensor:
        """``(num_inducing, input_dim)`` where the inducing points are now."""
        inducing_inputs: Tensor = self.strategy.inducing_points
        return inducing_inputs

    @torch.no_grad()
    def initialize(self, batches: Sequence[Rows]) -> None:
        r"""Set ``q(u)`` to its optimum for a few batches standing for all rows, unless it shall start at the prior.

        With :math:`A = L^{-1}K_{uf}` and the noise scales :math:`v` of the :math:`b` rows in all batches,
        :math:`S = \big(I + \tfrac{n}{bs} A\,\mathrm{diag}(v)^{-1}A'\big)^{-1}` and
        :math:`\mu = \tfrac{n}{bs} S A\,\mathrm{diag}(v)^{-1}y`.
        """
        if self.initial_distribution == "prior" or not batches:
            return
        from linear_operator.utils.cholesky import psd_safe_cholesky  # type: ignore[import-untyped,unused-ignore]

        exact = self._exact_copy()
        inducing = exact.inducing_inputs
        count = len(inducing)
        precision, projection = inducing.new_zeros(count, count), inducing.new_zeros(count)
        for batch in batches:
            features, _, noise_variance = exact._features(batch.inputs, batch.weights)
            covariance = exact.prior(features).lazy_covariance_matrix[:count].to_dense()
            jitter = exact.strategy.jitter_val * torch.eye(count).to(covariance)
            # GPyTorch's own way to factorise: the whitened parameters refer to its factor.
            factor = psd_safe_cholesky(covariance[:, :count] + jitter)
            whitened = torch.linalg.solve_triangular(factor, covariance[:, count:], upper=False)
            weighted = whitened / noise_variance
            precision += weighted @ whitened.mT
            projection += weighted @ batch.observed[:, 0].to(weighted)
        scale = self.num_data / sum(len(batch.inputs) for batch in batches)
        precision = precision * scale + torch.eye(count).to(precision)
        covariance = torch.cholesky_inverse(torch.linalg.cholesky(precision))
        distribution = self.strategy._variational_distribution
        distribution.variational_mean.copy_(covariance @ projection * scale)
        distribution.chol_variational_covar.copy_(torch.linalg.cholesky(covariance))

    def gradient(self, batch: Rows) -> BatchGradient:
        """Gradients of the negative evidence lower bound per row, as the batch estimates it, in all parameters."""
        self.zero_grad(set_to_none=True)
        found = self._marginals(batch.inputs, batch.weights)
        squared_residuals = found.squared_residuals(batch.observed)
        objective = found.expected_loss(squared_residuals).mean() + found.divergence / self.num_data
        objective.backward()  # type: ignore[no-untyped-call]
        log_scale = None if found.log_noise_scale is None else found.log_noise_scale.detach()
        loss = (squared_residuals / found.noise_variance).mean().detach()
        return BatchGradient(found.features.detach(), log_scale, loss, self.model.noise_variance)

    @torch.no_grad()
    def negative_elbo(self, data: Any) -> float:
        """The negative evidence lower bound per row in float64; of all ``num_data`` rows, it is at least the NLML.

        ``data`` are as in :class:`FeatureGP`. The divergence counts as ``1 / num_data`` per row however many rows there
        are, so that a batch gives its unbiased estimate of the value of all rows.
        """
        exact = self._exact_copy()
        total, count = 0.0, 0
        divergence = math.nan
        for rows in as_source(data):
            found = exact._marginals(rows.inputs, rows.weights)
            total += float(found.expected_loss(found.squared_residuals(rows.observed)).sum())
            count += len(rows.inputs)
            divergence = float(found.divergence)
        return total / count + divergence / self.num_data

    @torch.no_grad()
    def predict(self, inputs: Any, *, chunk_size: int = 4096) -> Prediction:
        """Predict new observations from the variational posterior in float64, ``chunk_size`` rows at a time.

        The epistemic variance is that of ``q(f)``. This is SVGP's own prediction; with the linear kernel
        ``model.condition(data).predict(inputs)`` is the exact one for the same network and noise.
        """
        exact = self._exact_copy()
        parts = [exact._marginals(rows.inputs, None) for rows in ArraySource(inputs, chunk_size=chunk_size)]
        return Prediction(
            mean=torch.cat([part.mean for part in parts]),
            epistemic_variance=torch.cat([part.variance for part in parts]),
            noise_variance=torch.cat([part.noise_variance for part in parts]),
        )

    def _features(self, inputs: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
        """Features of the inducing inputs and the rows; log noise scale and noise variance of the rows alone."""
        inducing = self.inducing_inputs
        if inputs.shape[1] != inducing.shape[1]:
            raise DataError(f"The inducing inputs have {inducing.shape[1]} columns, but got {inputs.shape[1]}.")
        if weights is not None:
            weights = torch.cat([weights.new_ones(len(inducing)), weights]).to(inducing.device)
        # One pass of the network for inducing inputs, batch and noise: GPyTorch gets features of both, not inputs.
        features, log_scale = self.model(torch.cat([inducing, inputs.to(inducing)]), weights)
        noise_variance = self.model.noise.log_variance.exp().to(inducing).expand(len(inputs))
        if log_scale is not None:
            log_scale = log_scale[len(inducing) :]
            noise_variance = noise_variance * log_scale.exp()
        return features.to(inducing), log_scale, noise_variance  # a module may compute in another type inside

    def _marginals(self, inputs: Tensor, weights: Tensor | None) -> _Marginals:
        features, log_scale, noise_variance = self._features(inputs, weights)
        inducing, features = features.tensor_split([len(self.inducing_inputs)])
        try:
            variational = self.strategy.variational_distribution
            posterior = self.strategy.forward(features, inducing, variational.mean, variational.lazy_covariance_matrix)
            mean, variance = posterior.mean, posterior.variance
            divergence = self.strategy.kl_divergence()
        finally:
            # GPyTorch keeps the factors of this call, in evaluation mode even for the next one, when the parameters
            # may have moved; and tensors with a history cannot be copied.
            _import_gpytorch().utils.memoize.clear_cache_hook(self.strategy)
        return _Marginals(features, log_scale, mean, variance, noise_variance, divergence)

    def _exact_copy(self) -> SVGP:
        return copy.deepcopy(self).to(torch.float64).eval()


class _Prior(nn.Module):
    """The prior over function values as GPyTorch wants it, from ``(rows, d)`` features that carry the output scale."""

    def __init__(self, kernel: str) -> None:
        super().__init__()
        self.covariance: Any = None
        if kernel == "rbf":
            gpytorch = _import_gpytorch()
            self.covariance = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
            self.covariance.outputscale = 1.0
            self.covariance.base_kernel.lengthscale = 1.0

    def forward(self, features: Tensor) -> Any:
        from linear_operator.operators import RootLinearOperator  # type: ignore[import-untyped,unused-ignore]

        # GPyTorch's own linear kernel has one more scale, redundant here and not exactly one after its transform.
        covariance = RootLinearOperator(features) if self.covariance is None else self.covariance(features)
        distributions = _import_gpytorch().distributions
        return distributions.MultivariateNormal(features.new_zeros(len(features)), covariance)


def _check_inducing_inputs(model: FeatureGP, inducing_inputs: Tensor, input_dim: int | None) -> Tensor:
    inducing_inputs = torch.as_tensor(inducing_inputs).detach().to(device=model.device, dtype=model.dtype)
    if inducing_inputs.ndim != 2 or 0 in inducing_inputs.shape:
        raise ValueError(
            "inducing_inputs must be (num_inducing, input_dim) with at least one of each, "
            f"but have shape {tuple(inducing_inputs.shape)}."
        )
    for expected in (input_dim, getattr(model.feature_map, "input_dim", None)):
        if isinstance(expected, int) and inducing_inputs.shape[1] != expected:
            raise ValueError(
                f"inducing_inputs must have the {expected} columns of the inputs, but have {inducing_inputs.shape[1]}."
            )
    if not bool(torch.isfinite(inducing_inputs).all()):
        raise ValueError("inducing_inputs must be finite.")
    return inducing_inputs


def _import_gpytorch() -> Any:
    try:
        import gpytorch
    except ImportError as error:
        raise ImportError('SVGP needs GPyTorch: pip install "finitegp[peers]"') from error
    return gpytorch
