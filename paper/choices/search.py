"""The runs that the stages still lack, each appended to a file as it ends."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np

from .settings import LOOKS, OPTIONS, options_of
from .stages import Task, stages
from .training import run


def key_of(table: str, method: str, rate: float, options: dict[str, Any], seed: int) -> str:
    """What makes a run."""
    return json.dumps([table, method, float(rate), {k: options[k] for k in sorted(options)}, seed])


def read_results(path: Path) -> list[dict[str, Any]]:
    """All runs kept so far."""
    if not path.exists():
        return []
    found = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    for result in found:
        result["options"].setdefault("looks", LOOKS[0])  # the first stages had no such option
    return found


def _run_task(job: tuple[Path, Task, str]) -> list[dict[str, Any]]:
    folder, (table, method, rate, setting), stage = job
    with np.errstate(all="ignore"):
        seed, setting = _seed_of(setting)
        return [{"stage": stage} | result for result in run(folder, table, method, rate, setting, seed)]


def _seed_of(setting: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return setting.get("seed", 0), {k: v for k, v in setting.items() if k != "seed"}


def search(folder: Path, names: list[str], path: Path, processes: int) -> None:
    """Run what the stages still lack, appending each run as it ends."""
    before = {key_of(r["table"], r["method"], r["rate"], r["options"], r["seed"]) for r in read_results(path)}
    done = set(before)
    jobs = []
    for name in names:
        for task in stages()[name]:
            seed, setting = _seed_of(task[3])
            key = key_of(task[0], task[1], task[2], options_of(task[1], setting), seed)
            if key not in done:
                done.add(key)
                jobs.append((folder, task, name))
    print(f"{len(jobs)} runs", flush=True)
    with multiprocessing.get_context("fork").Pool(processes) as pool, path.open("a") as out:
        for results in pool.imap_unordered(_run_task, jobs):
            for result in results:
                r = result
                if key_of(r["table"], r["method"], r["rate"], r["options"], r["seed"]) in before:
                    continue
                out.write(json.dumps(result) + "\n")
                print(describe(result), flush=True)
            out.flush()


def describe(result: dict[str, Any]) -> str:
    """One run on one line."""
    changed = {k: v for k, v in result["options"].items() if v != OPTIONS[k][0]}
    shown = " ".join(f"{k}={v}" for k, v in changed.items()) or "defaults"
    values = "none" if result["nlml"] is None else f"{result['nlml']:.3f} {result['rmse']:.3f}"
    broke = " broke off" if result["broke_off"] else ""
    head = f"{result['method']} {result['table']} {result['rate']:g}"
    return f"{head}: {values} (look {result['best_look']}, {result['seconds']} s){broke} | {shown}"
