"""Rows as users have them."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def to_numpy(values: Any) -> Any:
    """Torch tensors as NumPy arrays; everything else as it is, for scikit-learn to check."""
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
        return tensor.double().numpy() if tensor.is_floating_point() else tensor.numpy()
    return values
