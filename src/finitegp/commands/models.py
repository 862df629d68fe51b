"""The commands about a model that there is: look at it, score it, report on it, give it other rows, export it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ..arguments import MOST_SEED
from ..errors import DataError
from ..formatting import counted
from . import options
from .console import Console, columns_table, figure, safe, scores_table, show_findings, verdict

if TYPE_CHECKING:
    from ..estimator import GPRegressor
    from ..export import CExport
    from ..sites import SiteStatistics
    from ..tables.model import TableRegressor


def evaluate(
    model: options.Model,
    tables: options.Tables,
    target: options.Target = None,
    delimiter: options.Delimiter = None,
    encoding: options.Encoding = "utf8",
    as_json: options.Json = False,
) -> None:
    """Score a model on a table that has the truth: error, density, and how often intervals hold it.

    Use rows that the model has not seen; it cannot know.
    """
    console = Console(as_json)
    with console.guard():
        from ..tables.summaries import TransformReport

        loaded, table = options.load_with_table(model, tables, delimiter, encoding, target)
        found = TransformReport()
        judged = loaded.judge(*loaded.rows_to_judge(table), found)
        predicted = judged.scored
        scores = [each.to_dict() for each in loaded.scores_of(judged)]
        console.note(*table.notes, *loaded.unusual(found), *loaded.notes_on_known(judged))
        console.table(scores_table(counted(len(predicted.targets), "row"), scores))
        console.print(verdict(scores, predicted.width))
        found_in = {"model": str(model), "rows": len(predicted.targets), "target": loaded.target_}
        console.result(found_in | {"scores": scores, "interval_width": predicted.width})


def report(
    model: options.Model,
    tables: options.OptionalTables = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page to write; by default beside the model.")
    ] = None,
    target: options.Target = None,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Of samples of rows.")] = 0,
    delimiter: options.Delimiter = None,
    encoding: options.Encoding = "utf8",
    force: options.Force = False,
    as_json: options.Json = False,
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
        place = options.check_output(output or model.with_suffix(".html"), force=force, inputs=[model, *tables])
        loaded, table = options.load_with_table(model, tables, delimiter, encoding, target)
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
    as_json: options.Json = False,
) -> None:
    """Show what is in a model file: target, columns, features, noise, scores, versions; or in a site's statistics."""
    console = Console(as_json)
    with console.guard():
        from ..estimator import GPRegressor
        from ..persistence.container import read_container
        from ..sites import SiteStatistics
        from ..tables.model import TableRegressor

        kind = read_container(model).header.get("kind")
        if kind in ("statistics", "regressor"):
            is_site = kind == "statistics"
            facts = _site_facts(SiteStatistics.load(model)) if is_site else _fit_facts(GPRegressor.load(model))
            _show_facts(console, model, facts)
            console.result({"statistics" if is_site else "model": str(model)} | facts)
            return
        loaded = TableRegressor.load(model)
        facts = _facts(loaded)
        _show_facts(console, model, facts)
        console.table(columns_table(loaded.columns_, narrow=console.is_narrow))
        if scores := loaded.summary_.get("scores"):
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
    return {"target": model.target_, "target_scale": model.scale_.name} | _fit_facts(model.regressor_)


def _fit_facts(regressor: GPRegressor) -> dict[str, object]:
    """Of several targets, of the first one's fit."""
    fit = regressor.fits_[0]
    statistics, gp = fit.fitted.posterior.statistics, fit.fitted.model
    summary = regressor.training_summary_
    scale, rows = float(fit.target_scaler.scale), statistics.num_data
    return {
        "rows": int(rows) if float(rows).is_integer() else rows,
        "rows_taken_in_after_training": summary["rows_added"],
        "holds_training_rows": fit.keeps_rows,
        "holds_targets_of_repeated_rows": fit.repeated is not None,
        "inputs": regressor.n_features_in_,
        "features": statistics.num_features,
        "feature_map": type(gp.feature_map).__name__,
        "noise_model": type(gp.noise).__name__,
        "typical_noise": scale * fit.fitted.posterior.noise_variance**0.5,
        "predictive_distribution": fit.distribution,
        "path": fit.record.get("path"),
        "effort": regressor.effort,
        "seconds": summary.get("seconds"),
        "versions": summary.get("versions"),
    }


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


