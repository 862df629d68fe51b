"""Each column on its own: as it is, beside a constant; bounded; or embedded so that a network sees steps and cycles."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..arguments import check_arguments, check_positive
from .composition import Pullback, accumulate, check_size, check_width, log_of_number, log_of_positive

# No float64 is larger than this after the logarithm, so that these bounds bound nothing. Infinity would: files hold
# finite numbers only.
_UNBOUNDED = 1000.0


class ConstantFeatures(nn.Module):
    r"""One constant column, :math:`\phi(x) = \sqrt{m}`: an intercept.

    The kernel is :math:`k(x, x') = m`, the ``magnitude``. Takes inputs of any width, for use inside
    ``ConcatenatedFeatures``.

    Args:
        magnitude: The prior variance of the intercept; learned, stored as ``log_magnitude``.

    Example:
        >>> features = ConstantFeatures(magnitude=4.0)(torch.zeros(3, 5))
        >>> bool(torch.allclose(features, torch.full((3, 1), 2.0)))
        True
    """

    input_dim: int | None
    num_features: int

    def __init__(self, magnitude: float = 1.0) -> None:
        super().__init__()
        self.input_dim = None
        self.num_features = 1
        self.log_magnitude = nn.Parameter(log_of_number("magnitude", magnitude))

    def config(self) -> dict[str, object]:
        """The arguments that make this map again, but for the value of its tensor: none."""
        return {}

    @property
    def magnitude(self) -> Tensor:
        """The kernel's value, the prior variance of the intercept."""
        return self.log_magnitude.exp()

    def forward(self, inputs: Tensor) -> Tensor:
        """One column ``(rows, 1)`` for inputs ``(rows, any)``."""
        return (0.5 * self.log_magnitude).exp().expand(len(inputs), 1)


@check_arguments
class LinearFeatures(nn.Module):
    r"""The inputs and a constant, :math:`\phi(x) = [\sqrt{m}\, x, \sqrt{b}]`: Bayesian linear regression.

    The kernel is :math:`k(x, x') = m\, \langle x, x' \rangle + b` with ``magnitude`` :math:`m` and
    ``bias_magnitude`` :math:`b`, the prior variances of slopes and intercept. Maps ``(rows, input_dim)`` to
    ``(rows, input_dim + 1)``, or to ``(rows, input_dim)`` without the bias.

    Args:
        input_dim: Number of input columns.
        bias: Whether there is an intercept.
        magnitude: The prior variance of each slope, one number, or with ``ard`` one per input; learned, stored as
            ``log_magnitude``.
        bias_magnitude: The prior variance of the intercept; learned, stored as ``log_bias_magnitude``.
        ard: Whether each slope has its own prior variance.

    Example:
        >>> feature_map = LinearFeatures(input_dim=2, magnitude=4.0, bias_magnitude=9.0)
        >>> features = feature_map(torch.tensor([[1.0, -1.0]]))
        >>> bool(torch.allclose(features, torch.tensor([[2.0, -2.0, 3.0]])))
        True
    """

    input_dim: int
    num_features: int
    log_bias_magnitude: nn.Parameter | None

    def __init__(
        self,
        input_dim: int,
        bias: bool = True,
        magnitude: float | Sequence[float] | Tensor = 1.0,
        bias_magnitude: float = 1.0,
        ard: bool = False,
    ) -> None:
        super().__init__()
        self.input_dim = check_size("input_dim", input_dim)
        self.num_features = self.input_dim + bool(bias)
        log_magnitude = log_of_positive("magnitude", magnitude)
        shape = (self.input_dim,) if ard else ()
        if log_magnitude.shape not in ((), shape):
            raise ValueError(f"magnitude must be one number, or one per input with ard=True, but is {magnitude!r}.")
        self.log_magnitude = nn.Parameter(log_magnitude.expand(shape).clone())
        log_bias_magnitude = nn.Parameter(log_of_number("bias_magnitude", bias_magnitude))
        self.register_parameter("log_bias_magnitude", log_bias_magnitude if bias else None)

    def config(self) -> dict[str, object]:
        """The arguments that make this map again, but for the values of its tensors."""
        found: dict[str, object] = {"input_dim": self.input_dim, "bias": self.log_bias_magnitude is not None}
        return found | ({"ard": True} if self.log_magnitude.ndim else {})

    @property
    def magnitude(self) -> Tensor:
        """The prior variance of each slope."""
        return self.log_magnitude.exp()

    @property
    def bias_magnitude(self) -> Tensor:
        """The prior variance of the intercept; zero if there is none."""
        if self.log_bias_magnitude is None:
            return torch.zeros_like(self.log_magnitude)
        return self.log_bias_magnitude.exp()

    def forward(self, inputs: Tensor) -> Tensor:
        """Features ``(rows, num_features)`` of inputs ``(rows, input_dim)``."""
        check_width(inputs, self.input_dim)
        features = inputs * (0.5 * self.log_magnitude).exp()
        if self.log_bias_magnitude is None:
            return features
        constant = (0.5 * self.log_bias_magnitude).exp().expand(len(inputs), 1)
        return torch.cat((features, constant), dim=1)


