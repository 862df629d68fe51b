"""Small callbacks for the training loop."""

from .base import Callback
from .measuring import BiasMeter, ExactNLML, Validation
from .reporting import Checkpoint, JsonLinesLog, ProgressBar, TensorBoardLog

__all__ = [
    "BiasMeter",
    "Callback",
    "Checkpoint",
    "ExactNLML",
    "JsonLinesLog",
    "ProgressBar",
    "TensorBoardLog",
    "Validation",
]
