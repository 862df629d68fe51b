"""Output of commands: tables and notes for people, JSON for scripts, one line for what went wrong."""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console as RichConsole
from rich.markup import escape
from rich.table import Table

from ..errors import FiniteGPError, LostRankError, ModelFileError
from ..formatting import cut, printable, shown

if TYPE_CHECKING:
    from ..tables.summaries import ColumnSummary

# More columns than these are not listed one by one.
_MOST_COLUMNS = 40
# Letters of a line from which on notes have room beside counts.
_WIDE = 120
_SHELL_OPTIONS = {"split_by": "--split-by", "group": "--group", "folds": "--cv"}
# Longer texts are cut in their middle.
_LONGEST_TEXT = 3000
# What to do about an error in the shell, by its code and with its fields, where that differs from Python.
_ADVICE: dict[str, Callable[..., str]] = {
    "absent_columns": lambda: "correct the file.",
    "different_types": lambda: "convert one of them so that all files agree, or remove the column from all files.",
    "lost_rank": lambda: "Start the command again, with as many processes as there are now.",
    "memory_budget": lambda needed: f"Use --memory {_rounded_up(needed)} or more.",
    "ambiguous_dates": lambda: "Use --day-first or --month-first.",
    "missing_values": lambda: (
        "Remove these rows or columns, or use --missing impute to put in the median or the most frequent value."
    ),
    "missing_values_in_new_rows": lambda: "Remove these rows or columns, or fit the model with --missing impute.",
    "model_keeps_rows": lambda: "Fit it with --no-rows.",
    "needs_double": lambda: "use --double.",
    "no_room_to_decide": lambda option, needed: (
        f"use --memory {_rounded_up(needed)} or more, leave out {_SHELL_OPTIONS[option]}, or give the rows to judge "
        "with as --test FILE."
    ),
    "no_target": lambda: "name the column with --target.",
    "rows_without_target": lambda: "remove them, or leave out --refuse-missing-targets.",
    "target_scale": lambda: "choose another --target-scale, or leave it to be found.",
    "output_exists": lambda: "give another name with --output, or use --force to replace it.",
    "checkpoint_exists": lambda: "use --resume to go on from it, or --force to start anew.",
    "repeated_site": lambda: "or use --allow-repeats.",
    "rows_of_model": lambda: "or use --only-sites.",
    "test_is_learned_from": lambda: "leave out --test, so that rows are held out, or give other rows.",
    "text_among_numbers": lambda: "Correct the file, or remove the column from all files.",
    "unknown_target": lambda: "name the column with --target.",
    "weight_column": lambda: "correct the column, or name another one with --weight.",
    "wrong_delimiter": lambda delimiter: f"Use --delimiter {'tab' if delimiter == chr(9) else repr(delimiter)}.",
    "wrong_encoding": lambda encoding="cp1252": f"or use --encoding with its own, for example {encoding}.",
    "wrong_fields": lambda: "or use another --delimiter.",
}


