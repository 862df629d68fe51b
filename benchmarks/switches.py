"""What one piece of the default is worth: fits with and without it, on all tables of ``uci``.

    python -m benchmarks.switches log_columns --splits 2

A piece is a setting of ``AutoSettings`` that is on by default. Where the fit with it makes no use of it, both are the
same. Rows that come again are predicted as any others; scores are in units of the training targets' standard deviation.
The tables in ``docs/default.md`` are written from the recorded lines.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from finitegp.automatic import fit_auto
from finitegp.scaled import ScaledGP

from .honesty import real
from .record import made_with, publish
from .repeated_rows import DATA, PAGE, scores


def _is_skewed(fit: ScaledGP) -> bool:
    tail = fit.components[0].tail
    return tail is not None and tail.offset != 0.0


#: Each switch, whether a fit makes use of it, and the columns of its table.
SWITCHES: dict[str, tuple[Callable[[ScaledGP], bool], dict[str, str]]] = {
    "skewed_errors": (
        _is_skewed,
        {"nlpd": "NLPD", "crps": "CRPS", "held_90": "90 % holds", "below": "missed below", "above": "missed above"},
    ),
    "log_columns": (
        lambda fit: bool(fit.record.get("log_columns")),
        {"nlpd": "NLPD", "crps": "CRPS", "rmse": "RMSE", "held_90": "90 % holds"},
    ),
}


def measure(switch: str, table: str, split: int, effort: str) -> dict[str, Any]:
    """One fit with the switch on and, if it makes use of it, one with it off."""
    task = real("uci", table, split)
    unit = float(task.targets.std())
    found: dict[str, Any] = {"table": table, "split": split, "effort": effort, "rows": len(task.targets)}
    for name in ("with", "without"):
        settings = {switch: name == "with", "repeated_rows": False}
        fit = fit_auto(task.inputs, task.targets, effort=effort, seed=split, settings=settings)
        lower, upper = (each.numpy() for each in fit.interval(task.test_inputs, 0.9))
        sides = {"below": np.mean(task.test_targets < lower), "above": np.mean(task.test_targets > upper)}
        found[name] = scores(fit, task.test_inputs, task.test_targets, unit) | sides
        found[name] = {score: float(value) for score, value in found[name].items()}
        if name == "with" and not SWITCHES[switch][0](fit):
            return found | {"chosen": False, "without": found["with"]}
    return found | {"chosen": True}


def lines_of(rows: Iterable[dict[str, Any]], columns: dict[str, str]) -> list[str]:
    """The table of the page."""
    rows = list(rows)
    uses = {row["table"]: sum(each["chosen"] for each in rows if each["table"] == row["table"]) for row in rows}
    lines = [
        f"Test rows, effort {rows[0]['effort']}, means over {1 + max(row['split'] for row in rows)} splits, without / "
        f"with it ({made_with(rows[0])}):",
        "",
        f"| table | chosen | {' | '.join(columns.values())} |",
        f"|---|{'--:|' * (1 + len(columns))}",
    ]
    for table in (table for table, count in uses.items() if count):
        mine = [row for row in rows if row["table"] == table]
        pairs = [
            " / ".join(f"{np.mean([row[way][name] for row in mine]):.3f}" for way in ("without", "with"))
            for name in columns
        ]
        lines.append(f"| {table} | {uses[table]} of {len(mine)} | {' | '.join(pairs)} |")
    return [*lines, "", f"Never chosen, so the same: {', '.join(table for table, count in uses.items() if not count)}."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("switch", choices=list(SWITCHES))
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--effort", default="low")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tables = sorted(path.stem for path in (DATA / "uci").glob("*.parquet") if "mask" not in path.stem)
    rows = []
    for split in range(options.splits):
        for table in tables:
            rows.append(measure(options.switch, table, split, options.effort))
            print(table, split, {name: rows[-1][name] for name in ("chosen", "without", "with")}, flush=True)
    columns = SWITCHES[options.switch][1]
    publish(
        f"switch_{options.switch}", rows, PAGE, f"switches.py {options.switch}", lambda found: lines_of(found, columns)
    )


if __name__ == "__main__":
    main()
