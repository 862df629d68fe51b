"""Arguments and options that commands share, and their checks."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..atomic import check_place
from ..errors import DataError, OutputExistsError

if TYPE_CHECKING:
    from ..tables.reader import TableReader


class Effort(str, Enum):
    """How much time a fit may take."""

    low = "low"
    medium = "medium"
    high = "high"


class Missing(str, Enum):
    """What to do about missing values."""

    error = "error"
    impute = "impute"


class Interval(str, Enum):
    """Where intervals come from."""

    predictive = "predictive"
    gaussian = "gaussian"
    conformal = "conformal"


Tables = Annotated[
    list[Path],
    typer.Argument(metavar="TABLE", help="CSV (plain or .gz) or Parquet files, or a directory of them."),
]
OptionalTables = Annotated[
    list[Path] | None,
    typer.Argument(metavar="TABLE", help="Tables with the truth, as for [bold]finitegp fit[/bold]."),
]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A file that [bold]finitegp fit[/bold] wrote.")]
Delimiter = Annotated[
    str | None, typer.Option(help="Of CSV files; by default a comma, or a tab in .tsv files.", show_default=False)
]
Encoding = Annotated[str, typer.Option(help="Of CSV files.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace files that exist.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")]
Target = Annotated[
    str | None, typer.Option("--target", "-t", help="The column with the truth, if the model does not know its name.")
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="Keep to this much memory, such as 64MB, besides the program itself; rows stay on disk.",
        show_default=False,
    ),
]


def open_tables(
    paths: Sequence[Path],
    delimiter: str | None,
    encoding: str,
    *,
    chunk_size: int | None = None,
    block_size: int = 1 << 20,
) -> TableReader:
    """The tables as one, after checks of how they are to be read."""
    from ..tables.reader import TableReader

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
            raise OutputExistsError(f"{path} exists already:", code="output_exists")
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
