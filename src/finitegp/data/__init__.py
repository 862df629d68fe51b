"""Where rows come from."""

from ..statistics import Share
from .arrays import ArraySource, NpySource
from .iterables import IterableSource, ScaledSource, Scaling, StreamSource, as_source
from .scaling import Moments
from .sources import Measure, Rows, Source
from .spool import SpooledSource, open_spool, spool

__all__ = [
    "ArraySource",
    "IterableSource",
    "Measure",
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
