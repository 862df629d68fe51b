r"""Noise models: constant noise, and noise that depends on the input, both exact.

The noise variance of row i is :math:`s\,v_i`. Dividing the row by :math:`\sqrt{v_i}` turns it into a row of constant
noise, so statistics, likelihood and posterior hold unchanged, with :math:`\tfrac12\sum_i \log v_i` added to the NLML.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .arguments import check_arguments, check_noise_variance, check_positive
from .errors import DataError


@check_arguments
class NoiseModel(nn.Module, ABC):
    """The noise variance ``s`` that all rows share, stored as a logarithm, and each row's noise scale ``v``.

    Args:
        variance: The initial noise variance ``s``.
        dtype: The type that it is stored in; torch's default type if None. One that was stored in float32 keeps its
            rounding in :meth:`double`, as all parameters do.
    """

    #: Whether rows have different noise scales.
    varies: bool = True

    def __init__(self, variance: float, *, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.log_variance = nn.Parameter(torch.tensor(math.log(check_noise_variance(variance)), dtype=dtype))

    @property
    def variance(self) -> float:
        """The noise variance ``s`` as a float."""
        return math.exp(min(float(self.log_variance.detach()), 700.0))  # no overflow while diverging

    def set_variance(self, variance: float) -> None:
        """Set the noise variance in place, for example to a closed-form optimum."""
        with torch.no_grad():
            self.log_variance.fill_(math.log(check_noise_variance(variance)))

    @property
    def least_scale(self) -> float:
        """No row has a smaller noise scale."""
        return 0.0 if self.varies else 1.0

    def config(self) -> dict[str, object]:
        """The arguments that make this noise again, but for its variance and the modules in it."""
        return {}

    @abstractmethod
    def log_scale(self, inputs: Tensor, features: Tensor) -> Tensor | None:
        """``(rows,)`` logarithm of each row's noise scale, or None: one for every row."""


@check_arguments
class ConstantNoise(NoiseModel):
    """The same noise variance for every row.

    Args:
        variance: The initial noise variance ``s``.
        dtype: The type that it is stored in; torch's default type if None.

    Example:
        >>> round(ConstantNoise(0.25).variance, 6)
        0.25
    """

    varies = False

    def __init__(self, variance: float = 0.1, *, dtype: torch.dtype | None = None) -> None:
        super().__init__(variance, dtype=dtype)

    def log_scale(self, inputs: Tensor, features: Tensor) -> None:
        """None: the scale is one for every row."""
        return None


@check_arguments
class InputNoise(NoiseModel):
    r"""Noise that depends on the input: :math:`s\,v(x)` with :math:`\log v = ` a module's output, softly bounded.

    Args:
        module: Maps ``(rows, k)`` to ``(rows, 1)`` or ``(rows,)``; its output is the logarithm of the noise scale.
        reads: What the module sees: the ``"inputs"``, or the ``"features"`` (a second head on the same network).
        variance: The initial common factor ``s``.
        max_log_scale: Bound on ``|log v|``: the output passes through ``bound * tanh(output / bound)``, so that no
            single row can claim a noise that dwarfs or drowns all others.
        bounds: Smallest and largest ``log v``, for example those of the training rows: where no row was seen, a
            network's noise is a guess, and may be no larger or smaller than what was seen. None bounds nothing.

    Example:
        >>> noise = InputNoise(nn.Linear(2, 1), reads="inputs", variance=0.1)
        >>> noise.log_scale(torch.zeros(5, 2), torch.zeros(5, 7)).shape
        torch.Size([5])
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        reads: str = "features",
        variance: float = 0.1,
        max_log_scale: float = 12.0,
        bounds: Sequence[float] | None = None,
    ) -> None:
        super().__init__(variance)
        if reads not in ("inputs", "features"):
            raise ValueError(f"reads must be 'inputs' or 'features', but is {reads!r}.")
        check_positive(max_log_scale=max_log_scale)
        if bounds is not None and not (len(bounds) == 2 and -math.inf < bounds[0] <= bounds[1] < math.inf):
            raise ValueError(f"bounds must be the smallest and the largest log scale, but are {bounds!r}.")
        self.module = module
        self.reads = reads
        self.max_log_scale = max_log_scale
        self.bounds = None if bounds is None else (float(bounds[0]), float(bounds[1]))

    @property
    def least_scale(self) -> float:
        """No row has a smaller noise scale."""
        return math.exp(-self.max_log_scale if self.bounds is None else self.bounds[0])

    def config(self) -> dict[str, object]:
        """The arguments that make this noise again, but for its variance and the module in it."""
        bounds = {} if self.bounds is None else {"bounds": list(self.bounds)}
        return {"reads": self.reads, "max_log_scale": self.max_log_scale} | bounds

    def log_scale(self, inputs: Tensor, features: Tensor) -> Tensor:
        """``(rows,)`` logarithm of each row's noise scale."""
        output: Tensor = self.module(inputs if self.reads == "inputs" else features)
        if output.ndim == 2 and output.shape[1] == 1:
            output = output[:, 0]
        if output.shape != (len(inputs),):
            raise DataError(
                f"The noise module must return one number per row ({len(inputs)},), "
                f"but returned shape {tuple(output.shape)}."
            )
        log_scale = self.max_log_scale * torch.tanh(output / self.max_log_scale)
        return log_scale if self.bounds is None else log_scale.clamp(*self.bounds)