class SoftClip(nn.Module):
    r"""The columns themselves up to ``limit``, logarithmic beyond, and never outside of ``[low, high]``.

    .. math:: x \mapsto \mathrm{clip}\big(\mathrm{sign}(x)\,(l + \log(1 + |x| - l)),\ low,\ high\big)
        \quad\text{where } |x| > l.

    On standardised columns nearly all values pass unchanged, so nothing is lost, and one value at a thousand standard
    deviations moves a network no further than one at eleven. Value and slope are continuous at the limit. Maps
    ``(rows, input_dim)`` to the same shape.

    Args:
        input_dim: Number of input columns.
        limit: Where the logarithm begins.
        low: ``(input_dim,)`` smallest outputs; None bounds nothing.
        high: ``(input_dim,)`` largest outputs; None bounds nothing.

    Example:
        >>> clip = SoftClip(1, limit=4.0, high=[5.0])
        >>> outputs = clip(torch.tensor([[-3.0], [4.0 + math.e - 1.0], [1e30]]))[:, 0]
        >>> [round(value, 4) for value in outputs.tolist()]
        [-3.0, 5.0, 5.0]
    """

    input_dim: int
    num_features: int
    low: Tensor
    high: Tensor
    has_pullback = True

    def __init__(
        self,
        input_dim: int,
        limit: float = 4.0,
        low: Sequence[float] | Tensor | None = None,
        high: Sequence[float] | Tensor | None = None,
    ) -> None:
        super().__init__()
        self.input_dim = self.num_features = check_size("input_dim", input_dim)
        if not (math.isfinite(limit) and limit > 0.0):
            raise ValueError(f"limit must be positive and finite, but is {limit}.")
        self.limit = float(limit)
        self.register_buffer("low", self._bound("low", low, -_UNBOUNDED))
        self.register_buffer("high", self._bound("high", high, _UNBOUNDED))

    def _bound(self, name: str, values: Sequence[float] | Tensor | None, otherwise: float) -> Tensor:
        if values is None:
            return torch.full((self.input_dim,), otherwise)
        bound = torch.as_tensor(values, dtype=torch.get_default_dtype())
        if bound.shape != (self.input_dim,) or not bool(torch.isfinite(bound).all()):
            raise ValueError(f"{name} must be {self.input_dim} finite numbers, one per column, but is {values!r}.")
        return bound.clone()

    def config(self) -> dict[str, object]:
        """The arguments that make this map again, but for the values of its tensors."""
        return {"input_dim": self.input_dim, "limit": self.limit}

    def forward(self, inputs: Tensor) -> Tensor:
        """The bounded columns, in the shape of the inputs."""
        check_width(inputs, self.input_dim)
        return torch.clamp(self._compress(inputs), self.low, self.high)

    def forward_with_pullback(self, inputs: Tensor, *, inputs_need_gradient: bool = False) -> tuple[Tensor, Pullback]:
        """The same outputs without autograd, with the backward pass written out; there is nothing to train here."""
        check_width(inputs, self.input_dim)
        with torch.no_grad():
            compressed = self._compress(inputs)
            outputs = torch.clamp(compressed, self.low, self.high)

        @torch.no_grad()
        def pullback(gradient: Tensor) -> Tensor | None:
            if not inputs_need_gradient:
                return None
            inside = (compressed >= self.low) & (compressed <= self.high)
            return gradient * inside / (1.0 + (inputs.abs() - self.limit).clamp_(min=0.0))

        return outputs, pullback

    def _compress(self, inputs: Tensor) -> Tensor:
        # A choice rather than a sum, so that values below the limit stay what they are to the bit.
        size = inputs.abs()
        beyond = torch.log1p((size - self.limit).clamp(min=0.0))
        return torch.where(size <= self.limit, inputs, torch.copysign(self.limit + beyond, inputs))


