"""Writes measurements as JSON lines, each with the settings, versions and commit that produced it, and into pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paper.environment import environment

RESULTS = Path(__file__).parent / "results"


def record(name: str, rows: list[dict[str, Any]], *, same: tuple[str, ...] = (), directory: Path = RESULTS) -> Path:
    """Write these rows, each completed with versions, commit and date, into ``directory/name.jsonl``.

    They replace what is there, or with ``same`` only those lines that agree with a new row in these fields.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.jsonl"
    lines = [json.dumps(row | environment()) for row in rows]
    if same and path.exists():
        new = {tuple(str(row[field]) for field in same) for row in rows}
        old = path.read_text().splitlines()
        lines = [line for line in old if tuple(str(json.loads(line)[field]) for field in same) not in new] + lines
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def put_into_page(page: Path, script: str, lines: list[str]) -> None:
    """Replace what this script wrote into a page before, between two comments, by these lines."""
    start, end = f"<!-- written by benchmarks/{Path(script).name} -->", "<!-- end of what is written -->"
    before, rest = page.read_text().split(start)
    after = rest.split(end, maxsplit=1)[1]
    page.write_text(before + "\n".join([start, "", *lines, "", end]) + after)


def publish(
    name: str, rows: list[dict[str, Any]], page: Path, script: str, table: Callable[[list[dict[str, Any]]], list[str]]
) -> None:
    """Record these rows, and put the lines that ``table`` makes of what was recorded into a page."""
    path = record(name, rows)
    put_into_page(page, script, table([json.loads(line) for line in path.read_text().splitlines()]))


def made_with(facts: dict[str, Any]) -> str:
    """What a recorded row was measured with, on one thread."""
    return f"finitegp {facts['commit']}, torch {facts['torch']}, {facts['processor']}, 1 thread, {facts['date']}"
