"""The command ``finitegp fit``."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..arguments import MOST_SEED
from ..errors import DataError, OutputExistsError
from ..formatting import counted
from .console import Console, columns_table, scores_table, show_findings, verdict
from .options import (
    Categorical,
    Date,
    DayFirst,
    Decimal,
    Delimiter,
    Drop,
    Encoding,
    Force,
    Json,
    Memory,
    Numeric,
    Only,
    Tables,
    TargetScale,
    Weight,
    check_decimal,
    check_device,
    check_output,
    check_share,
    check_size,
    check_time,
    open_tables,
)

# What each of several processes may use without --memory.
_MEMORY_OF_A_RANK = "1GB"
# A fit that is interrupted before is not worth a checkpoint that the user did not ask for.
_SECONDS_NOT_KEPT = 10.0

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
    effort: Annotated[Literal["low", "medium", "high"], typer.Option(help="How much time to spend.")] = "medium",
    categorical: Categorical = None,
    numeric: Numeric = None,
    date: Date = None,
    drop: Drop = None,
    only: Only = None,
    weight: Weight = None,
    target_scale: TargetScale = "auto",
    missing: Annotated[
        Literal["error", "impute"],
        typer.Option(help="Missing inputs: put in the usual value, or an error that lists them."),
    ] = "impute",
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
    cv: Annotated[int, typer.Option("--cv", min=0, help="Folds of a cross-validation that scores all rows.")] = 0,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="The same seed gives the same model.")] = 0,
    report: Annotated[
        Path | None, typer.Option("--report", help="The report to write; by default beside the model, ending in .html.")
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.")] = False,
    memory: Memory = None,
    time: Annotated[
        str | None, typer.Option("--time", help="Learn for about this long at most, such as 60s or 5min.")
    ] = None,
    no_rows: Annotated[
        bool, typer.Option("--no-rows", help="A model file without rows also of a small table: less accurate.")
    ] = False,
    measured_anew: Annotated[
        bool,
        typer.Option("--measured-anew", help="Rows with equal inputs are new measurements, not the same thing again."),
    ] = False,
    device: Annotated[
        str, typer.Option("--device", help="Where networks are trained: cpu, cuda or mps, if the machine has it.")
    ] = "cpu",
    delimiter: Delimiter = None,
    encoding: Encoding = "utf8",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where the same command was interrupted; keep all from the start.")
    ] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Learn to predict a column of a table, with error bars; write the model and a report.

    Numbers, text, dates and yes/no columns are turned into numbers; a summary shows how. The scores come from rows that
    the training did not see. Afterwards the model takes these in too, exactly and with its features kept, and is saved.

    A fit of more than 10 seconds keeps what it has finished in a file beside the model, MODEL.checkpoint, which is
    deleted at the end: after Ctrl-C, a kill or a crash, the same command with --resume goes on from there.

    Under torchrun several processes fit together, with the rows on disk; the first one prints and writes the files.
    """
    console = Console(as_json)
    check_share("--test-fraction", test_fraction, zero=True)
    check_decimal(decimal)
    _check_judging(cv, split_by, test, group)
    if memory is not None:
        check_size("--memory", memory)
    if time is not None:
        check_time("--time", time)
    from ..distributed import ALONE  # here, because torch takes seconds to import
    from ..torchrun import join_ranks

    with console.guard(), join_ranks() as ranks, ExitStack() as keeping:
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
        check_device("--device", device, memory)
        from ..tables.hold_out import Judging
        from ..tables.judging import fit_and_judge
        from ..tables.model import TableRegressor
        from ..tables.reader import ON_DISK, ROWS_IN_MEMORY

        if memory is not None:
            from ..memory import return_freed_memory

            return_freed_memory()  # before the first table is opened
        model = TableRegressor(
            target_scale=target_scale.replace("-r", " r"),
            categorical=categorical or [],
            numeric=numeric or [],
            date=date or [],
            drop=drop or [],
            only=only,
            weight=weight,
            day_first=day_first,
            decimal=decimal,
            missing=missing,
            rows_without_target="error" if refuse_missing_targets else "drop",
            effort=effort,
            random_state=seed,
            verbose=not as_json,
            memory_budget=memory,
            time_budget=time,
            keep_rows=not no_rows,
            repeated_rows=not measured_anew,
            device=device,
        )
        reading = model.first_reading if memory is None else model.first_reading | ON_DISK
        with ranks.working():  # so that what is wrong on all ranks is reported by one
            read = [*tables, *(test or [])]
            check_output(output, force=force, inputs=read)
            checkpoint = _check_checkpoint(output, read, resume=resume, force=force)
            resumes = resume and checkpoint.exists()
            report_path = None
            if not no_report:
                report_path = check_output(report or output.with_suffix(".html"), force=force, inputs=read)
            if report_path is not None and report_path.resolve() == output.resolve():
                raise DataError(f"Model and report would both be {output}: give one of them another name.")
            table = open_tables(tables, delimiter, encoding, reading)
        if table.num_rows <= ROWS_IN_MEMORY and ranks.world_size > 1:
            console.note("So few rows are fitted by one process.")
            if not ranks.is_first:
                return
            ranks = ALONE
        console.print(f"{counted(table.num_rows, 'row')}; target {target!r}")
        if resume or (memory is None and ranks.world_size == 1):
            from ..stages import resumable

            if resumes:
                console.print("going on from ", checkpoint)
            elif not resume:
                checkpoint.unlink(missing_ok=True)
            console.checkpoint = checkpoint
            keeping.enter_context(resumable(checkpoint, after=0.0 if resume else _SECONDS_NOT_KEPT))
        judged = fit_and_judge(
            model,
            table,
            target,
            Judging(test_fraction, split_by, group, cv),
            test=None if not test else open_tables(test, delimiter, encoding, reading | table.alike),
            seed=seed,
            report=report_path is not None,
            ranks=ranks,
            on_plan=lambda plan: console.print(str(plan)),
            shell=True,
        )
        if not ranks.is_first:
            return
        model.verbose = False
        summary = judged.summary()
        console.table(columns_table(model.columns_, narrow=console.is_narrow))
        console.note(*judged.notes)
        more = {
            "files": [path.name for path in table.paths],
            "effort": effort,
            "seed": seed,
            "memory": memory,
            "time": time,
        }
        model.summary_ = {**summary, **more}
        if report_path is None or judged.contents is None:
            report_path = None
            model.save(output, overwrite=force)
        else:
            from ..atomic import complete_or_absent
            from ..report import write_report

            # Whole before the model and in place after it: a disk that is full leaves the old ones of both.
            with complete_or_absent(report_path, overwrite=force) as page:
                write_report(judged.contents, page, force=True)
                model.save(output, overwrite=force)
        console.written += [output, *([] if report_path is None else [report_path])]
        _show_result(console, model.summary_, output, report_path)
        columns = [asdict(line) for line in model.columns_]
        console.result(
            {"model": str(output), "report": report_path and str(report_path), "target": target, "columns": columns}
            | model.summary_
        )


