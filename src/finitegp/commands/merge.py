"""The command ``finitegp merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import Console, figure
from .options import Force, Json, Model, check_output

EXAMPLES = """
[bold]Examples[/bold]

finitegp merge price.finitegp north.statistics south.statistics -o joint.finitegp

finitegp merge price.finitegp *.statistics -o joint.finitegp --only-sites --refit-noise
"""


def merge(
    model: Model,
    sites: Annotated[
        list[Path], typer.Argument(metavar="SITE", help="Files that [bold]finitegp statistics[/bold] wrote for MODEL.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The new model file.", show_default=False)],
    keep_model_rows: Annotated[
        bool,
        typer.Option(
            "--keep-model-rows/--only-sites",
            help="Whether the rows that MODEL has seen stay in; leave them out if a site has them too.",
        ),
    ] = True,
    refit_noise: Annotated[
        bool,
        typer.Option("--refit-noise", help="Set the noise level from all rows together, instead of keeping MODEL's."),
    ] = False,
    allow_repeats: Annotated[
        bool, typer.Option("--allow-repeats", help="Let statistics that are in already, or given twice, count again.")
    ] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Combine a model and the statistics of sites into the exact joint posterior, without any row.

    The result is the model that [bold]finitegp update[/bold] would give with the tables of all sites. By default the
    rows that MODEL was fitted to stay in.
    """
    console = Console(as_json)
    with console.guard():
        from ..sites import SiteStatistics
        from ..tables.model import TableRegressor

        check_output(output, force=force, inputs=[model, *sites])
        loaded = TableRegressor.load(model)
        parts = [SiteStatistics.load(path) for path in sites]
        joint = loaded.merge(
            *parts, keep_model_rows=keep_model_rows, refit_noise=refit_noise, allow_repeats=allow_repeats
        )
        joint.save(output, overwrite=force)
        for path, part in zip(sites, parts, strict=True):
            if loaded.target_ is not None and part.target != loaded.target_:
                console.note(f"{path} has the target under the name {part.target!r}, the model {loaded.target_!r}.")
            console.print(f"{part.rows:g} rows of ", path)
        before, after = (each.regressor_.fits_[0].fitted.posterior for each in (loaded, joint))
        scale = float(loaded.regressor_.fits_[0].target_scaler.scale)
        noises = [scale * posterior.noise_variance**0.5 for posterior in (before, after)]
        kept = before.statistics.num_data if keep_model_rows else 0.0
        if keep_model_rows:
            console.print(f"{kept:g} rows of ", model)
        else:
            console.print(f"without the {before.statistics.num_data:g} rows of ", model)
        if refit_noise:
            console.print(f"typical noise {figure(noises[0])} before, {figure(noises[1])} now")
        console.print(f"{after.statistics.num_data:g} rows in all: ", output)
        console.result(
            {
                "model": str(output),
                "rows": after.statistics.num_data,
                "rows_of_model": kept,
                "sites": [{"file": str(path), "rows": part.rows} for path, part in zip(sites, parts, strict=True)],
                "typical_noise_before": noises[0],
                "typical_noise": noises[1],
            }
        )
