"""Models as files: one safetensors file with a JSON header and a checksum; no pickle and no code."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .fits import load_fit, save_fit

__all__ = ["load_fit", "save_fit"]


def __getattr__(name: str) -> object:
    # Fits are made by training, whose checkpoints are written with the container of this package.
    if name in __all__:
        from . import fits

        return getattr(fits, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
