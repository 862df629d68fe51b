"""One step of ``Lagged`` as one compiled function: features, gradients and the optimizer's update together."""

from __future__ import annotations

import copy
import warnings
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp

from ..data import Rows
from ..model import FeatureGP
from .base import BatchGradient


class Compilable(Protocol):
    """What is read of the algorithm, :class:`Lagged`, which itself knows this module."""

    model: FeatureGP
    num_data: int
    include_current: bool
    noise_update: str

    @property
    def weights(self) -> nn.Parameter:
        """``(d, targets)``."""

    @property
    def inverse_gram(self) -> Tensor:
        """``(d, d)``."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        """What the optimizer trains."""


class CompilationWarning(UserWarning):
    """A step could not be compiled; training goes on with ordinary steps, which compute the same."""


class CompiledStep:
    """Makes the steps of a :class:`Lagged` with ``torch.compile``, where that is possible.

    The mathematics is that of :meth:`Lagged.gradient` followed by AdamW. Parameters and the optimizer's state stay
    where they are, so checkpoints are those of ordinary steps. Learning rate, noise variance and the solved weights are
    arguments of the compiled function: changing them does not compile again. The first step, which makes the
    optimizer's state, and a batch of another size than the last one, such as the last batch of an epoch, are left to
    the ordinary path.
    """

    def __init__(self, algorithm: Compilable) -> None:
        self._algorithm = algorithm
        self._optimizer: torch.optim.Optimizer | None = None
        self._function: Any = None
        self._parameters: list[nn.Parameter] = []
        self._compiled_shape: Any = None
        self._last_shape: Any = None
        self._failed = False

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledStep:
        return CompiledStep(copy.deepcopy(self._algorithm, memo))

    def __call__(self, batch: Rows, optimizer: torch.optim.Optimizer) -> BatchGradient | None:
        """The whole step up to tracking; None where the ordinary path has to make it."""
        if self._failed:
            return None
        if optimizer is not self._optimizer:
            reason = _unsupported(self._algorithm, optimizer)
            if reason:
                self._give_up(reason)
                return None
            forward = _Forward(self._algorithm)
            self._optimizer, self._parameters = optimizer, forward.trained_parameters(self._algorithm)
            # Nothing is compiled before the first call.
            self._function = torch.compile(forward.update, dynamic=False, fullgraph=True)
        shape, last = (batch.inputs.shape, batch.weights is None), self._last_shape
        self._last_shape = shape
        if shape not in (self._compiled_shape, last):
            return None
        state = [optimizer.state.get(parameter) for parameter in self._parameters]
        if not all(state):
            return None
        try:
            found = self._step(batch, optimizer.param_groups[0], state)
        except Exception as error:  # whatever the compiler or the code of a feature map can raise
            self._give_up(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
            return None
        self._compiled_shape = shape
        return found

    @torch.no_grad()
    def _step(self, batch: Rows, group: dict[str, Any], state: list[Any]) -> BatchGradient:
        algorithm = self._algorithm
        steps = [entries["step"] for entries in state]
        count = float(steps[0]) + 1.0
        (beta1, beta2), rate = group["betas"], float(group["lr"])
        noise_variance = algorithm.model.noise_variance
        numbers = (
            1.0 / noise_variance,
            rate / (1.0 - beta1**count),
            (1.0 - beta2**count) ** -0.5,
            1.0 - rate * group["weight_decay"],
        )
        features, log_scale, squares = self._function(
            [_at_least_1d(parameter.detach()) for parameter in self._parameters],
            [_at_least_1d(entries["exp_avg"]) for entries in state],
            [_at_least_1d(entries["exp_avg_sq"]) for entries in state],
            (beta1, beta2, group["eps"]),
            batch.inputs,
            batch.targets,
            batch.weights,
            algorithm.weights.detach(),
            algorithm.inverse_gram,
            torch.tensor(numbers, dtype=algorithm.weights.dtype, device=algorithm.weights.device),
        )
        torch._foreach_add_(steps, 1.0)
        return BatchGradient(features, log_scale, squares / (len(features) * noise_variance))

    def _give_up(self, reason: str) -> None:
        self._failed = True
        warnings.warn(
            f"The steps of Lagged are not compiled: {reason}. Training goes on with ordinary steps, which compute the "
            "same; leave out compiled=True to be rid of this warning.",
            CompilationWarning,
            stacklevel=4,
        )


class _Forward(nn.Module):
    """The differentiable part of the model, as a module whose parameters can be put in."""

    def __init__(self, algorithm: Compilable) -> None:
        super().__init__()
        self.feature_map = algorithm.model.feature_map
        self.noise = algorithm.model.noise
        fixed = self.noise.log_variance  # set in closed form
        self.names = [name for name, p in self.named_parameters() if p.requires_grad and p is not fixed]
        self.shapes = [self.get_parameter(name).shape for name in self.names]
        self.trains_weights = algorithm.weights.requires_grad
        self.num_data = algorithm.num_data

    def trained_parameters(self, algorithm: Compilable) -> list[nn.Parameter]:
        """The parameters in the order of :meth:`update`."""
        own = dict(self.named_parameters())
        return [own[name] for name in self.names] + [algorithm.weights] * self.trains_weights

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        features = self.feature_map(inputs)
        log_scale = self.noise.log_scale(inputs, features)
        return (features,) if log_scale is None else (features, log_scale)

    def update(
        self,
        parameters: list[Tensor],
        means: list[Tensor],
        squares: list[Tensor],
        rates: tuple[float, float, float],
        inputs: Tensor,
        targets: Tensor,
        row_weights: Tensor | None,
        weights: Tensor,
        inverse_gram: Tensor,
        numbers: Tensor,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Row gradients, the backward pass and AdamW, all in place; the features before the step."""
        network = parameters[: len(self.names)]
        precision_of_noise, step_size, inverse_root, keep = numbers.unbind()

        def call(*values: Tensor) -> tuple[Tensor, ...]:
            shaped = (value.view(shape) for value, shape in zip(values, self.shapes, strict=True))
            found: tuple[Tensor, ...] = functional_call(self, dict(zip(self.names, shaped, strict=True)), (inputs,))
            return found

        outputs, pullback = vjp(call, *network)[:2]
        features = outputs[0].detach()
        log_scale = outputs[1].detach() if len(outputs) == 2 else None
        if row_weights is not None:
            log_weights = row_weights.log()
            log_scale = -log_weights if log_scale is None else log_scale - log_weights
        rows, num_targets = targets.shape
        # As in likelihood.row_gradients, there with numbers where tensors stand here.
        residuals = features @ weights - targets
        weighted, whitened = residuals, features @ inverse_gram
        if log_scale is not None:
            precision = torch.exp(-log_scale)[:, None]
            weighted, whitened = residuals * precision, whitened * precision
        squared = (residuals * weighted).sum(dim=1)
        gradient = (weighted @ weights.mT) * precision_of_noise + num_targets * whitened
        pushed = [gradient / rows]
        if len(outputs) == 2:
            leverage = (whitened * features).sum(dim=1)
            pushed.append(0.5 / rows * (num_targets - squared * precision_of_noise - num_targets * leverage))
        gradients = list(pullback(tuple(pushed)))
        if self.trains_weights:
            gradients.append(features.mT @ weighted * (precision_of_noise / rows) + weights / self.num_data)
        beta1, beta2, epsilon = rates
        for parameter, slope, mean, square in zip(parameters, gradients, means, squares, strict=True):
            mean.lerp_(slope, 1.0 - beta1)
            square.mul_(beta2).addcmul_(slope, slope, value=1.0 - beta2)
            parameter.mul_(keep).sub_(step_size * mean / (square.sqrt() * inverse_root + epsilon))
        return features, log_scale, squared.sum()


def _at_least_1d(tensor: Tensor) -> Tensor:
    # torch.compile (2.13) loses what is written in place into a tensor without dimensions.
    return tensor.view(1) if tensor.ndim == 0 else tensor


def _unsupported(algorithm: Compilable, optimizer: torch.optim.Optimizer) -> str:
    """Why the steps cannot be compiled, or nothing."""
    if type(optimizer) is not torch.optim.AdamW:
        return f"the optimizer is {type(optimizer).__name__}, and only AdamW (make_optimizer's 'adam') is written out"
    groups = optimizer.param_groups
    expected = {id(parameter) for group in algorithm.parameter_groups() for parameter in group["params"]}
    if len(groups) != 1 or {id(parameter) for parameter in groups[0]["params"]} != expected:
        return "the optimizer does not have the one group of algorithm.parameter_groups()"
    if groups[0]["amsgrad"] or groups[0]["maximize"]:
        return "AdamW has amsgrad or maximize"
    if algorithm.include_current:
        return "include_current refreshes between the features and the gradient of a batch"
    if algorithm.noise_update != "closed_form":
        return "the noise variance takes gradient steps (noise_update='gradient')"
    if algorithm.model.scales_output():
        return "the model has an output scale"
    return ""
