"""The command ``finitegp evaluate``."""

from __future__ import annotations

from typing import Any

import numpy as np

from .console import Console, scores_table
from .options import Delimiter, Encoding, Json, Model, Tables, Target, open_tables

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
        from ..metrics import score
        from ..table_model import TableModel
        from ..tables.encoder import TransformReport

        loaded = TableModel.load(model).with_target(target)
        table = open_tables(tables, delimiter, encoding)
        found = TransformReport(source=table)
        parts: list[tuple[Any, Any, Any]] = []
        seen = 0
        for rows, mean, std in loaded.predict(table, found):
            parts.append((mean, std, loaded.targets(rows, found, seen)))
            seen += len(mean)
        mean, std, truth = (np.concatenate(each) for each in zip(*parts, strict=True))
        fit = loaded.regressor.fits_[0]
        scaler, shape = fit.target_scaler, fit.error_shape
        constant = np.full_like(truth, scaler.mean), np.full_like(truth, scaler.scale)
        found_scores = [
            score(mean, std, truth, error_shape=shape),
            score(*constant, truth, name="mean of its training rows"),
        ]
        scores = [each.to_dict() for each in found_scores]
        console.note(*table.notes, *found.lines())
        console.table(scores_table(f"{seen} rows", scores))
        console.result({"model": str(model), "rows": seen, "target": loaded.target, "scores": scores})
