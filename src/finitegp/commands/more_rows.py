"""The commands ``finitegp update``, ``forget``, ``statistics`` and ``merge``: other rows for a model, or their sums."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from ..formatting import counted
from .console import Console, figure
from .options import Delimiter, Encoding, Force, Json, Model, Tables, Target, check_output, load_with_table

UPDATE_EXAMPLES = """
[bold]Example[/bold]

finitegp update price.finitegp march.csv -o price-march.finitegp
"""
FORGET_EXAMPLES = """
[bold]Example[/bold]

finitegp forget price.finitegp withdrawn.csv -o price-without.finitegp
"""
STATISTICS_EXAMPLES = """
[bold]Example[/bold]

finitegp statistics price.finitegp north.csv -o north.statistics
"""
MERGE_EXAMPLES = """
[bold]Examples[/bold]

finitegp merge price.finitegp north.statistics south.statistics -o joint.finitegp

finitegp merge price.finitegp *.statistics -o joint.finitegp --only-sites --refit-noise
"""


def _changing(what: str, doc: str) -> Callable[..., None]:
    """The command that takes rows into a model, or out of it; ``doc`` is what users read."""

    def command(
        model: Model,
        tables: Tables,
        output: Annotated[Path, typer.Option("--output", "-o", help="The new model file.", show_default=False)],
        target: Target = None,
        delimiter: Delimiter = None,
        encoding: Encoding = "utf8",
        force: Force = False,
        as_json: Json = False,
    ) -> None:
        console = Console(as_json)
        with console.guard():
            from ..tables.summaries import TransformReport

            check_output(output, force=force, inputs=tables)
            loaded, table = load_with_table(model, tables, delimiter, encoding, target)
            found = TransformReport()
            (loaded.update if what == "added" else loaded.forget)(table, report=found)
            loaded.save(output, overwrite=force)
            console.note(*table.notes, *loaded.unusual(found))
            console.print(f"{counted(found.rows, 'row')} {what}, {counted(loaded.rows_, 'row')} in all: ", output)
            console.result({"model": str(output), f"rows_{what}": found.rows, "rows": loaded.rows_})

    command.__name__, command.__doc__ = "update" if what == "added" else "forget", doc
    return command


update = _changing(
    "added",
    """Take more rows into a model: the exact posterior of all rows, with features, noise and scaling kept.

    The time does not depend on how many rows the model has seen. Rows that it has seen already would count twice.
    """,
)
forget = _changing(
    "forgotten",
    """Take rows out of a model: the exact posterior as if it had never seen them, at the cost of these rows alone.

    They must be rows that the model has seen; others are refused where no rows could have the sums that would remain.
    Features, noise, scaling and, after the fit of a small table, the landmarks were learned with them and stay: to
    remove every trace, fit anew.
    """,
)


def statistics(
    model: Model,
    tables: Tables,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file for the statistics.", show_default=False)],
    target: Target = None,
    delimiter: Delimiter = None,
    encoding: Encoding = "utf8",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write the sums of a table's rows for a model's features, for [bold]finitegp merge[/bold]; no rows.

    For sites that may not share their rows: all use copies of one model file. The sums are not anonymous: from the sums
    of fewer rows than features, rows may be computed, and a note warns of it. Tables of any length are read in pieces.
    """
    console = Console(as_json)
    with console.guard():
        from ..tables.summaries import TransformReport

        check_output(output, force=force, inputs=[model, *tables])
        loaded, table = load_with_table(model, tables, delimiter, encoding, target)
        found = TransformReport()
        site = loaded.statistics(table, found)
        site.save(output, overwrite=force)
        console.note(*table.notes, *loaded.unusual(found))
        features = site.statistics.num_features
        console.print(
            f"sums of {counted(site.rows, 'row')} ({features} x {features} of features, {features} of features with "
            f"{site.target}, and three numbers): ",
            output,
        )
        console.result(
            {
                "statistics": str(output),
                "rows": site.rows,
                "features": features,
                "target": site.target,
                "fingerprint": site.fingerprint,
            }
        )


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
            console.print(f"{counted(part.rows, 'row')} of ", path)
        before, after = (each.regressor_.fits_[0].fitted.posterior for each in (loaded, joint))
        scale = float(loaded.regressor_.fits_[0].target_scaler.scale)
        noises = [scale * posterior.noise_variance**0.5 for posterior in (before, after)]
        kept = before.statistics.num_data if keep_model_rows else 0.0
        if keep_model_rows:
            console.print(f"{counted(kept, 'row')} of ", model)
        else:
            console.print(f"without the {counted(before.statistics.num_data, 'row')} of ", model)
        if refit_noise:
            console.print(f"typical noise {figure(noises[0])} before, {figure(noises[1])} now")
        console.print(f"{counted(after.statistics.num_data, 'row')} in all: ", output)
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