class PeriodicEmbedding(nn.Module):
    r"""Every column :math:`x_j` becomes :math:`[x_j,\; c_j + W_j' \cos(2\pi f_j x_j + b_j)]`, all of it learned.

    A network sees a column of a table through straight lines; sharp or periodic dependence on one column (the hour of
    a day, a code, a threshold) costs it many layers. Learned cosines of each column make it cheap. Put it before a
    network with :class:`ComposedFeatures`. The form is that of periodic embeddings for tabular networks (Gorishniy et
    al., 2022; Holzmüller et al., 2024), small. Maps ``(rows, input_dim)`` to ``(rows, input_dim * width)``.

    Args:
        input_dim: Number of input columns; they should be standardised.
        num_frequencies: Cosines per column.
        width: Outputs per column, the column itself among them.
        frequency_scale: Standard deviation of the initial frequencies: 0.1 is smooth at first, 1 is rough.
        seed: Determines the initial values.

    Example:
        >>> embedding = PeriodicEmbedding(input_dim=3, width=4, seed=0)
        >>> inputs = torch.randn(5, 3)
        >>> outputs = embedding(inputs)
        >>> outputs.shape, bool((outputs[:, ::4] == inputs).all())
        (torch.Size([5, 12]), True)
    """

    input_dim: int
    num_features: int
    has_pullback = True

    def __init__(
        self,
        input_dim: int,
        num_frequencies: int = 16,
        width: int = 4,
        frequency_scale: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.input_dim = check_size("input_dim", input_dim)
        count = check_size("num_frequencies", num_frequencies)
        self.width = check_size("width", width)
        if self.width < 2:
            raise ValueError(f"width must be at least 2, the column itself and one output of cosines, but is {width}.")
        check_positive(frequency_scale=frequency_scale)
        self.num_features = self.input_dim * self.width
        generator = torch.Generator().manual_seed(int(seed))
        shape = (self.input_dim, 1, count)
        bound = 1.0 / math.sqrt(count)

        def uniform(*size: int) -> Tensor:
            return torch.rand(*size, generator=generator).mul_(2.0).sub_(1.0)

        self.frequencies = nn.Parameter(torch.randn(shape, generator=generator) * frequency_scale)
        self.phases = nn.Parameter(uniform(*shape) * math.pi)
        self.weights = nn.Parameter(uniform(self.input_dim, count, self.width - 1) * bound)
        self.offsets = nn.Parameter(uniform(self.input_dim, 1, self.width - 1) * bound)

    def config(self) -> dict[str, object]:
        """The arguments that make this map again, but for the values of its tensors."""
        return {"input_dim": self.input_dim, "num_frequencies": self.frequencies.shape[2], "width": self.width}

    def forward(self, inputs: Tensor) -> Tensor:
        """Embedded columns ``(rows, input_dim * width)`` of inputs ``(rows, input_dim)``."""
        check_width(inputs, self.input_dim)
        return self._join(inputs, torch.baddbmm(self.offsets, torch.cos(self._angles(inputs)), self.weights))

    def forward_with_pullback(self, inputs: Tensor, *, inputs_need_gradient: bool = False) -> tuple[Tensor, Pullback]:
        """The same outputs without autograd, with the backward pass written out."""
        check_width(inputs, self.input_dim)
        with torch.no_grad():
            angles = self._angles(inputs)
            cosines = torch.cos(angles)
            outputs = self._join(inputs, torch.baddbmm(self.offsets, cosines, self.weights))

        @torch.no_grad()
        def pullback(gradient: Tensor) -> Tensor | None:
            by_column = gradient.view(len(inputs), self.input_dim, self.width).transpose(0, 1)
            by_output = by_column[:, :, 1:]
            accumulate(self.weights, torch.bmm(cosines.mT, by_output))
            accumulate(self.offsets, by_output.sum(dim=1, keepdim=True))
            by_angle = torch.bmm(by_output, self.weights.mT).mul_(torch.sin(angles)).neg_()
            accumulate(self.phases, by_angle.sum(dim=1, keepdim=True))
            columns = inputs.t()[:, None, :]
            accumulate(self.frequencies, torch.bmm(columns, by_angle).mul_(2.0 * math.pi))
            if not inputs_need_gradient:
                return None
            by_cosines = torch.bmm(by_angle, self.frequencies.mT)[:, :, 0].mul_(2.0 * math.pi)
            return (by_column[:, :, 0] + by_cosines).t()

        return outputs, pullback

    def _angles(self, inputs: Tensor) -> Tensor:
        """``(input_dim, rows, num_frequencies)``: columns first, so that each is one matrix of a batched product."""
        return torch.baddbmm(self.phases, inputs.t()[:, :, None], self.frequencies, alpha=2.0 * math.pi)

    def _join(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        return torch.cat((inputs.t()[:, :, None], outputs), dim=2).transpose(0, 1).reshape(len(inputs), -1)
