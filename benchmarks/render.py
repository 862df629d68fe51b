"""Writes ``docs/performance.md`` from ``benchmarks/results/*.jsonl``: no figure on that page is typed by hand.

python benchmarks/render.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from record import RESULTS

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"


def load(name: str) -> list[dict[str, Any]]:
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def provenance(rows: list[dict[str, Any]]) -> str:
    row = rows[0]
    return f"(finitegp {row['commit']}, torch {row['torch']}, {row['threads']} thread, {row['date']})"


def streaming() -> list[str]:
    rows = load("statistics_streaming")
    if not rows:
        return []
    lines = [
        "## Streaming the statistics",
        "",
        f"`python benchmarks/statistics_streaming.py` {provenance(rows)}.",
        "",
        "About 1,000,000 rows of 128 features in chunks of 4096, interleaved with the bare `Z.T @ Z` on the same "
        "chunks, medians of 5. The sums are float64 in both rows; the bare product is in the features' own type. "
        "Exact passes run the feature map in float64, so the first row is what they pay.",
        "",
        "| features | bare product, s | statistics, s | ratio |",
        "|---|--:|--:|--:|",
    ]
    lines += [
        f"| {r['dtype']} | {r['seconds_bare']:.2f} | {r['seconds_statistics']:.2f} | {r['ratio']:.2f} |"
        for r in rows
        if r["measurement"] == "time"
    ]
    lines += [
        "",
        "Peak memory of one exact NLML above the interpreter with torch loaded. glibc keeps a varying amount of freed "
        "memory; with `MALLOC_MMAP_THRESHOLD_=131072` it returns it, and what is left is what the pass needs.",
        "",
        "| rows | allocator | peak, MB |",
        "|--:|---|--:|",
    ]
    lines += [
        f"| {r['rows']:,} | {'default, median of 5' if r['mmap_threshold'] == 'default' else 'threshold fixed'} "
        f"| {r['peak_bytes_above_interpreter'] / 1e6:.1f} |"
        for r in rows
        if r["measurement"] == "memory"
    ]
    return [*lines, ""]


def main() -> None:
    head = ["# Performance", "", "Written by `benchmarks/render.py` from `benchmarks/results/`; do not edit.", ""]
    PAGE.write_text("\n".join([*head, *streaming()]))
    print("written to", PAGE)


if __name__ == "__main__":
    main()