class MeanVariance(nn.Module):
    """The logarithm of the mean of several variances, given by networks for their logarithms.

    Example:
        >>> mean = MeanVariance(nn.Identity(), nn.Identity())
        >>> mean(torch.tensor([[0.5], [-3.0]])).tolist()
        [[0.5], [-3.0]]
    """

    def __init__(self, *networks: nn.Module) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def config(self) -> dict[str, object]:
        """The arguments that make this module again, but for the networks in it: none."""
        return {}

    def forward(self, inputs: Tensor) -> Tensor:
        """``(rows, 1)``."""
        outputs = torch.stack([network(inputs) for network in self.networks])
        return torch.logsumexp(outputs, dim=0) - math.log(len(self.networks))


class SmoothFloor(nn.Module):
    r"""Keeps its input above ``floor``, smoothly: :math:`f + \log(1 + e^{x - f})`.

    Example:
        >>> SmoothFloor(-1.0)(torch.tensor([-50.0, 50.0])).tolist()
        [-1.0, 50.0]
    """

    def __init__(self, floor: float) -> None:
        super().__init__()
        self.floor = floor

    def config(self) -> dict[str, object]:
        """The argument that makes this module again."""
        return {"floor": self.floor}

    def forward(self, output: Tensor) -> Tensor:
        """The bounded values, in the shape of the input."""
        return self.floor + nn.functional.softplus(output - self.floor)


class AddedTrees(nn.Module):
    """The output of a module plus a sum of complete binary trees: steps that a network does not follow.

    Args:
        module: Gives ``(rows, 1)``.
        trees: How many.
        depth: Of each.

    Attributes:
        columns: ``(trees, nodes)``; see :func:`~finitegp.lite.program.sum_trees`.
        thresholds: ``(trees, nodes)``.
        leaves: ``(trees, nodes + 1)``.

    Example:
        >>> added = AddedTrees(nn.Identity(), 1, 1)
        >>> _ = added.leaves.copy_(torch.tensor([[3.0, 4.0]]))
        >>> added(torch.tensor([[-1.0], [1.0]])).tolist()
        [[2.0], [5.0]]
    """

    columns: Tensor
    thresholds: Tensor
    leaves: Tensor

    def __init__(self, module: nn.Module, trees: int, depth: int) -> None:
        super().__init__()
        self.module, self.trees, self.depth = module, trees, depth
        nodes = 2**depth - 1
        self.register_buffer("columns", torch.zeros(trees, nodes, dtype=torch.int64))
        self.register_buffer("thresholds", torch.zeros(trees, nodes))
        self.register_buffer("leaves", torch.zeros(trees, nodes + 1))

    def config(self) -> dict[str, object]:
        """The arguments that make this module again, but for the module in it."""
        return {"trees": self.trees, "depth": self.depth}

    def forward(self, inputs: Tensor) -> Tensor:
        """``(rows, 1)``."""
        nodes = self.columns.shape[1]
        tree = torch.arange(self.trees, device=inputs.device)
        place = torch.zeros(len(inputs), self.trees, dtype=torch.int64, device=inputs.device)
        for _ in range(self.depth):
            at = nodes * tree + place
            larger = inputs.gather(1, self.columns.reshape(-1)[at]) > self.thresholds.reshape(-1)[at]
            place = 2 * place + 1 + larger
        found = self.leaves.reshape(-1)[(nodes + 1) * tree + place - nodes].sum(dim=1, keepdim=True)
        output: Tensor = self.module(inputs)
        return output + found
