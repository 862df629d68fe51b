"""The command ``finitegp report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import Console, show_findings
from .options import Delimiter, Encoding, Force, Json, Model, OptionalTables, Target, check_output, load_with_table

EXAMPLES = """
[bold]Example[/bold]

finitegp report price.finitegp later.csv -o later.html
"""


def report(
    model: Model,
    tables: OptionalTables = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page to write; by default beside the model.")
    ] = None,
    target: Target = None,
    seed: Annotated[int, typer.Option(min=0, help="Of samples of rows.")] = 0,
    delimiter: Delimiter = None,
    encoding: Encoding = "utf8",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a report on a model from a table that has the truth: whether to trust it, and what may be wrong.

    A model file holds no rows, so a table is needed; use rows that the model has not seen.
    """
    console = Console(as_json)
    if not tables:
        raise typer.BadParameter(
            "a model file holds no rows to report on: give a table that has the truth, best one that the model has not "
            "seen. (finitegp fit writes a report on its held-out rows; finitegp info shows their scores.)",
            param_hint="TABLE",
        )
    with console.guard():
        place = check_output(output or model.with_suffix(".html"), force=force, inputs=[model, *tables])
        loaded, table = load_with_table(model, tables, delimiter, encoding, target)
        contents = loaded.report(table, place, seed=seed, force=force, shell=True)
        findings = [finding.to_dict() for finding in contents.checkup.findings]
        console.note(*table.notes)
        console.print(f"report on {table.num_rows} rows: ", place)
        show_findings(console, findings)
        console.result({"model": str(model), "report": str(place), "rows": table.num_rows, "findings": findings})
