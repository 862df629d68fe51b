"""The command ``finitegp update``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import Console
from .options import Delimiter, Encoding, Force, Json, Model, Tables, Target, check_output, open_tables

EXAMPLES = """
[bold]Example[/bold]

finitegp update price.finitegp march.csv -o price-march.finitegp
"""


def update(
    model: Model,
    tables: Tables,
    output: Annotated[Path, typer.Option("--output", "-o", help="The new model file.", show_default=False)],
    target: Target = None,
    delimiter: Delimiter = None,
    encoding: Encoding = "utf8",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Take more rows into a model: the exact posterior of all rows, with features, noise and scaling kept.

    The time does not depend on how many rows the model has seen. Rows that it has seen already would count twice.
    """
    console = Console(as_json)
    with console.guard():
        from ..table_model import TableModel
        from ..tables.encoder import TransformReport

        check_output(output, force=force, inputs=tables)
        loaded = TableModel.load(model).with_target(target)
        table = open_tables(tables, delimiter, encoding)
        found = TransformReport(source=table)
        loaded.update(table, found)
        total = loaded.regressor.fits_[0].fitted.posterior.statistics.num_data
        loaded.save(output, overwrite=force)
        console.note(*table.notes, *found.lines())
        console.print(f"{table.num_rows} rows added, {total:g} in all: ", output)
        console.result({"model": str(output), "rows_added": table.num_rows, "rows": total})
