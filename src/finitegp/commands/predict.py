"""The command ``finitegp predict``, and tables written chunk by chunk: CSV, gzipped or not, and Parquet."""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from ..atomic import complete_or_absent
from ..errors import DataError
from ..formatting import counted
from . import options
from .console import Console

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import csv

    from ..estimator.regressor import GPRegressor
    from ..tables.model import TableRegressor
    from ..tables.reader import TableReader


_ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".parquet", ".pq")

_NEW_LINE = "\n"


def predict(
    model: options.Model,
    tables: options.Tables,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The table to write: .csv, .csv.gz, .tsv, .parquet, or - for standard output.",
            show_default=False,
        ),
    ],
    coverage: Annotated[float, typer.Option(help="Of the interval.")] = 0.9,
    interval: Annotated[
        Literal["predictive", "gaussian", "conformal"],
        typer.Option(
            help="From the predictive distribution, from the standard deviation alone, or as counted on rows that "
            "training did not see.",
        ),
    ] = "predictive",
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", help="Write only this column beside the predictions; repeat for several."),
    ] = None,
    outside: Annotated[
        bool,
        typer.Option(
            "--outside",
            help="Write one more column: which columns of a row lie outside of what the fit saw, and by how many "
            "deviations.",
        ),
    ] = False,
    memory: options.Memory = None,
    delimiter: options.Delimiter = None,
    encoding: options.Encoding = "utf8",
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Write a table with columns for the predicted mean, its standard deviation and an interval.

    The columns are found by name. From CSV to CSV, the table's own columns stay as they are, character for character.
    Tables of any length are read and written in pieces. A model that was fitted with --memory keeps to the same budget,
    unless another is given.
    """
    console = Console(as_json)
    options.check_share("--coverage", coverage)
    if memory is not None:
        options.check_size("--memory", memory)
    with console.guard():
        from ..data.naming import check_columns
        from ..tables.model import TableRegressor
        from ..tables.reader import ON_DISK
        from ..tables.summaries import TransformReport

        to_screen = str(output) == "-"
        if not to_screen and not output.name.lower().endswith(_ENDINGS):
            raise DataError(f"{output} has no known ending: give the table a name that ends in {', '.join(_ENDINGS)}.")
        options.check_output(output, force=force, inputs=[model, *tables])
        if to_screen and as_json:
            raise typer.BadParameter("standard output cannot hold both the table and the JSON.", param_hint="--json")
        loaded = TableRegressor.load(model)
        budget = memory or loaded.regressor_.memory_budget
        if budget is None:
            table = options.open_tables(tables, delimiter, encoding, loaded.reading_options)
        else:
            from ..memory import return_freed_memory

            return_freed_memory()  # before the first table is opened
            table = options.open_tables(tables, delimiter, encoding, loaded.reading_options | ON_DISK)
            _keep_to_budget(loaded.regressor_, budget, table, console, of_model=memory is None)
        prefix = loaded.target_ or "target"
        added = [f"{prefix}_{name}" for name in ("mean", "std", "lower", "upper", *(["outside"] if outside else []))]
        check_columns(keep or [], table.column_names)
        taken = [name for name in added if name in (table.column_names if keep is None else keep)]
        if taken:
            raise DataError(f"The table has a column {taken[0]!r} already, which the predictions need: rename it.")
        found = TransformReport(source=table)
        asked: dict[str, Any] = {"coverage": coverage, "method": interval, "report": found, "outside": outside}
        as_text = table.is_text and not output.name.lower().endswith((".parquet", ".pq"))
        write = _write_text if as_text else _write_typed
        write(_Predictions(loaded, table, added, keep, asked), output, force)
        console.note(*table.notes, *loaded.unusual(found))
        if not to_screen:
            console.print(
                f"{counted(table.num_rows, 'row')} with {', '.join(added)} ({100 * coverage:g} % interval): ", output
            )
        written = {"output": str(output), "rows": table.num_rows, "columns": added}
        console.result(written | {"coverage": coverage, "interval": interval})


def _keep_to_budget(
    regressor: GPRegressor, budget: str | int, table: TableReader, console: Console, *, of_model: bool = False
) -> None:
    """Let a model predict in chunks that keep to a memory budget, perhaps its own; the bill is shown."""
    from ..memory import MemoryBudgetError, parse_bytes, return_freed_memory
    from ..prediction_memory import PredictionSetting, plan_prediction
    from ..tables.reader import ON_DISK

    (fit,) = regressor.fits_
    setting = PredictionSetting.of(
        fit, table_columns=len(table.column_names), table_rows=ON_DISK["chunk_size"], reading_bytes=table.reading_bytes
    )
    try:
        plan = plan_prediction(parse_bytes(budget), setting)
    except MemoryBudgetError as error:
        if not of_model:
            raise
        # Reading a CSV file takes more than a small model: a budget that was enough to fit it may not be here.
        problem = f"The model was fitted with a memory budget, which predictions keep to. {error.problem}"
        raise MemoryBudgetError(problem, "", error.plan) from None
    console.print(str(plan))
    return_freed_memory()
    regressor.fits_ = [fit.with_chunks(plan.setting.chunk_size)]


class _Predictions(NamedTuple):
    """Predictions of a table to be written, under names that are added to the columns that are kept."""

    model: TableRegressor
    table: TableReader
    added: list[str]
    keep: list[str] | None
    asked: dict[str, Any]


def _write_text(predictions: _Predictions, output: Path, force: bool) -> None:
    """From CSV to CSV: records as they are written, and predictions at their ends."""
    import numpy as np

    loaded, table, added, keep, asked = predictions
    files, name = table.text_files(), output.name.lower().removesuffix(".gz")
    with text_writer(output, encoding=table.csv_options.encoding, overwrite=force) as stream:
        for number, (records, batch, given) in enumerate(files):
            # A tab in .tsv files, none in .csv files, otherwise that of the table which is read.
            comma = "," if name.endswith(".csv") and given == "\t" else given
            delimiter = "\t" if name.endswith(".tsv") else comma
            # Fields are written anew only where some are left out or others are to stand between them.
            chosen = keep if keep is not None or delimiter == given else batch.schema.names
            if batch.num_rows == 0:
                if number == 0:
                    own = records[0].text if chosen is None else _joined(chosen, delimiter)
                    stream.write(f"{own}{delimiter}{_joined(added, delimiter)}{records[0].end or _NEW_LINE}")
                continue
            chunk = next(loaded.predict_chunks(_with_points(batch, table), **asked))
            figures = np.stack([chunk.mean, chunk.std, chunk.lower, chunk.upper], axis=1)
            columns = None if chosen is None else zip(*(batch.column(name).to_pylist() for name in chosen), strict=True)
            outside = None if chunk.outside is None else iter(chunk.outside)
            for record, row in zip(records, figures.tolist(), strict=True):
                own = record.text if columns is None else _joined(next(columns), delimiter)
                numbers = delimiter.join(map(repr, row))
                if loaded.decimal_sign != ".":  # as in the table, or a spreadsheet would read them as text
                    numbers = _joined([repr(number).replace(".", loaded.decimal_sign) for number in row], delimiter)
                if outside is not None:
                    numbers += delimiter + _joined([next(outside)], delimiter)
                stream.write(f"{own}{delimiter}{numbers}{record.end or _NEW_LINE}")


def _with_points(batch: pa.RecordBatch, table: TableReader) -> pa.RecordBatch:
    """Records as text whose numbers have a decimal point, where the table was said to have another sign."""
    import pyarrow as pa
    import pyarrow.compute as pc

    decimal = table.csv_options.decimal
    if decimal == ".":
        return batch
    numbers = {field.name for field in table.schema if pa.types.is_floating(field.type)}
    columns = [
        pc.replace_substring(column, decimal, ".") if name in numbers else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _joined(values: list[str] | tuple[str, ...], delimiter: str) -> str:
    """Fields of one record, in quotation marks where they need them."""
    quoted = [
        '"' + value.replace('"', '""') + '"' if any(mark in value for mark in (delimiter, '"', "\n", "\r")) else value
        for value in values
    ]
    return delimiter.join(quoted)


def _write_typed(predictions: _Predictions, output: Path, force: bool) -> None:
    """Values with their types, as Parquet has them."""
    import pyarrow as pa

    loaded, table, added, keep, asked = predictions
    kept = [field for field in table.schema if keep is None or field.name in keep]
    kinds = [pa.float64()] * 4 + [pa.string()]
    schema = pa.schema([*kept, *map(pa.field, added, kinds)])
    with table_writer(output, schema, overwrite=force) as writer:
        for rows, *figures in loaded.predict_chunks(table, **asked):
            own = [rows.column(field.name) for field in kept]
            written = [pa.array(each) for each in figures if each is not None]
            writer.write_batch(pa.RecordBatch.from_arrays([*own, *written], schema=schema))


@contextmanager
def table_writer(
    path: Path, schema: pa.Schema, *, overwrite: bool = True
) -> Iterator[pq.ParquetWriter | csv.CSVWriter]:
    """A writer of the table at ``path``, complete or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import csv

    name = path.name.lower()
    is_parquet = name.endswith((".parquet", ".pq"))
    unwritable = [field.name for field in schema if pa.types.is_nested(field.type) and not is_parquet]
    if unwritable:
        raise DataError(f"Column {unwritable[0]!r} holds lists, which CSV cannot: write .parquet instead.")
    options = csv.WriteOptions(delimiter="\t" if ".tsv" in name else ",")
    with _opened(path, overwrite) as stream:
        made = pq.ParquetWriter(stream, schema) if is_parquet else csv.CSVWriter(stream, schema, write_options=options)
        with made as writer:
            yield writer


@contextmanager
def _opened(path: Path, overwrite: bool) -> Iterator[IO[bytes]]:
    """A file, gzipped if its name ends so, that is there when it is complete; ``-`` is standard output."""
    if str(path) == "-":
        yield sys.stdout.buffer
        return
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with complete_or_absent(path, overwrite=overwrite) as temporary, opened(temporary, "wb") as stream:
        yield stream  # type: ignore[misc]


@contextmanager
def text_writer(path: Path, *, encoding: str = "utf8", overwrite: bool = True) -> Iterator[IO[str]]:
    """The same for text; that on standard output is in its own encoding."""
    if str(path) == "-":
        yield sys.stdout
        sys.stdout.flush()
        return
    with _opened(path, overwrite) as stream, io.TextIOWrapper(stream, encoding=encoding, newline="") as text:
        yield text
