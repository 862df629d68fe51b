"""Rows on disk for several ranks: the first one writes them, the others wait and then read the same file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..data import Rows, Source, StreamSource, as_source, open_spool
from ..data.scaling import Standardizer
from ..distributed import Ranks
from ..errors import DataError
from .disk_rows import DiskRows


def prepare_rows(data: Any, *, ranks: Ranks, chunk_size: int, seed: int, **options: Any) -> DiskRows:
    """:meth:`DiskRows.prepare`, once for all ranks.

    Args:
        data: Any source; only the first rank reads it, unless it is a stream.
        ranks: Who needs the rows.
        chunk_size: Rows in memory at once.
        seed: Determines the random order.
        options: Further ones of :meth:`DiskRows.prepare`.
    """
    source: Source = as_source(data)
    if ranks.world_size == 1:
        return DiskRows.prepare(source, chunk_size=chunk_size, seed=seed, **options)
    if isinstance(source, StreamSource):
        source = ranks.spool(source, input_dtype="float64", chunk_size=chunk_size)
    own: list[DiskRows] = []

    def write(beat: Callable[[], None]) -> str:
        watched = _Watched(source, beat, chunk_size)
        rows = DiskRows.prepare(watched, chunk_size=chunk_size, seed=seed, **options)
        own.append(rows)
        scalers = [[s.mean.tolist(), s.scale.tolist()] for s in (rows.inputs_scaler, rows.target_scaler)]
        return json.dumps({"place": str(rows.data.directory.resolve()), "scalers": scalers})

    told = json.loads(ranks.first_does(write))
    with ranks.working():
        if not own:
            if not Path(told["place"]).is_dir():
                raise DataError(
                    f"Rank {ranks.rank} does not see {told['place']}, where the first rank has put the rows: give a "
                    "directory that all machines see, or set TMPDIR to one."
                )
            # Numbers of float64 survive JSON to the bit.
            inputs, target = (Standardizer(np.array(mean), np.array(scale)) for mean, scale in told["scalers"])
            rows = open_spool(told["place"], chunk_size=chunk_size, verify=False)
            own.append(DiskRows(rows, inputs, target, seed=seed))
    return own[0]


class _Watched(Source):
    """The rows of another source, which tells of every chunk that passes."""

    def __init__(self, source: Source, beat: Callable[[], None], chunk_size: int) -> None:
        self._source = source
        self._beat = beat
        self._chunk_size = chunk_size
        self.column_names = source.column_names
        if hasattr(source, "locate"):
            self.locate = source.locate

    @property
    def num_data(self) -> int | None:  # type: ignore[override]
        return self._source.num_data

    def __iter__(self) -> Iterator[Rows]:
        before = getattr(self._source, "chunk_size", None)
        if before is not None:
            self._source.chunk_size = min(before, self._chunk_size)  # type: ignore[attr-defined]
        try:
            for rows in self._source:
                self._beat()
                yield rows
        finally:
            if before is not None:
                self._source.chunk_size = before  # type: ignore[attr-defined]

    def fingerprint(self) -> dict[str, Any] | None:
        return self._source.fingerprint()

    def files(self) -> list[Path]:
        return self._source.files()
