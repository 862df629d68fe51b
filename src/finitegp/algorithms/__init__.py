"""Training algorithms, one file each."""

from .base import Algorithm, BatchGradient
from .bsgd import BSGD
from .exact import Exact, ExactGradient, exact_gradient
from .lagged import Lagged
from .minimax import Minimax
from .scgd import SCGD
from .svgp import SVGP

__all__ = [
    "BSGD",
    "SCGD",
    "SVGP",
    "Algorithm",
    "BatchGradient",
    "Exact",
    "ExactGradient",
    "Lagged",
    "Minimax",
    "exact_gradient",
]
