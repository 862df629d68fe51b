"""A fit without choices: ``fit_auto`` picks what must be picked from the training rows alone."""

from .fit import fit_auto, fit_source, fit_within_memory
from .settings import EFFORTS, AutoSettings

__all__ = ["EFFORTS", "AutoSettings", "fit_auto", "fit_source", "fit_within_memory"]
