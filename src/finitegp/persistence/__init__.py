"""Models as files: one safetensors file with a JSON header and a checksum; no pickle, no code, no training rows."""

from .files import load_fit, save_fit

__all__ = ["load_fit", "save_fit"]
