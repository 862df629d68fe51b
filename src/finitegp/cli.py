"""The command line: ``finitegp``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from . import __version__
from .commands import fit, models, predict

app = typer.Typer(
    help="Exact Gaussian-process regression on finite features.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

# Each command, in the order of the help, with examples.
_COMMANDS: dict[Callable[..., Any], tuple[str, ...]] = {
    fit.fit: (
        "finitegp fit diamonds.csv --target price",
        "finitegp fit january.csv.gz february.csv.gz --target sales --drop remark --categorical shop -o sales.finitegp",
        "finitegp fit prices.csv --target price --split-by date --json > scores.json",
        "finitegp fit sensors/ --target power --memory 64MB",
        "torchrun --nproc-per-node 4 -m finitegp fit sensors/ --target power",
    ),
    predict.predict: (
        "finitegp predict price.finitegp new.csv -o predicted.csv",
        "finitegp predict price.finitegp new.csv -o prices.csv --keep id",
        "finitegp predict price.finitegp parts/ -o predicted.parquet --coverage 0.95 --memory 64MB",
        "cat new.csv | finitegp predict price.finitegp - -o - | sort",
    ),
    models.evaluate: ("finitegp evaluate price.finitegp later.csv",),
    models.update: ("finitegp update price.finitegp march.csv -o price-march.finitegp",),
    models.forget: ("finitegp forget price.finitegp withdrawn.csv -o price-without.finitegp",),
    models.statistics: ("finitegp statistics price.finitegp north.csv -o north.statistics",),
    models.merge: (
        "finitegp merge price.finitegp north.statistics south.statistics -o joint.finitegp",
        "finitegp merge price.finitegp *.statistics -o joint.finitegp --only-sites --refit-noise",
    ),
    models.export: (
        "finitegp export price.finitegp --c price.h --max-bytes 32kB --rows later.csv",
        "finitegp export price.finitegp -o price.onnx",
    ),
    models.info: ("finitegp info price.finitegp", "finitegp info north.statistics"),
    models.report: ("finitegp report price.finitegp later.csv -o later.html",),
    fit.demo: (),
}


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"finitegp {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Exact Gaussian-process regression on finite features."""


for _command, _examples in _COMMANDS.items():
    # A paragraph is one line, which the terminal breaks where it is full.
    _paragraphs = (" ".join(paragraph.split()) for paragraph in str(_command.__doc__).split("\n\n"))
    _heading = f"[bold]Example{'s' * (len(_examples) > 1)}[/bold]"
    _epilog = "\n\n".join([_heading, *_examples]) if _examples else None
    app.command(epilog=_epilog, help="\n\n".join(_paragraphs))(_command)
