"""Settings by their distance to the published cells, and what each option does."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np

from .search import key_of
from .settings import ONLY, OPTIONS, PUBLISHED


def distances(cell: tuple[str, str], result: dict[str, Any]) -> tuple[float, float]:
    """Distance of NLML and RMSE from the published cell, in its deviations."""
    nlml, nlml_sd, rmse, rmse_sd = PUBLISHED[cell]
    return abs(result["nlml"] - nlml) / nlml_sd, abs(result["rmse"] - rmse) / rmse_sd


def predict_with_w(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same runs with SCGD's RMSE that of its trained weights instead of the exact posterior mean."""
    return [r if r.get("rmse_w") is None else r | {"rmse": r["rmse_w"]} for r in results]


def rank(results: list[dict[str, Any]], tables: tuple[str, ...], methods: tuple[str, ...], top: int) -> None:
    """Print the settings that have every asked cell, nearest first."""
    best: dict[tuple[str, str, str], dict[str, Any]] = {}
    settings: dict[str, dict[str, dict[str, Any]]] = {m: {} for m in methods}
    for r in results:
        if r["nlml"] is None or r["method"] not in methods or r["table"] not in tables or r.get("seed", 0) != 0:
            continue
        name = json.dumps(r["options"], sort_keys=True)
        settings[r["method"]][name] = r["options"]
        at = (r["method"], r["table"], name)
        if at not in best or r["nlml"] < best[at]["nlml"]:
            best[at] = r
    # A setting joins one of each method that agree on what they share.
    rows = []
    for combination in itertools.product(*(settings[m].items() for m in methods)):
        shared = [{k: v for k, v in o.items() if k not in ONLY} for _, o in combination]
        if any(s != shared[0] for s in shared):
            continue
        found = {}
        for m, (name, _) in zip(methods, combination, strict=True):
            for t in tables:
                found[m, t] = best.get((m, t, name))
        if any(r is None for r in found.values()):
            continue
        each = {cell: distances(cell, r) for cell, r in found.items()}
        flat = [v for pair in each.values() for v in pair]
        merged = {k: v for _, o in combination for k, v in o.items()}
        rows.append(
            {
                "total": np.mean(flat),
                "clipped": np.mean(np.minimum(flat, 10)),
                "nlml": np.mean([pair[0] for pair in each.values()]),
                "within": sum(v <= 2 for v in flat),
                "setting": merged,
                "found": found,
            }
        )
    rows.sort(key=lambda row: row["total"])
    print(f"{len(rows)} settings with all of {len(tables) * len(methods) * 2} cells")
    print("total clipped nlml within2 | " + "; ".join(f"{m} {t}" for m in methods for t in tables))
    print("published | " + "; ".join(f"{PUBLISHED[m, t][0]} {PUBLISHED[m, t][2]}" for m in methods for t in tables))
    for row in rows[:top]:
        cells = "; ".join(f"{r['nlml']:.3f} {r['rmse']:.3f} @{r['rate']:g}" for r in row["found"].values())
        changed = {k: v for k, v in row["setting"].items() if v != OPTIONS[k][0]}
        shown = " ".join(f"{k}={v}" for k, v in changed.items()) or "defaults"
        print(f"{row['total']:.2f} {row['clipped']:.2f} {row['nlml']:.2f} {row['within']} | {cells} | {shown}")


def effects(results: list[dict[str, Any]]) -> None:
    """Print what each option does: median differences between runs that differ in nothing else."""
    print("option: from -> to, method table, pairs, median change of NLML and of RMSE")
    for name in OPTIONS:
        groups: dict[str, dict[Any, dict[str, Any]]] = {}
        for r in results:
            if name in r["options"] and r["nlml"] is not None:
                others = {k: v for k, v in r["options"].items() if k != name}
                key = key_of(r["table"], r["method"], r["rate"], others, r["seed"])
                groups.setdefault(key, {})[r["options"][name]] = r
        changes: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
        for group in groups.values():
            values = [value for value in OPTIONS[name] if value in group]
            for a, b in itertools.combinations(values, 2):
                change = group[b]["nlml"] - group[a]["nlml"], group[b]["rmse"] - group[a]["rmse"]
                changes.setdefault((a, b, group[a]["method"], group[a]["table"]), []).append(change)
        for (a, b, method, table), pairs in changes.items():
            nlml, rmse = np.median(np.array(pairs), axis=0)
            print(f"{name}: {a} -> {b}, {method} {table}, {len(pairs)}, {nlml:+.3f} {rmse:+.3f}")
