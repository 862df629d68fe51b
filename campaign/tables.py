"""Fuzzed tables, CSV and Parquet, through predictions and fits."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .fixtures import Fixtures, check_finite, scratch
from .outcomes import Case

ODD_CELLS = [
    *("", " ", "NA", "nan", "inf", "-inf", "1e308", "-1e308", "1e155", "1e-320", "0", "-0", "00012", "1,5", "1.234,5"),
    *("TRUE", "true", "ja", "$5", "5 kg", "5%", "0x10", "1_000", "١٢", "½", "2024-01-05", "5/6/2020", "1999-02-30"),
    *("24:61", "9" * 400, "x" * 3000, "=1+1", "+cmd", "@SUM(1)", '"', '""', "a\nb", "\x1b[31m", "\u202e", "\0", "😀"),
    *("\ufeff", "None", "[1,2]", "{}", "9223372036854775808", "1e5000", "--", ".", "e", "u", "v "),
]
_ENCODINGS = ["utf8"] * 8 + ["latin-1", "utf-16", "utf-8-sig", "cp1252"]


def table_cases(fixtures: Fixtures, predictions: int, fits: int, seed: int) -> Iterator[Case]:
    """Tables for the model to predict, and tables to fit."""
    for number in range(predictions):
        yield _case("predict", fixtures, f"{seed}-predict-{number}", _predict(fixtures))
    for number in range(fits):
        yield _case("fit", fixtures, f"{seed}-fit-{number}", _fit)


def _case(what: str, fixtures: Fixtures, key: str, use: Callable[[Path], None]) -> Case:
    def attempt() -> None:
        chance = random.Random(key)
        source = fixtures.new if what == "predict" else fixtures.table
        kind = chance.choice(["csv"] * 4 + ["parquet"])
        path = scratch() / f"{what}.{kind}"
        try:
            if kind == "csv":
                path.write_bytes(_odd_csv(source.read_text(), chance))
            else:
                _odd_parquet(source, path, chance)
            use(path)
        finally:
            path.unlink(missing_ok=True)

    return Case(f"{what} {key}", attempt)


def _predict(fixtures: Fixtures) -> Callable[[Path], None]:
    from finitegp import TableReader, TableRegressor

    model = TableRegressor.load(fixtures.model)

    def use(path: Path) -> None:
        table = TableReader(path)
        mean, std = model.predict(table, return_std=True)
        check_finite([mean, std], "a prediction")
        check_finite(model.predict_interval(table), "an interval")

    return use


def _fit(path: Path) -> None:
    from finitegp import TableReader, TableRegressor

    table = TableReader(path)
    model = TableRegressor(effort="low", target_scale="identity", random_state=0).fit(table, target="y")
    mean, std = model.predict(table, return_std=True)
    check_finite([mean, std], "a prediction")


def _odd_csv(text: str, chance: random.Random) -> bytes:
    rows = [line.split(",") for line in text.splitlines()]
    for _ in range(chance.choice([1, 1, 2, 5])):
        if len(rows) < 2 or not rows[0]:
            break
        column = chance.randrange(len(rows[0]))
        match chance.choice(["cell", "cell", "cell", "column", "name", "row", "scale", "order", "delete", "repeat"]):
            case "cell":
                _set(rows, chance.randrange(1, len(rows)), column, chance.choice(ODD_CELLS))
            case "column":
                value = chance.choice(ODD_CELLS)
                for row in range(1, len(rows)):
                    _set(rows, row, column, value)
            case "name":
                _set(rows, 0, column, chance.choice([*ODD_CELLS, "y", "a"]))
            case "row":
                rows.insert(chance.randrange(len(rows)), [chance.choice(ODD_CELLS) for _ in range(chance.randrange(7))])
            case "scale":
                factor = chance.choice(["e155", "e300", "e-160", "e-300", "e9", "e-9"])
                for row in range(1, len(rows)):
                    if column < len(rows[row]) and rows[row][column][-1:].isdigit():
                        _set(rows, row, column, rows[row][column] + factor)
            case "order":
                for row in rows:
                    row.reverse()
            case "delete":
                rows = [row[:column] + row[column + 1 :] for row in rows]
            case "repeat":
                rows = [row + row[column : column + 1] for row in rows]
    delimiter = chance.choice([","] * 6 + [";", "\t", "|", " "])
    end = chance.choice(["\n"] * 4 + ["\r\n", "\r"])
    written = end.join(delimiter.join(_quoted(cell, delimiter, chance) for cell in row) for row in rows)
    data = bytearray((written + end).encode(chance.choice(_ENCODINGS), errors="replace"))
    if chance.random() < 0.15 and data:
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data if chance.random() > 0.05 else data[: chance.randrange(len(data) + 1)])


def _set(rows: list[list[str]], row: int, column: int, value: str) -> None:
    if column < len(rows[row]):
        rows[row][column] = value


def _quoted(cell: str, delimiter: str, chance: random.Random) -> str:
    if any(mark in cell for mark in (delimiter, '"', "\n", "\r")) and chance.random() < 0.8:
        return '"' + cell.replace('"', '""') + '"'
    return cell


def _odd_parquet(source: Path, path: Path, chance: random.Random) -> None:
    from pyarrow import csv

    table = csv.read_csv(source)
    for _ in range(chance.choice([1, 2, 3])):
        column = chance.randrange(table.num_columns)
        name, rows = table.column_names[column], table.num_rows
        table = table.set_column(column, chance.choice([name, name, name, "y", "\x1b[31m", ""]), _column(rows, chance))
    pq.write_table(table, path)
    if chance.random() < 0.2:
        data = bytearray(path.read_bytes())
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)


def _column(rows: int, chance: random.Random) -> Any:
    numbers = np.random.default_rng(chance.getrandbits(32)).normal(size=rows)
    made: list[Callable[[], Any]] = [
        lambda: pa.array(numbers * chance.choice([1e155, 1e300, 1e-160, 1e-300, 1e9, 1.0])),
        lambda: pa.array(np.where(numbers > 1.0, np.nan, numbers)),
        lambda: pa.array(np.where(numbers > 1.0, np.inf, numbers)),
        lambda: pa.array(numbers.astype(np.float32)),
        lambda: pa.array((numbers * 100).astype(np.int8)),
        lambda: pa.array((np.abs(numbers) * 1e18).astype(np.uint64)),
        lambda: pa.array([chance.choice(ODD_CELLS).encode(errors="replace").decode() for _ in range(rows)]),
        lambda: pa.array([chance.choice(["u", "v", None]) for _ in range(rows)]).dictionary_encode(),
        lambda: pa.nulls(rows),
        lambda: pa.array([b"\xff\xfe"] * rows),
        lambda: pa.array([[1.0, 2.0]] * rows),
        lambda: pa.array([{"a": 1}] * rows),
        lambda: pa.array(numbers > 0.0),
        lambda: pa.array((numbers * 1e15).astype(np.int64)).cast(pa.timestamp("us")),
        lambda: pa.array((numbers * 1e3).astype(np.int32)).cast(pa.date32()),
        lambda: pa.array([None] * (rows - 1) + [1.0]),
        lambda: pa.array(["0.1"] * rows),
        lambda: pa.array([10**30] * rows, pa.decimal128(38, 2)),
        lambda: pa.array((np.abs(numbers) * 1e3).astype(np.int64)).cast(pa.duration("s")),
    ]
    return chance.choice(made)()
