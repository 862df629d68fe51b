"""The page: all sections of a report as one HTML file that needs nothing else."""

from __future__ import annotations

import json
import os
from html import escape
from pathlib import Path

from ..atomic import complete_or_absent
from .contents import ModelScores, ReportContents
from .figures import (
    coverage_figure,
    curve_figure,
    importance_figure,
    level_figure,
    outliers_figure,
    pit_figure,
    predictions_figure,
    residual_figure,
    spread_figure,
)
from .findings import Finding
from .markup import paragraph, section, table
from .numbers import cut, distinct_cuts, percent, shown
from .style import STYLE

# A browser that obeys this fetches nothing, whatever stands in the page.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_SECTIONS = {
    "doctor": "Doctor",
    "trained": "What was trained",
    "scores": "Held-out scores",
    "predicted": "Predicted against actual",
    "calibration": "Calibration",
    "importance": "Importance of inputs",
    "residuals": "Residuals by input",
    "outliers": "Unexpected rows",
    "curves": "Training curves",
}


def render_page(contents: ReportContents) -> str:
    """The whole HTML document; the same contents give the same text."""
    bodies = {
        "doctor": _doctor(contents),
        "trained": _trained(contents),
        "scores": _scores(contents),
        "predicted": _predicted(contents),
        "calibration": _calibration(contents),
        "importance": _importance(contents),
        "residuals": _residuals(contents),
        "outliers": _outliers(contents),
        "curves": _curves(contents),
    }
    links = "".join(f'<a href="#{name}">{escape(heading)}</a>' for name, heading in _SECTIONS.items())
    sections = [section(name, heading, *bodies[name]) for name, heading in _SECTIONS.items()]
    text = "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(contents.title)}</title>",
            f"<style>{STYLE}</style>",
            "</head>",
            "<body>",
            "<header>",
            f"<h1>{escape(contents.title)}</h1>",
            f'<p class="subtitle">{escape(_subtitle(contents))}</p>',
            f'<nav aria-label="Sections">{links}</nav>',
            "</header>",
            "<main>",
            _tiles(contents),
            *sections,
            "</main>",
            f"<footer><p>{escape(contents.facts.get('Versions', 'finitegp'))}. All samples of rows are drawn by a "
            "fixed seed: the same model and rows give the same figures.</p></footer>",
            "</body>",
            "</html>",
            "",
        ]
    )
    return text.replace(" %", "\u00a0%")  # a number and its sign stay on one line


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
        raise FileExistsError(f"{path} exists already: choose another name, or set force=True to replace it.")
    text = render_page(contents)
    with complete_or_absent(path, overwrite=force) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
    return path


def _subtitle(contents: ReportContents) -> str:
    rows = contents.facts.get("Training rows")
    trained = f"trained on {rows} rows, " if rows else ""
    judged = f"judged on {shown(contents.points.total)} others"
    return f"Report on a Gaussian process for {contents.target_name}: {trained}{judged}"


def _tiles(contents: ReportContents) -> str:
    own = contents.scores[0]
    others = {scores.name: scores for scores in contents.scores[1:]}
    baseline = others.get("linear") or others.get("mean")
    against = "no baseline"
    if baseline is not None and baseline.rmse > 0.0:
        change = own.rmse / baseline.rmse - 1.0
        against = f"{percent(abs(change), 0)} {'below' if change < 0 else 'above'} the {baseline.name} baseline"
    checkup = contents.checkup
    counts = [f"{checkup.count(s)} {s}{'s' if checkup.count(s) != 1 else ''}" for s in ("problem", "warning", "note")]
    tiles = [
        ("RMSE", f"{shown(own.rmse)}", against),
        ("Variance explained", percent(own.r_squared), "of the held-out rows (R²)"),
        ("90 % intervals hold", percent(own.coverage[0.9]), "of the held-out values"),
        (
            "Doctor",
            counts[0] if checkup.count("problem") else counts[1] if checkup.count("warning") else "all well",
            ", ".join(counts),
        ),
    ]
    parts = [
        f'<div class="tile"><div class="name">{escape(name)}</div><div class="value">{escape(value)}</div>'
        f'<div class="more">{escape(more)}</div></div>'
        for name, value, more in tiles
    ]
    return f'<div class="tiles" role="group" aria-label="Summary">{"".join(parts)}</div>'


def _doctor(contents: ReportContents) -> list[str]:
    checkup = contents.checkup
    if checkup.findings:
        out = [f'<ul class="findings">{"".join(_finding(finding) for finding in checkup.findings)}</ul>']
    else:
        out = ['<p class="good">No check found anything wrong.</p>']
    if checkup.passed:
        out.append(paragraph(f"Checked and found in order: {', '.join(checkup.passed)}.", "soft"))
    if checkup.skipped:
        reasons: dict[str, list[str]] = {}
        for name, reason in checkup.skipped.items():
            reasons.setdefault(reason, []).append(name)
        text = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
        out.append(paragraph(f"Could not be checked: {text}.", "soft"))
    return out


def _finding(finding: Finding) -> str:
    return (
        f'<li class="finding {finding.severity}"><span class="severity">{finding.severity}</span>'
        f"<h3>{escape(finding.title)}</h3><p>{escape(finding.evidence)}</p>"
        f"<p><strong>What to do:</strong> {escape(finding.fix)}</p></li>"
    )


