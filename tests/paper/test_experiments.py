"""Runs of the experiments, by workers that do nothing and by the command: killed, started again, two at once."""

import io
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from paper import runner
from paper.__main__ import app
from paper.cells import Cell, make_grid
from paper.runner import ELSEWHERE, run_grid
from paper.store import CELLS, ResultStore

ROOT = Path(__file__).resolve().parents[2]

# The runner, with workers that do nothing.


def fake_worker(monkeypatch, script):
    def start(cell, results, data_directory):
        errors = tempfile.TemporaryFile()  # noqa: SIM115
        arguments = [sys.executable, "-S", "-c", script, json.dumps(cell.to_row()), str(results / CELLS)]
        return runner._Job(cell, subprocess.Popen(arguments, stdout=errors, stderr=errors), errors, time.perf_counter())

    monkeypatch.setattr(runner, "_start", start)


def run_quietly(cells, results, **options):
    output = io.StringIO()
    console = Console(file=output, width=200)
    return run_grid(cells, results=results, data_directory=results, console=console, **options), output.getvalue()


APPEND = "import sys; open(sys.argv[2], 'a').write(sys.argv[1] + '\\n')"
GRID = make_grid(methods=["bsgd"], datasets=["yacht"], splits=range(3), learning_rates=[0.1], epochs=1)


def test_report_counts_what_was_there_and_what_ran(tmp_path, monkeypatch):
    fake_worker(monkeypatch, APPEND)
    ResultStore(tmp_path).append(GRID[1].to_row())
    report, _ = run_quietly(GRID, tmp_path, processes=2)
    assert (report.finished, report.ran, report.elsewhere, report.failed) == (3, 2, [], {})
    again, _ = run_quietly(GRID, tmp_path)
    assert (again.finished, again.ran) == (3, 0)


def test_failed_cells_are_reported_with_what_they_said_and_not_stored(tmp_path, monkeypatch):
    fake_worker(monkeypatch, "import sys; sys.exit('install finitegp[peers]')")
    report, output = run_quietly(GRID[:1], tmp_path)
    assert report.failed == {GRID[0]: "install finitegp[peers]"}
    assert "install finitegp[peers]" in output  # brackets are not markup
    assert ResultStore(tmp_path).rows() == []


def test_cells_of_another_process_are_counted_finished_once_they_are(tmp_path, monkeypatch):
    script = f"""
import json, sys
if json.loads(sys.argv[1])["split"] == 2:
    open(sys.argv[2], "a").write(sys.argv[1] + chr(10))
sys.exit({ELSEWHERE})
"""
    fake_worker(monkeypatch, script)
    tmp_path.joinpath(CELLS).touch()
    report, _ = run_quietly(GRID, tmp_path)
    assert (report.finished, report.ran, report.elsewhere) == (1, 0, GRID[:2])


def test_an_exception_stops_the_workers(tmp_path, monkeypatch):
    fake_worker(monkeypatch, "import time; time.sleep(60)")
    started = []
    original = runner._start

    def start(cell, results, data_directory):
        if started:
            raise KeyboardInterrupt
        started.append(original(cell, results, data_directory))
        return started[0]

    monkeypatch.setattr(runner, "_start", start)
    with pytest.raises(KeyboardInterrupt):
        run_quietly(GRID, tmp_path, processes=2)
    assert started[0].process.poll() == -signal.SIGTERM


# The command, with real workers.


def options(uci_dir, results, *further):
    common = ["--smoke", "--kernel", "linear", "--processes", "2"]
    return [*common, "--data-dir", str(uci_dir), "--results", str(results), *further]


