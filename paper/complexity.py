"""Measured cost of a step against batch size and feature dimension, with fitted exponents."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finitegp.errors import DataError

from .markdown import MISSING, number, table

#: The file that ``benchmarks/complexity.py`` writes.
COMPLEXITY = "complexity.jsonl"
#: The paper's table for one step, without the features themselves; b is the batch size, d the feature dimension.
PAPER_ORDERS = {
    "minimax": ("d³ + b d²", "d² + b d"),
    "scgd": ("d³ + b d²", "d² + b d"),
    "svgp": ("b³ + b² d", "b² + b d"),
    "bsgd": ("b³ + b² d", "b² + b d"),
}
#: What is varied, as the rows name it, with the heading of its tables.
_SWEEPS = {"batch_size": "batch size b", "features": "feature dimension d"}
_COSTS = {"milliseconds": ("Milliseconds", 1.0, 2), "peak_bytes": ("Peak memory in MB", 1e-6, 2)}
_LAST = 3


def load_complexity(directory: Path) -> list[dict[str, Any]]:
    """The measurements; empty if there are none."""
    path = directory / COMPLEXITY
    if not path.exists():
        return []
    found = []
    for number_, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise DataError(f"{path} line {number_} is not JSON ({error}): measure again.") from error
    return found


def fit_exponent(sizes: Sequence[float], costs: Sequence[float]) -> float | None:
    """The slope of log cost on log size by least squares; None with fewer than two sizes.

    Example:
        >>> round(fit_exponent([1, 2, 4], [5, 20, 80]), 6)
        2.0
    """
    if len(set(sizes)) < 2 or any(cost <= 0 for cost in costs):
        return None
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    covariance = math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / math.fsum((a - mean_x) ** 2 for a in x)


def complexity_section(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown: one table per sweep and cost."""
    if not rows:
        return []
    first = rows[0]
    lines = [
        "## Cost of a step",
        "",
        f"`python -m benchmarks.complexity` (finitegp {first['commit']}, torch {first['torch']}, {first['threads']} "
        f"thread, {first['date']}). Milliseconds are medians of interleaved measurements. Peak memory is the largest "
        "sum of what PyTorch's allocator holds for the method during a step: model, optimizer state, tracked matrices "
        "and everything temporary, without the data. The exponent is the slope of log cost on log size by least "
        f"squares, over all sizes and over the {_LAST} largest; fixed overheads flatten the first. The paper's orders "
        "leave out the features themselves.",
    ]
    for sweep, heading in _SWEEPS.items():
        found = [row for row in rows if row["sweep"] == sweep]
        if not found:
            continue
        fixed = sorted(
            {(row["features_by"], row["features" if sweep == "batch_size" else "batch_size"]) for row in found}
        )
        where = "; ".join(f"{by}, {'d' if sweep == 'batch_size' else 'b'} = {value}" for by, value in fixed)
        for cost, (title, factor, decimals) in _COSTS.items():
            sizes = sorted({row[sweep] for row in found})
            lines += ["", f"{title} against {heading} ({where}):", ""]
            header = ["method", *map(str, sizes), "exponent", f"last {_LAST}", "the paper's order"]
            body = [_line(found, sweep, cost, method, sizes, factor, decimals) for method in _names(found)]
            lines += table(header, body)
    return [*lines, ""]


def _names(rows: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["method"] for row in rows))


def _line(
    rows: Sequence[dict[str, Any]],
    sweep: str,
    cost: str,
    method: str,
    sizes: Sequence[int],
    factor: float,
    decimals: int,
) -> list[str]:
    costs = {row[sweep]: row[cost] for row in rows if row["method"] == method and row.get(cost) is not None}
    present = [size for size in sizes if size in costs]
    slopes = [fit_exponent(chosen, [costs[size] for size in chosen]) for chosen in (present, present[-_LAST:])]
    order = PAPER_ORDERS.get(method, (MISSING, MISSING))[0 if cost == "milliseconds" else 1]
    shown = [number(costs[size] * factor, decimals) if size in costs else MISSING for size in sizes]
    return [method, *shown, *(number(slope, 2) for slope in slopes), order]
