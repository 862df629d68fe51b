"""What the files of one table have in common: the sign before decimals, and one type for each column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ..data.naming import listed, shortened
from ..errors import DataError
from .arrow_values import is_number, is_text
from .csv_files import CsvFile
from .table_files import TableFile
from .text_values import FEW_SHARE, DecimalEvidence, DistinctTexts, only_sign, parse_numbers, strange_texts


def common_schema(files: Sequence[TableFile]) -> tuple[pa.Schema, list[str]]:
    """The schema of all files together, which CSV files then read their columns by, and notes on columns of text."""
    first, *others = files
    for file in others:
        for one, other in ((first, file), (file, first)):
            absent = [name for name in one.types if name not in other.types]
            if absent:
                raise DataError(
                    f"{other.path} lacks the column {listed(absent)} that {one.path} has: all files need the same "
                    "columns;",
                    "correct the file, or name the columns to read with columns=[…].",
                    code="absent_columns",
                )
    fields, notes = [], []
    for name, kind in first.types.items():
        for file in others:
            kind = _common_type(kind, file.types[name])
            if kind is None:
                kind = _settle_drift(name, files)
                break
        fields.append(pa.field(name, kind))
        for file in files:
            if isinstance(file, CsvFile):
                if name in file.reasons:
                    row, value = file.reasons[name]
                    place = f"{file.options.place(file.path, row)} of {file.path}"
                    notes.append(f"Column {name!r} is read as text because {place} holds {shortened(value)}.")
                file.types[name] = kind
    return pa.schema(fields), notes


def _settle_drift(name: str, files: Sequence[TableFile]) -> pa.DataType:
    """Text, if a column is numbers in CSV files, in some of them with a few other words; otherwise an error."""
    kinds = [(file, file.types[name]) for file in files if not pa.types.is_null(file.types[name])]
    first, first_kind = kinds[0]
    numbers = [(file, kind) for file, kind in kinds if is_number(kind)]
    texts = [file for file, kind in kinds if is_text(kind) and isinstance(file, CsvFile)]
    if len(numbers) + len(texts) == len(kinds) and all(isinstance(file, CsvFile) for file, _ in numbers):
        number, number_kind = numbers[0]
        for text in texts:
            row, value, share = _first_other_word(text, name)
            if share > FEW_SHARE:
                raise DataError(
                    f"Column {name!r} is {number_kind} in {number.path} but text in {text.path}: "
                    f"{text.options.place(text.path, row)} there holds {shortened(value)}.",
                    "Correct the file, or leave the column out with columns=[…].",
                    code="text_among_numbers",
                )
            text.reasons.setdefault(name, (row, value))
        return pa.string()
    other, kind = next((file, kind) for file, kind in kinds if _common_type(first_kind, kind) is None)
    words = ["text" if is_text(each) else str(each) for each in (first_kind, kind)]
    raise DataError(
        f"Column {name!r} is {words[0]} in {first.path} but {words[1]} in {other.path}:",
        "convert one of them so that all files agree, or leave the column out with columns=[…].",
        code="different_types",
    )


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """A type that holds the values of both, or None."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if is_text(one) and is_text(other):
        return pa.large_string()
    if is_number(one) and is_number(other):
        return pa.int64() if pa.types.is_signed_integer(one) and pa.types.is_signed_integer(other) else pa.float64()
    if all(pa.types.is_date(kind) or pa.types.is_timestamp(kind) for kind in (one, other)):
        zones = [getattr(kind, "tz", None) for kind in (one, other)]
        if zones[0] == zones[1]:
            return pa.timestamp("us", tz=zones[0])
    if pa.types.is_time(one) and pa.types.is_time(other):
        return pa.time64("us")
    return None


def _first_other_word(file: CsvFile, column: str) -> tuple[int, str, float]:
    """The first text in a column that is neither a number nor missing (row, value), and the share of such texts."""
    seen, others, first = 0, 0, (0, "")
    for texts in file.texts(column):
        strange = strange_texts(texts, np.isnan(parse_numbers(texts)))
        if others == 0 and len(strange):
            first = (seen + int(strange[0]), texts[int(strange[0])].as_py())
        others += len(strange)
        seen += len(texts)
    return *first, others / max(1, seen)


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