def _check_checkpoint(output: Path, inputs: list[Path], *, resume: bool, force: bool) -> Path:
    """Where what is finished is kept; without ``--resume`` and ``--force`` there must be nothing."""
    path = check_output(output.with_name(f"{output.name[:200]}.checkpoint"), force=True, inputs=inputs)
    if path.exists() and not resume and not force:
        raise OutputExistsError(f"{path} is there, because this fit was interrupted:", code="checkpoint_exists")
    return path


def _check_judging(cv: int, split_by: str | None, test: list[Path] | None, group: str | None) -> None:
    given = [name for name, value in (("--cv", cv), ("--split-by", split_by), ("--test", test)) if value]
    if group is not None and given != ["--cv"]:  # folds may be of whole groups
        given.append("--group")
    if len(given) > 1:
        raise typer.BadParameter(f"cannot be used together with {given[1]}: choose one.", param_hint=given[0])
    if cv == 1:
        raise typer.BadParameter("must be 2 or more.", param_hint="--cv")


def _show_result(console: Console, summary: dict[str, Any], output: Path, report: Path | None) -> None:
    held_out = summary["held_out_rows"]
    if summary["scores"]:
        how = summary["judged_by"]
        title = f"{counted(held_out, 'held-out row')} ({how})" if "fold" not in how else f"{held_out} rows, {how}"
        console.table(scores_table(title, summary["scores"]))
        console.print(verdict(summary["scores"], summary.get("interval_width")))
        for how, scores in summary.get("other_scores", {}).items():
            console.table(scores_table(how, scores))
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
