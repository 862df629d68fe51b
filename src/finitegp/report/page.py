"""The page: all sections of a report as one HTML file that needs nothing else."""

from __future__ import annotations

import functools
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ..arguments import check_arguments
from ..atomic import complete_or_absent
from ..errors import OutputExistsError
from ..formatting import cut, percent, printable, shown
from . import figures
from .charts import coordinate
from .contents import SEVERITIES, ReportContents

if TYPE_CHECKING:
    from jinja2 import Environment

# Longer texts are cut: whole sentences of ours are shorter.
_LONGEST_TEXT = 1000
_OUTLINE = re.compile(r"[A-Za-z0-9 .,-]*")
_SECTIONS = {
    "doctor": "Doctor",
    "trained": "What was trained",
    "scores": "Held-out scores",
    "columns": "Columns",
    "predicted": "Predicted against actual",
    "calibration": "Calibration",
    "importance": "Importance of inputs",
    "residuals": "Residuals by input",
    "outliers": "Unexpected rows",
    "curves": "Training curves",
}


def render_page(contents: ReportContents) -> str:
    """The whole HTML document; the same contents give the same text."""
    skipped: dict[str, list[str]] = {}
    for name, reason in contents.checkup.skipped.items():
        skipped.setdefault(reason, []).append(name)
    panels = list(dict.fromkeys(curve.panel for curve in contents.curves))
    settings = [[name, json.dumps(value)] for name, value in contents.settings.items()]
    text = (
        _environment()
        .get_template("report.html.j2")
        .render(
            contents=contents,
            sections={name: title for name, title in _SECTIONS.items() if name != "columns" or contents.columns},
            tiles=_tiles(contents),
            skipped=skipped,
            settings=figures.Table("Settings of the fit", ["setting", "value"], settings, (0, 1)),
            scores=figures.scores_table(
                contents.scores, f"{shown(contents.points.total)} held-out rows", contents.target_name
            ),
            other_scores=[
                figures.scores_table(scores, how, contents.target_name) for how, scores in contents.other_scores.items()
            ],
            columns=figures.columns_table(contents.columns),
            predictions=figures.predictions_figure(contents.points, contents.target_name),
            level=figures.residual_figure(contents.by_level, "level", label=contents.by_level.name, height=372),
            pit=figures.pit_figure(contents.calibration),
            coverage=figures.coverage_figure(contents.calibration),
            spread=figures.spread_figure(contents.calibration),
            importance=figures.importance_figure(contents.importance) if contents.importance.entries else None,
            residuals=[
                (panel, figures.residual_figure(panel, f"residuals{number}"))
                for number, panel in enumerate(contents.residual_panels)
            ],
            outliers=figures.outliers_figure(contents.outliers),
            outlier_rows=figures.outliers_table(contents.outliers),
            curves=[
                figures.curve_figure(panel, [curve for curve in contents.curves if curve.panel == panel], number)
                for number, panel in enumerate(panels)
            ],
        )
    )
    return text.replace(" %", "\u00a0%")  # a number and its sign stay on one line


@check_arguments
def write_report(contents: ReportContents, path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Write the page to a file: the whole file or nothing.

    Args:
        contents: From :func:`.gather_contents`.
        path: Where to; the folder must exist.
        force: Replace a file that is already there.

    Returns:
        The path.

    Raises:
        FileExistsError: If there is a file already and ``force`` is not set.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give the name of a file in it, such as {path / 'report.html'}.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {path.parent}: make it first, or write the report elsewhere.")
    if path.exists() and not force:
        advice = "choose another name, or set force=True to replace it."
        raise OutputExistsError(f"{path} exists already:", advice, code="output_exists")
    text = render_page(contents)
    with complete_or_absent(path, overwrite=force) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
    return path


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # not before a page is wanted

    environment = Environment(
        loader=PackageLoader("finitegp.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_plain_text,
    )
    environment.filters.update(shown=shown, percent=percent, cut=cut, n=coordinate, outline=_outline)
    return environment


def _plain_text(value: object) -> object:
    """Names of strangers: short, and without marks that turn the text around them."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return cut(printable(value, keep="\n"), _LONGEST_TEXT)


def _outline(path: str) -> str:
    """The outline of a mark, which may be long."""
    from markupsafe import Markup

    return Markup(path) if _OUTLINE.fullmatch(path) else path


def _tiles(contents: ReportContents) -> list[tuple[str, str, str]]:
    """Name, value and a remark for each of the figures at the top."""
    own = contents.scores[0]
    others = {scores.name: scores for scores in contents.scores[1:]}
    baseline = others.get("linear") or others.get("mean")
    against = "no baseline"
    if baseline is not None and baseline.rmse > 0.0:
        change = own.rmse / baseline.rmse - 1.0
        against = f"{percent(abs(change), 0)} {'below' if change < 0 else 'above'} the {baseline.name} baseline"
    numbers = {severity: contents.checkup.count(severity) for severity in SEVERITIES}
    counts = [f"{number} {severity}{'s' if number != 1 else ''}" for severity, number in numbers.items()]
    worst = counts[0] if numbers["problem"] else counts[1] if numbers["warning"] else "all well"
    return [
        ("RMSE", shown(own.rmse), against),
        ("Variance explained", percent(own.r_squared), "of the held-out rows (R²)"),
        ("90 % intervals hold", percent(own.coverage[0.9]), "of the held-out values"),
        ("Doctor", worst, ", ".join(counts)),
    ]
