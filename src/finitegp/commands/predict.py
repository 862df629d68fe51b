"""The command ``finitegp predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import DataError
from .console import Console
from .fit_on_disk import BLOCK_BYTES, CHUNK_ROWS, keep_to_budget
from .options import (
    Delimiter,
    Encoding,
    Force,
    Interval,
    Json,
    Memory,
    Model,
    Tables,
    check_output,
    check_share,
    check_size,
    open_tables,
)

EXAMPLES = """
[bold]Examples[/bold]

finitegp predict price.finitegp new.csv -o predicted.csv

finitegp predict price.finitegp parts/ -o predicted.parquet --coverage 0.95

finitegp predict price.finitegp parts/ -o predicted.parquet --memory 64MB
"""


def predict(
    model: Model,
    tables: Tables,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The table to write: .csv, .csv.gz or .parquet.", show_default=False)
    ],
    coverage: Annotated[float, typer.Option(help="Of the interval.")] = 0.9,
    interval: Annotated[
        Interval,
        typer.Option(
            help="From the predictive distribution, from the standard deviation alone, or as counted on rows that "
            "training did not see.",
        ),
    ] = Interval.predictive,
    memory: Memory = None,
    delimiter: Delimiter = None,
    encoding: Encoding = "utf8",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a table with columns for the predicted mean, its standard deviation and an interval.

    The columns are found by name. Tables of any length are read and written in pieces. A model that was fitted with
    --memory keeps to the same budget, unless another is given.
    """
    console = Console(as_json)
    check_share("--coverage", coverage)
    if memory is not None:
        check_size("--memory", memory)
    with console.guard():
        import pyarrow as pa

        from ..error_shape import interval_around
        from ..table_model import TableModel
        from ..tables.encoder import TransformReport
        from .tables_out import check_ending, table_writer

        check_ending(output)
        check_output(output, force=force, inputs=[model, *tables])
        loaded = TableModel.load(model)
        budget = memory or loaded.regressor.memory_budget
        if budget is None:
            table = open_tables(tables, delimiter, encoding)
        else:
            from ..memory import return_freed_memory

            return_freed_memory()  # before the first table is opened
            table = open_tables(tables, delimiter, encoding, chunk_size=CHUNK_ROWS, block_size=BLOCK_BYTES)
            keep_to_budget(loaded.regressor, budget, table, console, of_model=memory is None)
        prefix = loaded.target or "target"
        added = [f"{prefix}_{name}" for name in ("mean", "std", "lower", "upper")]
        taken = [name for name in added if name in table.column_names]
        if taken:
            raise DataError(f"The table has a column {taken[0]!r} already, which the predictions need: rename it.")
        schema = pa.schema([*table.schema, *(pa.field(name, pa.float64()) for name in added)])
        found = TransformReport(source=table)
        width = loaded.deviations(coverage, interval.value)
        with table_writer(output, schema, overwrite=force) as writer:
            for rows, mean, std in loaded.predict(table, found):
                columns: list[Any] = [mean, std, *interval_around(mean, std, width)]
                writer.write_batch(pa.RecordBatch.from_arrays([*rows.columns, *map(pa.array, columns)], schema=schema))
        console.note(*table.notes, *found.lines())
        console.print(f"{table.num_rows} rows with {', '.join(added)} ({100 * coverage:g} % interval): ", output)
        console.result(
            {
                "output": str(output),
                "rows": table.num_rows,
                "columns": added,
                "coverage": coverage,
                "interval": interval.value,
            }
        )
