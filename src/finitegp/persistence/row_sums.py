"""``FeatureStatistics`` as numbers and tensors of a file, checked one by one when they are read."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ..errors import ModelFileError
from ..statistics import FeatureStatistics

_SUMS = ("gram", "projected_targets", "target_sum_of_squares", "log_scale_sum")


def encode_statistics(statistics: FeatureStatistics) -> dict[str, Tensor]:
    """The sums by name; the number of rows goes into the header."""
    return {f"statistics.{name}": getattr(statistics, name) for name in _SUMS}


def decode_statistics(num_data: object, tensors: Mapping[str, Tensor]) -> FeatureStatistics:
    """The statistics that :func:`encode_statistics` described; what cannot be sums over rows is a ModelFileError.

    Example:
        >>> sums = FeatureStatistics.from_batch(torch.ones(4, 2), torch.ones(4))
        >>> float(decode_statistics(4, encode_statistics(sums)).gram[0, 1])
        4.0
    """
    gram, projected = tensors.get("statistics.gram"), tensors.get("statistics.projected_targets")
    if gram is None or projected is None or gram.ndim != 2 or projected.ndim != 2:
        raise ModelFileError("its sums are not matrices")
    features, targets = projected.shape
    return FeatureStatistics(
        gram=checked_tensor(tensors, "statistics.gram", (features, features)),
        projected_targets=checked_tensor(tensors, "statistics.projected_targets", (features, targets)),
        target_sum_of_squares=checked_tensor(tensors, "statistics.target_sum_of_squares", (targets,)),
        log_scale_sum=checked_tensor(tensors, "statistics.log_scale_sum", ()),
        num_data=positive_number("num_data", num_data),
    )


def checked_tensor(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    """The tensor of this name, if it is float64 of this shape with finite values."""
    tensor = tensors.get(name)
    if tensor is None or tuple(tensor.shape) != shape or tensor.dtype != torch.float64:
        found = "is not there" if tensor is None else f"is {tensor.dtype} of shape {tuple(tensor.shape)}"
        raise ModelFileError(f"its tensor {name!r} should be float64 of shape {shape}, but {found}")
    if not bool(torch.isfinite(tensor).all()):
        raise ModelFileError(f"its tensor {name!r} has values that are not finite")
    return tensor


def positive_number(name: str, value: object) -> float:
    """The value, if it is a positive, finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0.0):
        raise ModelFileError(f"its {name} is {str(value)[:60]!r} instead of a positive number")
    return float(value)
