"""The sign before decimals, which is one for a table: what each column shows of it, and what follows for others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from ..data.naming import shortened
from .arrow_values import family, is_text, plain
from .csv_files import CsvFile
from .text_values import DECIMALS, DistinctTexts, NumberReading


class DecimalEvidence:
    """Evidence of the decimal sign in one column of text.

    Attributes:
        readings: The column read with each sign.
        example: A text such as 1.693, whose point may stand before decimals or between thousands; "" if there is none.
        same: Whether some number is the same with either sign.

    Example:
        >>> [evidence_of(pa.array(texts)).shown for texts in (["3,54", "1.234"], ["1.5", "2"], ["1.693", "694"])]
        [',', '.', None]
    """

    def __init__(self, decimals: Sequence[str] = DECIMALS) -> None:
        self.readings = [NumberReading(decimal) for decimal in decimals]
        self.example = ""
        self.same = False

    def add(self, chunk: DistinctTexts, first_row: int = 0) -> None:
        """One chunk."""
        values = [reading.add(chunk, first_row) for reading in self.readings]
        if len(values) == len(DECIMALS) and all(len(each) for each in values):
            point, comma = np.abs(values)
            larger = np.flatnonzero(comma > point)
            if len(larger) and not self.example:
                self.example = chunk.spelled[int(larger[0])]
            self.same = self.same or bool((comma == point).any())

    @property
    def is_hopeless(self) -> bool:
        """Whether nothing that may follow can make this a column of numbers."""
        return all(reading.is_hopeless for reading in self.readings)

    @property
    def holds(self) -> bool:
        """Whether the column is one of numbers with some sign."""
        return any(reading.holds for reading in self.readings)

    @property
    def shown(self) -> str | None:
        """The sign with which more of the texts are numbers than with the other, if these are enough."""
        held = [reading for reading in self.readings if reading.holds]
        fewest = min((reading.words.unknown for reading in held), default=0)
        best = [reading.decimal for reading in held if reading.words.unknown == fewest]
        return best[0] if len(best) == 1 else None

    @property
    def is_open(self) -> bool:
        """Whether the column has points that could be of either kind, and numbers without: 1.693 and 694."""
        return bool(self.example) and self.same and self.shown is None

    def note(self, name: str) -> str:
        """For the user, where the table decides nothing either."""
        return (
            f"Column {name!r} holds {shortened(self.example)}, which is read with a decimal point: if the point stands "
            "between thousands, say so with decimal=',' (--decimal ,)."
        )


def evidence_of(array: pa.Array) -> DecimalEvidence:
    """The evidence of a column of any type: none, if it is not text."""
    evidence, array = DecimalEvidence(), plain(array)
    if family(array.type) == "text":
        evidence.add(DistinctTexts(array))
    return evidence


def decimal_of_columns(columns: Iterable[pa.Array]) -> str | None:
    """The decimal sign of most columns of text that are numbers in one way of writing only, or None.

    Example:
        >>> decimal_of_columns([pa.array(["3,5478", "1,2"]), pa.array(["1,234", "2,345"]), pa.array(["blue", "red"])])
        ','
    """
    shown = [evidence_of(array).shown for array in columns]
    votes = {decimal: shown.count(decimal) for decimal in DECIMALS}
    most = max(votes, key=lambda decimal: votes[decimal])
    return most if list(votes.values()).count(votes[most]) == 1 else None


def only_sign(shown: Iterable[str | None]) -> str | None:
    """The sign that some columns show and none contradicts, or None.

    Example:
        >>> only_sign([",", None, ","]), only_sign([",", "."])
        (',', None)
    """
    found = set(shown) - {None}
    return found.pop() if len(found) == 1 else None


def settle_decimals(files: Sequence[CsvFile]) -> tuple[str | None, list[str]]:
    """The sign of the CSV files of one table, and notes; where it is a comma, floats are read as text from then on.

    Arrow takes 1.693 for a float before anyone has seen that the next column has decimal commas.
    """
    numbers = {name for file in files for name, kind in file.types.items() if pa.types.is_floating(kind)}
    texts = {name for file in files for name, kind in file.types.items() if is_text(kind)}
    evidence = {name: DecimalEvidence() for name in numbers | texts}
    for file in files if numbers else ():
        for batch in file.first_texts():
            for name, each in evidence.items():
                if name in file.types and not each.is_hopeless:
                    each.add(DistinctTexts(batch.column(name)))
            if (
                batch.num_rows
                and not any(each.is_open for each in evidence.values())
                and (
                    any(evidence[name].shown == "." for name in numbers)
                    or not any(evidence[name].holds for name in texts)
                )
            ):
                break  # there will be neither a comma nor a doubt
        # What made a column text later on counts as well.
        for name, (_, value) in file.reasons.items():
            evidence[name].add(DistinctTexts(pa.array([value])))
    sign = only_sign(each.shown for each in evidence.values())
    if sign == ",":
        for file in files:
            file.types |= dict.fromkeys(numbers & set(file.types), pa.string())
    if sign is not None:
        return sign, []
    unsettled = [name for name in evidence if name in numbers and evidence[name].is_open]
    return None, [found.note(name) for name in unsettled if (found := _whole_evidence(name, files)).is_open]


def _whole_evidence(name: str, files: Sequence[CsvFile]) -> DecimalEvidence:
    """The evidence of all rows of a column, which are read until there is some."""
    evidence = DecimalEvidence()
    for file in files:
        for texts in file.texts(name) if name in file.types else ():
            evidence.add(DistinctTexts(texts))
            if evidence.shown is not None or evidence.is_hopeless:
                return evidence
    return evidence
