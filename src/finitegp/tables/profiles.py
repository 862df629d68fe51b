"""What the one pass of a fit learns about a column, and which encoding follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..data.naming import shortened
from ..errors import DataError
from .arrow_values import family, moment_values, number_values, plain
from .columns import CategoryColumn, DateColumn, FittedColumn, LeftOutColumn, NumberColumn, is_blank
from .dates import PARTS
from .sketches import MAX_CATEGORIES, CategoryCounter, Gaps, MomentSketch, NumberSketch, WordCounter
from .text_values import NOT_A_MOMENT, moment_text, parse_moments, parse_numbers

# Text of which so many values are different names its rows instead of describing them.
_IDENTIFIER_SHARE = 0.9
_SHOWN_WORDS = 5


@dataclass(frozen=True)
class Verdict:
    """The encoding of a column and the gaps that it has under this encoding."""

    column: FittedColumn
    gaps: Gaps


class ColumnProfile:
    """What has been seen of one column so far.

    Example:
        >>> profile = ColumnProfile("size")
        >>> profile.add(pa.array(["1.5", "n/a", "2"]), first_row=0)
        >>> verdict = profile.verdict(max_one_hot=16)
        >>> verdict.column.kind, verdict.gaps.missing, verdict.gaps.first_missing
        ('number', 1, 1)
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.family = "empty"
        self.type: Any = pa.null()
        self.rows = 0
        self._numbers = NumberSketch()
        self._moments = MomentSketch()
        self._categories = CategoryCounter()
        self._blank = Gaps()
        self._not_numbers = WordCounter()
        self._not_moments = WordCounter()

    def add(self, array: Any, first_row: int) -> None:
        """The column in one chunk."""
        array = plain(array)
        found = family(array.type)
        if self.family == "empty" and found != "empty":
            # Nothing but missing values before: they are missing whatever the column holds.
            self._count_missing_rows()
            self.family, self.type = found, array.type
        elif found not in ("empty", self.family):
            raise DataError(f"its type is {array.type}, but was {self.type} before; read all chunks with one schema")
        self.rows += len(array)
        if self.family in ("number", "boolean"):
            self._numbers.add(number_values(array), first_row)
        elif self.family in ("date", "time"):
            self._moments.add(moment_values(array), first_row)
        elif self.family == "text":
            self._add_text(array if found == "text" else array.cast(pa.large_string()), first_row)

    def _count_missing_rows(self) -> None:
        if self.rows:
            for gaps in (self._numbers.gaps, self._moments.gaps, self._blank):
                gaps.missing, gaps.first_missing = self.rows, 0

    def _add_text(self, texts: Any, first_row: int) -> None:
        self._blank.add(is_blank(texts), None, first_row)
        encoded = texts.dictionary_encode()
        different = encoded.dictionary
        indices = encoded.indices.fill_null(len(different)).to_numpy(zero_copy_only=False)
        # Every text is parsed once however often it occurs; the last entry is that of null.
        numbers = np.append(parse_numbers(different), np.nan)
        moments = np.append(parse_moments(different), NOT_A_MOMENT)
        self._numbers.add(numbers[indices], first_row)
        self._moments.add(moments[indices], first_row)
        counts = np.bincount(indices, minlength=len(different) + 1)[:-1].tolist()
        spelled = different.to_pylist()
        filled = ~is_blank(different)
        for counter, chosen in (
            (self._categories, filled),
            (self._not_numbers, filled & np.isnan(numbers[:-1])),
            (self._not_moments, filled & (moments[:-1] == NOT_A_MOMENT)),
        ):
            which = np.flatnonzero(chosen).tolist()
            counter.add([spelled[number] for number in which], [counts[number] for number in which])

    def verdict(self, max_one_hot: int) -> Verdict:
        """The encoding, once all rows have been seen."""
        if self.family == "empty":
            return self._left_out("empty", f"all {self.rows} values are missing")
        if self.family == "other":
            return self._left_out("other", f"the type {self.type} cannot be used")
        if self.family in ("number", "boolean"):
            return self._number_verdict(None)
        if self.family in ("date", "time"):
            return self._date_verdict(None)
        if self._not_numbers.are_few(self._numbers.count + self._numbers.gaps.infinite):
            return self._number_verdict(self._not_numbers)
        if self._not_moments.are_few(self._moments.count):
            return self._date_verdict(self._not_moments)
        return self._category_verdict(max_one_hot)

    def _left_out(self, kind: str, note: str) -> Verdict:
        return Verdict(LeftOutColumn(self.name, kind, "left out", False, note), Gaps())

    def _constant(self, value: str) -> Verdict:
        return self._left_out("constant", f"every value is {value}")

    def _number_verdict(self, words: WordCounter | None) -> Verdict:
        sketch = self._numbers
        if sketch.count == 0:
            return self._left_out("empty", f"all {self.rows} values are missing or infinite")
        is_constant = sketch.minimum == sketch.maximum
        if is_constant and not sketch.gaps.total:
            return self._constant(_number_text(sketch.minimum))
        kind = "boolean" if self.family == "boolean" else "number"
        usual = float(2 * sketch.ones > sketch.count) if kind == "boolean" else sketch.median()
        if is_constant:
            notes = [f"every value is {_number_text(sketch.minimum)} or missing"]
        elif kind == "boolean":
            notes = [f"{sketch.ones} of {sketch.count} are true"]
        else:
            notes = [f"from {_number_text(sketch.minimum)} to {_number_text(sketch.maximum)}"]
        if words is not None:
            notes.append("numbers written as text")
        notes += _word_notes(words)
        if sketch.gaps.total:
            what = _number_text(usual) if kind == "number" else str(bool(usual)).lower()
            notes.append(_gap_note(sketch.gaps, f"{'median' if kind == 'number' else 'usual value'} {what}"))
            if kind == "number" and not sketch.sample.is_exact:
                notes[-1] += f" (approximate, from {sketch.sample.size} rows)"
        column = NumberColumn(
            self.name,
            kind,
            "missing or not" if is_constant else "number",
            sketch.gaps.total > 0,
            "; ".join(notes),
            usual,
            () if words is None else tuple(words.unknown_words()),
        )
        return Verdict(column, sketch.gaps)

    def _date_verdict(self, words: WordCounter | None) -> Verdict:
        sketch = self._moments
        if sketch.count == 0:
            return self._left_out("empty", f"all {self.rows} values are missing")
        is_constant = sketch.minimum == sketch.maximum
        if is_constant and not sketch.gaps.total:
            return self._constant(self._moment_text(sketch.minimum))
        varies = (
            not is_constant,
            np.count_nonzero(sketch.days_of_year) > 1,
            np.count_nonzero(sketch.weekdays) > 1,
            sketch.first_time < sketch.last_time,
        )
        notes = [f"from {self._moment_text(sketch.minimum)} to {self._moment_text(sketch.maximum)}"]
        if words is not None:
            notes.append("ISO dates written as text")
        notes += _word_notes(words)
        if sketch.gaps.total:
            notes.append(_gap_note(sketch.gaps, f"median {self._moment_text(sketch.median())}"))
            if not sketch.sample.is_exact:
                notes[-1] += f" (approximate, from {sketch.sample.size} rows)"
        column = DateColumn(
            self.name,
            "time" if self.family == "time" else "date",
            "missing or not" if is_constant else "date parts",
            sketch.gaps.total > 0,
            "; ".join(notes),
            sketch.median(),
            tuple(part for part, used in zip(PARTS, varies, strict=True) if used),
            () if words is None else tuple(words.unknown_words()),
        )
        return Verdict(column, sketch.gaps)

    def _moment_text(self, moment: int) -> str:
        if self.family == "time":
            seconds = moment // 1_000_000
            return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        return moment_text(moment)

    def _category_verdict(self, max_one_hot: int) -> Verdict:
        counter, gaps = self._categories, self._blank
        ranked = counter.by_frequency()
        if counter.count == 0:
            return self._left_out("empty", f"all {self.rows} values are missing")
        if counter.overflowed:
            return self._left_out("identifier", f"more than {MAX_CATEGORIES} different texts, or very long ones")
        if len(ranked) > max_one_hot and len(ranked) >= _IDENTIFIER_SHARE * counter.count:
            return self._left_out("identifier", f"{len(ranked)} different texts in {counter.count} rows")
        if len(ranked) == 1 and not gaps.total:
            return self._constant(shortened(ranked[0][0]))
        if len(ranked) == 1:
            encoding, notes = "missing or not", [f"every value is {shortened(ranked[0][0])} or missing"]
        else:
            encoding = "one-hot" if len(ranked) <= max_one_hot else "rank"
            notes = [f"{len(ranked)} categories, most often {shortened(ranked[0][0])} ({ranked[0][1]} times)"]
        if gaps.total:
            notes.append(_gap_note(gaps, f"most frequent {shortened(ranked[0][0])}"))
        categories, counts = zip(*ranked, strict=True)
        column = CategoryColumn(
            self.name, "category", encoding, gaps.total > 0, "; ".join(notes), tuple(categories), tuple(counts)
        )
        return Verdict(column, gaps)


def _number_text(value: float) -> str:
    return f"{value:.6g}"


def _word_notes(words: WordCounter | None) -> list[str]:
    if words is None or not words.words:
        return []
    ordered = sorted(words.words.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{shortened(word, 20)} ({count} times)" for word, count in ordered[:_SHOWN_WORDS]]
    if len(ordered) > _SHOWN_WORDS:
        shown.append(f"{len(ordered) - _SHOWN_WORDS} more words")
    return [f"missing where it says {', '.join(shown)}"]


def _gap_note(gaps: Gaps, usual: str) -> str:
    counted = [f"{gaps.missing} missing"] * (gaps.missing > 0) + [f"{gaps.infinite} infinite"] * (gaps.infinite > 0)
    return f"{' and '.join(counted)}: {usual} put in"
