"""The commands that look at a model: ``finitegp info``, ``finitegp evaluate`` and ``finitegp report``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ..arguments import MOST_SEED
from ..formatting import counted
from .console import Console, columns_table, figure, safe, scores_table, show_findings, verdict
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

if TYPE_CHECKING:
    from ..sites import SiteStatistics
    from ..tables.model import TableRegressor

INFO_EXAMPLES = """
[bold]Examples[/bold]

finitegp info price.finitegp

finitegp info north.statistics
"""
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
        console.table(scores_table(counted(len(predicted.targets), "row"), scores))
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
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Of samples of rows.")] = 0,
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
        console.print(f"report on {counted(table.num_rows, 'row')}: ", place)
        show_findings(console, findings)
        console.result({"model": str(model), "report": str(place), "rows": table.num_rows, "findings": findings})


def info(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A file that [bold]finitegp fit[/bold] or [bold]finitegp statistics[/bold] wrote.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Show what is in a model file: target, columns, features, noise, scores, versions; or in a site's statistics."""
    console = Console(as_json)
    with console.guard():
        from ..persistence.container import read_container
        from ..sites import SiteStatistics
        from ..tables.model import TableRegressor

        if read_container(model).header.get("kind") == "statistics":
            facts = _site_facts(SiteStatistics.load(model))
            _show_facts(console, model, facts)
            console.result({"statistics": str(model)} | facts)
            return
        loaded = TableRegressor.load(model)
        facts = _facts(loaded)
        _show_facts(console, model, facts)
        console.table(columns_table(loaded.columns_, narrow=console.is_narrow))
        scores = loaded.summary_.get("scores") or []
        if scores:
            rows = loaded.summary_.get("held_out_rows", "the")
            console.table(scores_table(f"{rows} held-out rows, when it was fitted", scores))
        columns = [asdict(line) for line in loaded.columns_]
        console.result({"model": str(model)} | facts | {"columns": columns, "summary": loaded.summary_})


def _show_facts(console: Console, path: Path, facts: dict[str, object]) -> None:
    table = Table(title=safe(str(path)), title_justify="left", show_header=False)
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), safe(_text(value)))
    console.table(table)


def _site_facts(site: SiteStatistics) -> dict[str, object]:
    return {
        "target": site.target,
        "rows": site.rows,
        "features": site.statistics.num_features,
        "columns": list(site.columns),
        "fingerprint": site.fingerprint,
        "versions": {"finitegp": site.version},
    }


def _facts(model: TableRegressor) -> dict[str, object]:
    fit = model.regressor_.fits_[0]
    statistics, gp = fit.fitted.posterior.statistics, fit.fitted.model
    summary = model.regressor_.training_summary_
    scale = float(fit.target_scaler.scale)
    return {
        "target": model.target_,
        "target_scale": model.scale_.name,
        "rows": _whole(statistics.num_data),
        "rows_taken_in_after_training": summary["rows_added"],
        "holds_training_rows": fit.keeps_rows,
        "holds_targets_of_repeated_rows": fit.repeated is not None,
        "inputs": model.regressor_.n_features_in_,
        "features": statistics.num_features,
        "feature_map": type(gp.feature_map).__name__,
        "noise_model": type(gp.noise).__name__,
        "typical_noise": scale * fit.fitted.posterior.noise_variance**0.5,
        "predictive_distribution": fit.distribution,
        "path": fit.record.get("path"),
        "effort": model.regressor_.effort,
        "seconds": summary.get("seconds"),
        "versions": summary.get("versions"),
    }


def _whole(value: float) -> float:
    """A whole number as one, for JSON."""
    return int(value) if float(value).is_integer() else value


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else figure(value)
    return "-" if value is None else str(value)
