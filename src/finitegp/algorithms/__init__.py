"""Training algorithms, one file each."""

from .exact import ExactGradient, exact_gradient

__all__ = ["ExactGradient", "exact_gradient"]
