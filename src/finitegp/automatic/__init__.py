"""A fit without choices: ``fit_auto`` picks what must be picked from the training rows alone."""

from .fit import fit_auto
from .settings import EFFORTS, AutoSettings

__all__ = ["EFFORTS", "AutoSettings", "fit_auto"]
