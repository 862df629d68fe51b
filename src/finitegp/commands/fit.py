"""The command ``finitegp fit``."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from ..errors import DataError
from .console import Console, columns_table, scores_table
from .fit_on_disk import BLOCK_BYTES, CHUNK_ROWS, SampledRows, fit_on_disk
from .options import (
    Delimiter,
    Effort,
    Encoding,
    Force,
    Json,
    Memory,
    Missing,
    Tables,
    check_output,
    check_share,
    check_size,
    open_tables,
)

if TYPE_CHECKING:
    from ..report import Evaluation
    from ..tables.encoder import TableEncoder
    from ..tables.reader import TableReader

Array = npt.NDArray[np.float64]
# Scores of fewer rows say next to nothing, and the rows are missed in training.
_FEWEST_HELD_OUT = 5
_FEWEST_ROWS = 2
# Up to this many rows are kept in memory also with a memory budget: a kernel can then be fitted to them.
_ROWS_IN_MEMORY = 1500
# What each of several processes may use without --memory.
_MEMORY_OF_A_RANK = "1GB"

EXAMPLES = """
[bold]Examples[/bold]

finitegp fit diamonds.csv --target price

finitegp fit january.csv.gz february.csv.gz --target sales --missing impute --drop id -o sales.finitegp

finitegp fit measurements.parquet --target yield --effort high --json > scores.json

finitegp fit sensors/ --target power --memory 64MB

