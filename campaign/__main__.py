"""``python -m campaign``: all parts, a table of outcomes, and exit code 1 if anything is wrong."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path

import finitegp
import finitegp.commands.fit  # what commands import when they run is imported here once: they run in forks
import finitegp.report
import finitegp.tables.judging

from . import arguments, files, lite_files, names, processes, tables
from .fixtures import Fixtures, make_fixtures
from .outcomes import OUTCOMES, Case, Tally, run_cases

PAGE = Path(__file__).parent.parent / "docs" / "reliability.md"
BEGIN, END = "<!-- campaign: begin -->", "<!-- campaign: end -->"


def parts(fixtures: Fixtures, scale: float, seed: int) -> list[tuple[str, Callable[[], Iterable[Case]]]]:
    """Names and cases of all parts; ``scale`` is one for the whole campaign."""

    def some(count: int, least: int = 1) -> int:
        return max(least, round(scale * count))

    return [
        ("damaged and crafted files", lambda: files.file_cases(fixtures, some(3600), seed)),
        ("files through lite", lambda: lite_files.lite_cases(fixtures, some(800), seed)),
        ("odd arguments", lambda: arguments.argument_cases(fixtures, some(1800), seed)),
        ("fuzzed tables", lambda: tables.table_cases(fixtures, some(700), some(24), seed)),
        ("kills", lambda: processes.kill_cases(fixtures, some(110), seed)),
        ("kills at the start", lambda: processes.start_cases(fixtures, some(8, 0), seed)),
        ("kills and resumed runs", lambda: processes.resume_cases(fixtures, some(40), seed)),
        ("kills and resumed fits", lambda: processes.resumed_fit_cases(fixtures, some(24), seed)),
        ("disk full", lambda: processes.full_disk_cases(fixtures, some(5))),
        ("several writers", lambda: processes.writer_cases(fixtures, some(15))),
        ("hostile names", lambda: names.name_cases(fixtures)),
    ]


def run(scale: float = 1.0, seed: int = 0, processes_at_once: int = 2, only: str = "") -> list[Tally]:
    """Run the campaign in a directory of its own."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="finitegp-campaign-") as folder:
        tempfile.tempdir = folder
        try:
            place = Path(folder) / "fixtures"
            place.mkdir()
            fixtures = make_fixtures(place)
            tallies = []
            for name, cases in parts(fixtures, scale, seed):
                if only in name:
                    # Programs that import torch and fit take long on a busy machine.
                    seconds = 240.0 if "start" in name else 90.0
                    tallies.append(run_cases(name, cases(), seconds=seconds, processes=processes_at_once))
                    print(
                        f"{name}: {dict(tallies[-1].counts)} in {tallies[-1].seconds:.0f} s",
                        file=sys.stderr,
                        flush=True,
                    )
            return tallies
        finally:
            tempfile.tempdir = None


def as_table(tallies: list[Tally]) -> str:
    """The outcomes in Markdown."""
    total = Tally("all")
    for tally in tallies:
        total.counts += tally.counts
    lines = ["| part | tried | " + " | ".join(OUTCOMES) + " |", "|---|" + "--:|" * (1 + len(OUTCOMES))]
    for tally in [*tallies, total]:
        numbers = [sum(tally.counts.values()), *(tally.counts[name] for name in OUTCOMES)]
        lines.append(f"| {tally.name} | " + " | ".join(f"{number:,}" for number in numbers) + " |")
    return "\n".join(lines)


def settings(seed: int, scale: float, seconds: float) -> str:
    """Where and when the campaign was run."""
    import numpy
    import torch

    return (
        f"`python -m campaign --seed {seed} --scale {scale:g}`, {date.today().isoformat()}, {seconds / 60:.0f} minutes "
        f"on {os.cpu_count()} cores; finitegp {finitegp.__version__}, Python {platform.python_version()}, torch "
        f"{torch.__version__}, NumPy {numpy.__version__}, {platform.system()}."
    )


def main() -> int:
    """Run, print, and store the table if asked to."""
    parser = argparse.ArgumentParser(prog="python -m campaign", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the cases; 1 is the whole campaign")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="parts whose names hold this text")
    parser.add_argument("--store", action="store_true", help=f"put the table into {PAGE.name}")
    given = parser.parse_args()
    started = time.monotonic()
    tallies = run(given.scale, given.seed, given.processes, given.only)
    table = as_table(tallies)
    print(table)
    bad = [each for tally in tallies for each in tally.bad]
    for outcome, label, what in bad:
        print(f"{outcome}: {label}: {what}")
    if given.store and not given.only:
        text = PAGE.read_text()
        before, after = text[: text.index(BEGIN)], text[text.index(END) :]
        stored = f"{BEGIN}\n{settings(given.seed, given.scale, time.monotonic() - started)}\n\n{table}\n"
        PAGE.write_text(before + stored + after)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
