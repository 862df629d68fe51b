"""Records of a fit as JSON: NumPy's and torch's numbers become plain ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor


def plain_json(value: object) -> Any:
    """The value in types that JSON has; numbers that are not finite become None, which JSON calls null.

    Example:
        >>> plain_json({"rows": np.int64(3), "scores": (0.5, float("nan"))})
        {'rows': 3, 'scores': [0.5, None]}
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.integer | np.bool_):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): plain_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(each) for each in value]
    if isinstance(value, np.ndarray | Tensor):
        return plain_json(value.tolist())
    raise TypeError(f"A {type(value).__name__} cannot be stored as JSON.")
