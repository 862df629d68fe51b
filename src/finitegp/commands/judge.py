"""The commands ``finitegp evaluate`` and ``finitegp report``: a model on a table that has the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import Console, scores_table, show_findings, verdict
from .options import (
    Delimiter,
    Encoding,
    Force,
    Json,
    Model,
    OptionalTables,
    Tables,
    Target,
    check_output,
    load_with_table,
)

EVALUATE_EXAMPLES = """
[bold]Example[/bold]

finitegp evaluate price.finitegp later.csv
"""
REPORT_EXAMPLES = """
[bold]Example[/bold]

finitegp report price.finitegp later.csv -o later.html
"""


def evaluate(
    model: Model,
    tables: Tables,
    target: Target = None,
    delimiter: Delimiter = None,
    encoding: Encoding = "utf8",
    as_json: Json = False,
) -> None:
    """Score a model on a table that has the truth: error, density, and how often intervals hold it.

    Use rows that the model has not seen; it cannot know.
    """
    console = Console(as_json)
    with console.guard():
        from ..tables.summaries import TransformReport

        loaded, table = load_with_table(model, tables, delimiter, encoding, target)
        found = TransformReport()
        judged = loaded.judge(*loaded.rows_to_judge(table), found)
        predicted = judged.scored
        baseline = loaded.baseline(predicted.targets)
        scores = [each.to_dict() for each in (predicted.scores(), baseline) if each is not None]
        console.note(*table.notes, *loaded.unusual(found), *loaded.notes_on_known(judged))
        console.table(scores_table(f"{len(predicted.targets)} rows", scores))
        console.print(verdict(scores, predicted.width))
        console.result(
            {
                "model": str(model),
                "rows": len(predicted.targets),
                "target": loaded.target_,
                "scores": scores,
                "interval_width": predicted.width,
            }
        )


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

    A table is needed, because a model file does not hold the truth; use rows that the model has not seen.
    """
    console = Console(as_json)
    if not tables:
        raise typer.BadParameter(
            "a model file does not hold the truth to report on: give a table that has it, best one that the model has "
            "not seen. (finitegp fit writes a report on its held-out rows; finitegp info shows their scores.)",
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
