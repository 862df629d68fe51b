"""Points, and the kernel that a feature map stands for: what the tests of feature maps compute with."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def random_points(rows: int, columns: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(rows, columns, generator=generator, dtype=torch.float64)


def feature_kernel(feature_map: nn.Module, inputs: Tensor, other: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        return feature_map(inputs) @ feature_map(inputs if other is None else other).T
