"""The memory that this process takes, as the kernel counts it (Linux; elsewhere None)."""

from __future__ import annotations

from pathlib import Path


def reset_peak_memory() -> None:
    """Let the kernel forget the peak so far."""
    path = Path("/proc/self/clear_refs")
    if path.exists():
        path.write_text("5")


def peak_memory_bytes() -> int | None:
    """The largest resident size since the last reset; not inherited from a parent process."""
    return _status_bytes("VmHWM")


def resident_memory_bytes() -> int | None:
    """The resident size now."""
    return _status_bytes("VmRSS")


def data_memory_bytes() -> int | None:
    """The private memory that is asked for, used or not; None where the system does not tell."""
    return _status_bytes("VmData")


def _status_bytes(key: str) -> int | None:
    path = Path("/proc/self/status")
    if not path.exists():
        return None
    lines = (line for line in path.read_text().splitlines() if line.startswith(key + ":"))
    return int(next(lines).split()[1]) * 1024
