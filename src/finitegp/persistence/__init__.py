"""Models as files: one safetensors file with a JSON header and a checksum; no pickle, no code, no training rows."""

from .files import load_fit, save_fit
from .regressors import load_regressor, save_regressor

__all__ = ["load_fit", "load_regressor", "save_fit", "save_regressor"]