torchrun --nproc-per-node 4 -m finitegp fit sensors/ --target power
"""


def fit(
    tables: Tables,
    target: Annotated[str, typer.Option("--target", "-t", help="The column to predict.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model file to write.")] = Path("model.finitegp"),
    effort: Annotated[Effort, typer.Option(help="How much time to spend.")] = Effort.medium,
    missing: Annotated[
        Missing, typer.Option(help="Missing values: an error that lists them, or put in the usual value.")
    ] = Missing.error,
    drop: Annotated[list[str] | None, typer.Option("--drop", help="A column to ignore; repeat for several.")] = None,
    test_fraction: Annotated[
        float, typer.Option(help="The share of rows held out for the scores; 0 holds none out.")
    ] = 0.2,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same model.")] = 0,
    report: Annotated[
        Path | None, typer.Option("--report", help="The report to write; by default beside the model, ending in .html.")
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.")] = False,
    memory: Memory = None,
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
        sizes = {} if memory is None else {"chunk_size": CHUNK_ROWS, "block_size": BLOCK_BYTES}
        from ..tables.encoder import TableEncoder
        from ..tables.targets import target_values

        if memory is not None:
            from ..memory import return_freed_memory

            return_freed_memory()  # before the first table is opened
        with ranks.working():  # so that what is wrong on all ranks is reported by one
            check_output(output, force=force, inputs=tables)
            report_path = None if no_report else check_output(report or output.with_suffix(".html"), force=force)
            if report_path == output:
                raise DataError(f"Model and report would both be {output}: give one of them another name.")
            table = open_tables(tables, delimiter, encoding, **sizes)
            if table.num_rows < _FEWEST_ROWS:
                raise DataError(
                    f"The table has {table.num_rows} row, but at least {_FEWEST_ROWS} are needed to learn from."
                )
        console.note(*table.notes)
        chosen = [target, *(drop or [])]
        small = table.num_rows <= _ROWS_IN_MEMORY
        if small and ranks.world_size > 1:
            console.note("So few rows are fitted by one process.")
        if memory is None or (small and ranks.is_first):
            targets = target_values(table, target)
            encoder = TableEncoder.fit(table, missing=missing.value, exclude=chosen)
            console.print(f"{table.num_rows} rows; target {target!r}, {_range(targets)}")
            console.table(columns_table(encoder))
            training, held_out = _split(_encode(table, encoder, targets, console), test_fraction, seed, console)
            model, seconds = _train(training, effort.value, seed, console, memory)
        elif small:
            return
        else:
            with ranks.working():
                encoder = TableEncoder.fit(table, missing=missing.value, exclude=chosen)
            console.print(f"{table.num_rows} rows; target {target!r}")
            console.table(columns_table(encoder))
            model, training, held_out, seconds = fit_on_disk(
                table,
                encoder,
                target,
                memory,
                effort=effort.value,
                test_fraction=test_fraction,
                seed=seed,
                console=console,
                ranks=ranks,
            )
        if not ranks.is_first:
            return
        scores: list[dict[str, Any]] = []
        if len(held_out.targets):
            from ..report.evaluation import evaluate

            rows = training.inputs, training.targets
            evaluation = evaluate(model, held_out.inputs, held_out.targets, training=rows, seed=seed)
            scores = [each.to_dict() for each in evaluation.scores]
            if report_path is not None:
                _report(model, training, held_out, evaluation, encoder, target, report_path, seed=seed, force=force)
            model.partial_fit(held_out.inputs, held_out.targets)
        else:
            report_path = None
        summary = {
            "files": [path.name for path in table.paths],
            "rows": table.num_rows,
            "held_out_rows": len(held_out.targets),
            "takes_in_held_out_rows": bool(len(held_out.targets)),
            "scores": scores,
            "effort": effort.value,
            "seed": seed,
            "seconds": seconds,
            "memory": memory,
        }
        _save(model, encoder, target, summary, output, force=force)
        _show_result(console, summary, output, report_path)
        columns = [asdict(line) for line in encoder.summary()]
        console.result(
            {"model": str(output), "report": report_path and str(report_path), "target": target, "columns": columns}
            | summary
        )


def _encode(table: TableReader, encoder: TableEncoder, targets: Array, console: Console) -> SampledRows:
    from ..tables.encoder import TransformReport

    found = TransformReport(source=table)
    inputs = encoder.transform(table, found)
    console.note(*found.lines())
    return SampledRows(inputs, targets, np.arange(len(targets)))


def _split(rows: SampledRows, test_fraction: float, seed: int, console: Console) -> tuple[SampledRows, SampledRows]:
    """Rows to train on, and rows to score with."""
    count = len(rows.targets)
    held_out = int(test_fraction * count)
    if test_fraction > 0.0 and held_out < _FEWEST_HELD_OUT:
        console.note(
            f"{count} rows are too few to hold {100 * test_fraction:g} % of them out, so there are no scores and no "
            "report: all rows are used for training."
        )
        held_out = 0
    elif held_out == 0:
        console.note("No rows are held out, so there are no scores and no report.")
    order = np.random.default_rng(seed).permutation(count)
    parts = np.sort(order[held_out:]), np.sort(order[:held_out])
    training, test = (SampledRows(rows.inputs[part], rows.targets[part], rows.numbers[part]) for part in parts)
    if float(np.ptp(training.targets)) == 0.0:
        raise DataError("The target is the same in all rows that are left for training: add rows, or hold fewer out.")
    return training, test


def _train(
    training: SampledRows, effort: str, seed: int, console: Console, memory: str | None = None
) -> tuple[Any, float]:
    from ..estimator import GPRegressor

    started = time.perf_counter()
    model = GPRegressor(effort=effort, random_state=seed, verbose=not console.as_json, memory_budget=memory)
    model.fit(training.inputs, training.targets)
    model.verbose = False
    return model, time.perf_counter() - started


def _report(
    model: Any,
    training: SampledRows,
    held_out: SampledRows,
    evaluation: Evaluation,
    encoder: TableEncoder,
    target: str,
    path: Path,
    *,
    seed: int,
    force: bool,
) -> None:
    from ..report import encoded_columns, gather_contents, write_report

    contents = gather_contents(
        model,
        held_out.inputs,
        held_out.targets,
        training_inputs=training.inputs,
        training_targets=training.targets,
        **encoded_columns(encoder),
        target_name=target,
        training_row_numbers=[int(number) for number in training.numbers],
        seed=seed,
        evaluation=evaluation,
    )
    write_report(contents, path, force=force)


def _save(model: Any, encoder: TableEncoder, target: str, summary: dict[str, Any], path: Path, *, force: bool) -> None:
    from ..table_model import TableModel

    TableModel(model, encoder, target, summary).save(path, overwrite=force)


def _range(values: Array) -> str:
    return f"{values.min():.6g} to {values.max():.6g}"


def _show_result(console: Console, summary: dict[str, Any], output: Path, report: Path | None) -> None:
    held_out = summary["held_out_rows"]
    if summary["scores"]:
        console.table(scores_table(f"{held_out} held-out rows", summary["scores"]))
        console.print(
            f"The scores are of the model trained on the other {summary['rows'] - held_out} rows. The saved model has "
            "then taken in the held-out rows too: its posterior is exact for all rows, its features are unchanged."
        )
    console.print(f"{summary['seconds']:.0f} seconds of training")
    console.print("model:  ", output)
    if report is not None:
        console.print("report: ", report)
