"""Arguments and options that commands share, and their checks."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from ..atomic import check_place
from ..errors import DataError, OutputExistsError
from ..formatting import parse_seconds

if TYPE_CHECKING:
    from ..tables.model import TableRegressor
    from ..tables.reader import ReadingOptions, TableReader

Value = TypeVar("Value")
Found = TypeVar("Found")

Tables = Annotated[
    list[Path],
    typer.Argument(
        metavar="TABLE",
        help="Files (.csv, .tsv, .txt, each also .gz, .parquet, .feather, .xlsx), a directory of them, or - for "
        "standard input.",
    ),
]
OptionalTables = Annotated[
    list[Path] | None,
    typer.Argument(metavar="TABLE", help="Tables with the truth, as for [bold]finitegp fit[/bold]."),
]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A file that [bold]finitegp fit[/bold] wrote.")]
Delimiter = Annotated[
    str | None, typer.Option(help="Of CSV files; by default it is found from the header.", show_default=False)
]
Encoding = Annotated[str, typer.Option(help="Of CSV files.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace files that exist.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")]
Target = Annotated[
    str | None, typer.Option("--target", "-t", help="The column with the truth, if the model does not know its name.")
]
Categorical = Annotated[
    list[str] | None, typer.Option("--categorical", help="A column that holds categories; repeat for several.")
]
Numeric = Annotated[
    list[str] | None, typer.Option("--numeric", help="A column that holds numbers; repeat for several.")
]
Date = Annotated[list[str] | None, typer.Option("--date", help="A column that holds dates; repeat for several.")]
Drop = Annotated[list[str] | None, typer.Option("--drop", help="A column to ignore; repeat for several.")]
Only = Annotated[list[str] | None, typer.Option("--only", help="Use only this column; repeat for several.")]
Weight = Annotated[
    str | None, typer.Option("--weight", help="The column with the number of equal rows that each row stands for.")
]
DayFirst = Annotated[
    bool | None,
    typer.Option("--day-first/--month-first", help="Whether 1/2/2020 is 1 February or 2 January.", show_default=False),
]
Decimal = Annotated[
    str | None, typer.Option("--decimal", help="What stands before decimals: . or , (by default it is found).")
]
TargetScale = Annotated[
    Literal["auto", "identity", "log", "square-root", "yeo-johnson"],
    typer.Option("--target-scale", help="The scale on which the target is modelled."),
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


def load_with_table(
    model: Path, tables: Sequence[Path], delimiter: str | None, encoding: str, target: str | None
) -> tuple[TableRegressor, TableReader]:
    """A model, with another name for its target if one is given, and tables that are read as it reads them."""
    from ..tables.model import TableRegressor

    loaded = TableRegressor.load(model).with_target(target)
    return loaded, open_tables(tables, delimiter, encoding, loaded.reading_options)


def open_tables(paths: Sequence[Path], delimiter: str | None, encoding: str, options: ReadingOptions) -> TableReader:
    """The tables as one, after checks of how they are to be read."""
    from ..tables.reader import TableReader, is_text_encoding

    delimiter = "\t" if delimiter in ("tab", "\\t") else delimiter
    if delimiter is not None and len(delimiter.encode()) != 1:
        raise typer.BadParameter(f"must be one character or 'tab', but is {delimiter!r}.", param_hint="--delimiter")
    if not is_text_encoding(encoding):
        message = f"there is no encoding {encoding!r}; common ones are utf8, latin-1, cp1252, utf-16."
        raise typer.BadParameter(message, param_hint="--encoding")
    return TableReader([_readable(path) for path in paths], delimiter=delimiter, encoding=encoding, **options)


# What came through a pipe, until the program ends: tables are read more than once.
_SPOOLED: list[IO[bytes]] = []


def is_stream(path: Path) -> bool:
    """Whether a name means standard input or output, or a pipe, which can be read once."""
    return str(path) == "-" or (path.exists() and not path.is_file() and not path.is_dir())


def _readable(path: Path) -> Path:
    """The file itself, or what came through standard input or a pipe, in a temporary file."""
    if not is_stream(path):
        return path
    source: IO[bytes] = sys.stdin.buffer if str(path) == "-" else open(path, "rb")  # noqa: SIM115
    beginning = source.read(6)
    ending = {b"PAR1": ".parquet", b"ARRO": ".feather"}.get(beginning[:4], ".csv")
    spooled = tempfile.NamedTemporaryFile(prefix="standard-input-", suffix=ending)  # noqa: SIM115
    spooled.write(beginning)
    shutil.copyfileobj(source, spooled)
    spooled.flush()
    _SPOOLED.append(spooled)
    return Path(spooled.name)


def check_output(path: Path, *, force: bool, inputs: Sequence[Path] = ()) -> Path:
    """A place for a file, found to be possible before any work is done; ``-`` is standard output.

    ``inputs`` are the files that are read, and directories of them: none of these files is ever replaced.
    """
    if str(path) == "-":
        return path
    check_place(path)
    if path.exists():
        read = (file for given in inputs for file in (given.iterdir() if given.is_dir() else [given]))
        if any(file.exists() and path.samefile(file) for file in read):
            raise DataError(f"{path} is also read: give the output another name.")
        if not force:
            raise OutputExistsError(f"{path} exists already:", code="output_exists")
    return path


def _checked(option: str, value: Value, check: Callable[[Value], Found], message: str = "") -> Found:
    """What a check makes of a value, or a usage error with what it finds wrong."""
    try:
        return check(value)
    except ValueError as error:
        raise typer.BadParameter(message or str(error), param_hint=option) from None


def check_size(option: str, value: str) -> int:
    """A number of bytes, or a usage error."""
    from ..memory import parse_bytes

    return _checked(option, value, parse_bytes)


def check_time(option: str, value: str) -> float:
    """Seconds, or a usage error."""
    return _checked(option, value, parse_seconds, f"must be a time such as 60s, 5min or 1h, but is {value!r}.")


def check_device(option: str, value: str, memory: str | None) -> str:
    """A device that this machine has, or a usage error."""
    from ..automatic.fit import check_device as check

    _checked(option, value, lambda device: check(device, memory))
    return value


def check_decimal(value: str | None) -> str | None:
    """A point or a comma, or a usage error."""
    if value not in (None, ".", ","):
        raise typer.BadParameter(f"must be . or , but is {value!r}.", param_hint="--decimal")
    return value


def check_share(option: str, value: float, *, zero: bool = False) -> float:
    """A number between 0 and 1, or a usage error with what was probably meant."""
    if 0.0 < value < 1.0 or (zero and value == 0.0):
        return value
    guess = f"; did you mean {value / 100:g}?" if 1.0 < value < 100.0 else "."
    raise typer.BadParameter(f"must lie between 0 and 1, but is {value:g}{guess}", param_hint=option)
