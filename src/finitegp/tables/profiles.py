"""Profiles of columns, learned in the one pass of a fit, and the encodings that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..data.naming import shortened
from ..errors import DataError
from ..lite.tables import BOOLEAN_WORDS, MEAN, MEAN_AND_PLACE, NOT_A_MOMENT, PLACED_ROWS
from .arrow_values import (
    FOUND_STYLES,
    PARTS,
    STYLES,
    family,
    moment_text,
    moment_values,
    number_values,
    plain,
    text_values,
    whole_number_moments,
)
from .categories import CategoryColumn, CategoryMeans
from .columns import DateColumn, FittedColumn, LeftOutColumn, NumberColumn, OrderedColumn
from .sketches import MAX_CATEGORIES, CategoryCounter, Gaps, IntegerSketch, MomentSketch, NumberSketch, is_key
from .text_values import (
    DECIMALS,
    DateReading,
    DecimalEvidence,
    DistinctTexts,
    NumberReading,
    WordCounter,
    is_blank,
    leading_zero,
    note_on_zero,
)

# Text of which this share of values is different names its rows instead of describing them.
_IDENTIFIER_SHARE = 0.9
# Text of this number of words, of which this share of values is different, is written freely.
_FREE_WORDS, _FREE_SHARE = 4.0, 0.3
_SHOWN_WORDS = 5
# How many values stand for a column where a row has none.
_QUANTILES = 9
_ORDERS = ("day first", "month first")


@dataclass(frozen=True)
class ColumnOptions:
    """Options of the encoding of one column.

    Attributes:
        kind: ``"category"``, ``"number"`` or ``"date"`` if it is given; None to find it.
        decimal: What stands before decimals in text, ``"."`` or ``","``; None to find it.
        day_first: Whether 1/2/2020 is 1 February (True) or 2 January (False); None to find it.
    """

    kind: str | None = None
    decimal: str | None = None
    day_first: bool | None = None


@dataclass(frozen=True)
class Verdict:
    """The encoding of a column, the gaps that it has under this encoding, and notes on it for the user."""

    column: FittedColumn
    gaps: Gaps
    notes: tuple[str, ...] = ()
    absurd_row: int | None = None


class ColumnProfile:
    """The profile of one column: what has been seen of it so far.

    Example:
        >>> profile = ColumnProfile("size")
        >>> profile.add(pa.array(["1.5", "n/a", "2"]), first_row=0)
        >>> verdict = profile.verdict(max_one_hot=16)
        >>> verdict.column.kind, verdict.gaps.missing, verdict.gaps.first_missing
        ('number', 1, 1)
    """

    def __init__(self, name: str, options: ColumnOptions | None = None) -> None:
        self.name = name
        self.options = options or ColumnOptions()
        self.family = "empty"
        self.type: pa.DataType = pa.null()
        self.rows = 0
        self._numbers = NumberSketch()
        self._moments = MomentSketch()
        self._integers = IntegerSketch()
        self._compact: MomentSketch | None = MomentSketch()
        self.evidence = DecimalEvidence(DECIMALS if self.options.decimal is None else (self.options.decimal,))
        styles = STYLES if self.options.kind == "date" else FOUND_STYLES
        excluded = {True: "month first", False: "day first", None: ""}[self.options.day_first]
        self._readings: list[NumberReading | DateReading] = [DateReading(each) for each in styles if each != excluded]
        if self.options.decimal in (None, "."):
            self._readings.append(NumberReading(None))
        self._categories = CategoryCounter()
        self._words = 0
        self._zero = ""
        self._means: CategoryMeans | None = None
        self._blank = Gaps()

    def add(
        self,
        array: pa.Array,
        first_row: int,
        targets: npt.NDArray[np.float64] | None = None,
        numbers: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """The column in one chunk, and the targets of its rows, if categories are to learn from them.

        ``numbers`` are those by which rows are put into folds; None for their own.
        """
        array = plain(array)
        found = family(array.type)
        if self.family == "empty" and found != "empty":
            # Nothing but missing values before: they are missing whatever the column holds.
            self._count_missing_rows()
            self.family, self.type = found, array.type
        elif found not in ("empty", self.family):
            raise DataError(f"its type is {array.type}, but was {self.type} before; read all chunks with one schema")
        self.rows += len(array)
        as_categories = self.options.kind == "category" and self.family not in ("empty", "other")
        if self.family in ("number", "boolean"):
            values = number_values(array)
            self._numbers.add(values, first_row)
            if self.family == "number":
                self._integers.add(array, values)
            self._add_compact(values, first_row)
            # Codes are whole numbers; whether a key names rows or groups, only the last row shows.
            is_code = self.family == "number" and self._integers.is_whole and is_key(self.name)
            as_categories = as_categories or is_code
        elif self.family in ("date", "time"):
            self._moments.add(moment_values(array), first_row)
        elif self.family == "text":
            as_categories = True
        if as_categories:
            self._add_text(array if found == "text" else text_values(array), first_row, targets, numbers)

    def _count_missing_rows(self) -> None:
        readings: list[NumberReading | DateReading] = [*self._readings, *self.evidence.readings]
        sketches = (self._numbers, self._moments, self._compact, *(reading.sketch for reading in readings))
        for gaps in [self._blank, *(sketch.gaps for sketch in sketches if sketch is not None)] if self.rows else []:
            gaps.missing, gaps.first_missing = self.rows, 0

    def _whole_style(self, largest: float) -> str:
        """How dates are written as whole numbers; years only in a column that is given as one of dates."""
        return "year" if self.options.kind == "date" and largest < 10_000 else "yyyymmdd"

    def _add_compact(self, values: npt.NDArray[np.float64], first_row: int) -> None:
        if self._compact is None:
            return
        moments = whole_number_moments(values, self._whole_style(np.nanmax(values, initial=0.0)))
        if bool(((moments == NOT_A_MOMENT) & ~np.isnan(values)).any()):
            self._compact = None
        else:
            self._compact.add(moments, first_row)

    def _add_text(
        self,
        texts: pa.Array,
        first_row: int,
        targets: npt.NDArray[np.float64] | None,
        row_numbers: npt.NDArray[np.int64] | None,
    ) -> None:
        self._blank.add(is_blank(texts), None, first_row)
        chunk = DistinctTexts(texts)
        if self.family == "text":
            self.evidence.add(chunk, first_row)
            for reading in self._readings:
                reading.add(chunk, first_row)
            self._zero = self._zero or leading_zero(chunk.texts)
            self._words += sum(map(lambda text, count: (text.count(" ") + 1) * count, chunk.spelled, chunk.counts))
        chunk.count(chunk.filled, self._categories)
        if targets is not None and not self._categories.overflowed:
            present = np.append(chunk.filled, False)[chunk.indices] & np.isfinite(targets)
            rows = np.flatnonzero(present)
            self._means = self._means or CategoryMeans()
            folded_by = rows + first_row if row_numbers is None else row_numbers[rows]
            self._means.add(chunk.spelled, chunk.indices[rows], targets[rows], folded_by)

    def verdict(self, max_one_hot: int, *, row_numbers: bool = False, decimal: str | None = None) -> Verdict:
        """The encoding, once all rows have been seen, with numbers of rows used too or left out.

        ``decimal`` is what stands before decimals by other columns, where this one leaves it open.
        """
        if self.family == "empty":
            return self._left_out("empty", f"all {self.rows} values are missing")
        if self.family == "other":
            return self._left_out("other", f"the type {self.type} cannot be used")
        if self.options.kind == "category":
            return self._category_verdict(max_one_hot)
        if self.family in ("number", "boolean"):
            return self._whole_number_verdict(max_one_hot, row_numbers, decimal)
        if self.family in ("date", "time"):
            return self._date_verdict(self._moments, None)
        return self._text_verdict(max_one_hot, decimal)

    def _whole_number_verdict(self, max_one_hot: int, row_numbers: bool, decimal: str | None) -> Verdict:
        wanted, integers, compact = self.options.kind, self._integers, self._compact
        if compact is not None and compact.count and (wanted == "date" or (wanted is None and self.family == "number")):
            return self._date_verdict(compact, None, self._whole_style(self._numbers.maximum))
        if wanted == "date":
            raise DataError(
                f"Column {self.name!r} shall hold dates, but holds numbers such as {self._numbers.maximum:.6g}: write "
                "dates as 20201231 or 2020-12-31."
            )
        if wanted is None and self.family == "number":
            if integers.names_rows(self.name) and not row_numbers:
                note = f"{integers.distinct} different whole numbers in {integers.count} rows"
                told = f"Column {self.name!r} is left out: it numbers or names the rows."
                return self._left_out("identifier", note, told)
            if integers.names_groups(self.name):
                return self._category_verdict(max_one_hot)
        # Where new rows have text here, it is written as the rest of the table.
        commas = self.options.decimal == "," or (decimal == "," and self.family == "number" and integers.is_whole)
        return self._number_verdict(self._numbers, None, "," if commas else "")

    def _text_verdict(self, max_one_hot: int, decimal: str | None) -> Verdict:
        wanted = self.options.kind
        held = [reading for reading in (*self._readings, *self.evidence.readings) if reading.holds]
        numbers = [reading for reading in held if isinstance(reading, NumberReading)]
        dates = {reading.style: reading for reading in held if isinstance(reading, DateReading)}
        if numbers and wanted in (None, "number") and (wanted or "yyyymmdd" not in dates):
            sign = self.evidence.shown or decimal
            fewest = min(numbers, key=lambda each: each.words.unknown)
            number = next((each for each in numbers if each.decimal == sign == ","), fewest)
            return self._number_verdict(number.sketch, number, is_open=sign is None and self.evidence.is_open)
        if dates and wanted in (None, "date"):
            orders = [set(dates[style].words.unknown_words()) for style in _ORDERS if style in dates]
            if len(orders) == 2:
                # A text that one order alone can read shows the order of all, if none shows the other.
                for style, own, other in zip(_ORDERS, orders, orders[::-1], strict=True):
                    if own < other:
                        dates = {style: dates[style]}
            if {*_ORDERS} <= set(dates):
                raise DataError(
                    f"Column {self.name!r} holds dates such as {shortened(self._example())}, of which "
                    f"{'no row shows' if orders[0] == orders[1] else 'rows show in two ways'} whether the day or the "
                    "month comes first.",
                    "Pass day_first=True or day_first=False.",
                    code="ambiguous_dates",
                )
            reading = next(iter(dates.values()))
            return self._date_verdict(reading.sketch, reading.words, reading.style)
        if wanted is not None:
            what = "numbers" if wanted == "number" else "dates"
            raise DataError(
                f"Column {self.name!r} shall hold {what}, but too many of its values are none, such as "
                f"{shortened(self._example())}: correct them, or leave the column out."
            )
        return self._category_verdict(max_one_hot)

    def _example(self) -> str:
        ranked = self._categories.by_frequency()
        return ranked[0][0] if ranked else "very many different texts"

    def _left_out(self, kind: str, note: str, *notes: str) -> Verdict:
        return Verdict(LeftOutColumn(self.name, kind, "left out", False, note), Gaps(), notes)

    def _number_verdict(
        self, sketch: NumberSketch, reading: NumberReading | None, decimal: str = "", *, is_open: bool = False
    ) -> Verdict:
        if sketch.count == 0:
            return self._left_out("empty", f"all {self.rows} values are missing or infinite")
        is_constant = sketch.minimum == sketch.maximum
        if is_constant and self._integers.is_whole and self._integers.distinct > 1:
            return self._left_out("identifier", "whole numbers that differ only beyond their 15th digit")
        if is_constant and not sketch.gaps.total:
            return self._left_out("constant", f"every value is {sketch.minimum:.6g}")
        is_boolean = self.family == "boolean"
        usual = float(2 * sketch.ones > sketch.count) if is_boolean else sketch.median()
        if is_constant:
            notes = [f"every value is {sketch.minimum:.6g} or missing"]
        elif is_boolean:
            notes = [f"{sketch.ones} of {sketch.count} are true"]
        else:
            notes = [f"from {sketch.minimum:.6g} to {sketch.maximum:.6g}"]
        told = []
        if reading is not None:
            written = "numbers written as text" + _style_note(reading)
            notes.append(written)
            decimal = reading.decimal or ""
            if decimal:
                told.append(f"Column {self.name!r} is read as {written}.")
            if self._zero and reading.decimal is None:
                told.append(note_on_zero(self.name, self._zero))
            if is_open:
                told.append(self.evidence.note(self.name))
        unit, words = ("", None) if reading is None else (reading.unit, reading.words)
        what = f"usual value {str(bool(usual)).lower()}" if is_boolean else f"median {usual:.6g}"
        kind = "boolean" if is_boolean else "number"
        column = self._ordered(NumberColumn, kind, sketch, words, notes, usual, what, decimal=decimal, unit=unit)
        return Verdict(column, sketch.gaps, tuple(told), None if is_boolean else sketch.absurd_row())

    def _date_verdict(self, sketch: MomentSketch, words: WordCounter | None, style: str = "iso") -> Verdict:
        if sketch.count == 0:
            return self._left_out("empty", f"all {self.rows} values are missing")
        is_constant = sketch.minimum == sketch.maximum
        first, last, middle = map(self._moment_text, (sketch.minimum, sketch.maximum, sketch.median()))
        if is_constant and not sketch.gaps.total:
            return self._left_out("constant", f"every value is {first}")
        varies = (
            not is_constant,
            np.count_nonzero(sketch.days_of_year) > 1,
            np.count_nonzero(sketch.weekdays) > 1 and not sketch.only_months,  # on which a month begins says nothing
            sketch.first_time < sketch.last_time,
        )
        notes = [f"from {first} to {last}"]
        if words is not None or style != "iso":
            notes.append("ISO dates written as text" if style == "iso" else f"dates written with {style}")
        told = () if style == "iso" else (f"Column {self.name!r} is read as dates ({style}), from {first} to {last}.",)
        parts = tuple(part for part, used in zip(PARTS, varies, strict=True) if used)
        kind, what = "time" if self.family == "time" else "date", f"median {middle}"
        usual = sketch.median()
        column = self._ordered(DateColumn, kind, sketch, words, notes, usual, what, parts=parts, style=style)
        return Verdict(column, sketch.gaps, told)

    def _ordered(
        self,
        made: type[OrderedColumn],
        kind: str,
        sketch: NumberSketch | MomentSketch,
        words: WordCounter | None,
        notes: list[str],
        usual: float,
        usual_text: str,
        **more: object,
    ) -> OrderedColumn:
        """A column of numbers or dates."""
        gaps, sample = sketch.gaps.total, sketch.sample
        notes = notes + _word_notes(words)
        if gaps:
            exact = sample.is_exact or kind == "boolean"
            approximate = "" if exact else f" (approximate, from {sample.size} rows)"
            notes.append(_gap_note(sketch.gaps, usual_text) + approximate)
        return made(
            self.name,
            kind,
            "missing or not" if sketch.minimum == sketch.maximum else made.encodings[0],
            gaps > 0,
            "; ".join(notes),
            usual,
            () if words is None else tuple(words.unknown_words()),
            gaps=gaps,
            distinct=sample.distinct,
            quantiles=tuple(sample.quantiles(_QUANTILES)),
            span=(sketch.minimum, sketch.maximum),
            **more,
        )

    def _moment_text(self, moment: int) -> str:
        if self.family == "time":
            seconds = moment // 1_000_000
            return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        return moment_text(moment)

    def _category_verdict(self, max_one_hot: int) -> Verdict:
        counter, gaps, asked = self._categories, self._blank, self.options.kind == "category"
        ranked = counter.by_frequency()
        if counter.count == 0:
            return self._left_out("empty", f"all {self.rows} values are missing")
        if counter.overflowed:
            return self._left_out("identifier", f"more than {MAX_CATEGORIES} different texts, or very long ones")
        many = len(ranked) > max_one_hot and not asked
        if many and len(ranked) >= _FREE_SHARE * counter.count and self._words >= _FREE_WORDS * counter.count:
            note = f"{len(ranked)} different texts of {self._words / counter.count:.0f} words on average"
            return self._left_out("free text", note, f"Column {self.name!r} is left out: it holds free text.")
        if many and len(ranked) >= _IDENTIFIER_SHARE * counter.count:
            numbers = [text for text, _ in ranked if any(letter.isdecimal() for letter in text)]
            example = numbers[0] if 2 * len(numbers) > len(ranked) else ranked[0][0]
            what = f"Column {self.name!r} is left out: nearly every row has another text, such as {shortened(example)}."
            if 2 * len(numbers) > len(ranked):
                what += " Most values contain a number: where it matters, write it, or the date, in one style, with "
                what += "one unit or none."
            return self._left_out("identifier", f"{len(ranked)} different texts in {counter.count} rows", what)
        if len(ranked) == 1 and not gaps.total:
            return self._left_out("constant", f"every value is {shortened(ranked[0][0])}")
        words = {text.strip().casefold() for text, _ in ranked}
        if len(ranked) > 1 and not asked and any(words == set(pair) for pair in BOOLEAN_WORDS):
            return self._yes_or_no_verdict(ranked)
        codes = self.family == "number" and not asked
        told = (f"Column {self.name!r} is read as categories: its numbers are codes.",) if codes else ()
        means: tuple[float, ...] = ()
        out_of_fold = None
        if len(ranked) == 1:
            encoding, notes = "missing or not", [f"every value is {shortened(ranked[0][0])} or missing"]
        else:
            notes = [f"{len(ranked)} categories, most often {shortened(ranked[0][0])} ({ranked[0][1]} times)"]
            encoding = "one-hot" if len(ranked) <= max_one_hot else "rank"
            if encoding == "rank" and self._means is not None:
                placed = sum(count for _, count in ranked if count >= PLACED_ROWS)
                encoding = MEAN_AND_PLACE if 2 * placed >= sum(count for _, count in ranked) else MEAN
                shrunk = self._means.shrunk([text for text, _ in ranked])
                means, out_of_fold = tuple(shrunk.means.tolist()), shrunk.out_of_fold
        if gaps.total:
            notes.append(_gap_note(gaps, f"most frequent {shortened(ranked[0][0])}"))
        categories, counts = map(tuple, zip(*ranked, strict=True))
        found = self.name, "category", encoding, gaps.total > 0, "; ".join(notes), categories, counts
        learned: dict[str, Any] = {"means": means, "out_of_fold": out_of_fold}
        return Verdict(CategoryColumn(*found, gaps=gaps.total, distinct=len(ranked), **learned), gaps, told)

    def _yes_or_no_verdict(self, ranked: list[tuple[str, int]]) -> Verdict:
        true = next(pair[0] for pair in BOOLEAN_WORDS if ranked[0][0].strip().casefold() in pair)
        ones = sum(count for text, count in ranked if text.strip().casefold() == true)
        gaps, usual = self._blank, float(2 * ones > self._categories.count)
        note = f"{ones} of {self._categories.count} are {true}"
        if gaps.total:
            note += f"; {_gap_note(gaps, f'usual value {shortened(ranked[0][0])}')}"
        more: dict[str, Any] = {"gaps": gaps.total, "distinct": 2, "quantiles": (0.0, 1.0)}
        return Verdict(NumberColumn(self.name, "boolean", "number", gaps.total > 0, note, usual, (), **more), gaps)


def _style_note(reading: NumberReading) -> str:
    notes = [f"with {reading.unit!r}"] * bool(reading.unit) + ["with a decimal comma"] * (reading.decimal == ",")
    return f" {' and '.join(notes)}" if notes else ""


def _word_notes(words: WordCounter | None) -> list[str]:
    if words is None or not words.words:
        return []
    ordered = sorted(words.words.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{shortened(word, 20)} ({count} times)" for word, count in ordered[:_SHOWN_WORDS]]
    if len(ordered) > _SHOWN_WORDS:
        shown.append(f"{len(ordered) - _SHOWN_WORDS} more words")
    return [f"missing where it is {', '.join(shown)}"]


def _gap_note(gaps: Gaps, usual: str) -> str:
    return f"{' and '.join(f'{count} {word}' for count, word, _ in gaps.kinds())}: {usual} put in"
