"""``FeatureGP``: a feature map with a noise model, and ``FittedGP``: that model conditioned on data."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Literal, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from .arguments import check_arguments, check_at_least_one
from .data.arrays import ArraySource
from .data.iterables import as_source
from .data.sources import Data, Rows, Source, no_targets
from .errors import DataError, FeatureMapError
from .features import count_features
from .features.composition import Combining, Pullback, PullbackMap
from .features.landmarks import landmark_parts, landmarks_of, residual_variance, unseen_variance
from .frozen import PIECE_ROWS, FrozenGP, FrozenModel, Precision, pieces
from .likelihood import (
    MarginalLikelihood,
    NoiseOptimum,
    likelihood_in_passes,
    optimal_noise,
)
from .noise import ConstantNoise, NoiseModel
from .posterior import WeightPosterior
from .predictive import Prediction
from .single_precision import SinglePrecisionGP
from .statistics import WHOLE, FeatureStatistics, RunningSums, Share


class TracedFeatures(NamedTuple):
    """The features of a batch, and the way back to the parameters.

    Attributes:
        features: ``(rows, d)``, detached.
        log_noise_scale: ``(rows,)``, detached, or None.
        pullback: The feature map's own backward pass, where nothing but the features needs a gradient; or None.
        outputs: Otherwise features and log noise scales as autograd knows them.
    """

    features: Tensor
    log_noise_scale: Tensor | None
    pullback: Pullback | None
    outputs: tuple[Tensor | None, ...] = ()


@check_arguments
class FeatureGP(nn.Module):
    r"""A Gaussian process with kernel :math:`k(x, x') = a\,\phi(x)'\phi(x')` and noise :math:`s\,v(x)`.

    Args:
        feature_map: Any ``nn.Module`` that maps ``(rows, columns)`` to ``(rows, d)``.
        noise_variance: Initial noise variance ``s`` in squared units of the target. Its logarithm is stored in float64
            if the feature map is float64, and otherwise in torch's default type, whose rounding :meth:`double` keeps:
            exact copies of a float32 model have the noise that the model has.
        noise_model: A :class:`ConstantNoise` or :class:`InputNoise` instead of ``noise_variance``.
        output_scale: The factor ``a`` on the kernel, stored as a logarithm.
        learn_output_scale: Whether gradients reach ``output_scale``. Off by default: a network's last layer can
            scale its own output.

    Data are ``(inputs, targets)`` arrays, a :class:`~finitegp.data.ArraySource`, or any re-iterable of chunks.
    Exact passes run a float64 copy of the feature map, so a float32 network gives values that can be trusted.

    Attributes:
        unseen_scale: What the variance of a row that its features on landmarks do not see adds to the row's noise scale
            ``v`` in sums and evidence, per unit. Zero by default: nothing. ``1 / s`` makes it noise of this row (FITC).
            Kernels of small tables have it, for rows that are no landmarks: those that :meth:`FittedGP.update` adds.

    Example:
        >>> inputs = torch.linspace(-1, 1, 50)[:, None]
        >>> targets = 2 * inputs[:, 0] + 0.5
        >>> line = nn.Linear(1, 2)  # any module
        >>> fitted = FeatureGP(line, noise_variance=1e-4).condition((inputs, targets))
        >>> prediction = fitted.predict(torch.tensor([[0.25]]))
        >>> abs(float(prediction.mean) - 1.0) < 0.01
        True
    """

    unseen_scale: float = 0.0

    def __init__(
        self,
        feature_map: nn.Module,
        noise_variance: float | None = None,
        *,
        noise_model: NoiseModel | None = None,
        output_scale: float = 1.0,
        learn_output_scale: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(feature_map, nn.Module):
            raise TypeError(f"feature_map must be a torch nn.Module, but is a {type(feature_map).__name__}.")
        if noise_variance is not None and noise_model is not None:
            raise ValueError("Give noise_variance or noise_model, not both: the noise model holds the variance.")
        self.feature_map = feature_map
        wide = torch.float64 if _float_type(feature_map) == torch.float64 else None
        variance = 0.1 if noise_variance is None else noise_variance
        self.noise: NoiseModel = noise_model or ConstantNoise(variance, dtype=wide)
        self.log_output_scale = nn.Parameter(torch.zeros((), dtype=wide), requires_grad=learn_output_scale)
        self.set_output_scale(output_scale)
        # Of the features last computed by `checked_forward`: a module may cast to a coarser type than its own, and a
        # likelihood is only as good as its features.
        self.feature_rounding = 0.0

    @property
    def noise_variance(self) -> float:
        """The noise variance ``s`` (for input-dependent noise, the common factor)."""
        return self.noise.variance

    @property
    def output_scale(self) -> float:
        """The factor ``a`` on the kernel."""
        return math.exp(float(self.log_output_scale.detach()))

    def set_output_scale(self, output_scale: float) -> None:
        """Set the factor on the kernel in place, for example to a closed-form optimum."""
        if not 0.0 < output_scale < math.inf:
            raise ValueError(f"output_scale must be positive and finite, but is {output_scale}.")
        with torch.no_grad():
            self.log_output_scale.fill_(math.log(output_scale))

    @property
    def dtype(self) -> torch.dtype:
        """The float type that the feature map computes in."""
        return _float_type(self.feature_map) or self.log_output_scale.dtype

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return self.log_output_scale.device

    def count_features(self, input_dim: int | None = None) -> int:
        """The number of features ``d``: as the feature map declares it, or else as one probe finds it."""
        return count_features(self.feature_map, input_dim)

    def forward(self, inputs: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Features ``(rows, d)`` and log noise scales ``(rows,)`` or None, with gradients attached.

        Args:
            inputs: ``(rows, columns)``, already of the model's type and device.
            weights: ``(rows,)`` row weights; a weight divides the row's noise variance.
        """
        scales_output = self.scales_output()
        features: Tensor = self.feature_map(inputs)
        log_scale = self.noise.log_scale(inputs, features) if self.noise.varies else None
        if scales_output:
            features = features * torch.exp(0.5 * self.log_output_scale)
        if weights is not None:
            log_weights = weights.log().to(features)
            log_scale = -log_weights if log_scale is None else log_scale - log_weights
        return features, log_scale

    def trace(self, inputs: Tensor, weights: Tensor | None = None) -> TracedFeatures:
        """:meth:`forward` for a training step: features and log noise scales detached, and the way back.

        Uses the feature map's own ``forward_with_pullback`` where there is one and nothing else needs a gradient
        through the features; otherwise autograd.
        """
        declared = getattr(self.feature_map, "has_pullback", False)
        if declared and not self.noise.varies and not self.scales_output():
            features, pullback = cast("PullbackMap", self.feature_map).forward_with_pullback(inputs)
            log_scale = None if weights is None else -weights.log()
            return TracedFeatures(features, log_scale, pullback)
        features, log_scale = outputs = self(inputs, weights)
        return TracedFeatures(features.detach(), None if log_scale is None else log_scale.detach(), None, outputs)

    def scales_output(self) -> bool:
        """Whether the output scale is trained or other than one."""
        return self.log_output_scale.requires_grad or self.log_output_scale.item() != 0.0

    def checked_forward(self, rows: Rows) -> tuple[Tensor, Tensor | None]:
        """:meth:`forward` on one chunk, cast to the model's type and device, with the output's shape checked."""
        inputs = _checked_inputs(self, rows)
        weights = None if rows.weights is None else rows.weights.to(self.device)
        try:
            features, log_scale = self(inputs, weights)
        except RuntimeError as error:
            what = "The feature map or the noise model" if self.noise.varies else "The feature map"
            raise FeatureMapError(
                f"{what} failed on inputs of shape {tuple(inputs.shape)} and type {inputs.dtype}: "
                f"{str(error).rstrip('.')}. Tensors of its own have to be parameters or buffers, so that they change "
                "type and device with the model."
            ) from error
        if (
            not isinstance(features, Tensor)
            or features.ndim != 2
            or len(features) != len(inputs)
            or not features.numel()
        ):
            found = f"shape {tuple(features.shape)}" if isinstance(features, Tensor) else f"a {type(features).__name__}"
            raise FeatureMapError(
                f"The feature map must return (rows, features) with {len(inputs)} rows, but returned {found}."
            )
        coarse = features.is_floating_point() and features.dtype != torch.float64
        self.feature_rounding = torch.finfo(features.dtype).eps if coarse else 0.0
        return features, log_scale

    def summed_forward(self, rows: Rows) -> tuple[Tensor, Tensor | None]:
        """:meth:`checked_forward` as the row sums have it: what landmarks do not see of a row may be noise."""
        features, log_scale = self.checked_forward(rows)
        return features, self.with_unseen(features, log_scale)

    def with_unseen(self, features: Tensor, log_scale: Tensor | None) -> Tensor | None:
        """Log noise scales ``(rows,)`` or None with what ``unseen_scale`` adds to them."""
        if not self.unseen_scale:
            return log_scale
        output_scale = self.output_scale
        unseen = unseen_variance(self.feature_map, features / math.sqrt(output_scale))
        if unseen is None:
            return log_scale
        added = torch.log(self.unseen_scale * output_scale * unseen)  # minus infinity where everything is seen
        return torch.logaddexp(torch.zeros_like(added) if log_scale is None else log_scale, added)

    def exact_copy(self) -> FeatureGP:
        """A float64 copy in evaluation mode that shares no memory with this model."""
        return copy.deepcopy(self).to(torch.float64).eval()

    def freeze(self, precision: Precision = np.float64) -> FrozenModel | None:
        """Features and noise with their present values in less time than the modules take; None if these are others."""
        return FrozenModel.of(self.feature_map, self.noise, self.output_scale, precision)

    @torch.no_grad()
    def statistics(self, data: Data) -> FeatureStatistics:
        """The row sums of the data in one pass, in memory that does not depend on the number of rows.

        Of rows that several processes share (:meth:`.Ranks.shard`), each reads its share; all get the sums over all.
        """
        exact = self.exact_copy()
        source = as_source(data)
        return exact.sum_statistics(source)

    def partial_statistics(self, data: Data, *, share: Share = WHOLE) -> Iterator[FeatureStatistics]:
        """The row sums of each chunk in turn, in the model's own float type (:meth:`statistics` uses float64)."""
        for rows in as_source(data).part(share):
            sums = RunningSums()
            self.add_rows(sums, rows)
            yield sums.total()
            del rows, sums  # not kept while the next chunk passes

    def sum_rows(self, data: Data, *, share: Share = WHOLE) -> RunningSums:
        """The row sums of a share of the data, added up in one matrix."""
        sums, frozen = RunningSums(), self.freeze()
        for rows in as_source(data).part(share):
            self.add_rows(sums, rows, frozen)
            del rows  # not kept while the next chunk passes
        return sums

    def sum_statistics(self, source: Source) -> FeatureStatistics:
        """:meth:`statistics` in the model's own float type."""
        few = source.num_data is not None and source.num_data <= PIECE_ROWS
        frozen = None if few else self.freeze()  # to take a model apart pays for more rows than pass at once
        return source.sums.sum_rows(source, lambda sums, rows: self.add_rows(sums, rows, frozen))

    def add_rows(self, sums: RunningSums, rows: Rows, frozen: FrozenModel | None = None) -> None:
        """Add the row sums of one chunk, in the model's own float type."""
        if rows.targets is None:
            raise no_targets()
        parts: Iterable[tuple[Rows, Tensor, Tensor | None]]
        if frozen is None or rows.weights is not None:
            parts = [(rows, *self.summed_forward(rows))]
        else:
            parts = self._pieces(rows, frozen)
        for part, features, log_scale in parts:
            assert part.targets is not None
            try:
                sums.add(features, part.targets, log_scale, counts=part.counts)
            except DataError as error:
                raise FeatureMapError(f"The feature map's output cannot be used: {error}") from error

    def _pieces(self, rows: Rows, frozen: FrozenModel) -> Iterator[tuple[Rows, Tensor, Tensor | None]]:
        """The rows in pieces, with their features and log noise scales."""
        _check_columns(self.feature_map, rows)
        self.feature_rounding = 0.0
        for part, columns in pieces(rows.inputs):
            features, log_scale = frozen(columns)
            scales = None if log_scale is None else torch.from_numpy(log_scale)
            yield rows.take(part), torch.from_numpy(features.T), scales

    @torch.no_grad()
    def likelihood(self, data: Data) -> MarginalLikelihood:
        """The exact negative log marginal likelihood of the data with its named terms.

        One pass over the rows, and a second one where the noise is so small that the first would cancel.

        Raises:
            NumericalError: If even two passes in float64 cannot give four digits.
        """
        exact = self.exact_copy()
        source = as_source(data)
        statistics = exact.sum_statistics(source)
        rounding = source.sums.largest(exact.feature_rounding)

        def residual_squares(weights: Tensor) -> float:
            found: list[float] = []
            source.sums.each_chunk(source, lambda rows: found.append(exact.residual_squares(rows, weights)))
            return source.sums.add_number(sum(found))

        return likelihood_in_passes(statistics, exact.noise.variance, residual_squares, feature_rounding=rounding)

    def residual_squares(self, rows: Rows, weights: Tensor) -> float:
        """The sum of squared residuals of one chunk at these weights, each divided by its row's noise scale."""
        features, log_scale = self.summed_forward(rows)
        residuals = features.to(torch.float64) @ weights - rows.observed.to(features.device)
        if log_scale is not None:
            residuals = residuals * torch.exp(-0.5 * log_scale)[:, None]
        if rows.counts is not None:
            residuals = residuals * rows.counts.to(residuals).sqrt()[:, None]
        return float(residuals.square().sum())

    def nlml(self, data: Data) -> float:
        """The exact negative log marginal likelihood per row."""
        return self.likelihood(data).nlml

    def optimize_noise(self, data: Data, *, optimize_output_scale: bool = False) -> NoiseOptimum:
        """Set the noise variance (and output scale) to its exact optimum for the present features, in one pass."""
        optimum = optimal_noise(self.statistics(data), optimize_output_scale=optimize_output_scale)
        self.noise.set_variance(optimum.noise_variance)
        if optimize_output_scale:
            self.set_output_scale(self.output_scale * optimum.output_scale)
        return optimum

    def condition(self, data: Data, *, optimize_noise: bool = False) -> FittedGP:
        """The exact posterior given the data: one pass. Later changes of this model do not reach the result.

        ``optimize_noise`` first sets the noise variance as :meth:`optimize_noise` does, within the same pass.
        """
        exact = self.exact_copy().requires_grad_(False)
        statistics = exact.sum_statistics(as_source(data))
        if optimize_noise:
            for model in (self, exact):
                model.noise.set_variance(optimal_noise(statistics).noise_variance)
        return FittedGP(exact, WeightPosterior(statistics, exact.noise.variance))


