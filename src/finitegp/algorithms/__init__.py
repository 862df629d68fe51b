"""Training algorithms, one file each."""

from .base import Algorithm, BatchGradient
from .bsgd import BSGD
from .exact import Exact, ExactGradient, exact_gradient
from .lagged import Lagged
from .minimax import Minimax
from .paper_minimax import PaperMinimax
from .scgd import SCGD

__all__ = [
    "BSGD",
    "SCGD",
    "Algorithm",
    "BatchGradient",
    "Exact",
    "ExactGradient",
    "Lagged",
    "Minimax",
    "PaperMinimax",
    "exact_gradient",
]
