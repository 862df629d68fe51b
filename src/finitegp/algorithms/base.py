"""The interface of a training algorithm: what one mini-batch step does, and the gradient of the NLML in its rows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ..arguments import check_arguments, check_at_least_one, check_positive
from ..data.sources import Data, Rows, no_targets
from ..distributed import ALONE, Ranks
from ..errors import DataError
from ..model import FeatureGP, TracedFeatures

_Found = TypeVar("_Found")


class BatchGradient(NamedTuple):
    """What :meth:`Algorithm.gradient` leaves for tracking: the batch's features and residuals, without gradients.

    Attributes:
        features: ``(rows, d)``.
        log_noise_scale: ``(rows,)`` or None.
        loss: Scalar tensor: the mean squared residual in units of the noise; about one when the noise is right.
        noise_variance: The noise variance that the gradient was taken at.
    """

    features: Tensor
    log_noise_scale: Tensor | None
    loss: Tensor
    noise_variance: float


@check_arguments
class Algorithm(nn.Module, ABC):
    """One mini-batch algorithm: sets gradients of the NLML **per row**, and keeps what it tracks as buffers.

    An algorithm owns no optimizer. A step is: gradients from the batch, one step of any torch optimizer, projection
    onto the constraints, tracking.

    Args:
        model: The model to train, in place.
        num_data: The number of rows ``n`` that the batches are drawn from.
        input_dim: The number of input columns, if the feature map does not know it.
        num_targets: The number of target columns.
        minimum_noise_variance: The noise variance is kept at or above this.

    Attributes:
        micro_batch_size: The most rows of a batch that pass through the feature map at once, to save memory; None
            passes all. ``train`` sets it.
        ranks: The processes that make each step together. :meth:`share_steps` sets it.
    """

    #: How many separately drawn batches one step takes.
    batches_per_step: int = 1

    #: Whether the gradient of a batch is the mean over its rows (plus what no row changes), so that it can be made
    #: from parts of the batch.
    has_mean_gradient: bool = True

    #: Whether the algorithm keeps the same state on several ranks, each of which has a part of every batch.
    supports_ranks: bool = False

    def __init__(
        self,
        model: FeatureGP,
        num_data: int,
        *,
        input_dim: int | None = None,
        num_targets: int = 1,
        minimum_noise_variance: float = 1e-8,
    ) -> None:
        super().__init__()
        check_at_least_one(num_data=num_data, num_targets=num_targets)
        check_positive(minimum_noise_variance=minimum_noise_variance)
        self.model = model
        self.num_data = num_data
        self.num_targets = num_targets
        # What an algorithm keeps is made in the model's type, or in float64, and beside it.
        self._narrow: dict[str, Any] = {"dtype": model.dtype, "device": model.device}
        self._wide: dict[str, Any] = {**self._narrow, "dtype": torch.float64}
        self.num_features = model.count_features(input_dim)
        self.minimum_log_noise = math.log(minimum_noise_variance)
        self.micro_batch_size: int | None = None
        self.ranks = ALONE

    def share_steps(self, ranks: Ranks) -> None:
        """Make the steps together with other ranks: each gets a part of every batch and ends with the same state."""
        if ranks.world_size > 1:
            name = type(self).__name__
            if not self.has_mean_gradient:
                raise ValueError(
                    f"{name} as it is set cannot be trained on several ranks: its gradient is not a mean over the rows "
                    "of a batch. Use Lagged, or one process."
                )
            if not self.supports_ranks:
                raise ValueError(f"{name} cannot be trained on several ranks: use Lagged, or one process.")
            for module in self.model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
                    raise ValueError(
                        f"The model has a {type(module).__name__}, which would see only a rank's own rows: use a layer "
                        "that takes each row by itself, such as LayerNorm, or call eval() on it."
                    )
        self.ranks = ranks

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Parameter groups for a torch optimizer; an entry ``rate`` is a factor on the group's learning rate.

        One group, unless rates differ: each further group costs a call of the optimizer's kernel.
        """
        return [{"params": [parameter for parameter in self.parameters() if parameter.requires_grad]}]

    def initialize(self, batches: Sequence[Rows]) -> None:
        """Start the tracked quantities from a few batches; called once before the first step."""

    @abstractmethod
    def gradient(self, batch: Rows) -> BatchGradient:
        """Set ``.grad`` of all parameters from one batch, leaving everything tracked as it is."""

    def gradient_in_parts(self, batch: Rows) -> BatchGradient:
        r""":meth:`gradient`, made from micro-batches where ``micro_batch_size`` asks for it.

        A gradient that is a mean over rows plus a constant is the mean of the gradients of its parts, weighted by
        their rows: :math:`g(S) = \sum_j (b_j / b)\,g(S_j)`. The result is that of the whole batch to rounding.
        """
        found = self.accumulate_gradients(batch, self.gradient)
        if len(found) == 1:
            return found[0]
        scales = [part.log_noise_scale for part in found if part.log_noise_scale is not None]
        shares = found[0].loss.new_tensor([len(part.features) / len(batch.inputs) for part in found])
        return BatchGradient(
            torch.cat([part.features for part in found]),
            torch.cat(scales) if scales else None,
            torch.stack([part.loss for part in found]) @ shares,
            found[0].noise_variance,
        )

    def shared_gradient(self, batch: Rows) -> BatchGradient:
        """:meth:`gradient` of a whole batch of which ``batch`` is this rank's part, perhaps without rows.

        The features that it leaves are those of the part; gradients and loss are of the whole.
        """
        if self.ranks.world_size == 1:
            return self.gradient_in_parts(batch)
        rows = len(batch.inputs)
        found = self.gradient_in_parts(batch if rows else stand_in(batch))
        loss = self.ranks.mean_gradients(self.parameters(), found.loss, rows)
        log_scale = found.log_noise_scale
        own_scale = None if log_scale is None else log_scale[:rows]
        return BatchGradient(found.features[:rows], own_scale, loss, found.noise_variance)

    def accumulate_gradients(self, batch: Rows, gradient: Callable[[Rows], _Found]) -> list[_Found]:
        """Call ``gradient`` for each micro-batch and leave the mean over rows in ``.grad``; a list of its results."""
        rows, size = len(batch.inputs), self.micro_batch_size
        if size is None or rows <= size:
            return [gradient(batch)]
        parameters = list(self.parameters())
        totals: list[Tensor | None] = [None] * len(parameters)
        found = []
        for start in range(0, rows, size):
            part = batch.take(slice(start, start + size))
            for parameter in parameters:
                parameter.grad = None
            found.append(gradient(part))
            share = len(part.inputs) / rows
            for index, parameter in enumerate(parameters):
                if parameter.grad is not None:
                    total = totals[index]
                    totals[index] = parameter.grad * share if total is None else total.add_(parameter.grad, alpha=share)
        for parameter, total in zip(parameters, totals, strict=True):
            parameter.grad = total
        return found

    def track(self, batch: Rows, found: BatchGradient) -> None:
        """Take the batch up into what is tracked; called after the parameters have moved."""

    def project(self) -> None:
        """Return the parameters to their constraints; called after the parameters have moved."""
        noise = self.model.noise.log_variance
        if noise.requires_grad:
            with torch.no_grad():
                noise.clamp_(min=self.minimum_log_noise)

    def step(self, batches: Sequence[Rows], optimizer: torch.optim.Optimizer) -> float:
        """One step with ``batches_per_step`` batches; returns the loss of the first."""
        if not isinstance(batches, Sequence) or len(batches) == 0:
            raise DataError(f"batches must be a sequence of at least one batch, but is {batches!r:.60}.")
        optimizer.zero_grad()
        found = self.shared_gradient(batches[0])
        optimizer.step()
        self.project()
        self.track(batches[0], found)
        return found.loss.item()

    def finish(self, data: Data) -> None:
        """Called with the rows after the last step, for what one exact pass can set right.

        Not where an earlier state was restored as the best: that is left as it was measured.
        """

    def pending_state(self) -> dict[str, Tensor]:
        """State for a checkpoint besides the state dict, if there is any."""
        return {}

    def load_pending_state(self, state: dict[str, Tensor]) -> None:
        """Take back what :meth:`pending_state` gave; a DataError, and no change, if it cannot be that."""
        check_pending(state, {}, {})


