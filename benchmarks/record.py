"""Writes measurements as JSON lines, each with the settings, versions and commit that produced it."""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import finitegp

RESULTS = Path(__file__).parent / "results"


def record(name: str, rows: list[dict[str, Any]], *, directory: Path = RESULTS) -> Path:
    """Replace ``directory/name.jsonl`` by these rows, each completed with versions, commit and date."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row | environment()) + "\n" for row in rows))
    return path


def environment() -> dict[str, Any]:
    """What a reader needs to know to rerun a measurement."""
    return {
        "finitegp": finitegp.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }


def reset_peak_memory() -> None:
    """Let the kernel forget the peak so far (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_memory_bytes() -> int:
    """The largest resident size since the last reset (Linux); unlike ru_maxrss it is not inherited from a parent."""
    return _status_bytes("VmHWM")


def resident_memory_bytes() -> int:
    """The resident size of this process now (Linux)."""
    return _status_bytes("VmRSS")


def _status_bytes(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{key} is not in /proc/self/status: memory can only be measured on Linux.")


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
    return done.stdout.strip() or "unknown"
