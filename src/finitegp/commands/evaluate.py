"""The command ``finitegp evaluate``."""

from __future__ import annotations

from typing import Any

import numpy as np

from .options import Delimiter, Encoding, Json, Model, Tables, Target
from .predict import WORDS
from .speaking import Speaker, open_tables, score_all, scores_table

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
    speaker = Speaker(as_json)
    with speaker.guard(WORDS):
        from ..data.columns import TransformReport
        from ..table_model import TableModel

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
        scores = score_all({"this model": (mean, std), "mean of its training rows": constant}, truth, shape)
        for line in [*table.notes, *found.lines()]:
            speaker.note(line)
        speaker.show(scores_table(f"{seen} rows", scores))
        speaker.finish({"model": str(model), "rows": seen, "target": loaded.target, "scores": scores})