def _changing(what: str, doc: str) -> Callable[..., None]:
    """The command that takes rows into a model, or out of it; ``doc`` is what users read."""

    def command(
        model: options.Model,
        tables: options.Tables,
        output: Annotated[Path, typer.Option("--output", "-o", help="The new model file.", show_default=False)],
        target: options.Target = None,
        delimiter: options.Delimiter = None,
        encoding: options.Encoding = "utf8",
        force: options.Force = False,
        as_json: options.Json = False,
    ) -> None:
        console = Console(as_json)
        with console.guard():
            from ..tables.summaries import TransformReport

            options.check_output(output, force=force, inputs=tables)
            loaded, table = options.load_with_table(model, tables, delimiter, encoding, target)
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
    model: options.Model,
    tables: options.Tables,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file for the statistics.", show_default=False)],
    target: options.Target = None,
    delimiter: options.Delimiter = None,
    encoding: options.Encoding = "utf8",
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Write the sums of a table's rows for a model's features, for [bold]finitegp merge[/bold]; no rows.

    For sites that may not share their rows: all use copies of one model file. The sums are not anonymous: from the sums
    of fewer rows than features, rows may be computed, and a note warns of it. Tables of any length are read in pieces.
    """
    console = Console(as_json)
    with console.guard():
        from ..tables.summaries import TransformReport

        options.check_output(output, force=force, inputs=[model, *tables])
        loaded, table = options.load_with_table(model, tables, delimiter, encoding, target)
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
        facts = {"statistics": str(output), "rows": site.rows, "features": features}
        console.result(facts | {"target": site.target, "fingerprint": site.fingerprint})


def merge(
    model: options.Model,
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
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Combine a model and the statistics of sites into the exact joint posterior, without any row.

    The result is the model that [bold]finitegp update[/bold] would give with the tables of all sites. By default the
    rows that MODEL was fitted to stay in.
    """
    console = Console(as_json)
    with console.guard():
        from ..sites import SiteStatistics
        from ..tables.model import TableRegressor

        options.check_output(output, force=force, inputs=[model, *sites])
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
        without = "" if keep_model_rows else "without the "
        console.print(f"{without}{counted(before.statistics.num_data, 'row')} of ", model)
        if refit_noise:
            console.print(f"typical noise {figure(noises[0])} before, {figure(noises[1])} now")
        console.print(f"{counted(after.statistics.num_data, 'row')} in all: ", output)
        added = [{"file": str(path), "rows": part.rows} for path, part in zip(sites, parts, strict=True)]
        rows = {"rows": after.statistics.num_data, "rows_of_model": kept, "sites": added}
        noise = {"typical_noise_before": noises[0], "typical_noise": noises[1]}
        console.result({"model": str(output)} | rows | noise)


def export(
    model: options.Model,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="An ONNX graph.", show_default=False)] = None,
    c: Annotated[Path | None, typer.Option("--c", help="A C99 header.", show_default=False)] = None,
    name: Annotated[str, typer.Option(help="What names in the header begin with.")] = "model",
    double: Annotated[bool, typer.Option("--double", help="Numbers of 64 bits instead of 32.")] = False,
    max_bytes: Annotated[
        str | None,
        typer.Option(help="The most bytes of constants in the header, such as 32kB: leaves features out."),
    ] = None,
    intervals: Annotated[
        bool, typer.Option("--intervals/--no-intervals", help="Whether the graph has ends of intervals.")
    ] = True,
    rows: Annotated[
        Path | None, typer.Option(help="A table with the truth, on which the loss of leaving features out is measured.")
    ] = None,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Write a model for another runtime: a C99 header for small devices, or an ONNX graph.

    A header has no dependency but math.h and allocates nothing; a graph has standard operators only. Both give mean and
    standard deviations (epistemic, noise, all), a graph intervals as well.
    """
    console = Console(as_json)
    with console.guard():
        from ..export import export_c, to_onnx
        from ..export.formulas import described

        if (output is None) == (c is None):
            raise DataError("Give one of --c FILE (a C header) and --output FILE (an ONNX graph).")
        if c is not None:
            options.check_output(c, force=force, inputs=[model, *([] if rows is None else [rows])])
            given, real = _rows_in_lists(model, rows), "double" if double else "float"
            whole = described(model)
            result = export_c(whole, c, name=name, real=real, overwrite=force, max_bytes=max_bytes, **given)
            _show_header(console, c, result, real, measured=rows is not None)
            written = {"header": str(c)} | result._asdict()
        else:
            assert output is not None
            if max_bytes is not None or rows is not None:
                raise DataError("--max-bytes and --rows are for --c.")
            options.check_output(output, force=force, inputs=[model])
            whole = described(model)
            made = to_onnx(whole, output, double=double, intervals=intervals, overwrite=force)
            console.print(f"{made.nodes} operators, {made.bytes} bytes, inputs and outputs {made.real}: ", output)
            columns = (f"{name} ({', '.join(each)})" if each else name for name, each in made.inputs.items())
            console.print(f"Inputs: {', '.join(columns)}. Outputs: {', '.join(made.outputs)}.")
            written = {"graph": str(output)} | made._asdict()
        if any(fit.repeated is not None for fit in whole.fits):
            console.note(
                "The model knows rows that come again; what is exported does not, and predicts them as any other row. "
                "finitegp-lite does."
            )
        console.result(written)


def _rows_in_lists(model: Path, rows: Path | None) -> dict[str, Any]:
    if rows is None:
        return {}
    from ..tables.model import TableRegressor

    table, targets = TableRegressor.load(model).scored_rows(rows)
    return {"rows": {name: table.column(name).to_pylist() for name in table.column_names}, "targets": targets}


def _show_header(console: Console, path: Path, result: CExport, real: str, *, measured: bool) -> None:
    console.print(
        f"{result.constant_bytes} bytes of constants, {result.stack_bytes} bytes on the stack; one prediction takes "
        f"{result.operations} operations and {result.calls} calls of math.h: ",
        path,
    )
    if result.lost_of is not None:
        what = "NLPD on the given rows" if result.lost_of == "NLPD" else "evidence of the rows seen"
        console.print(
            f"{result.features} of {result.features_before} features are left: {figure(result.lost)} nats per row of "
            f"{what} lost."
        )
    if real == "float":
        where = "the given rows" if measured else "256 made rows"
        console.print(
            f"Rounding to float moves mean and standard deviation by at most {figure(result.rounding)} standard "
            f"deviations on {where}."
        )
