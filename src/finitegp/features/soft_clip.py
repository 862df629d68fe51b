"""Bounded inputs: what one value far outside of all others may do to a network."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .arguments import check_size, wrong_width
from .pullback import Pullback

# No float64 is larger than this after the logarithm, so that these bounds bound nothing. Infinity would: files hold
# finite numbers only.
_UNBOUNDED = 1000.0


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
        if inputs.shape[1:] != (self.input_dim,):
            raise wrong_width(inputs, self.input_dim)
        return torch.clamp(self._compress(inputs), self.low, self.high)

    def forward_with_pullback(self, inputs: Tensor, *, inputs_need_gradient: bool = False) -> tuple[Tensor, Pullback]:
        """The same outputs without autograd, with the backward pass written out; there is nothing to train here."""
        if inputs.shape[1:] != (self.input_dim,):
            raise wrong_width(inputs, self.input_dim)
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