def _checked_inputs(model: FeatureGP, rows: Rows) -> Tensor:
    """The inputs of one chunk in the model's type and on its device, with their number of columns checked."""
    _check_columns(model.feature_map, rows)
    return rows.inputs.to(device=model.device, dtype=model.dtype)


def _check_columns(feature_map: nn.Module, rows: Rows) -> None:
    """An error if the feature map takes another number of columns."""
    expected, columns = getattr(feature_map, "input_dim", None), rows.inputs.shape[1]
    if isinstance(expected, int) and columns != expected:
        raise DataError(f"The feature map takes {expected} input columns, but got {columns}.")


def _float_type(feature_map: nn.Module) -> torch.dtype | None:
    """The float type that a feature map computes in; None if it has no tensors that show it."""
    tensors = (*feature_map.parameters(), *feature_map.buffers())
    return next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), None)


@check_arguments
class FittedGP:
    """A model with its exact posterior: predicts, samples, leaves one out, takes up and forgets rows.

    It keeps the feature map and the row sums, not the rows. Made by :meth:`FeatureGP.condition`.

    Attributes:
        model: The float64 model, frozen.
        posterior: The :class:`WeightPosterior`.
        chunk_size: How many rows of arrays pass through the model at once: memory grows with it, results do not.
    """

    def __init__(self, model: FeatureGP, posterior: WeightPosterior, *, chunk_size: int = 4096) -> None:
        self.model = model
        self.posterior = posterior
        check_at_least_one(chunk_size=chunk_size)
        self.chunk_size = chunk_size
        self._has_landmarks = landmarks_of(model.feature_map) is not None
        self._frozen: FrozenGP | Literal["not made"] | None = "not made"
        self._rounded: SinglePrecisionGP | None = None

    def __getstate__(self) -> dict[str, object]:
        """Everything but what is made of it."""
        return self.__dict__ | {"_frozen": "not made", "_rounded": None}

    @torch.no_grad()
    def predict(
        self, inputs: ArrayLike, *, return_covariance: bool = False, chunk_size: int | None = None
    ) -> Prediction:
        """Predict new observations at ``inputs`` of shape ``(rows, columns)``, ``chunk_size`` rows at a time.

        ``chunk_size`` is that of the object by default.
        ``return_covariance`` adds the ``(rows, rows)`` covariance of the noise-free function.
        """
        source = ArraySource(inputs, chunk_size=chunk_size or self.chunk_size)
        parts = []
        for rows in source.with_chunks(source.num_data) if return_covariance else source:
            parts.append(self.predict_rows(rows, return_covariance=return_covariance))
            del rows  # not kept while the next chunk passes
        return Prediction.concatenate(parts)

    @torch.no_grad()
    def predict_rows(self, rows: Rows, *, return_covariance: bool = False, rounded: bool = False) -> Prediction:
        """:meth:`predict` for rows whose values have been checked, all at once.

        ``rounded`` is in float32 where that is next to float64 (:mod:`.single_precision`).
        """
        frozen = None if return_covariance else self._freeze(rows, rounded)
        if frozen is not None:
            return frozen.predict(rows.inputs)
        scale = self.model.output_scale
        features, log_scale = self.model.checked_forward(rows)
        unseen = residual_variance(self.model.feature_map, features, scale) if self._has_landmarks else None
        found = self.posterior.predict(features, log_scale, unseen_variance=unseen, return_covariance=return_covariance)
        if found.covariance is None or not self._has_landmarks:
            return found
        lost = self.residual_covariance(rows.inputs, features).to(found.covariance)
        return replace(found, covariance=found.covariance + lost)

    def _freeze(self, rows: Rows, rounded: bool = False) -> FrozenGP | SinglePrecisionGP | None:
        """A faster form of the posterior; None if the modules are not known to it or rows have weights."""
        if self._frozen == "not made":
            frozen = self.model.freeze()
            self._frozen = None if frozen is None else FrozenGP(frozen, self.posterior)
        if self._frozen is None or rows.weights is not None:
            return None
        _check_columns(self.model.feature_map, rows)
        if not rounded:
            return self._frozen
        if self._rounded is None:
            single = self.model.freeze(np.float32)
            assert single is not None
            scale, columns = self.model.noise.least_scale, rows.inputs.shape[1]
            self._rounded = SinglePrecisionGP(self._frozen, single, self.posterior, scale, columns)
        return self._rounded

    def residual_covariance(self, inputs: Tensor, features: Tensor) -> Tensor:
        """``(*batch, rows, rows)`` covariance of what features on landmarks do not see; zero without landmarks."""
        scale = self.model.output_scale
        total = torch.zeros(*inputs.shape[:-1], inputs.shape[-2], dtype=torch.float64)
        for part, mine in landmark_parts(self.model.feature_map, features / math.sqrt(scale)):
            total = total + scale * part.residual_covariance(inputs.to(mine), mine)
        return total

    @torch.no_grad()
    def predict_mean(self, inputs: ArrayLike) -> Tensor:
        """Only the mean, at a fraction of the cost."""
        return torch.cat([self.mean_of_rows(rows) for rows in ArraySource(inputs, chunk_size=self.chunk_size)])

    @torch.no_grad()
    def mean_of_rows(self, rows: Rows, *, rounded: bool = False) -> Tensor:
        """:meth:`predict_mean` for rows whose values have been checked, all at once; ``rounded`` as above."""
        weights = self.posterior.weight_mean
        feature_map = self.model.feature_map
        frozen = self._freeze(rows, rounded)
        if frozen is not None:
            mean = frozen.mean(rows.inputs)
        elif self._has_landmarks and isinstance(feature_map, Combining):
            mean = feature_map.combine(_checked_inputs(self.model, rows), math.sqrt(self.model.output_scale) * weights)
        else:
            mean = self.model.checked_forward(rows)[0].to(weights) @ weights
        return mean[:, 0] if mean.shape[1] == 1 else mean

    @torch.no_grad()
    def predict_chunks(self, data: Data) -> Iterator[Prediction]:
        """Predictions for the rows of any source, chunk by chunk: for more rows than fit in memory.

        The source needs no targets. A chunk has as many rows as the source yields at once.
        """
        for rows in as_source(data):
            yield self.predict_rows(rows)
            del rows  # not kept while the next chunk passes

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Callable[[ArrayLike], Tensor]:
        """Draw functions from the posterior: the result maps inputs to ``(num_samples, rows[, t])``.

        The draws live in weight space, so one result is the same functions wherever and however often it is called.
        """
        weights = self.posterior.sample_weights(num_samples, torch.Generator().manual_seed(int(seed)))

        @torch.no_grad()
        def functions(inputs: ArrayLike) -> Tensor:
            parts = [
                torch.einsum("rd,kdt->krt", features.to(weights), weights) for features, _ in self._features(inputs)
            ]
            values = torch.cat(parts, dim=1)
            return values[:, :, 0] if values.shape[2] == 1 else values

        return functions

    @torch.no_grad()
    def leave_one_out(self, data: Data) -> Prediction:
        """For each training row, the prediction of the posterior without it: closed form, one pass over the data."""
        return self.leave_out(data)[0]

    @torch.no_grad()
    def leave_out(self, data: Data) -> tuple[Prediction, Tensor]:
        """:meth:`leave_one_out`, and the noise variance ``(rows,)`` that each row has in the sums."""
        parts, noises = [], []
        for rows in as_source(data, chunk_size=self.chunk_size):
            features, own = self.model.checked_forward(rows)
            log_scale = self.model.with_unseen(features, own)
            targets = rows.observed.to(features.device)
            scale = self.model.output_scale
            unseen = residual_variance(self.model.feature_map, features, scale) if self._has_landmarks else None
            left_out = self.posterior.leave_one_out(features, targets, log_scale, unseen_variance=unseen)
            noises.append(noise := left_out.noise_variance)
            if log_scale is not own:  # what is not seen is of the function, where a new observation is predicted
                own = torch.zeros_like(noise) if own is None else own.to(noise)
                left_out = replace(left_out, noise_variance=self.posterior.noise_variance * own.exp())
            parts.append(left_out)
        return Prediction.concatenate(parts), torch.cat(noises)

    def update(self, data: Data) -> FittedGP:
        """The posterior with more rows, at a cost that does not depend on how many there were before."""
        return self._with(self.posterior.update(self._statistics(data)))

    def forget(self, data: Data) -> FittedGP:
        """The posterior without these rows, as if they had never been seen."""
        return self._with(self.posterior.forget(self._statistics(data)))

    def merge(self, other: FittedGP) -> FittedGP:
        """The posterior of both data sets; both must have the same feature map and noise."""
        mine, theirs = self.model.state_dict(), other.model.state_dict()
        same = mine.keys() == theirs.keys() and self.model.unseen_scale == other.model.unseen_scale
        if not same or not all(torch.equal(mine[key], theirs[key]) for key in mine):
            raise DataError("Only posteriors of the same model can be merged, but the parameters differ.")
        return self._with(self.posterior.merge(other.posterior))

    def _with(self, posterior: WeightPosterior) -> FittedGP:
        return FittedGP(self.model, posterior, chunk_size=self.chunk_size)

    def _statistics(self, data: Data) -> FeatureStatistics:
        return self.model.statistics(as_source(data, chunk_size=self.chunk_size))

    @torch.no_grad()
    def features(self, inputs: ArrayLike, *, chunk_size: int | None = None) -> tuple[Tensor, Tensor | None]:
        """Features ``(rows, d)`` and log noise scales ``(rows,)`` or None, for several posteriors of one model."""
        parts = list(self._features(inputs, chunk_size))
        scales = [scale for _, scale in parts if scale is not None]
        return torch.cat([features for features, _ in parts]), torch.cat(scales) if scales else None

    def _features(self, inputs: ArrayLike, chunk_size: int | None = None) -> Iterator[tuple[Tensor, Tensor | None]]:
        for rows in ArraySource(inputs, chunk_size=chunk_size or self.chunk_size):
            yield self.model.checked_forward(rows)
