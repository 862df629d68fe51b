"""The command ``finitegp fit``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from ..errors import DataError
from .console import Console, columns_table, scores_table, show_findings, verdict
from .fit_on_disk import BLOCK_BYTES, CHUNK_ROWS, fit_on_disk
from .options import (
    Categorical,
    Date,
    DayFirst,
    Decimal,
    Delimiter,
    Drop,
    Effort,
    Encoding,
    Force,
    Json,
    Memory,
    Missing,
    Numeric,
    Only,
    Scale,
    Tables,
    TargetScale,
    Weight,
    check_decimal,
    check_output,
    check_share,
    check_size,
    open_tables,
)

if TYPE_CHECKING:
    from ..distributed import Ranks
    from ..tables.model import TableRegressor
    from ..tables.reader import TableReader

# Up to this many rows are kept in memory also with a memory budget: a kernel can then be fitted to them.
_ROWS_IN_MEMORY = 1500
# What each of several processes may use without --memory.
_MEMORY_OF_A_RANK = "1GB"

EXAMPLES = """
[bold]Examples[/bold]

finitegp fit diamonds.csv --target price

finitegp fit january.csv.gz february.csv.gz --target sales --drop remark --categorical shop -o sales.finitegp

finitegp fit prices.csv --target price --split-by date --json > scores.json

finitegp fit sensors/ --target power --memory 64MB

torchrun --nproc-per-node 4 -m finitegp fit sensors/ --target power
"""


def fit(
    tables: Tables,
    target: Annotated[str, typer.Option("--target", "-t", help="The column to predict.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model file to write.")] = Path("model.finitegp"),
    effort: Annotated[Effort, typer.Option(help="How much time to spend.")] = Effort.medium,
    categorical: Categorical = None,
    numeric: Numeric = None,
    date: Date = None,
    drop: Drop = None,
    only: Only = None,
    weight: Weight = None,
    target_scale: TargetScale = Scale.auto,
    missing: Annotated[
        Missing, typer.Option(help="Missing inputs: put in the usual value, or an error that lists them.")
    ] = Missing.impute,
    refuse_missing_targets: Annotated[
        bool, typer.Option("--refuse-missing-targets", help="Rows without a target are an error, not left out.")
    ] = False,
    day_first: DayFirst = None,
    decimal: Decimal = None,
    test_fraction: Annotated[
        float, typer.Option(help="The share of rows held out for the scores; 0 holds none out.")
    ] = 0.2,
    test: Annotated[
        list[Path] | None, typer.Option("--test", help="A table to take the scores from, instead of held-out rows.")
    ] = None,
    split_by: Annotated[
        str | None, typer.Option("--split-by", help="Hold out the rows with the highest values here, such as dates.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", help="Rows with the same value here are held out together.")
    ] = None,
    cv: Annotated[int, typer.Option("--cv", min=0, help="Score all rows by cross-validation with so many folds.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same model.")] = 0,
    report: Annotated[
        Path | None, typer.Option("--report", help="The report to write; by default beside the model, ending in .html.")
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.")] = False,
    memory: Memory = None,
    no_rows: Annotated[
        bool, typer.Option("--no-rows", help="A model file without rows also of a small table: less accurate.")
    ] = False,
    delimiter: Delimiter = None,
    encoding: Encoding = "utf8",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Learn to predict a column of a table, with error bars; write the model and a report.

    Numbers, text, dates and yes/no columns are turned into numbers; a summary shows how. The scores come from rows that
    the training did not see. Afterwards the model takes these in too, exactly and with its features kept, and is saved.

    Under torchrun several processes fit together, with the rows on disk; the first one prints and writes the files.
    """
    console = Console(as_json)
    check_share("--test-fraction", test_fraction, zero=True)
    check_decimal(decimal)
    _check_judging(cv, split_by, test)
    if memory is not None:
        check_size("--memory", memory)
    from ..distributed import join_ranks  # here, because torch takes seconds to import

    with console.guard(), join_ranks() as ranks:
        if not ranks.is_first:
            console.silence()
        elif ranks.world_size > 1:
            console.print(f"{ranks.world_size} processes")
        if ranks.world_size > 1 and memory is None:
            memory = _MEMORY_OF_A_RANK
            console.note(
                f"Several processes keep the rows on disk: each of them may use {memory} of memory besides the program "
                "itself; use --memory for another size."
            )
        from ..tables.judging import Judging
        from ..tables.model import TableRegressor

        if memory is not None:
            from ..memory import return_freed_memory

            return_freed_memory()  # before the first table is opened
        reading: dict[str, Any] = {"decimal": decimal or ".", "text": categorical or []}
        sizes = {} if memory is None else {"chunk_size": CHUNK_ROWS, "block_size": BLOCK_BYTES}
        with ranks.working():  # so that what is wrong on all ranks is reported by one
            read = [*tables, *(test or [])]
            check_output(output, force=force, inputs=read)
            report_path = None
            if not no_report:
                report_path = check_output(report or output.with_suffix(".html"), force=force, inputs=read)
            if report_path is not None and report_path.resolve() == output.resolve():
                raise DataError(f"Model and report would both be {output}: give one of them another name.")
            table = open_tables(tables, delimiter, encoding, **reading, **sizes)
        model = TableRegressor(
            target_scale=target_scale.value.replace("-r", " r"),
            categorical=categorical or [],
            numeric=numeric or [],
            date=date or [],
            drop=drop or [],
            only=only,
            weight=weight,
            day_first=day_first,
            decimal=decimal,
            missing=missing.value,
            rows_without_target="error" if refuse_missing_targets else "drop",
            effort=effort.value,
            random_state=seed,
            verbose=not as_json,
            memory_budget=memory,
            keep_rows=not no_rows,
        )
        small = table.num_rows <= _ROWS_IN_MEMORY
        if small and ranks.world_size > 1:
            console.note("So few rows are fitted by one process.")
        more = {"files": [path.name for path in table.paths], "effort": effort.value, "seed": seed, "memory": memory}
        if memory is not None and not small:
            fitted = _fit_on_disk(model, table, target, test_fraction, report_path, console, ranks, force)
            if not ranks.is_first:
                return
            model, summary = fitted, fitted.summary_
        elif not ranks.is_first:
            return
        else:
            from ..tables.judging import fit_and_judge, stored_summary

            console.print(f"{table.num_rows} rows; target {target!r}")
            judged = fit_and_judge(
                model,
                table,
                target,
                Judging(test_fraction, split_by, group, cv),
                test=None if not test else open_tables(test, delimiter, encoding, **reading),
                seed=seed,
                report=report_path,
                force=force,
            )
            model.verbose = False
            summary = stored_summary(judged, {})
            console.table(columns_table(model.columns_))
            console.note(*judged.notes)
        if not summary["scores"]:
            report_path = None
        model.summary_ = {**summary, **more}
        model.save(output, overwrite=force)
        _show_result(console, model.summary_, output, report_path)
        columns = [asdict(line) for line in model.columns_]
        console.result(
            {"model": str(output), "report": report_path and str(report_path), "target": target, "columns": columns}
            | model.summary_
        )


