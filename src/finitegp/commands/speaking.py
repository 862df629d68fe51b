"""How commands speak: tables and notes for people, JSON for scripts, one line for what went wrong."""

from __future__ import annotations

import codecs
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..atomic import check_place
from ..errors import DataError, LostRankError, NumericalError

if TYPE_CHECKING:
    from ..data.tables import TableReader
    from ..error_shape import ErrorShape

# What errors say to those who write Python, and what it is on the command line.
_WORDS = {
    "pass missing='impute' to put in": "use --missing impute to put in",
    ", or leave the column out with columns=[…]": ", or remove the column from all files",
    ", or name the columns to read with columns=[…]": "",
    "set force=True": "use --force",
    "set overwrite=True": "use --force",
    "Start the run again: the last checkpoint is whole, and train(..., resume=path) goes on from it, with this or "
    "another number of ranks.": "Start the command again, with as many processes as there are now.",
    "Pass delimiter='\\t'": "Use --delimiter tab",
    "Pass delimiter=": "Use --delimiter ",
    "pass its encoding, for example encoding='latin-1'": "use --encoding with its own, for example latin-1",
}


class Speaker:
    """What a command has to say: to people on standard output, or to scripts as one JSON object.

    Notes go to standard error, so that standard output holds results alone.

    Args:
        as_json: Whether standard output is for scripts.
    """

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self.console = Console(quiet=as_json)
        self.errors = Console(stderr=True, quiet=as_json)
        self.notes: list[str] = []

    def be_quiet(self) -> None:
        """Say nothing any more but what went wrong: another process speaks."""
        self.console.quiet = self.errors.quiet = True

    def say(self, text: str, place: Path | None = None) -> None:
        """A line for people, and the file that it speaks of."""
        written = "" if place is None else f"[bold]{escape(str(place))}[/bold]"
        self.console.print(escape(text) + written, highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Something that a user should hear of; scripts find it under ``notes``."""
        self.notes.append(text)
        self.errors.print(f"[yellow]Note:[/yellow] {escape(text)}", highlight=False, soft_wrap=True)

    def show(self, table: Table) -> None:
        """A table for people."""
        self.console.print(table)

    def finish(self, result: Mapping[str, Any]) -> None:
        """The result for scripts."""
        if self.as_json:
            from ..persistence.plain_json import plain_json

            typer.echo(json.dumps(plain_json({**result, "notes": self.notes}), indent=2))

    @contextmanager
    def guard(self, words: Mapping[str, str] | None = None) -> Iterator[None]:
        """Turn what users can mend into one line on standard error and exit code 1; warnings become notes."""
        import pyarrow as pa

        def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
            if issubclass(category, UserWarning):  # others are for those who write code
                self.note(str(message))

        with warnings.catch_warnings():
            warnings.showwarning = show
            try:
                yield
            except (DataError, NumericalError, LostRankError, OSError, MemoryError, pa.ArrowException) as error:
                if isinstance(error, LostRankError) and error.reported:
                    raise typer.Exit(1) from None  # one message is enough
                message = _message(error)
                for python, command in {**_WORDS, **(words or {})}.items():
                    message = message.replace(python, command)
                typer.secho("Error: ", fg=typer.colors.RED, bold=True, err=True, nl=False)
                typer.echo(message, err=True)
                raise typer.Exit(1) from None


def _message(error: BaseException) -> str:
    if isinstance(error, MemoryError) and not str(error):
        return "There is not enough memory: use fewer rows or columns, or a machine with more."
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
    return " ".join(str(error).split())


def open_tables(
    paths: Sequence[Path],
    delimiter: str | None,
    encoding: str,
    *,
    chunk_size: int | None = None,
    block_size: int = 1 << 20,
) -> TableReader:
    """The tables as one, after checks of how they are to be read."""
    from ..data.tables import TableReader

    delimiter = "\t" if delimiter in ("tab", "\\t") else delimiter
    if delimiter is not None and len(delimiter.encode()) != 1:
        raise typer.BadParameter(f"must be one character or 'tab', but is {delimiter!r}.", param_hint="--delimiter")
    try:
        codecs.lookup(encoding)
    except LookupError:
        message = f"there is no encoding {encoding!r}; common ones are utf8, latin-1, cp1252, utf-16."
        raise typer.BadParameter(message, param_hint="--encoding") from None
    return TableReader(paths, delimiter=delimiter, encoding=encoding, chunk_size=chunk_size, block_size=block_size)


def check_output(path: Path, *, force: bool, inputs: Sequence[Path] = ()) -> Path:
    """A place for a file, found to be possible before any work is done."""
    check_place(path)
    if path.exists():
        if any(other.exists() and path.samefile(other) for other in inputs):
            raise DataError(f"{path} is also read: give the output another name.")
        if not force:
            raise DataError(f"{path} exists already: give another name with --output, or use --force to replace it.")
    return path


def check_size(option: str, value: str) -> int:
    """A number of bytes, or a usage error."""
    from ..memory import parse_bytes

    try:
        return parse_bytes(value)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def check_share(option: str, value: float, *, zero: bool = False) -> float:
    """A number between 0 and 1, or a usage error that says what was probably meant."""
    if 0.0 < value < 1.0 or (zero and value == 0.0):
        return value
    guess = f"; did you mean {value / 100:g}?" if 1.0 < value < 100.0 else "."
    raise typer.BadParameter(f"must lie between 0 and 1, but is {value:g}{guess}", param_hint=option)


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


def score_all(predictions: Mapping[str, tuple[Any, Any]], truth: Any, error_shape: ErrorShape) -> list[dict[str, Any]]:
    """Scores of several predictions, mean and standard deviation each, of the same rows; JSON.

    ``error_shape`` is that of the first; the others are Gaussian.
    """
    import torch

    from ..error_shape import GAUSSIAN
    from ..metrics import score

    scores = []
    for number, (name, (mean, std)) in enumerate(predictions.items()):
        shape = GAUSSIAN if number else error_shape
        found = score(torch.as_tensor(mean), torch.as_tensor(std), torch.as_tensor(truth), error_shape=shape)
        coverage = {f"{level:g}": share for level, share in found.coverage.items()}
        scores.append({"name": name, "rmse": found.rmse, "nlpd": found.nlpd, "crps": found.crps, "coverage": coverage})
    return scores


def scores_table(title: str, scores: Sequence[Mapping[str, Any]]) -> Table:
    """Scores side by side; the last columns are the shares of rows inside the intervals of these coverages."""
    table = Table(title=escape(title), title_justify="left")
    levels = list(scores[0]["coverage"])
    for heading in ("model", "RMSE", "NLPD", "CRPS", *(f"in {100 * float(level):g} %" for level in levels)):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for row in scores:
        inside = [f"{100 * row['coverage'][level]:.1f} %" for level in levels]
        table.add_row(str(row["name"]), *(figure(row[name]) for name in ("rmse", "nlpd", "crps")), *inside)
    return table


def figure(value: float | None) -> str:
    """A number with four significant digits.

    Example:
        >>> figure(1234.5678), figure(0.00012345), figure(None)
        ('1235', '0.0001234', '-')
    """
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
