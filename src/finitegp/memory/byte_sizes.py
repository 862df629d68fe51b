"""Numbers of bytes as people write them."""

from __future__ import annotations

import re
from numbers import Real

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_PATTERN = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([KMGT]I?)?B?\s*", re.IGNORECASE)


def parse_bytes(size: str | int | float) -> int:
    """A number of bytes from ``"64MB"`` (10^6), ``"64MiB"`` (2^20), ``"1.5 GB"``, ``"4096"`` or a number.

    Example:
        >>> parse_bytes("64MB"), parse_bytes("1.5 GiB"), parse_bytes(4096)
        (64000000, 1610612736, 4096)
    """
    if isinstance(size, bool) or not isinstance(size, str | Real):
        raise TypeError(f"A size must be text such as '64MB' or a number of bytes, but is a {type(size).__name__}.")
    match = _PATTERN.fullmatch(str(size)) if isinstance(size, str) else None
    if isinstance(size, str) and match is None:
        raise ValueError(f"{size!r} is not a size: write for example '64MB', '1.5GiB', or a number of bytes.")
    found = float(match[1]) * _UNITS[(match[2] or "").upper()] if match is not None else float(size)
    if not 1.0 <= found < 2.0**63:
        raise ValueError(f"A size must be at least one byte and less than 2**63, but is {size!r}.")
    return int(found)


def format_bytes(size: int) -> str:
    """A number of bytes in megabytes, as :func:`parse_bytes` reads it.

    Example:
        >>> format_bytes(1_234_567), format_bytes(64_000_000)
        ('1.2MB', '64.0MB')
    """
    return f"{size / 1e6:.1f}MB"


def format_budget(size: int) -> str:
    """A budget as :func:`format_bytes` writes it; one so small that a unit may have been forgotten, in bytes.

    Example:
        >>> format_budget(64_000_000), format_budget(64)
        ('64.0MB', '64 bytes')
    """
    return format_bytes(size) if size >= 100_000 else f"{size} bytes"
