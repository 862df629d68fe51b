"""The command ``finitegp update``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import Console
from .options import Delimiter, Encoding, Force, Json, Model, Tables, Target, check_output, load_with_table

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
        from ..tables.summaries import TransformReport

        check_output(output, force=force, inputs=tables)
        loaded, table = load_with_table(model, tables, delimiter, encoding, target)
        found = TransformReport()
        loaded.update(table, report=found)
        loaded.save(output, overwrite=force)
        console.note(*table.notes, *loaded.unusual(found))
        console.print(f"{found.rows} rows added, {loaded.rows_:g} in all: ", output)
        console.result({"model": str(output), "rows_added": found.rows, "rows": loaded.rows_})
