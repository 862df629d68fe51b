"""``as_source``: whatever users have becomes a source."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import IterableDataset

from ..errors import DataError
from .sources import NUMBERS_OF_PARTS, IterableSource, Source, source_of_parts
from .streams import StreamSource


def as_source(data: Any, *, chunk_size: int = 4096) -> Source:
    """A data source from what users have: a source, ``(inputs, targets[, weights[, counts]])``, or a re-iterable."""
    if isinstance(data, Source):
        return data
    if isinstance(data, IterableDataset):
        return StreamSource(data, chunk_size=chunk_size)
    # A tuple is arrays, unless it holds tuples; a list is chunks, unless it holds arrays.
    chunk_types = tuple if isinstance(data, tuple) else tuple | list
    if isinstance(data, tuple | list) and len(data) in NUMBERS_OF_PARTS and not isinstance(data[0], chunk_types):
        return source_of_parts(data, chunk_size=chunk_size)
    if isinstance(data, Iterable) and not isinstance(data, str | bytes | dict | Tensor | np.ndarray):
        return IterableSource(data)
    raise DataError(f"data must be (inputs, targets) or an iterable of such chunks, but is a {type(data).__name__}.")