def start_command(arguments):
    command = [sys.executable, "-m", "paper", "run", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def run_command(arguments):
    result = CliRunner().invoke(app, ["run", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def wait_until(condition, seconds=180):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)
    return found


def count_lines(directory):
    path = directory / CELLS
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
def test_smoke_run_of_the_command(uci_dir, tmp_path):
    arguments = options(uci_dir, tmp_path, "--method", "lagged-input-noise")
    run_command(arguments)
    rows = ResultStore(tmp_path).rows()
    assert Counter(row["settings"]["weight_update"] for row in rows) == {"train": 1, "solve": 1}
    for row in rows:
        assert (row["dataset"], row["rows"], row["epochs"], row["threads"]) == ("yacht", 278, 2, 1)
        for name in ("rmse", "nlpd", "crps", "nlml", "nlml_float64", "seconds"):
            assert math.isfinite(row[name]), name
        assert row["nlml_optimal_noise"] <= row["nlml_float64"] + 1e-9
        assert 0.0 <= row["coverage"]["0.9"] <= 1.0
    assert run_command([*arguments, "--dry-run"]).count("finished") == 2


def find_worker(parent, word):
    """The process that runs the cell with this word in its description, among the children of a command."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if word in Path(f"/proc/{child}/cmdline").read_text():
            return int(child)
    return None


# Each worker is a new process that loads PyTorch: together some tens of seconds on two busy cores.
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers of a killed run in /proc")
def test_killed_run_is_taken_up_without_loss_or_repetition(uci_dir, tmp_path):
    arguments = options(uci_dir, tmp_path, "--method", "bsgd", "-r", "0.125", "-r", "0.25", "-r", "0.5")
    (held,) = make_grid(methods=["bsgd"], datasets=["yacht"], kernels=["linear"], learning_rates=[0.25], epochs=2)
    first = start_command(arguments)
    orphan = None
    try:
        wait_until(lambda: (tmp_path / ".claims" / f"{held.digest}.lock").exists())
        orphan = find_worker(first.pid, '"learning_rate": 0.25')
        os.kill(orphan, signal.SIGSTOP)  # so that it certainly is at its cell when the next run comes
        wait_until(lambda: count_lines(tmp_path) == 1)
        first.kill()
        first.wait()
        before = (tmp_path / CELLS).read_text()
        output = run_command(arguments)
        assert "1 cells are being run by another process" in output
        assert Cell.from_row(json.loads(before)).settings["learning_rate"] == 0.125
    finally:
        first.kill()
        if orphan is not None:
            os.kill(orphan, signal.SIGCONT)
    wait_until(lambda: count_lines(tmp_path) == 3)
    assert (tmp_path / CELLS).read_text().startswith(before)
    assert len({Cell.from_row(row).key for row in ResultStore(tmp_path).rows()}) == 3


@pytest.mark.slow
def test_two_runs_at_once_run_every_cell_once(uci_dir, tmp_path):
    arguments = options(uci_dir, tmp_path, "--method", "bsgd", "-r", "0.125", "-r", "0.25", "-r", "0.5")
    other = start_command(arguments)
    run_command(arguments)
    assert other.wait(180) == 0
    rows = ResultStore(tmp_path).rows()
    assert len(rows) == 3
    assert len({Cell.from_row(row).key for row in rows}) == 3


def test_commands_of_the_page_are_understood(uci_dir, tmp_path):
    page = (ROOT / "docs" / "reproducing.md").read_text()
    lines = [shlex.split(line, comments=True) for line in page.splitlines() if line.startswith("python -m paper")]
    assert {line[3] for line in lines} == {"cell", "run", "peers", "reproduce", "page"}
    for line in lines:
        if line[3] in ("run", "peers", "reproduce"):  # the others have no --dry-run; their own tests run them
            more = ["--dry-run", "--results", str(tmp_path), "--data-dir", str(uci_dir)]
            result = CliRunner().invoke(app, [*line[3:], *more])
            assert result.exit_code == 0, result.output
            assert "to run" in result.output or "   0 of" in result.output


def test_command_refuses_what_it_does_not_know(tmp_path):
    invoke = CliRunner().invoke
    for arguments, word in (
        (["--method", "magic"], "magic"),
        (["--dataset", "moon"], "moon"),
        (["--kernel", "cubic"], "cubic"),
        (["--smoke", "--set", "nothing"], "NAME=VALUE"),
        (["--data-dir", str(tmp_path)], "--dataset"),
    ):
        result = invoke(app, ["run", *arguments, "--results", str(tmp_path)])
        assert result.exit_code == 2, result.output
        assert word in result.output


def test_a_training_that_breaks_off_is_a_result_and_a_mistake_is_not(monkeypatch):
    """Without it the best of the other rates would never be run on the other splits."""
    from paper import worker
    from paper.outcome import DatasetSplit
    from paper.reproduction import Part

    class NotPSDError(Exception):
        """As GPyTorch names it."""

    def broken(error):
        def run(split, cell):
            raise error

        return run

    rows = np.zeros((4, 2)), np.zeros(4)
    monkeypatch.setattr(worker, "load_split", lambda *_: DatasetSplit("bike", 0, *rows, *rows))
    part = Part(("svgp",), "linear", 64, ("bike",), splits=2, rates=(0.1, 1.0))
    good, bad = part.search()
    monkeypatch.setattr(worker, "run_method", broken(NotPSDError("jitter")))
    found, predictions = worker.run_cell(bad, data_directory=None)
    assert predictions is None
    assert found["diverged"]
    assert found["error"] == "NotPSDError: jitter"
    done = good.to_row() | {"nlml_float64": -1.0}
    assert not part.others([done])
    assert [cell.settings["learning_rate"] for cell in part.others([done, json.loads(json.dumps(found))])] == [0.1]
    monkeypatch.setattr(worker, "run_method", broken(KeyError("mistake")))
    with pytest.raises(KeyError):
        worker.run_cell(bad, data_directory=None)
