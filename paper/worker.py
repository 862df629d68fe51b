"""One cell in one process: load, fit, predict, score, store."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.process_memory import peak_memory_bytes, resident_memory_bytes
from finitegp.metrics import score

from .auto_method import run_auto
from .cells import AUTO, OUR_METHODS, PAPER_METHODS, Cell
from .datasets import load_split
from .environment import environment
from .methods import run_method
from .outcome import DatasetSplit, Outcome
from .peers import PEERS
from .predictions import Predictions, save_predictions
from .runner import ELSEWHERE
from .store import ResultStore

# Names of errors that say that numbers have got out of hand, ours, of torch and of GPyTorch.
_BROKEN_OFF = ("NumericalError", "LinAlgError", "NotPSDError", "NanError")


def run_cell(cell: Cell, *, data_directory: Path | None) -> tuple[dict[str, Any], Predictions | None]:
    """The complete line of results of one cell; and of the default and the peers what they predicted for each row."""
    split = load_split(cell.dataset, cell.split, data_directory)
    before = resident_memory_bytes()
    if cell.method in PAPER_METHODS + OUR_METHODS:
        try:
            outcome = run_method(split, cell)
        except Exception as error:
            if type(error).__name__ not in _BROKEN_OFF:
                raise
            # A result, too: this rate is none to be taken, and running it again would end in the same way.
            why = {"diverged": True, "error": f"{type(error).__name__}: {error}"}
            return cell.to_row() | {
                "rows": len(split.inputs),
                "columns": split.inputs.shape[1],
            } | why | environment(), None
    elif cell.method == AUTO:
        outcome = run_auto(split, seed=cell.seed, settings=cell.settings)
    else:
        outcome = PEERS[cell.method](split, seed=cell.seed, settings=cell.settings)
    # A peer's own settings and epochs must not take the place of the cell's, which name it.
    details = {f"peer_{n}" if n in Cell.__dataclass_fields__ else n: v for n, v in outcome.details.items()}
    row = cell.to_row() | {
        "rows": len(split.inputs),
        "columns": split.inputs.shape[1],
        **score_outcome(split, outcome),
        "seconds": outcome.seconds,
        **({} if outcome.wall_seconds is None else {"wall_seconds": outcome.wall_seconds}),
        "peak_memory_bytes": peak_memory_bytes(),
        "memory_before_bytes": before,  # the interpreter, the libraries and the data
        **details,
        **environment(),
    }
    compared = cell.method == AUTO or cell.method in PEERS
    return row, Predictions.of(outcome, split.test_targets) if compared else None


def score_outcome(split: DatasetSplit, outcome: Outcome) -> dict[str, Any]:
    """Test scores in the target's units."""
    mean, std, targets = (torch.from_numpy(v) for v in (outcome.mean, outcome.std, split.test_targets))
    scores = score(mean, std, targets, mixture=outcome.distribution)
    nlpd = scores.nlpd if outcome.log_density is None else -float(outcome.log_density.mean())
    found = {
        "rmse": scores.rmse,
        "nlpd": nlpd,
        "crps": scores.crps,
        "coverage": {str(level): share for level, share in scores.coverage.items()},
        "largest_standardized_residual": scores.largest_standardized_residual,
    }
    if outcome.distribution is not None:
        # What the same means and standard deviations would score by themselves.
        found["gaussian_nlpd"] = score(mean, std, targets).nlpd
    return found


def work(cell: Cell, *, results: Path, data_directory: Path | None) -> bool:
    """Run a cell and store its result, unless it is finished or another process runs it; tells whether it ran."""
    torch.set_num_threads(1)
    store = ResultStore(results)
    with store.claim(cell) as ours:
        if not ours:
            return False
        row, predictions = run_cell(cell, data_directory=data_directory)
        if predictions is not None:
            # Before the line: a cell that counts as finished has its predictions.
            save_predictions(cell, predictions, results)
        store.append(_finite(row))
    return True


def _finite(value: Any) -> Any:
    """JSON has no NaN: a figure that is not finite is stored as null, also inside lists and dictionaries."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main(arguments: list[str]) -> int:
    """``cell.json results data-directory``: what the runner starts."""
    text, results, data_directory = arguments
    ran = work(Cell.from_row(json.loads(text)), results=Path(results), data_directory=Path(data_directory))
    return 0 if ran else ELSEWHERE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
