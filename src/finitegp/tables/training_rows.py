"""``TrainingRows``: the rows of a table that a fit learns from, in memory or on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from ..arguments import check_chunk_size
from ..data.arrays import check_rows
from ..data.naming import Renumbered, row_label
from ..data.sampling import RandomPermutation
from ..data.scaling import Moments
from ..data.sources import Rows, Source
from ..errors import DataError
from ..statistics import WHOLE, Share
from .encoder import TableEncoder
from .reader import TableReader, pieces
from .rows import ReadNumbers, TableRows
from .sketches import Gaps, Reservoir
from .summaries import EncodingOptions, TransformReport
from .targets import TargetScale

Array = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
_SHOWN_COPIES = 3


class TrainingChunk(NamedTuple):
    """Some rows, their targets and weights, and how many training rows come before them."""

    rows: pa.RecordBatch
    targets: Array
    weights: Array | None
    position: int


class TakenRows(NamedTuple):
    """Rows in memory and their targets."""

    rows: TableRows
    targets: Array


@dataclass(frozen=True, eq=False)
class TargetFacts:
    """Facts about the targets, from one pass over them.

    Attributes:
        moments: Of the targets that are there.
        sample: All of them, or 16 384 at random.
        missing: Rows without a target.
        first_missing: The number of the first of them.
    """

    moments: Moments
    sample: Array
    missing: int = 0
    first_missing: int = -1

    @classmethod
    def of(cls, chunks: Iterable[Array]) -> TargetFacts:
        """The facts about targets that come chunk by chunk."""
        moments: Moments | int = 0
        sample = Reservoir(np.float64)
        for targets in chunks:
            if len(targets):
                moments += Moments.of(targets[:, None])
                sample.add(sample.count + np.arange(len(targets)), targets)
        if not isinstance(moments, Moments):
            raise DataError("There is no row with a target to learn from.")
        return cls(moments, sample.values)

    @property
    def typical(self) -> Array:
        """The sample with the smallest and the largest target."""
        return np.concatenate([self.sample, self.moments.smallest, self.moments.largest])


@dataclass(frozen=True, eq=False)
class TrainingRows(Renumbered):
    """The rows of a table that have a target and a weight above zero, without those that are held out.

    They are counted by position, from 0, without the rows that are left out; numbers count all rows of the table.

    Attributes:
        table: All rows, in memory or, for a fit within a memory budget, on disk.
        read_targets: Their targets.
        read_weights: Their weights; None if all are one.
        left_out: Numbers of rows that are left out, in order.
        facts: About their targets.
        kept_bytes: Bytes of held-out rows in memory, which count against a memory budget.
    """

    table: TableRows | TableReader
    read_targets: ReadNumbers
    read_weights: ReadNumbers | None
    left_out: Numbers
    facts: TargetFacts
    kept_bytes: int = 0

    @classmethod
    def survey(
        cls, table: TableRows | TableReader, read_targets: ReadNumbers, read_weights: ReadNumbers | None
    ) -> TrainingRows:
        """One pass over a table to find which of its rows can be learned from."""
        left_out = [np.empty(0, dtype=np.int64)]
        gaps = Gaps()

        def kept() -> Iterator[Array]:
            number = 0
            for batch in table.rows(0, table.num_rows):
                targets = read_targets(batch, number)
                known = np.isfinite(targets)
                gaps.add(~known, None, number)
                if read_weights is not None:
                    known &= read_weights(batch, number) > 0.0
                left_out.append(np.flatnonzero(~known) + number)
                yield targets[known]
                number += batch.num_rows

        facts = replace(TargetFacts.of(kept()), missing=gaps.missing, first_missing=gaps.first_missing)
        return cls(table, read_targets, read_weights, np.concatenate(left_out), facts)

    @property
    def num_rows(self) -> int:
        """How many rows there are to learn from."""
        return self.table.num_rows - len(self.left_out)

    @property
    def on_disk(self) -> bool:
        """Whether the rows are read whenever they are needed."""
        return isinstance(self.table, TableReader)

    def numbers(self, positions: Numbers) -> Numbers:
        """The numbers that rows at some positions have in the table."""
        # Before the row at a position are those left-out rows whose number, less those before them, is no larger.
        before = np.searchsorted(self.left_out - np.arange(len(self.left_out)), positions, side="right")
        return positions + before

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[TrainingChunk]:
        """The rows with numbers from ``start`` to ``stop``, some at a time."""
        number = start
        for batch in self.table.rows(start, self.table.num_rows if stop is None else stop):
            kept = self._kept(number, batch.num_rows)
            if len(kept):
                targets = self.read_targets(batch, number)[kept]
                weights = None if self.read_weights is None else self.read_weights(batch, number)[kept]
                rows = batch if len(kept) == batch.num_rows else batch.take(pa.array(kept))
                yield TrainingChunk(rows, targets, weights, number - int(np.searchsorted(self.left_out, number)))
            number += batch.num_rows

    def column(self, name: str) -> Iterator[pa.Array]:
        """The values of one column, some at a time."""
        number = 0
        for batch in self.table.rows(0, self.table.num_rows, [name]):
            yield batch.column(0).take(pa.array(self._kept(number, batch.num_rows)))
            number += batch.num_rows

    def _kept(self, number: int, rows: int) -> Numbers:
        """Which of some rows, the first of which has this number, are not left out."""
        low, high = np.searchsorted(self.left_out, [number, number + rows])
        return np.delete(np.arange(rows), self.left_out[low:high] - number)

    def take(self, positions: Numbers) -> TakenRows:
        """The rows at some positions, which are in order, in memory."""
        found = list(self.parts(positions))
        parts, targets = [rows for rows, _ in found], [np.empty(0), *(values for _, values in found)]
        numbers, table = self.numbers(positions), self.table
        if isinstance(table, TableRows):
            rows = TableRows(pa.Table.from_batches(parts, table.table.schema), table.numbers[numbers], table.source)
        else:
            rows = TableRows(pa.Table.from_batches(parts, table.schema), numbers, table)
        return TakenRows(rows, np.concatenate(targets))

    def parts(self, positions: Numbers) -> Iterator[tuple[pa.RecordBatch, Array]]:
        """The rows at some positions, which are in order, and their targets, some at a time."""
        for chunk in self.chunks() if len(positions) else ():
            low, high = np.searchsorted(positions, [chunk.position, chunk.position + chunk.rows.num_rows])
            if low < high:
                own = positions[low:high] - chunk.position
                yield chunk.rows.take(pa.array(own)), chunk.targets[own]

    def all_rows(self) -> TakenRows:
        """All of them, in memory."""
        return self.take(np.arange(self.num_rows))

    def without(self, positions: Numbers, *, kept_bytes: int = 0) -> TrainingRows:
        """The rows but for those at some positions, which are in order; ``kept_bytes`` is what these take."""
        left_out = np.union1d(self.left_out, self.numbers(positions))
        others = replace(self, left_out=left_out, kept_bytes=kept_bytes)
        # Nothing about a row that is held out is known to the fit, not even that its target is the largest.
        facts = TargetFacts.of(chunk.targets for chunk in others.chunks())
        facts = replace(facts, missing=self.facts.missing, first_missing=self.facts.first_missing)
        return replace(others, facts=facts)

    def encoder(self, options: EncodingOptions, scale: TargetScale) -> TableEncoder:
        """The encoding of the columns, with effects of categories on the scaled target."""

        def fit(numbers: Numbers | None) -> TableEncoder:
            pairs = ((chunk.rows, scale.forward(chunk.targets)) for chunk in self.chunks())
            return TableEncoder.fit_chunks(pairs, options, source=self, numbers=numbers)

        found = fit(None)
        first = self.first_copies if found.learns_effects else None
        return found if first is None or len(np.unique(first)) == len(first) else fit(first)

    @cached_property
    def first_copies(self) -> Numbers | None:
        """For each position that of the first row that is equal in all columns; None if the rows are on disk."""
        return None if self.on_disk else self.all_rows().rows.copies()

    def fold_numbers(self, positions: Numbers, encoder: TableEncoder) -> Numbers:
        """The numbers that put the rows at some positions into folds: the same for copies."""
        first = self.first_copies if encoder.learns_effects else None
        return positions if first is None else first[positions]

    def training_inputs(self, encoder: TableEncoder, positions: Numbers) -> Array:
        """Encoded rows at some positions, which are in order, as the fit sees them."""
        return encoder.transform_training(self.take(positions).rows, numbers=self.fold_numbers(positions, encoder))

    @property
    def source(self) -> TableRows | TableReader:  # type: ignore[override]
        """The table."""
        return self.table

    def number(self, row: int) -> int:
        """The number that the row at a position has in the table."""
        return int(self.numbers(np.array([row]))[0])

    def label(self, number: int) -> str:
        """Where the row of a number is, for messages."""
        return row_label(number, self.table)


class EncodedSource(Source):
    """Training rows as numbers, encoded and scaled chunk by chunk in any number of passes."""

    num_targets = 1
    num_data: int
    input_dim: int
    chunk_size: int

    def __init__(
        self, training: TrainingRows, encoder: TableEncoder, scale: TargetScale, *, chunk_size: int = 4096
    ) -> None:
        self._training, self._encoder, self._scale = training, encoder, scale
        self.chunk_size = check_chunk_size(chunk_size)
        self.num_data, self.input_dim = training.num_rows, len(encoder.feature_names_out)
        self.column_names = encoder.feature_names_out
        self.reading_bytes = training.table.reading_bytes if isinstance(training.table, TableReader) else 0

    def __iter__(self) -> Iterator[Rows]:
        return self.part(WHOLE)

    def part(self, share: Share) -> Iterator[Rows]:
        """One pass over a share of the rows of the table, which are neighbours."""
        own = share.cut(self._training.table.num_rows)
        report = TransformReport(source=self._training)
        for batch, targets, weights, position in self._training.chunks(own.start, own.stop):
            for few, start in pieces(batch, self.chunk_size):
                cut = slice(start, start + few.num_rows)
                first = report.rows = position + start
                numbers = self._training.fold_numbers(np.arange(first, first + few.num_rows), self._encoder)
                yield check_rows(
                    torch.from_numpy(self._encoder.transform_training(few, report, numbers=numbers)),
                    torch.from_numpy(self._scale.forward(targets[cut])),
                    None,
                    None if weights is None else torch.from_numpy(weights[cut]),
                    numbers=first,
                    column_names=self.column_names,
                    places=[self._training] * 4,
                )

    def arrays(self) -> tuple[Array, Array, Array | None]:
        """Inputs, targets and weights of all rows."""
        inputs, targets = np.empty((self.num_data, self.input_dim)), np.empty(self.num_data)
        weights = None if self._training.read_weights is None else np.empty(self.num_data)
        first = 0
        for rows in self:
            own = slice(first, first + len(rows.inputs))
            inputs[own], targets[own] = rows.inputs.numpy(), rows.observed[:, 0].numpy()
            if weights is not None and rows.counts is not None:
                weights[own] = rows.counts.numpy()
            first = own.stop
        return inputs, targets, weights

    def locate(self, row: int) -> tuple[Path, int] | None:
        """The file that holds a row, and the number of the row in that file."""
        return self._training.locate(row)


def random_positions(rows: int, most: int, seed: int) -> Numbers:
    """Positions of at most this many random rows, in order."""
    positions: Numbers = np.sort(RandomPermutation(rows, seed)(np.arange(min(rows, most))))
    return positions


def note_on_copies(training: TrainingRows) -> list[str]:
    """A sentence on rows that are exact copies of others, if there are any."""
    first = training.first_copies
    if first is None:
        return ["Copies of rows were not looked for: the rows stay on disk."]
    copies = np.flatnonzero(first != np.arange(len(first)))
    if len(copies) == 0:
        return []
    rows = training.all_rows().rows
    shown = [f"{rows.label(int(copy))} of {rows.label(int(first[copy]))}" for copy in copies[:_SHOWN_COPIES]]
    more = f" and {len(copies) - _SHOWN_COPIES} more" if len(copies) > _SHOWN_COPIES else ""
    verb, noun = ("is a copy", "row") if len(copies) == 1 else ("are copies", "rows")
    return [
        f"{len(copies)} of {len(first)} training {noun} {verb} of another in all columns ({', '.join(shown)}{more}): "
        "copies are no new evidence. Remove them if they are a mistake."
    ]
