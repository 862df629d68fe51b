"""The commands ``finitegp fit`` and ``finitegp demo``, which fits the table in the package."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from ..arguments import MOST_SEED
from ..errors import DataError, OutputExistsError
from ..formatting import counted
from . import options
from .console import Console, columns_table, scores_table, show_findings, verdict

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from ..metrics import Scores

# What each of several processes may use without --memory.
_MEMORY_OF_A_RANK = "1GB"
# A fit that is interrupted before is not worth a checkpoint that the user did not ask for.
_SECONDS_NOT_KEPT = 10.0


def fit(
    tables: options.Tables,
    target: Annotated[str, typer.Option("--target", "-t", help="The column to predict.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model file to write.")] = Path("model.finitegp"),
    effort: Annotated[Literal["low", "medium", "high"], typer.Option(help="How much time to spend.")] = "medium",
    categorical: options.Categorical = None,
    numeric: options.Numeric = None,
    date: options.Date = None,
    drop: options.Drop = None,
    only: options.Only = None,
    weight: options.Weight = None,
    target_scale: options.TargetScale = "auto",
    missing: Annotated[
        Literal["error", "impute"],
        typer.Option(help="Missing inputs: put in the usual value, or an error that lists them."),
    ] = "impute",
    refuse_missing_targets: Annotated[
        bool, typer.Option("--refuse-missing-targets", help="Rows without a target are an error, not left out.")
    ] = False,
    day_first: options.DayFirst = None,
    decimal: options.Decimal = None,
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
    memory: options.Memory = None,
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
    delimiter: options.Delimiter = None,
    encoding: options.Encoding = "utf8",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where the same command was interrupted; keep all from the start.")
    ] = False,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Learn to predict a column of a table, with error bars; write the model and a report.

    Numbers, text, dates and yes/no columns are turned into numbers; a summary shows how. The scores come from rows that
    the training did not see. Afterwards the model takes these in too, exactly and with its features kept, and is saved.

    A fit of more than 10 seconds keeps what it has finished in a file beside the model, MODEL.checkpoint, which is
    deleted at the end: after Ctrl-C, a kill or a crash, the same command with --resume goes on from there.

    Under torchrun several processes fit together, with the rows on disk; the first one prints and writes the files.
    """
    console = Console(as_json)
    options.check_share("--test-fraction", test_fraction, zero=True)
    options.check_decimal(decimal)
    _check_judging(cv, split_by, test, group)
    if memory is not None:
        options.check_size("--memory", memory)
    if time is not None:
        options.check_time("--time", time)
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
        options.check_device("--device", device, memory)
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
            options.check_output(output, force=force, inputs=read)
            checkpoint = _check_checkpoint(output, read, resume=resume, force=force)
            resumes = resume and checkpoint.exists()
            report_path = None
            if not no_report:
                report_path = options.check_output(report or output.with_suffix(".html"), force=force, inputs=read)
            if report_path is not None and report_path.resolve() == output.resolve():
                raise DataError(f"Model and report would both be {output}: give one of them another name.")
            table = options.open_tables(tables, delimiter, encoding, reading)
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
            test=None if not test else options.open_tables(test, delimiter, encoding, reading | table.alike),
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
        model.summary_ = summary | {"files": [path.name for path in table.paths], "effort": effort, "seed": seed}
        model.summary_ |= {"memory": memory, "time": time}
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
    path = options.check_output(output.with_name(f"{output.name[:200]}.checkpoint"), force=True, inputs=inputs)
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


def demo(
    rows: Annotated[int | None, typer.Option(min=100, help="Use at most this many rows.")] = None,
    seed: Annotated[int, typer.Option(help="Of the split and of the network.")] = 0,
    directory: Annotated[Path, typer.Option(help="Where to leave the model and the report.")] = Path("finitegp-demo"),
) -> None:
    """Predict diamond prices with error bars from a table in the package; leaves a model and a report."""
    run_demo(max_rows=rows, seed=seed, directory=directory)


class DemoResult(NamedTuple):
    """Scores on held-out rows by model, in dollars, the seconds to fit, and the files that were written."""

    scores: dict[str, Scores]
    seconds: float
    model_path: Path | None = None
    report_path: Path | None = None


def run_demo(
    *, max_rows: int | None = None, seed: int = 0, console: RichConsole | None = None, directory: Path | None = None
) -> DemoResult:
    """Fit the diamonds table as ``finitegp fit`` does, and print scores on held-out rows.

    The model and a report are left in ``directory``, which is made if it is not there.
    """
    import numpy as np
    from rich.console import Console as RichConsole

    from ..tables.judging import fit_and_judge
    from ..tables.model import TableRegressor
    from ..tables.reader import TableReader
    from ..tables.rows import TableRows

    console = console or RichConsole()
    with as_file(files("finitegp.data") / "bundled" / "diamonds.csv.gz") as path:
        table = TableRows.read(TableReader(path))
    table = table.take(np.sort(np.random.default_rng(seed).permutation(table.num_rows)[:max_rows]))
    model_path = report_path = None
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        model_path, report_path = directory / "diamonds.finitegp", directory / "diamonds.html"
    console.print(
        f"diamonds: {table.num_rows} rows, {len(table.column_names) - 1} columns; target: price in US dollars"
    )
    model = TableRegressor(effort="low", random_state=seed, verbose=True)
    judged = fit_and_judge(model, table, "price", seed=seed, report=report_path)
    model.verbose = False
    scores = [each.to_dict() for each in judged.scores]
    console.print(f"the target is modelled on the scale: {model.scale_.name}")
    console.print(scores_table(f"{judged.held_out_rows} held-out rows", scores))
    console.print(verdict(scores, judged.width), soft_wrap=True, highlight=False)
    console.print(f"{judged.seconds:.0f} seconds of training")
    if model_path is not None:
        model.summary_ = judged.summary() | {"seed": seed}
        model.save(model_path)
        console.print(f"model:  {model_path} (try: finitegp info {model_path})", soft_wrap=True, highlight=False)
        console.print(f"report: {report_path} (open it in a browser)", soft_wrap=True, highlight=False)
    return DemoResult({each.name: each for each in judged.scores}, judged.seconds, model_path, report_path)
