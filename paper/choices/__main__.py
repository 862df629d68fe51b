"""Search for the choices that the paper's experiments leave open, by distance to its published cells.

A run is one training of SCGD or BSGD with the linear kernel on one table: batches of 128 rows, 100 epochs, split 0,
seed 0. A setting is everything else but the learning rate, and is the same for both methods and all tables. The rate is
chosen per table and method by the lowest exact NLML, as in the paper. The measure, fixed before the search, is the mean
over 16 cells (4 tables, 2 methods, NLML and RMSE) of ``|ours - published| / published deviation``.

The training loop is independent of the library: NumPy with a hand-written backward pass, BLAS and LAPACK through SciPy,
AdaDelta on one flat vector.

    python -m paper.choices run --data DIR --table bike --method scgd --rate 1 --set inputs=unit w_start=zero
    python -m paper.choices search --data DIR --stage 2-raw        # goes on where it stopped
    python -m paper.choices rank
    python -m paper.choices check                          # gradients and AdaDelta against torch
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import torch  # noqa: E402

from .gradients import check  # noqa: E402
from .ranking import effects, predict_with_w, rank  # noqa: E402
from .search import read_results, search  # noqa: E402
from .settings import METHODS, OPTIONS, TABLES, parse_setting  # noqa: E402
from .stages import stages  # noqa: E402
from .training import run  # noqa: E402

RESULTS = Path(__file__).resolve().parents[2] / "results" / "choices.jsonl"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        "python -m paper.choices", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="one training")
    one.add_argument("--table", choices=TABLES, required=True)
    one.add_argument("--method", choices=METHODS, required=True)
    one.add_argument("--rate", type=float, required=True)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="options: " + ", ".join(OPTIONS))
    many = commands.add_parser("search", help="the stages; goes on where it stopped")
    many.add_argument("--stage", nargs="*", choices=list(stages()), default=list(stages()))
    many.add_argument("--processes", type=int, default=2)
    table = commands.add_parser("rank", help="settings by distance")
    table.add_argument("--tables", nargs="*", choices=TABLES, default=list(TABLES))
    table.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS))
    table.add_argument("--top", type=int, default=20)
    table.add_argument("--rates", nargs="*", type=float, help="only these learning rates")
    table.add_argument("--predict", choices=("exact", "w"), default="exact", help="SCGD's RMSE: posterior mean, or w")
    commands.add_parser("check", help="gradients and AdaDelta against torch")
    for command in (one, many):
        command.add_argument("--data", type=Path, required=True, help="folder with the tables as Parquet files")
    pairs = commands.add_parser("effects", help="what each option does")
    for command in (many, table, pairs):
        command.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.command == "run":
        job = (arguments.table, arguments.method, arguments.rate, parse_setting(arguments.set))
        for result in run(arguments.data, *job, seed=arguments.seed):
            print(json.dumps(result))
    elif arguments.command == "search":
        search(arguments.data, arguments.stage, arguments.results, arguments.processes)
    elif arguments.command == "rank":
        results = read_results(arguments.results)
        results = predict_with_w(results) if arguments.predict == "w" else results
        if arguments.rates:
            results = [r for r in results if r["rate"] in arguments.rates]
        rank(results, tuple(arguments.tables), tuple(arguments.methods), arguments.top)
    elif arguments.command == "effects":
        effects(read_results(arguments.results))
    else:
        check()


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
