"""The command ``finitegp statistics``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import Console
from .options import Delimiter, Encoding, Force, Json, Model, Tables, Target, check_output, load_with_table

EXAMPLES = """
[bold]Example[/bold]

finitegp statistics price.finitegp north.csv -o north.statistics
"""


def statistics(
    model: Model,
    tables: Tables,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file for the statistics.", show_default=False)],
    target: Target = None,
    delimiter: Delimiter = None,
    encoding: Encoding = "utf8",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write the sums of a table's rows for a model's features, for [bold]finitegp merge[/bold]; no rows.

    For sites that may not share their rows: all use copies of one model file. The sums are not anonymous: from the sums
    of fewer rows than features, rows may be computed, and a note warns of it. Tables of any length are read in pieces.
    """
    console = Console(as_json)
    with console.guard():
        from ..tables.summaries import TransformReport

        check_output(output, force=force, inputs=[model, *tables])
        loaded, table = load_with_table(model, tables, delimiter, encoding, target)
        found = TransformReport()
        site = loaded.statistics(table, found)
        site.save(output, overwrite=force)
        console.note(*table.notes, *loaded.unusual(found))
        features = site.statistics.num_features
        console.print(
            f"sums of {site.rows:g} rows ({features} x {features} of features, {features} of features with "
            f"{site.target}, and three numbers): ",
            output,
        )
        console.result(
            {
                "statistics": str(output),
                "rows": site.rows,
                "features": features,
                "target": site.target,
                "fingerprint": site.fingerprint,
            }
        )