def check_pending(
    state: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], types: Mapping[str, torch.dtype]
) -> None:
    """Refuse tensors of a checkpoint that are not of these shapes and types; any floating type where none is given."""
    check_tensors(state)
    for name, tensor in state.items():
        good = tensor.dtype == types[name] if name in types else tensor.is_floating_point()
        if not good or tuple(tensor.shape) != shapes.get(name):
            raise DataError(
                f"the pending {name!r} should have shape {shapes.get(name)} in {types.get(name, 'a floating type')}, "
                f"but has {tuple(tensor.shape)} in {tensor.dtype}"
            )


def check_tensors(state: Mapping[str, object]) -> None:
    """Refuse what is no tensor."""
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise DataError(f"the pending {name!r} should be a tensor, but is a {type(value).__name__}")


def stand_in(batch: Rows) -> Rows:
    """One row of the shape of a batch without rows."""
    weights = None if batch.weights is None else batch.weights.new_ones(1)
    return Rows(
        batch.inputs.new_zeros(1, batch.inputs.shape[1]), batch.observed.new_zeros(1, len(batch.observed.T)), weights
    )


@dataclass(frozen=True, eq=False)
class RowGradients:
    """Gradients of the total NLML that one batch of rows contributes, at fixed weights and inverse Gram matrix.

    Attributes:
        features: ``(rows, d)``, to be pushed into the feature map with one ``backward``.
        log_noise_scale: ``(rows,)``, or None if the noise is constant.
        weighted_residuals: ``(rows, t)``, the residuals ``z'w - y`` divided by the row's noise scale.
        residual_sum_of_squares: Scalar tensor: the scaled squared residuals of the batch, over all targets.
    """

    features: Tensor
    log_noise_scale: Tensor | None
    weighted_residuals: Tensor
    residual_sum_of_squares: Tensor


