r"""``FeatureGPModel``: a finite-feature GP as a BoTorch model, for Bayesian optimisation from many rows.

Needs the extra ``botorch``. The posterior of a :class:`~finitegp.FittedGP` lives in weight space,
:math:`w \sim N(\bar w, s F^{-1})`, so a joint posterior over q points costs :math:`O(q d^2)` whatever the number of
rows. With :math:`F = LL'` and :math:`h(x) = \sqrt{s}\,L^{-1} z(x)`,

.. math:: \mathrm{E} f(x) = z(x)'\bar w, \qquad \mathrm{cov}(f(x), f(x')) = h(x)'h(x').

New rows are taken in exactly in one of two ways. Plain rows go into the row sums, and one factorisation follows. Rows
with batch dimensions or gradients (fantasies) would need a factorisation of d x d for each batch; they are kept beside
the row sums instead, and enter by the same identity turned round, which factorises one matrix of rows x rows for each.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .data.arrays import ArraySource
from .errors import DataError
from .model import FeatureGP, FittedGP
from .posterior import WeightPosterior
from .statistics import FeatureStatistics

try:
    from botorch.acquisition.objective import PosteriorTransform
    from botorch.models.model import FantasizeMixin, Model
    from botorch.models.transforms.input import InputTransform
    from botorch.models.transforms.outcome import OutcomeTransform
    from botorch.posteriors import GPyTorchPosterior, Posterior
    from botorch.sampling.pathwise.paths import SamplePath
    from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
    from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
    from linear_operator import to_linear_operator
    from linear_operator.utils.cholesky import psd_safe_cholesky
except ImportError as error:
    raise ImportError("finitegp.botorch needs BoTorch: pip install 'finitegp[botorch]'.") from error


class _BatchRows(NamedTuple):
    """Rows with batch dimensions, beside the row sums: what they add on the weights.

    Attributes:
        whitened: ``(*batch, rows, d)``, :math:`h` of the rows.
        residuals: ``(*batch, rows, outcomes)``, targets minus the mean that the row sums give.
        noise: ``(*batch, rows)`` noise variances.
    """

    whitened: Tensor
    residuals: Tensor
    noise: Tensor

    def __add__(self, other: tuple[Any, ...]) -> _BatchRows:
        """The rows of both, one after the other, with batch dimensions broadcast."""
        pairs = zip(self, other, (2, 2, 1), strict=True)
        return _BatchRows(*(_concatenate(mine, theirs, kept) for mine, theirs, kept in pairs))


class FeatureGPModel(Model, FantasizeMixin):
    """A BoTorch ``Model`` of a :class:`~finitegp.FittedGP`: exact joint posteriors at a cost without the row count.

    Posteriors are float64 and differentiable in the inputs, with any batch dimensions. Several outcomes share features
    and noise and are independent given them; for outcomes with features of their own use BoTorch's ``ModelList``.
    ``get_matheron_path_model`` and ``PathwiseThompsonSampling`` draw exact functions of the posterior, linear in the
    features. ``fantasize`` and ``condition_on_observations`` are exact. Posteriors of features on landmarks have the
    variance that these features do not see; new rows leave it as it is, and functions drawn are without it.

    Args:
        fitted: The fitted model, in the units of the transforms' results.
        input_transform: A BoTorch input transform, applied to all inputs; copied.
        outcome_transform: A BoTorch outcome transform that has seen the targets, undone in posteriors; copied.

    Example:
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64)[:, None]
        >>> gp = FeatureGP(torch.nn.Linear(1, 2, dtype=torch.float64), noise_variance=1e-4)
        >>> model = FeatureGPModel.from_rows(gp, X, 2 * X + 0.5)
        >>> abs(float(model.posterior(torch.tensor([[0.25]])).mean) - 1.0) < 0.01
        True
    """

    likelihood = None  # FantasizeMixin asks whether it has fixed noise

    def __init__(
        self,
        fitted: FittedGP,
        *,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(fitted, FittedGP):
            raise DataError(
                f"fitted must be a FittedGP, but is a {type(fitted).__name__}:",
                "condition a FeatureGP on rows (FeatureGP.condition, FeatureGPModel.from_rows). A regressor's mixture "
                "of networks is no Gaussian process and has no joint posterior.",
            )
        self.fitted = fitted
        self.feature_gp = fitted.model.requires_grad_(False).eval()
        if input_transform is not None:
            self.input_transform = copy.deepcopy(input_transform).double().eval()
        if outcome_transform is not None:
            self.outcome_transform = copy.deepcopy(outcome_transform).double().eval()
        self._batch_rows: _BatchRows | None = None
        self._batch_lower: Tensor | None = None

    @classmethod
    def from_rows(
        cls,
        model: FeatureGP,
        X: Tensor,
        Y: Tensor,
        Yvar: Tensor | None = None,
        *,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | None = None,
        optimize_noise: bool = False,
    ) -> FeatureGPModel:
        """The model conditioned on rows, in one pass.

        Args:
            model: The features and noise, in the units of the transforms' results.
            X: ``(rows, columns)``.
            Y: ``(rows, outcomes)``.
            Yvar: ``(rows, outcomes)`` known noise variances, in the units of ``Y``, the same for all outcomes once
                transformed; None for the model's own noise.
            input_transform: As in the class; learned from ``X`` if it learns.
            outcome_transform: As in the class; learned from ``Y``.
            optimize_noise: First set the model's noise variance to its exact optimum.
        """
        if X.ndim != 2 or Y.ndim != 2 or len(X) != len(Y):
            raise DataError(
                "X and Y must be (rows, columns) and (rows, outcomes) of the same rows, but have shapes "
                f"{tuple(X.shape)} and {tuple(Y.shape)}:",
                "rows with batch dimensions go to condition_on_observations.",
            )
        if Yvar is not None and optimize_noise:
            raise DataError("optimize_noise changes the noise that Yvar fixes:", "give one of them.")
        X, Y = X.detach().double(), Y.detach().double()
        Yvar = None if Yvar is None else Yvar.detach().double()
        if input_transform is not None:
            input_transform = copy.deepcopy(input_transform).double().train()
            X = input_transform(X)
        if outcome_transform is not None:
            outcome_transform = copy.deepcopy(outcome_transform).double().train()
            Y, Yvar = outcome_transform(Y, Yvar, X=X)
        weights = None if Yvar is None else model.noise_variance / _one_noise(Yvar)
        fitted = model.condition(ArraySource(X, Y, weights), optimize_noise=optimize_noise)
        return cls(fitted, input_transform=input_transform, outcome_transform=outcome_transform)

    @property
    def num_outputs(self) -> int:
        """The number of outcomes."""
        return self.fitted.posterior.statistics.num_targets

    @property
    def batch_shape(self) -> torch.Size:
        """The batch dimensions of the observations: none, unless the model was conditioned on batches of rows."""
        if self._batch_rows is None:
            return torch.Size()
        return _broadcast(self._batch_rows.whitened.shape[:-2], self._batch_rows.residuals.shape[:-2])

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """The joint posterior over q points.

        Args:
            X: ``(*batch, q, columns)``, in the units before the input transform.
            output_indices: The outcomes to predict; None for all.
            observation_noise: Whether to add the model's noise; or noise variances ``(*batch, q, outcomes)``, after
                the outcome transform, as everywhere in BoTorch.
            posterior_transform: A BoTorch posterior transform.
        """
        if output_indices is not None:
            return self.subset_output(output_indices).posterior(X, None, observation_noise, posterior_transform)
        inputs = self._transformed(X)
        features, own_noise = self._features(inputs)
        mean, covariance = self._moments(features)
        covariance = covariance + self.fitted.residual_covariance(inputs, features)
        mean, covariance = mean.mT, covariance.unsqueeze(-3)  # outcomes before points: each is a Gaussian of its own
        covariance = covariance.expand(*mean.shape, mean.shape[-1])
        if isinstance(observation_noise, Tensor):
            covariance = covariance + torch.diag_embed(observation_noise.to(mean).mT.expand_as(mean))
        elif observation_noise:
            covariance = covariance + torch.diag_embed(own_noise.unsqueeze(-2).expand_as(mean))
        if self.num_outputs == 1:
            normal = MultivariateNormal(mean.squeeze(-2), to_linear_operator(covariance.squeeze(-3)))
        else:
            outcomes = MultivariateNormal(mean, to_linear_operator(covariance))
            normal = MultitaskMultivariateNormal.from_batch_mvn(outcomes, task_dim=-1)
        posterior: Posterior = GPyTorchPosterior(normal)
        if hasattr(self, "outcome_transform"):
            posterior = self.outcome_transform.untransform_posterior(posterior, X=X)
        return posterior if posterior_transform is None else posterior_transform(posterior=posterior, X=X)

    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: object
    ) -> FeatureGPModel:
        """The model with more rows, exactly; this model stays as it is.

        Rows without batch dimensions and gradients go into the row sums: keep conditioning, and the cost stays. Others
        (fantasies) are kept beside them.

        Args:
            X: ``(*batch, rows, columns)``, in the units before the input transform.
            Y: ``(*batch, rows, outcomes)``, in the units before the outcome transform.
            noise: ``(*batch, rows, outcomes)`` known noise variances, after the outcome transform, as everywhere in
                BoTorch; None for the model's own.
            **kwargs: Not used.
        """
        if Y.ndim < 2 or Y.shape[-2:] != (X.shape[-2], self.num_outputs):
            raise DataError(
                f"Y must be (*batch, {X.shape[-2]} rows, {self.num_outputs} outcomes), but has shape "
                f"{tuple(Y.shape)}: give one row for each row of X, and a last dimension for the outcomes."
            )
        inputs, Y = self._transformed(X), Y.double()
        if hasattr(self, "outcome_transform"):
            Y, _ = self.outcome_transform(Y, X=X)
        features, row_noise = self._features(inputs)
        if noise is not None:
            row_noise = _one_noise(noise.to(features))
        if self.feature_gp.unseen_scale:
            own = torch.log(row_noise / self.feature_gp.noise_variance).expand(features.shape[:-1]).reshape(-1)
            whole = self.feature_gp.with_unseen(features.reshape(-1, features.shape[-1]), own)
            assert whole is not None
            row_noise = self.feature_gp.noise_variance * whole.exp().reshape(features.shape[:-1])
        if self._batch_rows is None and features.ndim == Y.ndim == 2 and not (X.requires_grad or Y.requires_grad):
            log_scale = torch.log(row_noise / self.feature_gp.noise_variance).expand(len(features))
            return self._with(self.fitted.posterior.update(FeatureStatistics.from_batch(features, Y, log_scale)))
        residuals = Y - features @ self.fitted.posterior.weight_mean
        new = _BatchRows(self._whiten(features), residuals, row_noise.expand(features.shape[:-1]))
        result = self._with(self.fitted.posterior)
        result._batch_rows = new if self._batch_rows is None else self._batch_rows + new
        whitened = result._batch_rows.whitened
        result._batch_lower = psd_safe_cholesky(whitened @ whitened.mT + torch.diag_embed(result._batch_rows.noise))
        return result

    def subset_output(self, idcs: Sequence[int]) -> FeatureGPModel:
        """The model of some of the outcomes."""
        statistics, chosen = self.fitted.posterior.statistics, list(idcs)
        subset = FeatureStatistics(
            gram=statistics.gram,
            projected_targets=statistics.projected_targets[:, chosen],
            target_sum_of_squares=statistics.target_sum_of_squares[chosen],
            log_scale_sum=statistics.log_scale_sum,
            num_data=statistics.num_data,
        )
        result = self._with(WeightPosterior(subset, self.fitted.posterior.noise_variance))
        if hasattr(self, "outcome_transform"):
            result.outcome_transform = self.outcome_transform.subset_output(idcs=chosen)
        if self._batch_rows is not None:
            result._batch_rows = self._batch_rows._replace(residuals=self._batch_rows.residuals[..., chosen])
            result._batch_lower = self._batch_lower
        return result

    def _set_transformed_inputs(self) -> None:
        """Nothing: BoTorch would transform the training inputs here, but row sums are of transformed rows already."""

    def _with(self, posterior: WeightPosterior) -> FeatureGPModel:
        return FeatureGPModel(
            FittedGP(self.feature_gp, posterior, chunk_size=self.fitted.chunk_size),
            input_transform=getattr(self, "input_transform", None),
            outcome_transform=getattr(self, "outcome_transform", None),
        )

    def _transformed(self, X: Tensor) -> Tensor:
        if X.ndim < 2:
            raise DataError(f"X must be (*batch, points, columns), but has shape {tuple(X.shape)}: add dimensions.")
        self.eval()
        transformed: Tensor = self.transform_inputs(X.double())
        return transformed

    def _features(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Features ``(*batch, q, d)`` and noise variances ``(*batch, q)``, with gradients to the inputs."""
        flat, log_scale = self.feature_gp(inputs.reshape(-1, inputs.shape[-1]))
        flat = flat.double()
        noise = flat.new_full((len(flat),), self.fitted.posterior.noise_variance)
        if log_scale is not None:
            noise = noise * log_scale.double().exp()
        return flat.reshape(*inputs.shape[:-1], flat.shape[-1]), noise.reshape(inputs.shape[:-1])

    def _whiten(self, features: Tensor) -> Tensor:
        r""":math:`h = \sqrt{s} L^{-1} z`, whose inner products are the posterior covariance that the row sums give."""
        posterior = self.fitted.posterior
        flat = posterior.factor.half_solve(features.reshape(-1, features.shape[-1]).mT).mT
        whitened: Tensor = posterior.noise_variance**0.5 * flat.reshape(features.shape)
        return whitened

    def _moments(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean ``(*batch, q, outcomes)`` and covariance ``(*batch, q, q)`` of the noise-free function."""
        whitened = self._whiten(features)
        mean, covariance = features @ self.fitted.posterior.weight_mean, whitened @ whitened.mT
        if self._batch_rows is not None and self._batch_lower is not None:
            cross = self._batch_rows.whitened @ whitened.mT  # rows x q
            half = torch.linalg.solve_triangular(self._batch_lower, cross, upper=False)
            innovation = torch.linalg.solve_triangular(self._batch_lower, self._batch_rows.residuals, upper=False)
            mean, covariance = mean + half.mT @ innovation, covariance - half.mT @ half
        return mean, covariance


class _WeightPath(SamplePath):
    """Functions drawn from the posterior: exact, because each is a vector of weights.

    Args:
        model: Where the features and transforms are from.
        weights: ``(*samples, d)`` for one outcome, ``(*samples, outcomes, d)`` for several.
    """

    def __init__(self, model: FeatureGPModel, weights: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("weights", weights)

    def forward(self, X: Tensor) -> Tensor:
        """Values, shaped as BoTorch asks: outcomes, if several, are the last batch dimension."""
        features, _ = self.model._features(self.model._transformed(X))
        values: Tensor = (features @ self.weights.unsqueeze(-1)).squeeze(-1)
        if not hasattr(self.model, "outcome_transform"):
            return values
        single = self.model.num_outputs == 1
        values, _ = self.model.outcome_transform.untransform(values.unsqueeze(-1) if single else values.mT)
        return values.squeeze(-1) if single else values.mT

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Nothing: the model is no ensemble."""


@DrawMatheronPaths.register(FeatureGPModel)  # type: ignore[untyped-decorator]
def _draw_paths(model: FeatureGPModel, *, sample_shape: torch.Size, **_: object) -> _WeightPath:
    if model._batch_rows is not None:
        raise DataError(
            "Functions of a model that was conditioned on batches of rows cannot be drawn:",
            "draw them from a model of plain rows, (rows, columns) without gradients.",
        )
    draws = model.fitted.posterior.sample_weights(max(sample_shape.numel(), 1)).mT  # (samples, outcomes, d)
    shape = draws.shape[1:] if model.num_outputs > 1 else draws.shape[2:]
    return _WeightPath(model, draws.reshape(*sample_shape, *shape))


def _one_noise(noise: Tensor) -> Tensor:
    """The noise variances of rows ``(*batch, rows)``, which must be those of all outcomes."""
    if not bool((noise > 0.0).all()):
        raise DataError("Noise variances must be positive:", "leave them out to use the model's own noise.")
    if not torch.allclose(noise, noise[..., :1], rtol=1e-12, atol=0.0):
        raise DataError(
            "The outcomes of a row must have the same noise variance (after the outcome transform), because they share "
            "features and row sums:",
            "make one model for each outcome and join them with botorch.models.model.ModelList.",
        )
    return noise[..., 0]


def _concatenate(first: Tensor, second: Tensor, kept: int) -> Tensor:
    """Both along their rows, the first of the last ``kept`` dimensions, with the dimensions before broadcast."""
    batch = _broadcast(first.shape[:-kept], second.shape[:-kept])
    return torch.cat([part.expand(*batch, *part.shape[-kept:]) for part in (first, second)], dim=-kept)


def _broadcast(first: torch.Size, second: torch.Size) -> torch.Size:
    return torch.Size(torch.broadcast_shapes(first, second))  # type: ignore[no-untyped-call]
