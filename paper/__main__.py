"""``python -m paper``: run cells of the paper's tables and the peers, and write the page of results."""

from __future__ import annotations

import typer

from .reproduction import reproduce
from .run_command import run
from .tables_command import tables

app = typer.Typer(
    help="The paper's experiments and the peers, rerun.",
    no_args_is_help=True,
    add_completion=False,
)
app.command()(run)
app.command()(reproduce)
app.command()(tables)

if __name__ == "__main__":
    app(prog_name="python -m paper")