def row_gradients(
    features: Tensor,
    targets: Tensor,
    weights: Tensor,
    whitened: Tensor,
    noise_variance: float,
    log_noise_scale: Tensor | None = None,
    *,
    factor: float = 1.0,
) -> RowGradients:
    r"""The gradient of the NLML in the features (and row noise scales) of a batch.

    For any fixed weights ``w`` and any fixed symmetric ``P`` in place of :math:`F^{-1}`, row i contributes

    .. math::
        \tfrac{1}{v_i}\big[(z_i'w - y_i) w' / s + z_i'P\big], \qquad
        \tfrac12\big[1 - (z_i'w - y_i)^2 / (s v_i) - z_i'Pz_i / v_i\big]

    to the gradients in :math:`z_i` and :math:`\log v_i`. At :math:`w = F^{-1}c`, :math:`P = F^{-1}` the sum over all
    rows is the exact gradient of the NLML: no derivative of a factorisation is needed.

    Args:
        features: ``(rows, d)``, without autograd.
        targets: ``(rows, t)``.
        weights: ``(d, t)``.
        whitened: ``(rows, d)``, the features times ``P``.
        noise_variance: The noise variance ``s``.
        log_noise_scale: ``(rows,)`` or None.
        factor: Multiplies both gradients: ``1 / rows`` estimates the gradient of the NLML per row from a batch.
    """
    num_targets = targets.shape[1]
    residuals = torch.addmm(targets, features, weights, beta=-1.0)
    # factor * (t z P + r w' / s) in one fused product.
    gradient = torch.addmm(whitened, residuals, weights.mT, beta=factor * num_targets, alpha=factor / noise_variance)
    if log_noise_scale is None:
        flat = residuals.view(-1)
        return RowGradients(gradient, None, residuals, flat @ flat)
    precision = torch.exp(-log_noise_scale)
    weighted_residuals = residuals * precision[:, None]
    squared_residuals = (residuals * weighted_residuals).sum(dim=1)
    leverage = (whitened * features).sum(dim=1) * precision
    scale_gradient = (0.5 * factor) * (num_targets - squared_residuals / noise_variance - num_targets * leverage)
    return RowGradients(gradient * precision[:, None], scale_gradient, weighted_residuals, squared_residuals.sum())


def push_back(
    traced: TracedFeatures, batch: Rows, weights: Tensor, whitened: Tensor, noise_variance: float
) -> tuple[BatchGradient, RowGradients]:
    r"""Set gradients per row through features and noise scales at fixed weights; ``whitened`` is :math:`Z_S F^{-1}`."""
    features, log_scale, rows = traced.features, traced.log_noise_scale, len(traced.features)
    if batch.targets is None:
        raise no_targets()
    gradients = row_gradients(features, batch.targets, weights, whitened, noise_variance, log_scale, factor=1.0 / rows)
    push(traced, gradients)
    loss = gradients.residual_sum_of_squares / (rows * noise_variance)
    return BatchGradient(features, log_scale, loss, noise_variance), gradients


def push(traced: TracedFeatures, gradients: RowGradients) -> None:
    """One backward pass of row gradients through the feature map and the noise model."""
    if traced.pullback is not None:
        traced.pullback(gradients.features)
    else:
        push_through(traced.outputs, (gradients.features, gradients.log_noise_scale))


def push_through(outputs: Sequence[Tensor | None], gradients: Sequence[Tensor | None]) -> None:
    """One backward pass of autograd; what is not there or frozen needs nothing."""
    ways = [pair for pair in zip(outputs, gradients, strict=True) if pair[0] is not None and pair[0].requires_grad]
    if ways:
        torch.autograd.backward(*zip(*ways, strict=True))  # type: ignore[arg-type]


def weight_gradient(
    algorithm: Algorithm, features: Tensor, gradients: RowGradients, weights: Tensor, noise_variance: float
) -> Tensor:
    r"""The gradient of the NLML per row in trained weights, from one batch: :math:`Z_S'r_S / (b s) + w / n`."""
    scale = 1.0 / (len(features) * noise_variance)
    return torch.addmm(weights, features.mT, gradients.weighted_residuals, beta=1.0 / algorithm.num_data, alpha=scale)


def noise_gradient(algorithm: Algorithm, loss: Tensor, inverse_trace: float, noise_variance: float) -> None:
    r"""Set the gradient per row in :math:`\log s`: :math:`\tfrac12[t(n - d + s\,\mathrm{tr}P)/n - \|r_S\|^2/(b s)]`."""
    n, d, t = algorithm.num_data, algorithm.num_features, algorithm.num_targets
    noise = algorithm.model.noise.log_variance
    if noise.requires_grad:
        noise.grad = loss.mul(-0.5).add_(0.5 * t * (n - d + noise_variance * inverse_trace) / n).to(noise)
