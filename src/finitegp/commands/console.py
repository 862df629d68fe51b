"""What commands print: tables and notes for people, JSON for scripts, one line for what went wrong."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console as RichConsole
from rich.markup import escape
from rich.table import Table

from ..errors import FiniteGPError, LostRankError
from ..formatting import shown

# What to do about an error in the shell, by its code and with its fields, where that differs from Python.
_ADVICE: dict[str, Callable[..., str]] = {
    "absent_columns": lambda: "correct the file.",
    "different_types": lambda: "convert one of them so that all files agree, or remove the column from all files.",
    "lost_rank": lambda: "Start the command again, with as many processes as there are now.",
    "memory_budget": lambda needed: f"Use --memory {_rounded_up(needed)} or more.",
    "missing_values": lambda: (
        "Remove these rows or columns, or use --missing impute to put in the median or the most frequent value."
    ),
    "missing_values_in_new_rows": lambda: "Remove these rows or columns, or fit the model with --missing impute.",
    "model_keeps_rows": lambda: "Fit it with --no-rows.",
    "output_exists": lambda: "give another name with --output, or use --force to replace it.",
    "repeated_site": lambda: "or use --allow-repeats.",
    "rows_of_model": lambda: "or use --only-sites.",
    "text_among_numbers": lambda: "Correct the file, or remove the column from all files.",
    "unknown_target": lambda: "name the column with --target.",
    "wrong_delimiter": lambda delimiter: f"Use --delimiter {'tab' if delimiter == chr(9) else repr(delimiter)}.",
    "wrong_encoding": lambda: "or use --encoding with its own, for example latin-1.",
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
        self._out = RichConsole(quiet=as_json)
        self._errors = RichConsole(stderr=True, quiet=as_json)

    def silence(self) -> None:
        """Print nothing from now on but what went wrong: another process prints."""
        self._out.quiet = self._errors.quiet = True

    def print(self, text: str, path: Path | None = None) -> None:
        """A line for people, and the file at its end."""
        file = "" if path is None else f"[bold]{escape(str(path))}[/bold]"
        self._out.print(escape(text) + file, highlight=False, soft_wrap=True)

    def note(self, *texts: str) -> None:
        """Things that a user should know; scripts find them under ``notes``."""
        for text in texts:
            self.notes.append(text)
            self._errors.print(f"[yellow]Note:[/yellow] {escape(text)}", highlight=False, soft_wrap=True)

    def table(self, table: Table) -> None:
        """A table for people."""
        self._out.print(table)

    def result(self, result: Mapping[str, Any]) -> None:
        """The result for scripts."""
        if self.as_json:
            from ..persistence.plain_json import plain_json

            typer.echo(json.dumps(plain_json({**result, "notes": self.notes}), indent=2))

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Turn what users can mend into one line on standard error and exit code 1; warnings become notes."""
        import pyarrow as pa

        def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
            if issubclass(category, UserWarning):  # others are for those who write code
                self.note(str(message))

        with warnings.catch_warnings():
            warnings.showwarning = show
            try:
                yield
            except (FiniteGPError, OSError, MemoryError, pa.ArrowException) as error:
                if isinstance(error, LostRankError) and error.reported:
                    raise typer.Exit(1) from None  # one message is enough
                if hasattr(error, "plan"):  # of a memory budget that is too small
                    self.print(str(error.plan))
                typer.secho("Error: ", fg=typer.colors.RED, bold=True, err=True, nl=False)
                typer.echo(error_message(error), err=True)
                raise typer.Exit(1) from None


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


def columns_table(encoder: Any) -> Table:
    """What becomes of each column."""
    table = Table(title="columns", title_justify="left")
    for heading in ("column", "holds", "becomes", "numbers", "note"):
        table.add_column(heading, justify="right" if heading == "numbers" else "left", overflow="fold")
    for line in encoder.summary():
        style = "dim" if line.encoding == "left out" else None
        count = str(len(line.outputs)) if line.outputs else ""
        table.add_row(escape(line.column), line.kind, line.encoding, count, escape(line.note), style=style)
    return table


def scores_table(title: str, scores: Sequence[Mapping[str, Any]]) -> Table:
    """Scores as JSON values, side by side; the last columns are the shares of rows inside the intervals."""
    table = Table(title=escape(title), title_justify="left")
    levels = list(scores[0]["coverage"])
    for heading in ("model", "RMSE", "NLPD", "CRPS", *(f"in {100 * float(level):g} %" for level in levels)):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for row in scores:
        inside = [f"{100 * row['coverage'][level]:.1f} %" for level in levels]
        table.add_row(str(row["name"]), *(figure(row[name]) for name in ("rmse", "nlpd", "crps")), *inside)
    return table


def figure(value: float | None) -> str:
    """A number with four significant digits, for terminals."""
    return shown(value, 4, ascii_only=True)