def _trained(contents: ReportContents) -> list[str]:
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in contents.facts.items())
    out = [f"<dl>{facts}</dl>"]
    if contents.settings:
        body = [[name, json.dumps(value)] for name, value in contents.settings.items()]
        inside = table(["setting", "value"], body, "Settings of the fit", text_columns=(0, 1))
        out.append(f"<details><summary>All settings</summary>{inside}</details>")
    return out


def _scores(contents: ReportContents) -> list[str]:
    headings = ["model", "RMSE", "MAE", "R²", "NLPD", "CRPS", "50 % holds", "90 % holds", "95 % holds"]
    body = [_score_row(scores) for scores in contents.scores]
    caption = f"{shown(contents.points.total)} held-out rows; errors in units of {cut(contents.target_name, 40)}"
    text = (
        "Lower is better for RMSE, MAE, NLPD (negative log predictive density, in nats) and CRPS (continuous ranked "
        "probability score). Intervals should hold what they are named after. The value after ± is the standard error "
        "from the sampling of held-out rows. Baselines: a Bayesian ridge regression, and the mean and spread of the "
        "training rows."
    )
    return [
        table(headings, body, caption, first_row_stands_out=True),
        paragraph(text, "soft"),
        paragraph(contents.remarks["scores"], "soft") if "scores" in contents.remarks else "",
    ]


def _score_row(scores: ModelScores) -> list[str]:
    return [
        scores.name,
        f"{shown(scores.rmse, 4)} ± {shown(scores.rmse_error, 2)}",
        f"{shown(scores.mae, 4)} ± {shown(scores.mae_error, 2)}",
        "–" if scores.r_squared is None else f"{round(scores.r_squared, 3) + 0.0:.3f}".replace("-", "−"),
        f"{shown(scores.nlpd, 4)} ± {shown(scores.nlpd_error, 2)}",
        shown(scores.crps, 4),
        *(percent(share) for share in scores.coverage.values()),
    ]


def _predicted(contents: ReportContents) -> list[str]:
    charts = [
        predictions_figure(contents.points, contents.target_name),
        level_figure(contents.by_level),
    ]
    return [f'<div class="charts">{"".join(charts)}</div>']


def _calibration(contents: ReportContents) -> list[str]:
    found = contents.calibration
    charts = [pit_figure(found), coverage_figure(found), spread_figure(found, contents.target_name)]
    return [
        paragraph("Do the error bars keep what they promise? Judged on all held-out rows."),
        f'<div class="charts three">{"".join(charts)}</div>',
    ]


def _importance(contents: ReportContents) -> list[str]:
    if not contents.importance.entries:
        return [paragraph("There are no inputs to shuffle.")]
    reading = [
        paragraph(
            "An input matters to this model if its predictions get worse once the input's values are dealt out to the "
            "wrong rows."
        ),
        paragraph(
            "Inputs that say the same share their importance, and shuffling can make rows that never occur: read it as "
            "what this model uses, not as what causes what.",
            "soft",
        ),
    ]
    return [f'<div class="charts">{importance_figure(contents.importance)}<div>{"".join(reading)}</div></div>']


def _residuals(contents: ReportContents) -> list[str]:
    intro = (
        "Actual minus predicted, in units of the predicted standard deviation, against the most important inputs. "
        "Orange: local means with two standard errors; where they leave zero, the model misses something. Nine "
        "of ten residuals should lie in the grey band."
    )
    charts = [residual_figure(panel, number) for number, panel in enumerate(contents.residual_panels)]
    return [paragraph(intro), f'<div class="charts three">{"".join(charts)}</div>']


def _outliers(contents: ReportContents) -> list[str]:
    found = contents.outliers
    if found.source == "leave-one-out":
        judged = "all" if found.rows == found.rows_of else f"a random sample of {shown(found.rows)}"
        intro = (
            f"Each training row ({judged} of {shown(found.rows_of)}) against the prediction of the same model without "
            "that row, in closed form. Rows far off may be mistakes in the table, or cases that the inputs do not "
            "describe. The features were trained with these rows, so this is a little kinder than held-out rows are."
        )
    else:
        intro = "Held-out rows against their predictions."
    headings = ["row", "actual", "expected", "deviation", "off by", *distinct_cuts(found.value_names, 24)]
    body = [
        [
            str(row),
            shown(float(target), 4),
            shown(float(mean), 4),
            shown(float(std), 3),
            f"{shown(float((target - mean) / std), 2)} σ",
            *(cut(value, 24) for value in values),
        ]
        for row, target, mean, std, values in zip(
            found.row_numbers, found.targets, found.mean, found.std, found.values, strict=True
        )
    ]
    rows = table(headings, body, f"The {len(body)} least expected rows", text_columns=())
    return [
        paragraph(intro),
        paragraph(contents.remarks["outliers"], "soft") if "outliers" in contents.remarks else "",
        f'<div class="charts stacked">{outliers_figure(found)}<div>{rows}</div></div>',
    ]


def _curves(contents: ReportContents) -> list[str]:
    if not contents.curves:
        return [paragraph(contents.remarks.get("curves", "None are on record."))]
    panels = list(dict.fromkeys(curve.panel for curve in contents.curves))
    charts = [
        curve_figure(panel, [curve for curve in contents.curves if curve.panel == panel], number)
        for number, panel in enumerate(panels)
    ]
    return [f'<div class="charts">{"".join(charts)}</div>']
