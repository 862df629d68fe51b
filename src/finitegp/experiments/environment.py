"""What a reader needs to know to rerun a measurement: versions, commit, date; and the memory a process took."""

from __future__ import annotations

import datetime
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from .. import __version__


def environment() -> dict[str, Any]:
    """Versions, threads, commit and date."""
    return {
        "finitegp": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }


def reset_peak_memory() -> None:
    """Let the kernel forget the peak so far (Linux; elsewhere nothing)."""
    path = Path("/proc/self/clear_refs")
    if path.exists():
        path.write_text("5")


def peak_memory_bytes() -> int | None:
    """The largest resident size since the last reset (Linux, else None); not inherited from a parent process."""
    return _status_bytes("VmHWM")


def resident_memory_bytes() -> int | None:
    """The resident size of this process now (Linux, else None)."""
    return _status_bytes("VmRSS")


def _status_bytes(key: str) -> int | None:
    path = Path("/proc/self/status")
    if not path.exists():
        return None
    lines = (line for line in path.read_text().splitlines() if line.startswith(key + ":"))
    return int(next(lines).split()[1]) * 1024


def _commit() -> str:
    """The commit of the source that runs, marked if the package itself was changed since; ``unknown`` if installed."""
    package = Path(__file__).parents[1]
    try:
        commit = _git(["rev-parse", "--short", "HEAD"], package)
        return (
            f"{commit}-dirty" if commit and _git(["status", "--porcelain", "--", "."], package) else commit or "unknown"
        )
    except FileNotFoundError:
        return "unknown"


def _git(arguments: list[str], directory: Path) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=directory, check=False)
    return done.stdout.strip()
