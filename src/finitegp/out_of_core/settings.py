"""What the automatic fit's settings become where rows are many and on disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..automatic import AutoSettings

# Of batches that are chosen here; larger ones cost more per row than they save in steps.
_LARGEST_BATCH = 1024
# Outputs of the embedding of all columns together: few columns can afford many each.
_EMBEDDING_OUTPUTS = 128
_WIDEST_EMBEDDING = 32


def settings_for(
    settings: AutoSettings, *, num_columns: int, num_data: int | None, given: Mapping[str, Any] | None = None
) -> AutoSettings:
    """The settings of an effort, adapted to a table; what was given stays.

    Batches grow with the rows, so that the steps that an effort allows make as many passes over the rows as it asks
    for, or as many as batches of 1024 can. Tables of few columns get wider embeddings: functions of few columns that
    need a million rows to be learned are rough ones.

    Args:
        settings: Those of an effort.
        num_columns: Input columns.
        num_data: Rows, if they are known.
        given: Changes by name.

    Example:
        >>> chosen = settings_for(AutoSettings(), num_columns=2, num_data=2_000_000)
        >>> chosen.batch_size, chosen.embedding_width, chosen.num_frequencies
        (1024, 32, 64)
        >>> settings_for(AutoSettings(), num_columns=50, num_data=40_000) == AutoSettings()
        True
    """
    batch = settings.batch_size
    while batch < _LARGEST_BATCH and (num_data is None or settings.epochs * num_data > settings.max_steps * batch):
        batch *= 2
    width = max(settings.embedding_width, min(_EMBEDDING_OUTPUTS // num_columns, _WIDEST_EMBEDDING))
    chosen: dict[str, Any] = {
        "batch_size": batch,
        "embedding_width": width,
        "num_frequencies": max(settings.num_frequencies, 2 * width),
    }
    return settings.with_changes(chosen | dict(given or {}))
