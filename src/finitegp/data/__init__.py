"""Where rows come from."""

from .any_source import as_source
from .moments import Moments
from .npy_files import NpySource
from .scaled_source import ScaledSource, Scaling
from .shares import Share
from .sources import ArraySource, IndexedSource, IterableSource, Rows, Source
from .spool import SpooledSource, open_spool, spool
from .streams import StreamSource

__all__ = [
    "ArraySource",
    "IndexedSource",
    "IterableSource",
    "Moments",
    "NpySource",
    "Rows",
    "ScaledSource",
    "Scaling",
    "Share",
    "Source",
    "SpooledSource",
    "StreamSource",
    "as_source",
    "open_spool",
    "spool",
]
