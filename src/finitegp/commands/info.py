"""The command ``finitegp info``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from .console import Console, columns_table, figure, safe, scores_table
from .options import Json

if TYPE_CHECKING:
    from ..sites import SiteStatistics
    from ..tables.model import TableRegressor

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
        from ..tables.model import TableRegressor

        if read_container(model).header.get("kind") == "statistics":
            facts = _site_facts(SiteStatistics.load(model))
            _show_facts(console, model, facts)
            console.result({"statistics": str(model)} | facts)
            return
        loaded = TableRegressor.load(model)
        facts = _facts(loaded)
        _show_facts(console, model, facts)
        console.table(columns_table(loaded.columns_))
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
