"""What it is worth that errors may be skewed: the default with and without it, on all tables of ``uci``.

    python -m benchmarks.skewed_errors --splits 2

Where nothing skewed is chosen both fits are the same one; rows that come again are predicted as any others. Scores are
in units of the training targets' standard deviation. The table in ``docs/default.md`` is written from the recorded
lines.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from finitegp.automatic import fit_auto

from .honesty import real
from .record import made_with, publish
from .repeated_rows import DATA, PAGE, scores


def measure(table: str, split: int, effort: str) -> dict[str, Any]:
    """One fit with two kinds of errors, if these are chosen, and one without."""
    task = real("uci", table, split)
    unit = float(task.targets.std())
    found: dict[str, Any] = {"table": table, "split": split, "effort": effort, "rows": len(task.targets)}
    for name in ("with", "without"):
        settings = {"skewed_errors": name == "with", "repeated_rows": False}
        fit = fit_auto(task.inputs, task.targets, effort=effort, seed=split, settings=settings)
        lower, upper = (each.numpy() for each in fit.interval(task.test_inputs, 0.9))
        sides = {"below": np.mean(task.test_targets < lower), "above": np.mean(task.test_targets > upper)}
        sides = {side: float(share) for side, share in sides.items()}
        found[name] = scores(fit, task.test_inputs, task.test_targets, unit) | sides
        tail = fit.components[0].tail
        if name == "with" and (tail is None or tail.offset == 0.0):
            return found | {"chosen": False, "without": found["with"]}
    return found | {"chosen": True}


def lines_of(rows: Iterable[dict[str, Any]]) -> list[str]:
    """The table of the page."""
    rows = list(rows)
    chosen = [table for table in dict.fromkeys(row["table"] for row in rows) if _chosen(rows, table)]
    others = sorted({row["table"] for row in rows} - set(chosen))
    lines = [
        f"Test rows, effort {rows[0]['effort']}, means over {1 + max(row['split'] for row in rows)} splits, without / "
        f"with it ({made_with(rows[0])}):",
        "",
        "| table | chosen | NLPD | CRPS | 90 % holds | missed below | missed above |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for table in chosen:
        mine = [row for row in rows if row["table"] == table]
        pairs = [
            " / ".join(f"{np.mean([row[way][name] for row in mine]):.3f}" for way in ("without", "with"))
            for name in ("nlpd", "crps", "held_90", "below", "above")
        ]
        lines.append(f"| {table} | {_chosen(rows, table)} of {len(mine)} | {' | '.join(pairs)} |")
    return [*lines, "", f"Never chosen, so the same: {', '.join(others)}."]


def _chosen(rows: list[dict[str, Any]], table: str) -> int:
    return sum(row["chosen"] for row in rows if row["table"] == table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--effort", default="low")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tables = sorted(path.stem for path in (DATA / "uci").glob("*.parquet") if "mask" not in path.stem)
    rows = []
    for split in range(options.splits):
        for table in tables:
            rows.append(measure(table, split, options.effort))
            print(table, split, {name: rows[-1][name] for name in ("chosen", "without", "with")}, flush=True)
    publish("skewed_errors", rows, PAGE, __file__, lines_of)


if __name__ == "__main__":
    main()
