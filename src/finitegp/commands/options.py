"""Arguments and options that commands share."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


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