class Console:
    """Where a command prints: for people on standard output, or for scripts as one JSON object.

    Notes go to standard error, so that standard output holds results alone.

    Args:
        as_json: Whether standard output is for scripts.
    """

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self.notes: list[str] = []
        self.written: list[Path] = []  # files that are complete
        self.checkpoint: Path | None = None  # from which the command can go on
        self._out = RichConsole(quiet=as_json)
        self._errors = RichConsole(stderr=True, quiet=as_json)

    def silence(self) -> None:
        """Print nothing from now on but what went wrong: another process prints."""
        self._out.quiet = self._errors.quiet = True

    def print(self, text: str, path: Path | None = None) -> None:
        """Lines for people, and the file at their end."""
        file = "" if path is None else f"[bold]{safe(str(path))}[/bold]"
        lines = "\n".join(safe(line) for line in text.split("\n"))
        self._out.print(lines + file, highlight=False, soft_wrap=True)

    def note(self, *texts: str) -> None:
        """Things that a user should know; scripts find them under ``notes``."""
        for text in texts:
            self.notes.append(text)
            self._errors.print(f"[yellow]Note:[/yellow] {safe(text)}", highlight=False, soft_wrap=True)

    @property
    def is_narrow(self) -> bool:
        """Whether there is no room for many columns."""
        return self._out.width < _WIDE

    def table(self, table: Table) -> None:
        """A table for people."""
        self._out.print(table)

    def result(self, result: Mapping[str, object]) -> None:
        """The result for scripts."""
        if self.as_json:
            from ..persistence.container import plain_json

            typer.echo(json.dumps(plain_json({**result, "notes": self.notes}), indent=2))

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Turn what users can mend into one line on standard error and exit code 1; warnings become notes."""
        import pyarrow as pa

        def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
            if issubclass(category, UserWarning):  # others are for those who write code
                self.note(str(message))

        with warnings.catch_warnings():
            warnings.showwarning = show
            try:
                yield
            except BrokenPipeError:
                # Whoever reads has seen enough, as head does; what Python would still flush has no reader either.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit(1) from None
            except (FiniteGPError, OSError, MemoryError, pa.ArrowException) as error:
                if isinstance(error, LostRankError) and error.reported:
                    raise typer.Exit(1) from None  # one message is enough
                if hasattr(error, "plan"):  # of a memory budget that is too small
                    self.print(str(error.plan))
                typer.secho("Error: ", fg=typer.colors.RED, bold=True, err=True, nl=False)
                typer.echo(cut(printable(error_message(error)), _LONGEST_TEXT), err=True)
                if not isinstance(error, ModelFileError):  # which may be about the checkpoint
                    typer.echo(self._on_checkpoint(), err=True, nl=False)
                raise typer.Exit(1) from None
            except KeyboardInterrupt:
                kept = f"complete: {', '.join(map(str, self.written))}" if self.written else "no file was written"
                typer.echo(f"Stopped: {kept}, and files that were there before are as they were.", err=True)
                typer.echo(self._on_checkpoint(), err=True, nl=False)
                raise typer.Exit(130) from None

    def _on_checkpoint(self) -> str:
        if self.checkpoint is None or not self.checkpoint.exists():
            return ""
        name = printable(str(self.checkpoint))
        return f"What was finished is kept in {name}: give the same command with --resume to go on.\n"


def safe(text: str) -> str:
    """Text of any origin for rich: no markup, nothing that a terminal obeys, and not endless."""
    return escape(cut(printable(text), _LONGEST_TEXT))


def error_message(error: BaseException) -> str:
    """An error in one line, with the options of the command line in its advice.

    Example:
        >>> from finitegp.errors import DataError
        >>> error_message(DataError("t.csv: one column.", "Pass delimiter=';'.", code="wrong_delimiter", delimiter=";"))
        "t.csv: one column. Use --delimiter ';'."
    """
    if isinstance(error, FiniteGPError) and error.code in _ADVICE:
        return " ".join(f"{error.problem} {_ADVICE[error.code](**error.fields)}".split())
    if isinstance(error, MemoryError) and not str(error):
        return "There is not enough memory: use fewer rows or columns, or a machine with more."
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
    return " ".join(str(error).split())


def _rounded_up(size: int) -> str:
    from ..memory import format_bytes

    return format_bytes(size + 50_000)


def columns_table(columns: Sequence[ColumnSummary], *, narrow: bool = False) -> Table:
    """A table of the encoding of each column; of very many, of those that matter or are not plain numbers.

    A narrow one leaves room for notes: it has no counts of numbers and of different values.
    """
    title = "columns"
    shown = list(columns)
    if len(shown) > _MOST_COLUMNS:
        special = [line for line in shown if line.encoding != "number" or line.gaps or (line.relevance or 0.0) >= 0.01]
        shown = (special or shown)[:_MOST_COLUMNS]
        kinds = Counter(line.encoding for line in columns)
        counted = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        title = f"{len(shown)} of {len(columns)} columns ({counted})"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    headings = ("column", "holds", "becomes", "numbers", "gaps", "different", "relevance", "note")
    left_out = ("numbers", "different") if narrow else ()
    kept = [number for number, heading in enumerate(headings) if heading not in left_out]
    for heading in (headings[number] for number in kept):
        right, long = heading in ("numbers", "gaps", "different", "relevance"), heading in ("column", "note")
        table.add_column(heading, justify="right" if right else "left", overflow="fold", no_wrap=not long)
    for line in shown:
        style = "dim" if line.encoding == "left out" else None
        counts = [str(count) if count else "" for count in (len(line.outputs), line.gaps, line.distinct)]
        counts.append("" if line.relevance is None else f"{100 * line.relevance:.1f} %")
        name = safe(line.column) or "(no name)"
        cells = name, line.kind, line.encoding, *counts, safe(line.note)
        table.add_row(*(cells[number] for number in kept), style=style)
    return table


def scores_table(title: str, scores: Sequence[Mapping[str, Any]]) -> Table:
    """Scores as JSON values, side by side; the last columns are the shares of rows inside the intervals."""
    table = Table(title=safe(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    levels = list(scores[0]["coverage"])
    measures = {"R2": "r_squared", "RMSE": "rmse", "MAE": "mae", "NLPD": "nlpd", "CRPS": "crps"}
    for heading in ("model", *measures, *(f"in {100 * float(level):g} %" for level in levels)):
        table.add_column(heading, justify="left" if heading == "model" else "right", no_wrap=heading != "model")
    for row in scores:
        inside = [f"{100 * row['coverage'][level]:.1f} %" for level in levels]
        # Files of earlier versions have fewer scores.
        table.add_row(safe(str(row["name"])), *(figure(row.get(name)) for name in measures.values()), *inside)
    return table


def show_findings(console: Console, findings: Sequence[Mapping[str, str]]) -> None:
    """The findings of the doctor, one line each."""
    for finding in findings:
        console.print(f"{finding['severity'].upper()}: {finding['title']}. {finding['evidence']} {finding['fix']}")


def verdict(scores: Sequence[Mapping[str, Any]], width: float | None = None) -> str:
    """One sentence on a model from its scores and those of the baselines: what it explains, and whether to trust it.

    Example:
        >>> own = {"name": "this model", "rmse": 1.0, "r_squared": 0.62, "coverage": {"0.9": 0.91}}
        >>> verdict([own, own | {"name": "linear", "rmse": 1.25}], width=3.1)
        'Explains 62 % of the variance, 20 % less error than a linear model; 90 % intervals hold 91 % and are typically
        3.1 wide.'
        >>> verdict([own | {"r_squared": 0.9964}, own | {"name": "linear", "rmse": 1.001}])
        'Explains 99.6 % of the variance, as much error as a linear model has; 90 % intervals hold 91 %.'
    """
    own = scores[0]
    parts = []
    if own.get("r_squared") is not None:
        share = 100 * own["r_squared"]
        digits = 0 if share < 99.0 or share == 100.0 else 1  # nearly all is not all
        told = f"{math.floor(share * 10) / 10 if digits else share:.{digits}f}"
        parts.append(f"Explains {told} % of the variance" if share > 0.5 else "Explains nothing of the variance")
    linear = next((row for row in scores[1:] if row["name"] == "linear"), None)
    if linear is not None and linear["rmse"] > 0.0:
        gain = 100 * (1.0 - own["rmse"] / linear["rmse"])
        less = f"{abs(gain):.0f} % {'less' if gain >= 0 else 'more'} error than a linear model"
        parts.append(less if abs(gain) >= 0.5 else "as much error as a linear model has")
    held = f"90 % intervals hold {100 * own['coverage']['0.9']:.0f} %" if "0.9" in own["coverage"] else ""
    if held and width is not None:
        held += f" and are typically {figure(width)} wide"
    return f"{'; '.join(part for part in (', '.join(parts), held) if part)}."


def figure(value: float | None) -> str:
    """A number with four significant digits, for terminals."""
    return shown(value, 4, ascii_only=True)
