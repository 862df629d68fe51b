"""The command ``finitegp evaluate``."""

from __future__ import annotations

from .console import Console, scores_table, verdict
from .options import Delimiter, Encoding, Json, Model, Tables, Target, load_with_table

EXAMPLES = """
[bold]Example[/bold]

finitegp evaluate price.finitegp later.csv
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
        predicted = loaded.predict_scored(table, report=found)
        baseline = loaded.baseline(predicted.targets)
        scores = [each.to_dict() for each in (predicted.scores(), baseline) if each is not None]
        console.note(*table.notes, *loaded.unusual(found))
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
