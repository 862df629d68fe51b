"""``GPRegressor(memory_budget=…)``: rows that are in the caller's memory, fitted in little more."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..data import ArraySource
from ..scaled import ScaledGP

Array = npt.NDArray[np.float64]


def fit_arrays_within_memory(
    inputs: Array,
    targets: Array,
    counts: Array | None,
    budget: str | int,
    *,
    shown: bool,
    progress: Callable[[str], None] | None,
    **options: Any,
) -> ScaledGP:
    """One target; with ``shown`` the bill is printed on standard error before training."""
    from ..out_of_core import fit_within_memory  # here, because few fits need it

    data = ArraySource(inputs, targets, counts=counts)
    show = (lambda plan: print(plan, file=sys.stderr)) if shown else None
    return fit_within_memory(data, budget, progress=progress, on_plan=show, **options)
