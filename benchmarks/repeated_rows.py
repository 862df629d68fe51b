"""What it is worth to know rows that come again: the default with and without it, on tables of which rows repeat.

    python -m benchmarks.repeated_rows --splits 2

Each fit predicts its test rows twice, as it is and without ``ScaledGP.repeated``; scores are in units of the training
targets' standard deviation. The table in ``docs/default.md`` is written from the recorded lines.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

from finitegp.automatic import fit_auto
from finitegp.scaled import ScaledGP

from .record import made_with, publish

PAGE = Path(__file__).parents[1] / "docs" / "default.md"
DATA = Path(__file__).parents[2] / "shared" / "data"
TABLES = ["uci/concrete", "uci/keggdirected", "uci/keggundirected", "uci/pol", "uci/protein", "uci/wine"]
TABLES += ["uci20/power", "uci20/wine-red"]


def scores(fit: ScaledGP, inputs: np.ndarray, targets: np.ndarray, unit: float) -> dict[str, float]:
    """Means over these rows; nothing where there are none."""
    if not len(targets):
        return {}
    predicted, observed = fit.predict(inputs), torch.from_numpy(targets)
    lower, upper = predicted.interval(0.9)
    return {
        "nlpd": -float(predicted.log_density(observed).mean()) - np.log(unit),
        "crps": float(predicted.crps(observed).mean()) / unit,
        "rmse": float((predicted.mean - observed).square().mean().sqrt()) / unit,
        "held_90": float(((lower <= observed) & (observed <= upper)).double().mean()),
    }


def measure(table: str, split: int, effort: str) -> dict[str, Any]:
    """One fit, scored on all test rows, and on those that are equal to none of the training rows, in both ways."""
    rows = pq.read_table(DATA / f"{table}.parquet")
    names = [name for name in rows.column_names if name[0] == "x" and name[1:].isdigit()]
    inputs = np.column_stack([rows[name].to_numpy() for name in names]).astype(np.float64)
    targets = rows["y"].to_numpy().astype(np.float64)
    test = rows[f"test{split}"].to_numpy(zero_copy_only=False).astype(bool)
    fit = fit_auto(inputs[~test], targets[~test], effort=effort, seed=split)
    unit, asked, held = float(targets[~test].std()), inputs[test], targets[test]
    seen = np.zeros(len(held), bool) if fit.repeated is None else fit.repeated.look_up(asked).chances > 0.0
    claimed = 0.0 if fit.repeated is None else float(fit.repeated.look_up(asked[seen]).chances.mean())
    same = 0.0 if fit.repeated is None else np.abs(fit.repeated.look_up(asked).values - held) <= fit.repeated.tolerance
    return {
        **{"table": table, "split": split, "effort": effort, "seen": float(seen.mean())},
        **{"claimed": claimed, "same": float(np.mean(same[seen])) if seen.any() else None},
        "with": scores(fit, asked, held, unit),
        "without": scores(replace(fit, repeated=None), asked, held, unit),
        "new rows": scores(fit, asked[~seen], held[~seen], unit),
    }


def lines_of(rows: Iterable[dict[str, Any]]) -> list[str]:
    """The table of the page."""
    rows = list(rows)
    lines = [
        f"Test rows, effort {rows[0]['effort']}, means over splits, without / with it ({made_with(rows[0])}):",
        "",
        "| table | splits | equal to a seen row | same target: claimed, held | CRPS | RMSE | 90 % holds | NLPD "
        "| NLPD of new rows |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for table in dict.fromkeys(row["table"] for row in rows):
        mine = [row for row in rows if row["table"] == table]

        def mean(*path: str, mine: list[dict[str, Any]] = mine) -> float:
            return float(np.mean([row[path[0]] if len(path) == 1 else row[path[0]][path[1]] for row in mine]))

        pairs = [
            f"{mean('without', name):.{digits}f} / {mean('with', name):.{digits}f}"
            for name, digits in (("crps", 4), ("rmse", 4), ("held_90", 3), ("nlpd", 2))
        ]
        known = f"{100 * mean('seen'):.1f} % | {mean('claimed'):.3f}, {mean('same'):.3f}"
        lines.append(f"| {table} | {len(mine)} | {known} | {' | '.join(pairs)} | {mean('new rows', 'nlpd'):.2f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=TABLES)
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--effort", default="medium")
    options = parser.parse_args()
    rows = []
    for split in range(options.splits):
        for table in options.tables:
            rows.append(measure(table, split, options.effort))
            print(table, split, {name: rows[-1][name] for name in ("seen", "claimed", "same", "without", "with")})
    publish("repeated_rows", rows, PAGE, __file__, lines_of)


if __name__ == "__main__":
    main()
