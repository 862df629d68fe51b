"""Where tensors are: which devices this machine has, and which of them compute in float64."""

from __future__ import annotations

import torch
from torch import Tensor

CPU = torch.device("cpu")
#: Kinds of devices that do not compute in float64.
WITHOUT_FLOAT64 = {"mps"}


def as_device(device: str | torch.device) -> torch.device:
    """The device, if torch can use it here.

    Example:
        >>> as_device("cpu")
        device(type='cpu')
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(
            f"device must be one that torch knows, such as 'cpu', 'cuda' or 'mps', but is {device!r}."
        ) from None
    try:
        torch.ones(1, device=found).item()
    # What a missing device raises differs by device and by build.
    except (RuntimeError, AssertionError, ImportError) as error:
        why = str(error).split(". ")[0].rstrip(".")
        raise ValueError(
            f"device is {str(device)!r}, which torch cannot use here ({why}): leave it at 'cpu'."
        ) from None
    return found


def exact_device(device: torch.device) -> torch.device:
    """Where float64 sums and factors of what is on a device are computed: there, or on the CPU if it has no float64."""
    return CPU if device.type in WITHOUT_FLOAT64 else device


def in_float64(values: Tensor) -> Tensor:
    """The values in float64, on :func:`exact_device`."""
    return values.to(device=exact_device(values.device), dtype=torch.float64)
