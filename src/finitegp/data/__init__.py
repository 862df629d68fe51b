"""Where rows come from."""

from .sources import ArraySource, DataSource, IterableSource, Rows, as_source

__all__ = ["ArraySource", "DataSource", "IterableSource", "Rows", "as_source"]
