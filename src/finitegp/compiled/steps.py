"""``CompiledSteps``: the steps of an algorithm, each in one compiled function on torch's own memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..algorithms import BSGD, SCGD, Algorithm, Lagged, Minimax
from ..algorithms.base import BatchGradient
from ..arguments import check_arguments
from ..data.sources import Rows
from ..features import ComposedFeatures, FourierFeatures, MLPFeatures
from ..lapack import routine_address
from ..noise import ConstantNoise
from .descent import bsgd_step, minimax_step, scgd_step, step_given_inverse
from .optimizers import Rule

Array = npt.NDArray[Any]
# Values, the optimizer's two averages and its number of steps.
State = tuple[Array, Array, Array, Array]
SCGD_BY_ROWS = "SCGD tracks so few rows that it keeps them instead of a matrix"


@check_arguments
class CompiledSteps:
    """Takes the steps of ``algorithm.step(batches, optimizer)``, each in one function compiled by Numba.

    For small networks, where the calls of tensor operations take most of a step: :class:`MLPFeatures` of two layers
    with ReLU, or isotropic :class:`FourierFeatures` of its outputs; constant noise; one target; on the CPU, in one
    process; Lagged, SCGD, Minimax and BSGD; AdamW, Adam and Adadelta. Parameters, what the algorithm tracks and the
    optimizer's state stay in torch's tensors, so that callbacks and checkpoints see what they see without; only
    ``.grad`` is not set. A step differs from the library's by rounding; one that cannot be made (a matrix
    that needs jitter) is left to the library.

    Compilation takes some ten seconds on the first step on a machine, and is kept in files.

    Args:
        algorithm: What is trained.
        optimizer: What takes the steps; its groups must not differ in their rates and constants.

    Raises:
        ValueError: If there is no such function for this algorithm, model or optimizer; the message says why.
        ImportError: Without Numba.

    Example:
        >>> from finitegp import FeatureGP
        >>> from finitegp.schedules import make_optimizer
        >>> model = FeatureGP(MLPFeatures(2, hidden=(8, 8), activation="tanh"), noise_variance=0.1)
        >>> algorithm = SCGD(model, num_data=100)
        >>> list(CompiledSteps.problems(algorithm, make_optimizer(algorithm)))
        ['the network has other layers than Linear, ReLU, Linear, ReLU']
    """

    def __init__(self, algorithm: Algorithm, optimizer: torch.optim.Optimizer) -> None:
        for problem in self.problems(algorithm, optimizer):
            raise refusal(problem)
        self.algorithm, self.optimizer = algorithm, optimizer
        self._take = self.kinds[type(algorithm)]
        optimizer._opt_called = True  # type: ignore[attr-defined]  # or torch's schedulers warn of steps without it
        self.bind()

    def step(self, batches: Sequence[Rows]) -> float:
        """One step with ``algorithm.batches_per_step`` batches; returns the loss of the first."""
        if any(batch.weights is not None for batch in batches):
            raise refusal("rows have weights")
        if any(self._place(parameter) != place for parameter, place in self._bound):
            self.bind()
        loss = self._take(self, batches)
        return self.algorithm.step(batches, self.optimizer) if loss is None else float(loss)

    @classmethod
    def problems(cls, algorithm: Algorithm, optimizer: torch.optim.Optimizer) -> Iterator[str]:
        """What stands in the way of compiled steps."""
        name, model = type(algorithm).__name__, algorithm.model
        network, fourier = parts(model.feature_map)
        layers = [type(layer) for layer in network.layers] if type(network) is MLPFeatures else []
        if type(algorithm) not in cls.kinds:
            yield f"{name} is not among {', '.join(sorted(kind.__name__ for kind in cls.kinds))}"
        if not layers or (fourier is None and network is not model.feature_map):
            yield "the feature map is not MLPFeatures, or FourierFeatures of its outputs"
        elif layers != [nn.Linear, nn.ReLU] * 2:
            yield "the network has other layers than Linear, ReLU, Linear, ReLU"
        if fourier is not None and fourier.log_length_scales.numel() != 1:
            yield "the Fourier features have more than one length scale (ard=False has one)"
        if type(model.noise) is not ConstantNoise:
            yield "the noise is not constant"
        if model.scales_output():
            yield "the model has an output scale"
        if algorithm.num_targets != 1:
            yield "there is more than one target"
        if model.device.type != "cpu" or {p.dtype for p in algorithm.parameters()} - {torch.float32, torch.float64}:
            yield "parameters are not all of float32 or float64 on the CPU"
        if algorithm.ranks.world_size > 1 or algorithm.micro_batch_size is not None:
            yield "batches are in parts (micro_batch_size, or several ranks)"
        if isinstance(algorithm, Lagged) and algorithm.include_current:
            yield "include_current is set"
        if type(algorithm) is SCGD and algorithm.recent is not None:
            yield SCGD_BY_ROWS
        yield from cls.optimizer_problems(optimizer)
        if routine_address("blas", "dsyrk", 10) is None:
            yield "SciPy's BLAS counts in integers of 64 bits"

    @classmethod
    def optimizer_problems(cls, optimizer: torch.optim.Optimizer) -> Iterator[str]:
        """What the optimizer has that the loops have not."""
        if type(optimizer) not in (torch.optim.AdamW, torch.optim.Adam, torch.optim.Adadelta):
            yield f"the optimizer is {type(optimizer).__name__}, not AdamW, Adam or Adadelta"
        constants = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        if any(group != constants[0] for group in constants):
            yield "the optimizer's groups differ in rates or constants"
        if constants[0].get("amsgrad") or constants[0].get("maximize"):
            yield "the optimizer has amsgrad or maximize"

    def rule(self) -> Rule:
        """The optimizer's constants as they are now."""
        group, least = self.optimizer.param_groups[0], self.algorithm.minimum_log_noise
        rate, decay, epsilon = float(group["lr"]), float(group["weight_decay"]), float(group["eps"])
        if "betas" not in group:
            return Rule(False, rate, float(group["rho"]), 0.0, epsilon, decay, False, 1.0, 0.0, least)
        first, second = group["betas"]
        return Rule(True, rate, float(first), float(second), epsilon, decay, self._decoupled, 1.0, 0.0, least)

    def key(self, parameter: Tensor) -> Tensor:
        """The tensor under which the optimizer keeps what it has of a parameter."""
        return parameter

    def state(self, parameter: Tensor) -> State:
        """A parameter, and what the optimizer keeps of it, as arrays on torch's memory."""
        key = self.key(parameter)
        found = [parameter.detach(), *[parameter.new_empty((0,) * max(parameter.ndim, 1))] * 2, torch.zeros(1)]
        groups = self.optimizer.param_groups
        if parameter.requires_grad and any(key is moved for group in groups for moved in group["params"]):
            names = ["exp_avg", "exp_avg_sq"] if "betas" in groups[0] else ["square_avg", "acc_delta"]
            kept = self.optimizer.state[key]
            if not kept:
                kept["step"] = torch.tensor(0.0, dtype=torch.float32)
                kept.update({name: torch.zeros_like(key) for name in names})
            found[1:] = [kept[name] for name in (*names, "step")]
        self._bound.append((parameter, self._place(parameter)))
        flat = parameter.ndim < 2 or parameter.shape[1] == 1
        values, first, second = (part.detach().view(-1).numpy() if flat else part.numpy() for part in found[:3])
        return values, first, second, found[3].view(-1).numpy()

    def bind(self) -> None:
        """Find all arrays of parameters, which stay where they are from step to step."""
        self._bound: list[tuple[Tensor, object]] = []
        self._decoupled = isinstance(self.optimizer, torch.optim.AdamW) or bool(
            self.optimizer.param_groups[0].get("decoupled_weight_decay", False)
        )
        network, fourier = parts(self.algorithm.model.feature_map)
        assert isinstance(network, MLPFeatures)
        linears = [layer for layer in network.layers if isinstance(layer, nn.Linear)]
        self.dtype = linears[0].weight.dtype
        self.layers = tuple(self.state(p) for linear in linears for p in (linear.weight, linear.bias))
        self.spectrum = None
        if fourier is not None:
            frequencies = fourier.frequencies.to(self.dtype).numpy()
            self.spectrum = frequencies, self.state(fourier.log_length_scales), self.state(fourier.log_magnitude)
        self.noise = self.state(self.algorithm.model.noise.log_variance)
        self.others = {
            name: self.state(parameter) for name, parameter in self.algorithm.named_parameters() if "." not in name
        }

    def _place(self, parameter: Tensor) -> object:
        """Where a parameter and what the optimizer keeps of it are, which changes where a state is loaded."""
        step = self.optimizer.state.get(self.key(parameter), {}).get("step")
        return parameter.data_ptr(), parameter.requires_grad, None if step is None else step.data_ptr()

    def rows(self, batch: Rows) -> tuple[Array, Array]:
        """Inputs and targets of a batch."""
        inputs, targets = (part.to(self.dtype).contiguous().numpy() for part in (batch.inputs, batch.observed))
        return inputs, targets.reshape(-1)

    def _lagged_step(self, batches: Sequence[Rows]) -> float:
        """One step of Lagged; the refreshes are the library's."""
        algorithm, batch = self.algorithm, batches[0]
        assert isinstance(algorithm, Lagged)
        noise_variance = algorithm.model.noise.variance
        loss, features = step_given_inverse(
            *self.rows(batch), self.layers, self.spectrum, self.others["weights"], self.noise,
            algorithm.inverse_gram.numpy(), float(algorithm.inverse_trace), algorithm.num_data, self.rule(),
        )  # fmt: skip
        found = torch.from_numpy(features)
        algorithm.track(batch, BatchGradient(found, None, found.new_tensor(loss), noise_variance))
        return float(loss)

    def _scgd_step(self, batches: Sequence[Rows]) -> float | None:
        """One step of SCGD, unless its matrix needs jitter."""
        algorithm = self.algorithm
        assert isinstance(algorithm, SCGD)
        if algorithm.recent is not None:
            raise refusal(SCGD_BY_ROWS)
        rate = algorithm.tracking_rate
        rate = rate if isinstance(rate, float) else (float(algorithm.steps) + 1.0) ** -0.5
        made, loss = scgd_step(
            *self.rows(batches[0]), self.layers, self.spectrum, self.others["weights"], self.noise,
            algorithm.tracked_gram.numpy(), algorithm.num_data, rate, self.rule(),
        )  # fmt: skip
        if made:
            algorithm.steps.add_(1)
        return float(loss) if made else None

    def _minimax_step(self, batches: Sequence[Rows]) -> float:
        """One step of Minimax; estimate and multiplier are moved by the library."""
        algorithm, rows = self.algorithm, [len(batch.inputs) for batch in batches[:2]]
        assert isinstance(algorithm, Minimax)
        variances = [algorithm.model.noise.variance]
        loss = minimax_step(
            *self.rows(batches[0]), self.rows(batches[1])[0], self.layers, self.spectrum,
            self.others["weights"], self.noise, algorithm.inverse_gram.numpy(), float(algorithm.inverse_trace),
            algorithm.pending_grams.numpy(), math.inf if algorithm.box is None else float(algorithm.box),
            algorithm.num_data, self.rule(),
        )  # fmt: skip
        variances.append(algorithm.model.noise.variance)
        for stream in range(2):
            algorithm.count_rows(stream, rows[stream], variances[stream])
        algorithm.end_step()
        return float(loss)

    def _bsgd_step(self, batches: Sequence[Rows]) -> float | None:
        """One step of BSGD, unless the covariance of the batch needs jitter."""
        made, loss = bsgd_step(*self.rows(batches[0]), self.layers, self.spectrum, self.noise, self.rule())
        return float(loss) if made else None

    #: What takes the step of an algorithm; a step that could not be made gives None.
    kinds: ClassVar[dict[type[Algorithm], Callable[[Any, Sequence[Rows]], float | None]]] = {
        Lagged: _lagged_step,
        SCGD: _scgd_step,
        Minimax: _minimax_step,
        BSGD: _bsgd_step,
    }


def refusal(problem: str) -> ValueError:
    """The error that says why there are no compiled steps."""
    return ValueError(f"This run has no compiled steps, as {problem}: use compiled=False, or algorithm.step().")


def parts(feature_map: nn.Module) -> tuple[nn.Module, FourierFeatures | None]:
    """The network, and the Fourier features of its outputs if there are any."""
    if type(feature_map) is ComposedFeatures and type(feature_map.second) is FourierFeatures:
        return feature_map.first, feature_map.second
    return feature_map, None