def _check_judging(cv: int, split_by: str | None, test: list[Path] | None) -> None:
    given = [name for name, value in (("--cv", cv), ("--split-by", split_by), ("--test", test)) if value]
    if len(given) > 1:
        raise typer.BadParameter(f"cannot be used together with {given[1]}: choose one.", param_hint=given[0])
    if cv == 1:
        raise typer.BadParameter("must be 2 or more.", param_hint="--cv")


def _fit_on_disk(
    model: TableRegressor,
    table: TableReader,
    target: str,
    test_fraction: float,
    report: Path | None,
    console: Console,
    ranks: Ranks,
    force: bool,
) -> TableRegressor:
    """A model of rows that stay on disk, judged by held-out rows, which it takes in."""
    from ..report.evaluation import evaluate
    from ..tables.encoder import TableEncoder
    from ..tables.model import TableRegressor

    console.note(*table.notes)
    seed = int(model.random_state)
    with ranks.working():
        encoder = TableEncoder.fit(
            table,
            missing=model.missing,
            exclude=[target, *model.drop],
            categorical=model.categorical,
            numeric=model.numeric,
            date=model.date,
            day_first=model.day_first,
            decimal=model.decimal,
        )
    console.print(f"{table.num_rows} rows; target {target!r}")
    console.table(columns_table(encoder.summary()))
    console.note(*encoder.notes)
    budget = str(model.memory_budget)
    regressor, training, held_out, seconds = fit_on_disk(
        table,
        encoder,
        target,
        budget,
        effort=model.effort,
        test_fraction=test_fraction,
        seed=seed,
        console=console,
        ranks=ranks,
    )
    fitted = TableRegressor.from_parts(regressor, encoder, target)
    if not ranks.is_first:
        return fitted
    scores: list[dict[str, Any]] = []
    width = None
    if len(held_out.targets):
        rows = training.inputs, training.targets
        evaluation = evaluate(regressor, held_out.inputs, held_out.targets, training=rows, seed=seed)
        scores = [each.to_dict() for each in evaluation.scores]
        lower, upper = regressor.predict_interval(held_out.inputs, 0.9)
        width = float(np.median(upper - lower))
        if report is not None:
            known = training.inputs, training.targets, training.numbers
            fitted.report_encoded(
                held_out.inputs, held_out.targets, report, training=known, evaluation=evaluation, seed=seed, force=force
            )
        regressor.partial_fit(held_out.inputs, held_out.targets)
    fitted.summary_ = {
        "rows": table.num_rows,
        "held_out_rows": len(held_out.targets),
        "takes_in_held_out_rows": bool(len(held_out.targets)),
        "judged_by": "random rows",
        "scores": scores,
        "interval_width": width,
        "seconds": seconds,
    }
    return fitted


def _show_result(console: Console, summary: dict[str, Any], output: Path, report: Path | None) -> None:
    held_out = summary["held_out_rows"]
    if summary["scores"]:
        how = summary["judged_by"]
        title = f"{held_out} held-out rows ({how})" if "fold" not in how else f"{held_out} rows, {how}"
        console.table(scores_table(title, summary["scores"]))
        console.print(verdict(summary["scores"], summary.get("interval_width")))
        if "fold" in how:
            console.print("The saved model was fitted to all rows.")
        elif summary["takes_in_held_out_rows"]:
            console.print(
                f"The scores are of the model trained on the other {summary['rows'] - held_out} rows. The saved model "
                "has then taken in the held-out rows too: its posterior is exact for all rows, its features are "
                "unchanged."
            )
    show_findings(console, summary.get("findings", []))
    console.print(f"{summary['seconds']:.0f} seconds of training")
    console.print("model:  ", output)
    if report is not None:
        console.print("report: ", report)
