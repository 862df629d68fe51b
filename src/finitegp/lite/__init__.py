"""Predictions, intervals and exact updates of saved models with NumPy alone: no PyTorch, SciPy or Arrow.

The same files are the package ``finitegp-lite`` (``lite/pyproject.toml``), so nothing in here imports the rest of the
library.
"""

from .model import LiteModel, LitePrediction, load
from .program import LiteError

__all__ = ["LiteError", "LiteModel", "LitePrediction", "load"]
