"""Writes measurements as JSON lines, each with the settings, versions and commit that produced it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from finitegp.experiments.environment import environment

RESULTS = Path(__file__).parent / "results"


def record(name: str, rows: list[dict[str, Any]], *, directory: Path = RESULTS) -> Path:
    """Replace ``directory/name.jsonl`` by these rows, each completed with versions, commit and date."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row | environment()) + "\n" for row in rows))
    return path
