"""``python -m paper``: run cells of the paper's tables and the peers, and write the page of results."""

from __future__ import annotations

import typer

from .cell_command import cell
from .page_command import page
from .peers_command import peers
from .reproduction import reproduce
from .run_command import run

app = typer.Typer(
    help="The paper's experiments and the peers, rerun.",
    no_args_is_help=True,
    add_completion=False,
)
for command in (cell, run, peers, reproduce, page):
    app.command()(command)

if __name__ == "__main__":
    app(prog_name="python -m paper")
