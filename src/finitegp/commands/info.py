"""The command ``finitegp info``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from .console import Console, columns_table, figure, scores_table
from .options import Json

if TYPE_CHECKING:
    from ..sites import SiteStatistics
    from ..table_model import TableModel

EXAMPLES = """
[bold]Examples[/bold]

finitegp info price.finitegp

finitegp info north.statistics
"""


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
        from ..table_model import TableModel

        if read_container(model).header.get("kind") == "statistics":
            facts = _site_facts(SiteStatistics.load(model))
            _show_facts(console, model, facts)
            console.result({"statistics": str(model)} | facts)
            return
        loaded = TableModel.load(model)
        facts = _facts(loaded)
        _show_facts(console, model, facts)
        console.table(columns_table(loaded.encoder))
        scores = loaded.summary.get("scores") or []
        if scores:
            console.table(scores_table(f"{loaded.summary['held_out_rows']} held-out rows, when it was fitted", scores))
        columns = [asdict(line) for line in loaded.encoder.summary()]
        console.result({"model": str(model)} | facts | {"columns": columns, "summary": loaded.summary})


def _show_facts(console: Console, path: Path, facts: dict[str, Any]) -> None:
    table = Table(title=escape(str(path)), title_justify="left", show_header=False)
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), escape(_text(value)))
    console.table(table)


def _site_facts(site: SiteStatistics) -> dict[str, Any]:
    return {
        "target": site.target,
        "rows": site.rows,
        "features": site.statistics.num_features,
        "columns": list(site.columns),
        "fingerprint": site.fingerprint,
        "versions": {"finitegp": site.version},
    }


def _facts(model: TableModel) -> dict[str, Any]:
    fit = model.regressor.fits_[0]
    statistics, gp = fit.fitted.posterior.statistics, fit.fitted.model
    summary = model.regressor.training_summary_
    scale = float(fit.target_scaler.scale)
    return {
        "target": model.target,
        "rows": statistics.num_data,
        "rows_taken_in_after_training": summary["rows_added"],
        "holds_training_rows": fit.keeps_rows,
        "inputs": model.regressor.n_features_in_,
        "features": statistics.num_features,
        "feature_map": type(gp.feature_map).__name__,
        "noise_model": type(gp.noise).__name__,
        "typical_noise": scale * fit.fitted.posterior.noise_variance**0.5,
        "predictive_distribution": fit.distribution,
        "path": fit.record.get("path"),
        "effort": model.regressor.effort,
        "seconds": summary.get("seconds"),
        "versions": summary.get("versions"),
    }


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else figure(value)
    return "-" if value is None else str(value)
