"""Facts about the training of a fitted estimator."""

from __future__ import annotations

import platform

import numpy as np
import sklearn
import torch

from ..scaled import ScaledGP


def training_summary(fits: list[ScaledGP], *, rows: int, total_weight: float, seconds: float) -> dict[str, object]:
    """Rows, seconds, versions and the record of each fit; everything in it is JSON."""
    return {
        "rows": rows,
        "total_weight": total_weight,
        "rows_added": 0,
        "rows_forgotten": 0,
        "columns": len(fits[0].inputs_scaler.scale),
        "targets": len(fits),
        "seconds": seconds,
        "versions": _versions(),
        "fits": [fit.record for fit in fits],
    }


def _versions() -> dict[str, str]:
    from .. import __version__

    return {
        "finitegp": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
        "python": platform.python_version(),
    }
